"""`everstep logs`: what the ranks of a run printed, in the order in which they did."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import typer

from everstep.cli.console import err, out
from everstep.cli.find import RunArgument, find_run
from everstep.core.classify.evidence import Context, Evidence, Match
from everstep.core.classify.judge import classify
from everstep.core.classify.names import Kind
from everstep.core.classify.reader import read
from everstep.core.errors import InputError
from everstep.core.logtimes import Line, merge
from everstep.core.stacks.words import runs_text
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.ranklogs import Followers, RankLog, attempts, find

FOLLOW_EVERY_S = 0.1

ALL = "all"

Tell = Callable[[RankLog, float | None, str], str]
"""How a line is written: whose it is, time, text."""


def logs_command(
    run: RunArgument = None,
    attempt: Annotated[
        str | None,
        typer.Option(
            metavar="N|all", help="Which start of the ranks; the newest one when left out."
        ),
    ] = None,
    rank: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Which ranks, as 3,5-7; all when left out.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until the run ends.")
    ] = False,
    errors: Annotated[
        bool,
        typer.Option(
            "--errors", help="Only the most telling line of each rank, the one that leads on top."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show the ranks' logs merged by time: when, which rank, on which machine, what.

    Times are those at which each machine's agent saw the line, within a tenth of a second, on that
    machine's clock: lines of different machines are ordered as well as their clocks agree.
    """
    if follow and errors:
        raise InputError("--follow", "does not go with --errors", "Leave one of them out.")
    folder = find_run(run)
    ranks = None if rank is None else parse_ranks(rank)
    tell = _as_json if as_json else _text
    if follow:
        _follow(folder, attempt, ranks, tell)
        return
    there = _attempts(folder)
    wanted = there[-1:] if attempt is None else _wanted(attempt, there)
    found = {number: logs for number in wanted if (logs := find(folder, number, ranks))}
    if not found:
        raise InputError("--rank", "none of these ranks has a log", "Leave it out to see all.")
    if attempt is None and (earlier := _with_lines(folder, there[:-1])):
        # Where what failed has been mended by another start, it is an earlier one that tells why.
        said = f"Attempt {there[-1]}, the newest. Earlier ones have lines, too: {earlier}"
        (err if as_json else out).print(f"{said} (--attempt N, or all).", markup=False)
    for number, logs in found.items():
        if len(found) > 1 and not as_json:
            out.print(f"Attempt {number}:")
        if errors:
            _show_errors(logs, as_json)
        else:
            by_rank = {log.rank: log for log in logs}
            if not any(log.path.stat().st_size for log in logs):
                (err if as_json else out).print(f"No line in attempt {number}.", markup=False)
            _write(((by_rank[line.rank], line) for line in merge(g.lines() for g in logs)), tell)


def parse_ranks(text: str) -> frozenset[int]:
    """Read a list of ranks such as `3,5-7`.

    Raises:
        InputError: It is none.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise InputError("--rank", f"{text!r} names no ranks", "Write them as 3,5-7.")
        ranks.update(range(int(first), int(last) + 1))
    return frozenset(ranks)


def _attempts(folder: RunFolder) -> list[int]:
    there = attempts(folder)
    if not there:
        raise InputError(str(folder.path), "no rank has been started", "Try again in a second.")
    return there


def _wanted(attempt: str, there: list[int]) -> list[int]:
    if attempt == ALL:
        return there
    number = _number(attempt)
    if number not in there:
        known = ", ".join(map(str, there))
        raise InputError("--attempt", f"there is no attempt {number}", f"There are: {known}.")
    return [number]


def _number(attempt: str) -> int:
    if not attempt.isdecimal() or int(attempt) < 1:
        what = f"{attempt!r} is no attempt"
        raise InputError("--attempt", what, f"Give a number from 1, or {ALL}.")
    return int(attempt)


def _with_lines(folder: RunFolder, numbers: Sequence[int]) -> str:
    """Those of the attempts in which some rank wrote something."""
    written = [
        number
        for number in numbers
        if any(log.path.stat().st_size for log in find(folder, number, None))
    ]
    return runs_text(written)


def _follow(
    folder: RunFolder, attempt: str | None, ranks: Collection[int] | None, tell: Tell
) -> None:
    if attempt == ALL:
        raise InputError("--follow", "follows one attempt", "Leave --attempt out for the newest.")
    followers = Followers(folder, None if attempt is None else _number(attempt), ranks)
    while True:
        going_on = folder.is_running()
        _write(followers.new_lines(), tell)
        if not going_on:
            return
        time.sleep(FOLLOW_EVERY_S)


def _write(lines: Iterable[tuple[RankLog, Line]], tell: Tell) -> None:
    for log, line in lines:
        # Of a progress bar, which begins its line anew and anew, only the last state.
        text = line.text.rpartition(b"\r")[2].decode(errors="replace")
        sys.stdout.write(tell(log, line.at_s, text))
    sys.stdout.flush()


def _text(log: RankLog, at_s: float | None, text: str) -> str:
    return f"{_clock(at_s)} rank {log.rank} {log.machine} | {text}\n"


def _as_json(log: RankLog, at_s: float | None, text: str) -> str:
    line = {
        "at_s": at_s or None,
        "attempt": log.attempt,
        "rank": log.rank,
        "machine": log.machine,
        "text": text,
    }
    return json.dumps(line) + "\n"


def _clock(at_s: float | None) -> str:
    if not at_s:
        return "--:--:--.---"
    return datetime.fromtimestamp(at_s).astimezone().strftime("%H:%M:%S.%f")[:-3]


def _show_errors(logs: Sequence[RankLog], as_json: bool) -> None:
    evidence = [_read(log, source) for source, log in enumerate(logs)]
    context = Context(world_size=len(logs))
    answer = classify(evidence, context)
    lines: list[Match] = []
    if answer.line is not None:
        said = (answer.file, answer.line)
        lead = next(m for e in evidence for m in e.matches if (e.name, m.line) == said)
        firsts = (_leading(one, context) for one in evidence)
        others = [m for m in firsts if m is not None and m.source != lead.source]
        lines = [lead, *sorted(others, key=lambda match: match.clock_s or 0)]
    if not as_json and not lines:
        typer.echo(f"No rank said anything telling: {answer.reason}.")
    elif not as_json:
        typer.echo(
            f"{answer.first_action.value} ({answer.symptom.value}, fault in {answer.label.value},"
            f" confidence {answer.confidence:.2f}): {answer.reason}"
        )
    tell = _as_json if as_json else _text
    for match in lines:
        sys.stdout.write(tell(logs[match.source], match.clock_s, match.text))


def _read(log: RankLog, source: int) -> Evidence:
    """Read a log; its lines are as old as the agent says, whatever times they print."""
    evidence = read(log.chunks(), str(log.path), Kind.RANK_LOG, source)
    wanted = {match.line for match in evidence.matches}
    seen_s: dict[int, float] = {}
    for line in log.lines() if wanted else ():
        if line.number in wanted:
            seen_s[line.number] = line.at_s
            if len(seen_s) == len(wanted):
                break
    matches = (replace(m, clock_s=seen_s.get(m.line), rank=log.rank) for m in evidence.matches)
    return replace(evidence, matches=tuple(matches))


def _leading(evidence: Evidence, context: Context) -> Match | None:
    """What a rank's log would be judged by if it were the only one."""
    alone = replace(evidence, matches=tuple(replace(m, source=0) for m in evidence.matches))
    answer = classify([alone], context)
    return next((m for m in evidence.matches if m.line == answer.line), None)
