"""Asks a rank for its flight recorder, by the pipe on which it waits for that."""

from __future__ import annotations

import os
import time
from pathlib import Path

from everstep.agent import witness

_POLL_S = 0.01


def ask_recorder(stacks_file: Path, deadline_s: float) -> bytes | None:
    """The rank's flight recorder as JSON; blocks.

    Args:
        stacks_file: Where the rank writes its stacks, which names its other files.
        deadline_s: How long it may take, > 0.

    Returns:
        None when it has none, or does not answer in time: it is stopped, or somebody holds the GIL.
    """
    answer = witness.recorder_file(stacks_file)
    before = _version(answer)
    try:
        # Refused where nobody waits at the other end.
        pipe = os.open(witness.recorder_pipe(stacks_file), os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"?")
        finally:
            os.close(pipe)
    except OSError:
        return None
    end_s = time.monotonic() + deadline_s
    while _version(answer) == before:
        if time.monotonic() > end_s:
            return None
        time.sleep(_POLL_S)
    try:
        return answer.read_bytes() or None
    except OSError:
        return None


def _version(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
