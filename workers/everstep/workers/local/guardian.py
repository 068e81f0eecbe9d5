"""Ends what a killed run would leave behind: programs that its ranks started.

A leash reaches a program that we start, not what that starts in turn, such as the trainer inside a
shell script. `python -m everstep.workers.local.guardian MACHINES` waits until its input closes,
which happens when the run ends in whatever way, and kills all that is marked as one of its
machines'.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from everstep.agent import process

PATIENCE_S = 5.0


class Guardian:
    """Watches over one run from a process of its own.

    Args:
        machines: The folder with one folder a machine, which is also the machine's mark.
    """

    def __init__(self, machines: Path) -> None:
        self._machines = machines
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Begin to watch."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "everstep.workers.local.guardian",
            str(self._machines),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def dismiss(self) -> None:
        """Let it sweep now, and wait until it has ended."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()


def sweep(machines: Path) -> None:
    """Kill all that carries the mark of one of the machines."""
    for directory in machines.iterdir():
        process.kill_strays(str(directory), None, PATIENCE_S)
        process.kill_strays(f"{directory}{process.PREPARING}", None, PATIENCE_S)


if __name__ == "__main__":
    while os.read(0, 1):
        pass
    sweep(Path(sys.argv[1]))
