"""What becomes of machines without a slot: tested when they join and now and then, and asked for.

A part of the job's workflow, which says who has joined and who is gone. Whoever is in the job's
pool may be given a slot at any moment. A machine that has just joined is not in it before it has
the code and has passed its tests; one that is tested again stays in it, and an incident ends that
test at once.

Paper: ByteRobust 2025, section 6.2: standbys check themselves, then sleep; where too few are left,
only the missing machines are asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from everstep.core import memory, updates
from everstep.core.model import MachineInfo
from everstep.workflows import options, ordering, self_check
from everstep.workflows.effects import EvictOrder
from everstep.workflows.messages import JobInput, JobState, StandbyStatus
from everstep.workflows.ports import ClusterPort
from everstep.workflows.shortfall import Shortfall

NO_INCIDENT = 0
"""What an eviction of a machine without a slot names for its incident."""

SETTLED_WITHIN_S = 5.0
"""An eviction or a request takes milliseconds where the cluster answers."""

_ROUND = "test the standbys"
_EFFECT = "effect"


class Standbys:
    """Looks after the machines that have no slot, for as long as the job's workflow lives.

    Args:
        job: The job's input.
        state: The job's state; its pool and who is on the way to it are kept here.
        note: Keeps a line for whoever asks.
        on_ready: Told of a machine that has joined the pool.
    """

    def __init__(
        self,
        job: JobInput,
        state: JobState,
        note: Callable[[str], None],
        on_ready: Callable[[MachineInfo], Awaitable[None]],
    ) -> None:
        self._job = job
        self._state = state
        self._note = note
        self._on_ready = on_ready
        self._work: dict[str, asyncio.Task[None]] = {}
        self._shortfall = Shortfall(job, state, note)
        self._looked_at: tuple[int | None, float | None] = (None, None)

    @property
    def _cares(self) -> bool:
        """False in runs that were begun before anybody looked after standbys."""
        return workflow.patched("standbys")

    # --- What the job tells -----------------------------------------------------------------------

    async def arrive(self, machine: MachineInfo) -> None:
        """A machine has joined: it counts once it has passed its tests."""
        self._drop(lambda info: info.machine == machine.machine)
        self._shortfall.one_came()
        # Before the first start nobody can say yet who will be a standby.
        if self._cares and self._state.assignment is not None and self._job.spec.standby.self_check:
            self._state.arriving.append(machine)
        else:
            self._state.pool.append(machine)
            await self._on_ready(machine)

    def expect(self, count: int) -> None:
        """So many standbys that are on their way anyhow have not come yet."""
        self._shortfall.expect(count)

    def gone(self, name: str | None, until_s: float | None = None) -> None:
        """A machine is lost, or is certain of a fault of its own.

        Args:
            name: Its name.
            until_s: One that has joined after this is another; None: whichever it is.
        """
        arriving = len(self._state.arriving)
        self._drop(
            lambda info: info.machine == name and not (until_s and info.joined_at_s > until_s)
        )
        if len(self._state.arriving) < arriving:
            self._shortfall.one_was_refused()

    def release(self) -> None:
        """An incident begins: nobody waits for the test of a machine that may be claimed now."""
        if _ROUND in self._work:
            self._work.pop(_ROUND).cancel()

    def status(self) -> StandbyStatus:
        """How many there should be, why, and who is on the way."""
        seen = self._shortfall.seen()
        return StandbyStatus(
            wanted=self._job.spec.standby_count(seen),
            failure_rate_per_day=self._job.spec.standby.rate(seen),
            failures=seen.failures,
            machine_days=seen.machine_days,
            arriving=tuple(info.machine for info in self._state.arriving),
            asked_for=self._shortfall.asked_for(),
        )

    # --- Its own life -----------------------------------------------------------------------------

    def take_for_tests(self, spares: list[MachineInfo]) -> list[MachineInfo]:
        """Before the first start: test those who will get no slot; which of them are tested."""
        if not (self._cares and self._job.spec.standby.self_check):
            return []
        self._state.pool = [info for info in self._state.pool if info not in spares]
        self._state.arriving += spares
        return spares

    async def run(self) -> None:
        """Test and ask whenever there is reason to, until this is cancelled."""
        if not self._cares:
            return
        while True:
            self._reap()
            for info in self._untested():
                self._begin(f"test {info.machine}", self._admit(info))
            if (request := self._shortfall.request()) is not None:
                work = self._shortfall.ask(request)
                self._begin(f"request {request.number}", work, effect=True)
            if self._round_is_due():
                self._begin(_ROUND, self._test_round())
            await self._wait()

    async def settle(self) -> None:
        """Leave nothing half-done: tests are cut off, evictions and requests end or are given up.

        Nothing of a job waits for a cluster that does not answer: not its end, and not its next
        run, which asks again for what is missing.
        """
        for task in self._work.values():
            if task.get_name() != _EFFECT:
                task.cancel()
        if effects := [task for task in self._work.values() if task.get_name() == _EFFECT]:
            await workflow.wait(effects, timeout=SETTLED_WITHIN_S)
            for task in effects:
                task.cancel()
        for ended in await asyncio.gather(*self._work.values(), return_exceptions=True):
            if isinstance(ended, Exception) and not is_cancelled_exception(ended):
                raise ended
        self._work = {}

    async def _wait(self) -> None:
        self._looked_at = (self._state.active, self._next_due_s())
        timeout = None
        if (due_s := self._looked_at[1]) is not None:
            timeout = timedelta(seconds=max(0.001, due_s - workflow.now().timestamp()))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                self._something_to_do, timeout=timeout, timeout_summary="leave the standbys alone"
            )

    def _something_to_do(self) -> bool:
        return (
            any(task.done() for task in self._work.values())
            or bool(self._untested())
            or self._shortfall.is_due()
            or (self._state.active, self._next_due_s()) != self._looked_at
        )

    def _next_due_s(self) -> float | None:
        """When something is to be done though nothing happens."""
        due = [
            self._shortfall.next_due_s(),
            self._round_from_s() if self._may_test_round() else None,
        ]
        return min((at_s for at_s in due if at_s is not None), default=None)

    def _begin(self, name: str, work: Coroutine[None, None, None], effect: bool = False) -> None:
        self._work[name] = asyncio.create_task(work, name=_EFFECT if effect else name)

    def _reap(self) -> None:
        """What has ended is forgotten; a mistake in it is a mistake of the workflow."""
        for name in [name for name, task in self._work.items() if task.done()]:
            self._work.pop(name).result()

    # --- Tests ------------------------------------------------------------------------------------

    def _untested(self) -> list[MachineInfo]:
        return [i for i in self._state.arriving if f"test {i.machine}" not in self._work]

    async def _admit(self, info: MachineInfo) -> None:
        finding = await self_check.lacks_code(self._job, info, self._directories)
        finding = finding or await self._fails_tests(info)
        if info not in self._state.arriving:
            return
        self._state.arriving = [known for known in self._state.arriving if known != info]
        if finding:
            self._refuse(info, f"{info.machine} is not taken for a standby: {finding}")
            return
        self._state.refused = 0
        self._state.pool.append(info)
        if self._state.assignment is not None:
            self._note(f"{info.machine} passed its tests and waits for a slot")
        await self._on_ready(info)

    async def _test_round(self) -> None:
        """Test all standbys again, one after the other, so that most are asleep at any time."""
        for info in list(self._state.pool):
            if info not in self._state.pool:
                continue
            finding = await self._fails_tests(info)
            if finding and info in self._state.pool:
                self._state.pool = [known for known in self._state.pool if known != info]
                self._refuse(info, f"standby {info.machine} is taken out: {finding}")
        self._state.tested_at_s = workflow.now().timestamp()

    async def _fails_tests(self, info: MachineInfo) -> str:
        assignment = self._state.assignment
        attempt = 0 if assignment is None else assignment.attempt
        return await self_check.fails_tests(self._job, info, attempt, self._next_test)

    def _next_test(self) -> int:
        self._state.num_tests += 1
        return self._state.num_tests

    def _directories(self) -> list[str]:
        """Where code lies that the next attempt may run."""
        assignment = self._state.assignment
        running = "" if assignment is None else assignment.code_directory
        coming = [one.directory for one in updates.pending(self._state.updates) if one.directory]
        return [running or self._job.code_directory, *coming]

    def _may_test_round(self) -> bool:
        every_s = self._job.spec.standby.check_every_s
        calm = self._state.assignment is not None and self._state.active is None
        return every_s > 0 and calm and bool(self._state.pool) and _ROUND not in self._work

    def _round_from_s(self) -> float:
        last_s = max(self._state.tested_at_s, self._state.started_at_s or 0.0)
        return last_s + self._job.spec.standby.check_every_s

    def _round_is_due(self) -> bool:
        return self._may_test_round() and workflow.now().timestamp() >= self._round_from_s()

    def _refuse(self, info: MachineInfo, finding: str) -> None:
        now_s = workflow.now().timestamp()
        self._state.machines = memory.after_refusal(
            self._state.machines, info.machine, now_s, finding
        )
        self._shortfall.one_was_refused()
        self._note(finding)
        self._begin(f"evict {info.machine}", self._evict(info, finding), effect=True)

    async def _evict(self, info: MachineInfo, finding: str) -> None:
        try:
            await workflow.execute_activity_method(
                ClusterPort.evict,
                EvictOrder(info, NO_INCIDENT, finding, self._job.spec.name),
                **options.EVICT.config(f"evict {info.machine}: {finding}"),
            )
        except ActivityError as error:
            self._note(f"{info.machine} could not be evicted: {ordering.why(error)}")

    def _drop(self, is_it: Callable[[MachineInfo], bool]) -> None:
        self._state.pool = [info for info in self._state.pool if not is_it(info)]
        for info in [info for info in self._state.arriving if is_it(info)]:
            self._state.arriving = [known for known in self._state.arriving if known != info]
            if (test := self._work.pop(f"test {info.machine}", None)) is not None:
                test.cancel()
