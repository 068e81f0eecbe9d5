"""How the programs of a check find each other, and who did not come."""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from everstep.core.checks import CUDA, ProgramSettings

POLL_S = 0.01
KNOCK_EVERY_S = 0.1

MEETING_SHARE = 0.6
"""Share of a program's time that it waits for others; the rest is for what they do together."""

GOODBYE_S = 2.0
"""How long whoever hosts the store stays for the others."""


class AbsentError(Exception):
    """Not all came.

    Args:
        machines: Whose programs did not come, sorted.
        detail: One sentence.
    """

    def __init__(self, machines: tuple[str, ...], detail: str) -> None:
        super().__init__(machines, detail)
        self.machines = machines
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class Meeting:
    """All programs of one check, in one process group.

    Args:
        settings: What this program was told.
        device: What it works on.

    Raises:
        AbsentError: Somebody did not come in time, or the store cannot be reached.
        RuntimeError: They came, and could not be joined.
    """

    def __init__(self, settings: ProgramSettings, device: torch.device) -> None:
        self._settings = settings
        self._ends_s = time.monotonic() + settings.limit_s
        self.world_size = len(settings.machines) * settings.local_size
        self.store = self._open()
        self._gather(time.monotonic() + settings.limit_s * MEETING_SHARE)
        # Else an operation that never ends is waited for by another thread, which aborts.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        dist.init_process_group(
            "nccl" if device.type == CUDA else "gloo",
            store=PrefixStore("group", self.store),
            rank=settings.rank,
            world_size=self.world_size,
            timeout=self.left(),
        )

    def left(self) -> timedelta:
        """The time that is left, at least one second."""
        return timedelta(seconds=max(1.0, self._ends_s - time.monotonic()))

    def machine_of(self, rank: int) -> str:
        """Whose program has that rank."""
        return self._settings.machines[rank // self._settings.local_size]

    def leave(self) -> None:
        """Say goodbye; programs of the machine that hosts the store wait for the others to."""
        gone = self.store.add("gone", 1)
        deadline_s = time.monotonic() + GOODBYE_S
        hosts = self._settings.rank < self._settings.local_size
        while hosts and gone < self.world_size and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            gone = self.store.add("gone", 0)

    def _open(self) -> Store:
        settings = self._settings
        limit_s = settings.limit_s * MEETING_SHARE
        host, _, port = settings.store.rpartition(":")
        if not host:
            return PrefixStore(settings.key, FileStore(settings.store, self.world_size))
        try:
            # torch's own client knocks for longer than it is told to.
            _knock(host, int(port), time.monotonic() + limit_s)
            limit = timedelta(seconds=max(1.0, limit_s))
            store = TCPStore(host, int(port), None, False, limit, wait_for_workers=False)
        except (OSError, RuntimeError) as error:
            first = settings.machines[0]
            others = tuple(sorted({*settings.machines} - {settings.machine}))
            who = others if first == settings.machine else (first,)
            raise AbsentError(who, f"the store on {first} is not reached: {error}") from error
        return PrefixStore(settings.key, store)

    def _gather(self, deadline_s: float) -> None:
        self.store.set(f"here/{self._settings.rank}", "1")
        missing = list(range(self.world_size))
        while missing := [rank for rank in missing if not self.store.check([f"here/{rank}"])]:
            if time.monotonic() > deadline_s:
                who = tuple(sorted({self.machine_of(rank) for rank in missing}))
                text = f"ranks {missing} of {', '.join(who)} did not come"
                raise AbsentError(who, text)
            time.sleep(POLL_S)


def _knock(host: str, port: int, deadline_s: float) -> None:
    """Wait until somebody listens there.

    Raises:
        OSError: Nobody does in time.
    """
    while True:
        left_s = max(KNOCK_EVERY_S, deadline_s - time.monotonic())
        try:
            socket.create_connection((host, port), timeout=left_s).close()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(KNOCK_EVERY_S)
        else:
            return
