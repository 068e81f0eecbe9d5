"""What the machines of a local run hold in memory, asked from outside and brought here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from everstep.agent.shards import ShardStore, free_memory_bytes
from everstep.agent.snapshots import Snapshot, take_snapshot
from everstep.agent.transfer.asking import Contents, ask_to_keep, list_contents, pull
from everstep.core.errors import EverstepError, TransientError
from everstep.core.model import MachineInfo
from everstep.core.orders import Pull
from everstep.core.shard import Origin

_POLL_S = 0.05
_LEAD_S = 1.0
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One machine as it was seen.

    Attributes:
        info: The machine.
        contents: What it holds, or None when it does not answer.
        reason: Why it does not.
    """

    info: MachineInfo
    contents: Contents | None
    reason: str = ""


class Memory:
    """The memory of all machines of a job.

    Args:
        machines: The machines.
        secret: The job's secret.
        job: The job's name.
        parallelism: The job's layout as text.
        world_size: Number of ranks.
    """

    def __init__(
        self,
        machines: Sequence[MachineInfo],
        secret: bytes,
        job: str,
        parallelism: str,
        world_size: int,
    ) -> None:
        self._machines = machines
        self._secret = secret
        self._job = job
        self._origin = Origin(job, parallelism)
        self._world_size = world_size

    def look(self) -> list[Seen]:
        """What every machine holds now."""
        return [self.look_at(info) for info in self._machines]

    def look_at(self, info: MachineInfo) -> Seen:
        """What one machine holds now."""
        try:
            return Seen(info, list_contents(info, self._secret, self._job))
        except EverstepError as error:
            return Seen(info, None, str(error))

    def fetch(self, info: MachineInfo, rank: int, step: int) -> Snapshot:
        """Bring one shard here; whether it is whole is for the caller to see.

        Raises:
            TransientError: It is not there any more, or the machine does not answer.
            PermanentError: It is another job's or layout's.
        """
        store = ShardStore("here", origin=self._origin)
        order = Pull(rank, info.machine, info.host, info.transfer_port)
        pull(order, step, store, self._secret, self._job)
        region = store.region(rank)
        if region is None:
            raise TransientError(f"step {step} of rank {rank} did not arrive")
        return take_snapshot(region.view, rank, step, free_memory_bytes())

    def fetch_all(self, step: int | None = None) -> list[Snapshot]:
        """Bring one step of all ranks here: the newest, as training goes on.

        Args:
            step: Which one, or None for the newest that can be had.

        Raises:
            TransientError: No step could be had of all ranks.
        """
        held = self._held()
        newest = max((s for s, of in held.items() if len(of) == self._world_size), default=None)
        if step is not None:
            newest = step if step in held else None
        if newest is None:
            raise TransientError(f"no step{f' {step}' if step else ''} is held of all ranks")
        try:
            return [self.fetch(held[newest][r], r, newest) for r in range(self._world_size)]
        except (EverstepError, KeyError):
            # Training went on meanwhile.
            if step is not None:
                raise
        return self._fetch_coming(newest)

    def _fetch_coming(self, newest: int) -> list[Snapshot]:
        """Ask all machines to keep a step that none of them has come to yet."""
        began_s = time.monotonic()
        _wait(lambda: max(self._held(), default=0) > newest)
        per_step_s = max(time.monotonic() - began_s, _POLL_S)
        coming = max(self._held()) + 2 + int(_LEAD_S / per_step_s)
        for info in self._machines:
            ask_to_keep(info, coming, self._secret, self._job)
        shelf: dict[int, MachineInfo] = {}

        def complete() -> bool:
            shelf.update(self._shelf(coming))
            return len(shelf) == self._world_size

        _wait(complete)
        return [self.fetch(shelf[rank], rank, coming) for rank in range(self._world_size)]

    def _held(self) -> dict[int, Mapping[int, MachineInfo]]:
        """By step and rank a machine that holds it, the rank's own if it does."""
        held: dict[int, dict[int, MachineInfo]] = {}
        for seen in self.look():
            if seen.contents is None:
                continue
            for shard in seen.contents.shards:
                of_step = held.setdefault(shard.step, {})
                if shard.rank not in of_step or shard.rank in seen.contents.own:
                    of_step[shard.rank] = seen.info
        return dict(held)

    def _shelf(self, step: int) -> dict[int, MachineInfo]:
        return {
            shard.rank: seen.info
            for seen in self.look()
            if seen.contents is not None
            for shard in seen.contents.shelf
            if shard.step == step
        }


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TransientError(
                "training made no step that all ranks could be asked for; try again"
            )
        time.sleep(_POLL_S)
