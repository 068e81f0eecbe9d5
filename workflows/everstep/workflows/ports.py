"""The activities that workflows call, as abstract ports.

A workflow names an activity through its port, so that its sandbox never loads what an adapter
needs. Each port is implemented once in `everstep.activities` (a contract test asserts it) and by
fakes in tests. Activity names are wire format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from temporalio import activity

from everstep.core.hang import JudgedStacks
from everstep.core.model import StepSeen
from everstep.core.orders import (
    CheckOrder,
    CheckResult,
    MachineReport,
    PrepareOrder,
    PrepareReport,
    RestoreOrder,
    RestoreReport,
    StartOrder,
    StartReport,
    StopOrder,
    StorageReport,
    TraceOrder,
    TraceReport,
)
from everstep.core.record import IncidentRecord
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.workflows.effects import (
    AwaitStep,
    ClaimOrder,
    ClaimReport,
    Evicted,
    EvictOrder,
    JudgeOrder,
    MachineRequest,
    MachinesQuery,
    PageOrder,
    ReleaseOrder,
    SeenMachine,
    SlotsOrder,
)


class MachinePort(ABC):
    """Orders to one machine, carried out by its agent on its own task queue."""

    @activity.defn(name="machine.stop")
    @abstractmethod
    async def stop(self, order: StopOrder) -> MachineReport:
        """End all ranks of the attempt and older ones; a second call returns the same report."""

    @activity.defn(name="machine.restore")
    @abstractmethod
    async def restore(self, order: RestoreOrder) -> RestoreReport:
        """Fetch missing shards; a second call fetches what is still missing."""

    @activity.defn(name="machine.look_at_storage")
    @abstractmethod
    async def look_at_storage(self) -> StorageReport:
        """See what is in storage; a second call looks again."""

    @activity.defn(name="machine.start")
    @abstractmethod
    async def start(self, order: StartOrder) -> StartReport:
        """Start the ranks of an attempt; a second call returns the first report."""

    @activity.defn(name="machine.prepare")
    @abstractmethod
    async def prepare(self, order: PrepareOrder) -> PrepareReport:
        """See whether a code version can run; a second call looks again."""


class TracePort(ABC):
    """Where a machine's ranks stand, asked of its agent on its own task queue."""

    @activity.defn(name="machine.trace")
    @abstractmethod
    async def trace(self, order: TraceOrder) -> TraceReport:
        """Keep every rank's stacks as evidence; a second call asks again."""


class StackPort(ABC):
    """What the stacks of all ranks mean; any controller can read them."""

    @activity.defn(name="stacks.judge")
    @abstractmethod
    async def judge(self, order: JudgeOrder) -> JudgedStacks:
        """Say who holds the job up; a second call reads and says the same."""


class CheckPort(ABC):
    """Tests of a machine between two attempts, carried out by its agent on its own task queue."""

    @activity.defn(name="machine.check")
    @abstractmethod
    async def check(self, order: CheckOrder) -> CheckResult:
        """Check the machine; a second call returns the first result, or checks again."""

    @activity.defn(name="machine.replay")
    @abstractmethod
    async def replay(self, order: ReplayOrder) -> ReplayReport:
        """Take part in a trial of a small job; a second call returns the first report."""


class ClusterPort(ABC):
    """What the outside world does with machines.

    A lost machine need not answer for any of it. What the cluster shows of slots and quarantine is
    for people and schedulers: no recovery depends on it.
    """

    @activity.defn(name="cluster.list_machines")
    @abstractmethod
    async def list_machines(self, query: MachinesQuery) -> tuple[SeenMachine, ...]:
        """See which machines the job has; a second call looks again."""

    @activity.defn(name="cluster.claim")
    @abstractmethod
    async def claim(self, order: ClaimOrder) -> ClaimReport:
        """Give slots to standbys that nothing speaks against; a second call looks again."""

    @activity.defn(name="cluster.give_slots")
    @abstractmethod
    async def give_slots(self, order: SlotsOrder) -> None:
        """Show who holds which slot, and that others hold none; a second call changes nothing."""

    @activity.defn(name="cluster.quarantine")
    @abstractmethod
    async def quarantine(self, order: EvictOrder) -> None:
        """Let nothing new begin on a machine, whose agent lives on; a second call finds it done."""

    @activity.defn(name="cluster.release")
    @abstractmethod
    async def release(self, order: ReleaseOrder) -> None:
        """Undo the job's quarantine, and nobody else's; a second call finds it done."""

    @activity.defn(name="cluster.evict")
    @abstractmethod
    async def evict(self, order: EvictOrder) -> Evicted | None:
        """Quarantine a machine, and end what runs on it of the job; a second call finds it done.

        Returns:
            What is left to wait for, if anything. None only from before this was told.
        """

    @activity.defn(name="cluster.request_machines")
    @abstractmethod
    async def request_machines(self, request: MachineRequest) -> None:
        """See to it that machines which the job lacks come; a second call brings no more of them.

        Returns as soon as they are on their way: each one announces itself to the job when its
        agent is ready, checked or not. A cluster that replaces lost machines by itself need do no
        more than look that it does. The job asks again, under the next number, for what has not
        come after a while.
        """


class AnalysisPort(ABC):
    """Questions to the job's analyzer, which sees the telemetry of all ranks."""

    @activity.defn(name="analysis.await_step")
    @abstractmethod
    async def await_step(self, wanted: AwaitStep) -> StepSeen:
        """Wait until every rank has finished the step; a second call answers at once."""


class ArchivePort(ABC):
    """Where incident records are kept outside Temporal."""

    @activity.defn(name="archive.save_incident")
    @abstractmethod
    async def save_incident(self, record: IncidentRecord) -> None:
        """Write the record; a second call with a newer state replaces it."""


class NotifyPort(ABC):
    """Whom to call when a person is needed."""

    @activity.defn(name="notify.page")
    @abstractmethod
    async def page(self, order: PageOrder) -> None:
        """Call a person; a second call carries the same key, by which the other side knows it."""
