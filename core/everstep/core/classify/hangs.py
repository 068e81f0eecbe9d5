"""What time-outs tell beside who waited: which collective, since when, and who is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from everstep.core.classify.evidence import Context, Match
from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Standing

_WORK = re.compile(r"SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+), NumelOut=(\d+)")
_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d+)")
_GROUP = re.compile(r"PG (?:ID|GUID)\s*(\w+)", re.IGNORECASE)
_MISSING = re.compile(r"missing ranks?:? *[{\[(]?(\d+)[}\])]?(?!\s*,)", re.IGNORECASE)
_SLACK_S = 90.0

_MISMATCH = Reading(Symptom.JOB_HANG, Label.USER_CODE, Action.ROLLBACK, 0.75)
_SAVE = Reading(Symptom.NCCL_TIMEOUT, Label.STORAGE, Action.RETRY, 0.6)


@dataclass(frozen=True, slots=True)
class Work:
    """A collective that a rank waited for."""

    rank: int
    group: str
    number: int
    what: tuple[str, str, str]


def refine_hangs(matches: Sequence[Match], _: Context) -> list[Match]:
    """Read time-outs anew: two different collectives at one number; a save just before."""
    works = [work for m in matches if (work := _work(m)) is not None]
    if _differ(works):
        return _reread(matches, Standing.CAUSE, _MISMATCH)
    if _since_a_save(matches):
        return _reread(matches, Standing.SIGN, _SAVE)
    return list(matches)


def missing_rank(matches: Sequence[Match], world_size: int | None) -> int | None:
    """The one rank that did not print a time-out, or that a recorder names; else None."""
    for match in matches:
        named = _MISSING.search(match.text)
        if named is not None:
            return int(named[1])
    waited = {m.rank for m in matches if m.rule.name == "watchdog time-out"} - {None}
    if world_size is None or len(waited) < 2:
        return None
    silent = set(range(world_size)) - waited
    return silent.pop() if len(silent) == 1 else None


def _work(match: Match) -> Work | None:
    found = _WORK.search(match.text)
    if found is None or match.rank is None:
        return None
    group = _GROUP.search(match.text)
    what = (found[2], found[3], found[4])
    return Work(match.rank, group[1] if group else "", int(found[1]), what)


def _differ(works: Sequence[Work]) -> bool:
    """Whether two ranks waited for different collectives of one group under one number."""
    firsts = {(w.rank, w.group): w for w in reversed(works)}.values()
    kinds = Counter(
        (w.group, w.number) for w in {(w.group, w.number, w.what): w for w in firsts}.values()
    )
    return any(count > 1 for count in kinds.values())


def _since_a_save(matches: Sequence[Match]) -> bool:
    """Whether the wait began at a save: it is the last thing said before, its time fits."""
    saves = [m for m in matches if m.rule.name == "saving"]
    waits = [m for m in matches if m.rule.name == "watchdog time-out"]
    if not saves or not waits:
        return False
    save = max(
        (s for s in saves if (s.source, s.line) < (waits[0].source, waits[0].line)),
        key=lambda s: (s.source, s.line),
        default=None,
    )
    if save is None or any(m.rule.name == "saved" and m.line > save.line for m in matches):
        return False
    timeout = _TIMEOUT.search(waits[0].text)
    if timeout is None or save.clock_s is None or waits[0].clock_s is None:
        return True
    return abs((waits[0].clock_s - save.clock_s) % 86_400 - int(timeout[1]) / 1000) < _SLACK_S


def _reread(matches: Sequence[Match], standing: Standing, reading: Reading) -> list[Match]:
    return [
        replace(m, standing=standing, reading=reading) if m.rule.name == "watchdog time-out" else m
        for m in matches
    ]
