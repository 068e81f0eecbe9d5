"""The cluster port for machines that are processes on this host."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import psutil
from temporalio import activity

from everstep.activities.failure import as_failures
from everstep.activities.heartbeat import beating
from everstep.activities.local_journal import Journal
from everstep.core.errors import TransientError
from everstep.workflows.effects import (
    ClaimOrder,
    ClaimReport,
    Evicted,
    EvictOrder,
    MachineRequest,
    MachinesQuery,
    ReleaseOrder,
    SeenMachine,
    SlotsOrder,
)
from everstep.workflows.ports import ClusterPort

MODULE = "everstep.workers.agent"

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
        self._journal = Journal(journal)
        self._folder = journal.parent.absolute()
        self._requests = requests

    @activity.defn(name="cluster.list_machines")
    async def list_machines(self, query: MachinesQuery) -> tuple[SeenMachine, ...]:
        """See which agents of the run live; all of them stand in one place.

        Effect: none.
        Idempotent by: having none.
        Heartbeats: no.
        Gives up when: never.
        """
        return await asyncio.to_thread(self._list)

    @activity.defn(name="cluster.claim")
    async def claim(self, order: ClaimOrder) -> ClaimReport:
        """Give slots to agents that live and are not in quarantine.

        Effect: one journal line a machine.
        Idempotent by: the newest line, which counts.
        Heartbeats: no.
        Gives up when: never.
        """
        return await asyncio.to_thread(self._claim, order)

    @activity.defn(name="cluster.give_slots")
    async def give_slots(self, order: SlotsOrder) -> None:
        """Note who holds which slot.

        Effect: one journal line.
        Idempotent by: the newest line, which counts.
        Heartbeats: no.
        Gives up when: never.
        """
        await asyncio.to_thread(self._journal.write, "slots", machines=list(order.machines))

    @activity.defn(name="cluster.quarantine")
    async def quarantine(self, order: EvictOrder) -> None:
        """Note that a machine takes no slot.

        Effect: one journal line.
        Idempotent by: the newest line, which counts.
        Heartbeats: no.
        Gives up when: never.
        """
        await asyncio.to_thread(
            self._journal.write, "quarantine", machine=order.machine.machine, reason=order.reason
        )

    @activity.defn(name="cluster.release")
    async def release(self, order: ReleaseOrder) -> None:
        """Note that a machine may take a slot again.

        Effect: one journal line.
        Idempotent by: the newest line, which counts.
        Heartbeats: no.
        Gives up when: never.
        """
        await asyncio.to_thread(self._journal.write, "release", machine=order.machine)

    @activity.defn(name="cluster.evict")
    async def evict(self, order: EvictOrder) -> Evicted | None:
        """Make sure that nothing of the job runs on the machine.

        Effect: the agent's process and all its descendants are gone; one journal line, by which it
            is in quarantine too.
        Idempotent by: the agent's process id; a process that is gone stays gone, and the line is
            written only by the call that first finds the incident's eviction not recorded.
        Heartbeats: yes.
        Gives up when: never; a process that does not die is tried again.
        """
        with as_failures():
            async with beating():
                await asyncio.to_thread(self._evict, order)
        return Evicted()

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

    def _list(self) -> tuple[SeenMachine, ...]:
        holders = self._journal.holders()
        shut = self._journal.quarantined()
        return tuple(
            SeenMachine(machine, holders.get(machine), machine in shut)
            for machine in sorted(self._agents())
        )

    def _agents(self) -> list[str]:
        """Names of the machines of this run whose agents live."""
        run, found = str(self._folder), list[str]()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                command = process.cmdline()
                if MODULE in command and process.environ().get("EVERSTEP_RUN_DIRECTORY") == run:
                    found.append(command[-1])
        return found

    def _claim(self, order: ClaimOrder) -> ClaimReport:
        shut, refused = self._journal.quarantined(), list[tuple[str, str]]()
        for slot, info in order.claims:
            if info.machine in shut:
                refused.append((info.machine, f"{info.machine} is in quarantine"))
            elif _agent_of(info.agent_pid, info.machine) is None:
                refused.append((info.machine, f"its agent (process {info.agent_pid}) is gone"))
            else:
                self._journal.write("slot", machine=info.machine, slot=slot)
        return ClaimReport(tuple(refused))

    def _evict(self, order: EvictOrder) -> None:
        victim = _agent_of(order.machine.agent_pid, order.machine.machine)
        if victim is not None:
            family = [victim, *victim.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _wait_until_gone(family, order.machine.machine)
        self._journal.write_once(
            "evict", order.reason, machine=order.machine.machine, incident=order.incident
        )


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
    is_agent = MODULE in command and machine in command
    return process if is_agent else None
