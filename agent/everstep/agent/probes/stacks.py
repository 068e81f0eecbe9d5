"""Asks one process where it stands: by py-spy, else by its own fault handler.

The process's state is read first: py-spy cannot attach to a stopped one, and reads it unattached.
Every question has a deadline, after which py-spy is killed; the kernel then detaches it from the
process, which goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.agent import witness
from everstep.core.stacks.dump import Answer

_TRACED = "t"
STOPPED = ("T", _TRACED)
_TRACED_PATIENCE_S = 0.2
_REFUSED = re.compile(rb"permission denied|not permitted|EPERM|EACCES", re.IGNORECASE)
_POLL_S = 0.01
_SETTLED_S = 0.1
_TAIL_CHARS = 200
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')

Threads = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asking:
    """How to ask.

    Attributes:
        program: The py-spy program.
        deadline_s: How long one process may take, > 0.
        native: Whether to show frames of C and C++, too; takes most of a second.
        nonblocking: Whether to read without stopping the process; may give a torn stack.
    """

    program: tuple[str, ...] = ("py-spy",)
    deadline_s: float = 5.0
    native: bool = False
    nonblocking: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What one process said.

    Attributes:
        answer: Whether it did.
        threads: In the form of py-spy's JSON.
        detail: What went wrong, or how else it was read.
        hung: Whether its deadline passed; py-spy also fails on what is no Python.
    """

    answer: Answer
    threads: Threads = field(default_factory=list[dict[str, Any]])
    detail: str = ""
    hung: bool = False


def executable_beside_us(name: str) -> str:
    """A program that came with this interpreter's packages, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


async def ask(pid: int, how: Asking, stacks_file: Path | None = None) -> Heard:
    """Where a process stands.

    Args:
        pid: The process.
        how: How to ask.
        stacks_file: Where its fault handler writes, if it has one.
    """
    state = state_of(pid)
    if state == _TRACED:
        # Another one reads it at this moment, or a debugger holds it for good.
        await asyncio.sleep(_TRACED_PATIENCE_S)
        state = state_of(pid)
    if state is None:
        return Heard(Answer.GONE, detail=f"process {pid} is not there")
    stopped = state in STOPPED
    heard = await _spy(pid, how, unattached=stopped or how.nonblocking)
    if stopped:
        return Heard(Answer.STOPPED, heard.threads, f"process {pid} is in state {state}")
    if heard.answer is Answer.ANSWERED:
        return heard
    state = state_of(pid)
    if state is None:
        return Heard(Answer.GONE, detail=f"process {pid} ended")
    if state in STOPPED:
        return Heard(Answer.STOPPED, detail=f"process {pid} is in state {state}")
    detail = f"process {pid} in state {state}: {heard.detail}"
    if stacks_file is not None and (
        lines := await asyncio.to_thread(_by_fault_handler, pid, stacks_file, how)
    ):
        return Heard(Answer.ANSWERED, threads_of(pid, lines), f"by its fault handler; {detail}")
    return Heard(heard.answer, detail=detail, hung=heard.hung)


def state_of(pid: int) -> str | None:
    """The kernel's letter for the process's state; None for one that is not there, or dead."""
    fields = _status(pid)
    state = fields.get("State", "Z")[0]
    return None if state in "ZX" else state


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """All processes under this one with their names, parents first."""
    for child in _children(pid):
        name = _status(child).get("Name")
        if name is not None:
            yield child, name
            yield from descendants(child)


def threads_of(pid: int, lines: Sequence[str]) -> Threads:
    """The threads of a fault handler's text; the main one comes last there, and first here."""
    found: Threads = []
    for line in lines:
        if "most recent call first" in line:
            found.append({"pid": pid, "thread_name": None, "os_thread_id": None, "frames": []})
        elif found and (frame := _FRAME.match(line)) is not None:
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1]["frames"].append({"name": frame[3], "filename": frame[1], "line": number})
    if found:
        found[-1] |= {"thread_name": "MainThread", "os_thread_id": pid}
    return found[::-1]


async def _spy(pid: int, how: Asking, unattached: bool) -> Heard:
    options = ["--native"] * how.native + ["--nonblocking"] * unattached
    command = (*how.program, "dump", "--json", *options, "--pid", str(pid))
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        return Heard(Answer.REFUSED, detail=f"{how.program[0]}: {error.strerror or error}")
    try:
        async with asyncio.timeout(how.deadline_s):
            output, errors = await process.communicate()
    except TimeoutError:
        late = f"no answer to py-spy in {how.deadline_s:g} s"
        return Heard(Answer.NO_ANSWER, detail=late, hung=True)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        with contextlib.suppress(ValueError):
            return Heard(Answer.ANSWERED, json.loads(output))
    answer = Answer.REFUSED if _REFUSED.search(errors) else Answer.NO_ANSWER
    said = " ".join(errors.decode(errors="replace").partition("Stack backtrace")[0].split())
    return Heard(answer, detail=f"py-spy: {said[-_TAIL_CHARS:] or 'no output'}")


def _by_fault_handler(pid: int, path: Path, how: Asking) -> list[str]:
    """The lines that a process adds to its file at the signal; empty when it has no handler."""
    caught = int(_status(pid).get("SigCgt", "0"), 16)
    # Without a handler, the signal would kill it.
    if not caught >> (witness.SIGNAL - 1) & 1:
        return []
    try:
        began_bytes = path.stat().st_size
        os.kill(pid, witness.SIGNAL)
    except OSError:
        return []
    deadline_s = time.monotonic() + how.deadline_s
    size, settled_s = began_bytes, time.monotonic()
    while time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        now = path.stat().st_size
        if now != size:
            size, settled_s = now, time.monotonic()
        elif size > began_bytes and time.monotonic() - settled_s > _SETTLED_S:
            break
    with path.open("rb") as file:
        file.seek(began_bytes)
        return file.read().decode(errors="replace").splitlines()


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return sorted(found)
