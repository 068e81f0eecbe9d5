"""The `everstep` command.

Exit codes, the same for all commands:

    0    done
    1    it failed, or cannot be told or done now: the job failed, something is faulty or damaged,
         no server answers
    2    wrong input, or refused: nothing was changed
    3    `check` and `ckpt verify`: nothing is faulty or damaged, and something could not be told
    130  stopped by a person
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

STOPPED = 130
"""Exit code of a command that a person stopped: what shells give for SIGINT."""

CLEAN = b"\r\x1b[2K\x1b[?25h"
"""Clears a terminal's line, where a progress bar may be, and shows the cursor that it hides."""


def main() -> None:
    """Entry point."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    # Loading all that the commands need takes most of a second, in which Ctrl-C must work, too.
    from everstep.cli import commands  # noqa: PLC0415

    code: object = 0
    try:
        commands.call()
    except SystemExit as error:
        code = error.code
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may have seen enough.
        with contextlib.suppress(OSError):
            stream.flush()
    # Not the interpreter's own exit: where a server has not answered, the Temporal SDK's threads
    # can hold it up for ever, or abort it after all is said.
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, (CLEAN if os.isatty(2) else b"") + b"everstep: stopped\n")
    os._exit(STOPPED)


if __name__ == "__main__":
    main()
