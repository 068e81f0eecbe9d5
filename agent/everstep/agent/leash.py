"""Runs another program that must not outlive its starter.

`python -m everstep.agent.leash PID PROGRAM ARGUMENT ...`: the kernel kills the program when
the process PID, which starts this one, ends, however it ends. The starter names itself: one that
ended before this line ran could not be told from the one that adopts its orphans.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from everstep.agent.process import die_with


def leashed(command: Sequence[str]) -> list[str]:
    """The command line that runs a command for as long as this process lives."""
    return [sys.executable, "-m", "everstep.agent.leash", str(os.getpid()), *command]


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell is meant
