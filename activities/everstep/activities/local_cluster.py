"""The cluster port for machines that are processes on this host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path

import psutil
from temporalio import activity

from everstep.activities.failure import as_failures
from everstep.activities.heartbeat import beating
from everstep.core.errors import TransientError
from everstep.workflows.messages import EvictOrder, MachineRequest
from everstep.workflows.ports import ClusterPort

KILL_PATIENCE_S = 5.0
"""A killed process is gone in milliseconds; one in uninterruptible sleep may never be."""


class LocalCluster(ClusterPort):
    """Evicts by killing the agent, whose ranks die with it; the run's own process starts new ones.

    Args:
        journal: File to which each effect is appended, one JSON line each.
        requests: Folder in which the run looks for requests, one file a machine. It remembers the
            names of those that it has taken.
    """

    def __init__(self, journal: Path, requests: Path) -> None:
        self._journal = journal
        self._requests = requests

    @activity.defn(name="cluster.evict")
    async def evict(self, order: EvictOrder) -> None:
        """Make sure that nothing of the job runs on the machine.

        Effect: the agent's process and all its descendants are gone; one journal line.
        Idempotent by: the agent's process id; a process that is gone stays gone, and the line is
            written only by the call that first finds the incident's eviction not recorded.
        Heartbeats: yes.
        Gives up when: never; a process that does not die is tried again.
        """
        with as_failures():
            async with beating():
                await asyncio.to_thread(self._evict, order)

    @activity.defn(name="cluster.request_machines")
    async def request_machines(self, request: MachineRequest) -> None:
        """Let the run start an agent for each machine that is missing.

        Effect: one file a machine in the folder of requests, from which the run takes them.
        Idempotent by: run and number of the request; the run takes a file of one name once.
        Heartbeats: no.
        Gives up when: never; a folder that cannot be written is tried again.
        """
        with as_failures():
            await asyncio.to_thread(self._request, request)

    def _request(self, request: MachineRequest) -> None:
        for one in range(request.count):
            name = f"{request.run}-{request.number}-{one}"
            try:
                (self._requests / name).touch()
            except OSError as error:
                raise TransientError(f"cannot write {self._requests}: {error}") from error

    def _evict(self, order: EvictOrder) -> None:
        victim = _agent_of(order.machine.agent_pid, order.machine.machine)
        if victim is not None:
            family = [victim, *victim.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _wait_until_gone(family, order.machine.machine)
        entry: dict[str, str | int] = {
            "effect": "evict",
            "machine": order.machine.machine,
            "incident": order.incident,
        }
        if not self._recorded(entry):
            line = json.dumps({**entry, "reason": order.reason, "at_s": time.time()})
            descriptor = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)

    def _recorded(self, entry: dict[str, str | int]) -> bool:
        if not self._journal.exists():
            return False
        lines = self._journal.read_text().splitlines()
        return any(entry.items() <= json.loads(line).items() for line in lines)


def _wait_until_gone(family: list[psutil.Process], machine: str) -> None:
    """Wait for deaths, not for burials: whoever adopts an orphan may take its time to reap it.

    Raises:
        TransientError: Something lives on.
    """
    deadline_s = time.monotonic() + KILL_PATIENCE_S
    while alive := [process.pid for process in family if not _is_gone(process)]:
        if time.monotonic() > deadline_s:
            raise TransientError(f"{machine}: processes {alive} do not die")
        time.sleep(0.005)


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _agent_of(pid: int, machine: str) -> psutil.Process | None:
    """The agent's process, or None when it is gone and its number perhaps somebody else's."""
    try:
        process = psutil.Process(pid)
        command = process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    is_agent = "everstep.workers.agent" in command and machine in command
    return process if is_agent else None
