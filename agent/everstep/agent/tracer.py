"""Where all ranks of this machine and their children stand, asked of all at once.

Each process has a deadline of its own, so one that hangs keeps nobody else's answer back. What a
rank said is kept as a file that `everstep.core.stacks.pyspy` reads: py-spy's own form for one that
simply answered, else a note that says exactly what happened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.probes import stacks
from everstep.agent.probes.recorder import ask_recorder
from everstep.agent.probes.stacks import Asking, Heard
from everstep.core.stacks.dump import Answer, RankTrace

MAX_CHILDREN = 64
"""Of one rank; more are not asked."""

_MAX_AT_ONCE = 32

_RECORDER_RATIO = 0.5
"""Of the deadline: its thread answers at once, or never where somebody keeps the GIL to himself;
a rank that hangs so should not cost the whole of it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A rank to ask.

    Attributes:
        pid: Its process.
        stacks_file: Where its fault handler writes.
    """

    pid: int
    stacks_file: Path | None = None


async def trace(targets: Mapping[int, Target], how: Asking) -> dict[int, RankTrace]:
    """Ask all ranks and their children; takes about the deadline at most, whoever hangs.

    Args:
        targets: By rank.
        how: How to ask.
    """
    turn = asyncio.Semaphore(_MAX_AT_ONCE)
    found = await asyncio.gather(*(_rank(target, how, turn) for target in targets.values()))
    return dict(zip(targets, found, strict=True))


async def _rank(target: Target, how: Asking, turn: asyncio.Semaphore) -> RankTrace:
    children = list(stacks.descendants(target.pid))[:MAX_CHILDREN]
    recorder = asyncio.create_task(_recorder(target, how))
    heard, *others = await asyncio.gather(
        _ask(target.pid, how, turn, target.stacks_file),
        *(_ask(pid, how, turn, None) for pid, _ in children),
    )
    program = None
    if heard.answer is Answer.NO_ANSWER and not heard.hung:
        # A shell script, say, around the program: the first Python below it is the rank.
        program = next((child for child in others if child.answer is Answer.ANSWERED), None)
        heard = program or heard
    threads = list(heard.threads)
    silent: list[str] = []
    for (pid, name), child in zip(children, others, strict=True):
        if child is program:
            continue
        threads += [{"process": name, **thread} for thread in child.threads]
        if child.answer is Answer.STOPPED or child.hung:
            silent.append(f"{name} {pid}: {child.detail}")
    if heard.answer is Answer.ANSWERED and not silent and not heard.detail:
        dump: object = threads
    else:
        dump = {
            "answer": heard.answer.value,
            "detail": heard.detail,
            "threads": threads,
            "silent_children": silent,
        }
    return RankTrace(
        heard.answer, heard.detail, json.dumps(dump, indent=2).encode(), await recorder
    )


async def _recorder(target: Target, how: Asking) -> bytes | None:
    if target.stacks_file is None or stacks.state_of(target.pid) in (None, *stacks.STOPPED):
        return None
    patience_s = how.deadline_s * _RECORDER_RATIO
    return await asyncio.to_thread(ask_recorder, target.stacks_file, patience_s)


async def _ask(pid: int, how: Asking, turn: asyncio.Semaphore, stacks_file: Path | None) -> Heard:
    async with turn:
        return await stacks.ask(pid, how, stacks_file)
