"""The processes of a local run: how they are started, and in which order they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from everstep.workers.local.children import Child
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.guardian import Guardian
from everstep.workers.local.narrator import Narrator

STOP_PATIENCE_S = 3.0
"""For each of three rounds, so that nobody waits longer than 10 s after Ctrl-C."""


class Processes:
    """All that a run has started.

    Args:
        folder: The run's folder, where their logs are.
        narrator: Who tells a person what happens.

    Attributes:
        all: Every process by its name; an agent's is `agent-MACHINE`.
        agents: The agents' alone, by machine.
    """

    def __init__(self, folder: RunFolder, narrator: Narrator) -> None:
        self.all: dict[str, Child] = {}
        self.agents: dict[str, Child] = {}
        self._folder = folder
        self._narrator = narrator
        self._num_machines = 0
        self._environment: dict[str, str] = {}
        self._guardian = Guardian(folder.machines.absolute())

    async def watch(self) -> None:
        """Have what a killed run would leave behind ended, from now on."""
        await self._guardian.start()

    def use(self, variables: Mapping[str, str]) -> None:
        """Give these variables, with those of this process, to all that is started from now on."""
        self._environment = {**os.environ, **variables}

    async def start(self, name: str, command: Sequence[str], keep_alive: bool = True) -> Child:
        """Start a program, and again whenever it ends, if it is to be kept alive."""
        child = Child(
            name=name,
            command=command,
            environment=self._environment,
            log=self._folder.logs / f"{name}.log",
            keep_alive=keep_alive,
            on_restart=lambda who, code: self._narrator.say(
                f"{who} ended ({_ending(code)}) and was started again"
            ),
        )
        self.all[name] = child
        await child.start()
        return child

    async def start_worker(self, name: str, *arguments: str, keep_alive: bool = True) -> Child:
        """Start one of our own processes; an agent's name begins with its kind."""
        module = f"everstep.workers.{name.partition('-')[0]}"
        return await self.start(name, [sys.executable, "-m", module, *arguments], keep_alive)

    async def add_machine(self) -> str:
        """Start one more agent; its name."""
        machine = f"m{self._num_machines}"
        self._num_machines += 1
        self.agents[machine] = await self.start_worker(
            f"agent-{machine}", machine, keep_alive=False
        )
        return machine

    async def stop(self) -> None:
        """Stop everything, whoever needs others first: agents, then observers, then the server."""
        agents = [c for name, c in self.all.items() if name.startswith("agent-")]
        await asyncio.gather(*(child.stop(STOP_PATIENCE_S) for child in agents))
        rest = [c for c in self.all.values() if c not in agents and c.name != "server"]
        await asyncio.gather(*(child.stop(STOP_PATIENCE_S) for child in rest))
        if "server" in self.all:
            await self.all["server"].stop(STOP_PATIENCE_S)
        await self._guardian.dismiss()


def last_line(log: Path) -> str:
    """What a process said last, and where the rest of it is."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return f"{lines[-1] if lines else 'it said nothing'} (log: {log})"


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
