"""What a simulated cluster is told and shows nobody: slots and quarantine are for people.

It is answered where it is asked, inside the workflow: no model hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from temporalio import activity

from everstep.workflows.effects import (
    ClaimOrder,
    ClaimReport,
    EvictOrder,
    MachineRequest,
    MachinesQuery,
    ReleaseOrder,
    SeenMachine,
    SlotsOrder,
)


class Unshown:
    """A cluster's part that minds no standby, and brings machines by itself: it takes no time."""

    def unshown(self) -> Mapping[str, Callable[[Any], Coroutine[Any, Any, Any]]]:
        """All of it, by the names of the activities."""
        return {
            "cluster.list_machines": self.list_machines,
            "cluster.claim": self.claim,
            "cluster.give_slots": self.give_slots,
            "cluster.quarantine": self.quarantine,
            "cluster.release": self.release,
            "cluster.request_machines": self.request_machines,
        }

    @activity.defn(name="cluster.list_machines")
    async def list_machines(self, query: MachinesQuery) -> tuple[SeenMachine, ...]:
        """See nobody: no machine stands anywhere."""
        return ()

    @activity.defn(name="cluster.claim")
    async def claim(self, order: ClaimOrder) -> ClaimReport:
        """Mind nobody."""
        return ClaimReport()

    @activity.defn(name="cluster.give_slots")
    async def give_slots(self, order: SlotsOrder) -> None:
        """Show nothing."""

    @activity.defn(name="cluster.quarantine")
    async def quarantine(self, order: EvictOrder) -> None:
        """Show nothing."""

    @activity.defn(name="cluster.release")
    async def release(self, order: ReleaseOrder) -> None:
        """Show nothing."""

    @activity.defn(name="cluster.request_machines")
    async def request_machines(self, request: MachineRequest) -> None:
        """Do nothing: whoever is evicted is replaced by the model."""
