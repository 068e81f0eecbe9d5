"""Runs another program that must not outlive its starter.

`python -m everstep.workers.local.leash PROGRAM ARGUMENT ...`: the kernel kills the program when the
process that started this one ends, however it ends.
"""

from __future__ import annotations

import os
import sys

from everstep.agent.process import die_with

if __name__ == "__main__":
    die_with(os.getppid())
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is meant
