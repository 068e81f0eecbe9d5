"""A real machine for tests: real processes, without torch unless it is asked for."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from everstep.agent import journal
from everstep.agent.config import MachineConfig
from everstep.agent.machine import Machine
from everstep.core.model import MachineEvent, MachineInfo
from everstep.core.orders import RankStart, StartOrder

HOST = "127.0.0.1"
SECRET = b"nobody-may-see-this"

_Event = TypeVar("_Event", bound=MachineEvent)


def config_of(
    root: Path, command: tuple[str, ...], torch: bool = False, **changes: Any
) -> MachineConfig:
    """A machine whose code, output and own directory lie under `root`."""
    for name in ("code", "out", "no-torch"):
        (root / name).mkdir(exist_ok=True)
    # Importing torch takes seconds, which most tests do not need.
    (root / "no-torch" / "torch.py").write_text("raise ImportError('no torch here')\n")
    path = os.pathsep.join([str(root / "no-torch"), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings: dict[str, Any] = {
        "job": "toy",
        "machine": "m0",
        "code_directory": root / "code",
        "directory": root / "m0",
        "environment": {} if torch else {"PYTHONPATH": path},
    }
    return MachineConfig(
        host=HOST,
        command=command,
        output_dir=root / "out",
        parallelism="tp=1,pp=1,dp=2;order=tp-pp-dp",
        gpus_per_machine=2,
        secret=SECRET,
        **{**settings, **changes},
    )


class Rig:
    """A machine, its events, and what its ranks left behind."""

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.events: list[tuple[float, MachineEvent]] = []
        self.machine = Machine(config, lambda event: self.events.append((time.time(), event)))
        self.info: MachineInfo

    async def __aenter__(self) -> Rig:
        self.info = await self.machine.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.machine.close()

    def write(self, source: str, name: str = "train.py") -> None:
        path = self.config.code_directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    def order(
        self, attempt: int, num_ranks: int = 2, restore_step: int = 0, slot: int = 0
    ) -> StartOrder:
        return StartOrder(
            attempt=attempt,
            slot=slot,
            ranks=tuple(RankStart(rank, rank, None) for rank in range(num_ranks)),
            held_ranks=(),
            world_size=num_ranks,
            num_machines=1,
            master_host=self.info.host,
            master_port=self.info.rendezvous_port,
            restore_step=restore_step,
            code_directory=str(self.config.code_directory),
        )

    def seen(self, kind: type[_Event]) -> list[_Event]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def log(self, attempt: int, rank: int) -> str:
        return (self.config.directory / f"attempt-{attempt}" / f"rank-{rank:05d}.log").read_text()

    def has_logged(self, attempt: int, rank: int, text: str) -> bool:
        return text in self.log(attempt, rank)

    def effects(self, kind: str) -> list[dict[str, Any]]:
        lines = journal.read(self.config.directory / "journal.jsonl")
        return [line for line in lines if line["effect"] == kind]

    async def output(self, name: str) -> Any:
        """What a rank wrote as JSON."""
        path = self.config.output_dir / name
        await until(path.exists)
        return json.loads(path.read_text())


async def until(condition: Callable[[], object], patience_s: float = 15.0) -> None:
    """Wait for a condition; it may be the end of a process that is not ours."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {patience_s} s"
        await asyncio.sleep(0.002)


def lives(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children(pid: int) -> list[int]:
    """Its living children."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and lives(number := int(entry.name)):
            try:
                stat = Path(f"/proc/{number}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(number)
    return found
