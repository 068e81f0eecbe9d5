"""What time-outs tell beside who waited: which collective, since when, and who is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from everstep.core.classify.evidence import Context, Match
from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Standing

_WORK = re.compile(r"SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+), NumelOut=(\d+)")
_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d+)")
_GROUP = re.compile(r"PG (?:ID|GUID)\s*(\w+)", re.IGNORECASE)
_MISSING = re.compile(r"missing ranks?:? *[{\[(]?(\d+)[}\])]?(?!\s*,)", re.IGNORECASE)
_MISSING_SET = re.compile(r"missing ranks?:? *[{\[(]([\d, ]+)", re.IGNORECASE)
_ONE_MACHINES_RANKS = 8
_SLACK_S = 90.0
_SAME_GROUP_STEPS = 8
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED")

_MISMATCH = Reading(Symptom.JOB_HANG, Label.USER_CODE, Action.ROLLBACK, 0.75)
_BRANCHED = Reading(Symptom.JOB_HANG, Label.USER_CODE, Action.ROLLBACK, 0.5)
_DIVERGED = Reading(Symptom.NCCL_TIMEOUT, Label.USER_CODE, Action.ROLLBACK, 0.6)
_LARGE_JOB = Reading(Symptom.NCCL_TIMEOUT, Label.UNKNOWN, Action.CHECK, 0.4)
_SAVE = Reading(Symptom.NCCL_TIMEOUT, Label.STORAGE, Action.RETRY, 0.6)


@dataclass(frozen=True, slots=True)
class Work:
    """A collective that a rank waited for."""

    rank: int
    group: str
    number: int
    what: tuple[str, str, str]


_FRAME = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|all_to_all)", re.IGNORECASE
)
_ONE_STACK_LINES = 3

LARGE_JOB_RANKS = 256
"""Where machines begin to outnumber programs as causes of a hang: of the paper's hangs on more than
2,000 GPUs 21 of 26 were the infrastructure's (Table 2); of small jobs' in public reports hardly one
without a word from a machine."""


def refine_hangs(matches: Sequence[Match], context: Context) -> list[Match]:
    """Read time-outs anew: two different collectives at one number; a save just before."""
    works = [work for m in matches if (work := _work(m)) is not None]
    if _differ(works):
        return _reread(matches, Standing.CAUSE, _MISMATCH)
    if _since_a_save(matches):
        return _reread(matches, Standing.SIGN, _SAVE)
    if _many_missing(matches):
        return [
            replace(m, reading=_DIVERGED) if m.rule.name == "ranks missing" else m for m in matches
        ]
    if _stacks_differ([m for m in matches if m.rule.name == "frame in a collective"]):
        return [
            replace(m, standing=Standing.SIGN, reading=_BRANCHED)
            if m.rule.name == "frame in a collective"
            else m
            for m in matches
        ]
    ranks = [m.rank for m in matches if m.rank is not None]
    if (context.world_size or max(ranks, default=0) + 1) >= LARGE_JOB_RANKS:
        return _reread(matches, Standing.CONSEQUENCE, _LARGE_JOB)
    return list(matches)


def _many_missing(matches: Sequence[Match]) -> bool:
    """Whether a recorder misses so many ranks that no one machine explains it."""
    sizes = [_size(m.text) for m in matches if m.rule.name == "group of ranks"]
    most = max(sizes, default=0) / 2 or _ONE_MACHINES_RANKS
    for match in matches:
        found = _MISSING_SET.search(match.text)
        if found is not None and match.rule.name == "ranks missing":
            return found[1].count(",") + 1 > most
    return False


def _size(text: str) -> int:
    return text.count(",") + 1 if "{" in text or "[" in text else int(re.findall(r"\d+", text)[-1])


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
    if found is None or match.rank is None or found[2] in _POINT_TO_POINT:
        return None
    group = _GROUP.search(match.text)
    what = (found[2], found[3], found[4])
    return Work(match.rank, group[1] if group else "", int(found[1]), what)


def _differ(works: Sequence[Work]) -> bool:
    """Whether ranks of one group wait in different collectives.

    A machine that stands still leaves the others waiting in the same one; ranks that wait in
    different ones took different ways through the program. Numbers need not be equal: the root of
    a broadcast may run ahead. Where no group is named, only close numbers are of one group.
    """
    first = {(work.rank, work.group): work for work in reversed(works)}
    for one, other in combinations(first.values(), 2):
        near = one.group != "" or abs(one.number - other.number) <= _SAME_GROUP_STEPS
        if one.group == other.group and near and one.what != other.what:
            return True
    return False


def _stacks_differ(frames: Sequence[Match]) -> bool:
    """Whether dumped stacks stand in different collectives: other branches of the program.

    Sends and receives of a pipeline differ by nature and do not count.
    """
    stacks: list[set[str]] = []
    last: Match | None = None
    for frame in frames:
        found = _FRAME.search(frame.text)
        if found is None:
            continue
        near = last is not None and last.source == frame.source
        if not (near and last is not None and frame.line - last.line <= _ONE_STACK_LINES):
            stacks.append(set())
        stacks[-1].add(found[1].lower().replace("_", ""))
        last = frame
    return any(not one & other for one, other in combinations(stacks, 2))


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
