"""What a simulated cluster takes part in workflows with, beside the ones that run in production.

`SimulateFate` lets things happen when their time has come. `OrderSimulated` stands in for
`OrderMachines`: the cluster answers for all machines of a batch at once, when they would have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RawValue

from everstep.workflows import options
from everstep.workflows.batches import GIVE_UP, ORDER_MACHINES
from everstep.workflows.messages import MAX_EVENTS

CLOSE_TO_EVENT_S = 0.001
"""Two clocks that tell one moment agree to the millisecond."""


class SimulationPort(ABC):
    """The simulated cluster."""

    @activity.defn(name="simulation.answer")
    @abstractmethod
    async def answer(self, batch: RawValue) -> RawValue:
        """Carry `MachineOrders` out; the `MachineReports`, once all have answered."""

    @activity.defn(name="simulation.let_happen")
    @abstractmethod
    async def let_happen(self) -> float | None:
        """Let happen what is due; when the next thing is, Unix seconds, or None if nothing is."""


@workflow.defn(name="SimulateFate")
class SimulateFate:
    """Lets faults strike, machines join and persons answer, until the job's days are over.

    Signal: `changed`, when something may be due sooner than it was.
    """

    def __init__(self) -> None:
        self._changed = False

    @workflow.signal
    def changed(self) -> None:
        """What comes next may have changed."""
        self._changed = True

    @workflow.run
    async def run(self) -> None:
        """Wait for the next thing and let it happen, again and again."""
        while True:
            self._changed = False
            next_s = await workflow.execute_activity_method(
                SimulationPort.let_happen, **options.ANSWER.config("let happen what is due")
            )
            if next_s is None:
                return
            wait_s = max(CLOSE_TO_EVENT_S, next_s - workflow.now().timestamp())
            try:
                await workflow.wait_condition(
                    lambda: self._changed, timeout=timedelta(seconds=wait_s)
                )
            except TimeoutError:
                workflow.logger.debug("something is due")
            if workflow.info().is_continue_as_new_suggested() or _is_long():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new()


@workflow.defn(name=ORDER_MACHINES)
class OrderSimulated:
    """Orders the machines of a batch, all at once. Reads neither orders nor reports."""

    @workflow.signal(name=GIVE_UP)
    def give_up(self, machines: list[str]) -> None:
        """These will not answer any more, which the cluster knows already."""

    @workflow.run
    async def run(self, batch: RawValue) -> RawValue:
        """Ask the cluster, which answers when its machines would have."""
        return await workflow.execute_activity_method(
            SimulationPort.answer, batch, **options.ANSWER.config("ask the simulated machines")
        )


def _is_long() -> bool:
    return workflow.info().get_current_history_length() > MAX_EVENTS
