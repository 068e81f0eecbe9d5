"""What workflows ask of the cluster, the analyzer, the judge of stacks, and the pager."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.groups import Layout
from everstep.core.model import MachineInfo
from everstep.core.vocabulary import Notice, Symptom


@dataclass(frozen=True, slots=True)
class EvictOrder:
    """Take a machine out for good.

    Attributes:
        machine: The machine, with the process id of the agent that is meant.
        incident: Which incident ordered it, 0 for a machine that had no slot; with the machine,
            what makes the order idempotent.
        reason: One sentence for the record.
        job: Name of the job.
    """

    machine: MachineInfo
    incident: int
    reason: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class Evicted:
    """How far an eviction has come when its order is answered.

    Attributes:
        waiting: What the last of it waits for, which recovery need not; empty when it is done.
    """

    waiting: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseOrder:
    """Let others use a machine again that a job had taken out.

    Attributes:
        job: Name of the job.
        machine: Name of the machine.
    """

    job: str
    machine: str


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """Give slots to standbys, if nothing speaks against them.

    Attributes:
        job: Name of the job.
        incident: Whose restart it is.
        claims: Slot and machine.
    """

    job: str
    incident: int
    claims: tuple[tuple[int, MachineInfo], ...]


@dataclass(frozen=True, slots=True)
class ClaimReport:
    """What speaks against standbys.

    Attributes:
        refused: Machine and why, one sentence; all others have their slots.
    """

    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SlotsOrder:
    """Show who holds which slot.

    Attributes:
        job: Name of the job.
        machines: Names of machines by slot.
    """

    job: str
    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MachinesQuery:
    """Which machines has a job?

    Attributes:
        job: Name of the job.
        topology_label: Label of nodes that says where they stand; empty: it does not matter.
    """

    job: str
    topology_label: str = ""


@dataclass(frozen=True, slots=True)
class SeenMachine:
    """A machine as the cluster knows it.

    Attributes:
        machine: Its name.
        slot: The slot that it is shown to hold; None without one.
        quarantined: Whether Everstep holds it in quarantine.
        place: Where it stands, by the label that was asked for; empty where none is told.
    """

    machine: str
    slot: int | None = None
    quarantined: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """A job lacks machines: let so many more come.

    Attributes:
        job: Name of the job.
        run: The job's run; with the number, what makes the request idempotent.
        number: Of the job's requests, from 1.
        count: How many machines are missing that nobody has been asked for, > 0.
        total: How many the job wants in all, in slots and on standby; where a cluster keeps a set
            of machines at a size, this is the size.
        reason: One sentence: what they are missing for.
    """

    job: str
    run: str
    number: int
    count: int
    total: int
    reason: str


@dataclass(frozen=True, slots=True)
class MachineStacks:
    """What one machine said of its ranks in one look at the job, by reference.

    Attributes:
        machine: Its name.
        evidence: URL of the evidence store; empty when it said nothing.
        manifest: Digest there of the list of its ranks' dumps; empty when it said nothing.
        why: Why it said nothing; else empty.
    """

    machine: str
    evidence: str = ""
    manifest: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class JudgeOrder:
    """Say who holds a job up.

    Attributes:
        title: What the picture is called.
        layout: The job.
        looks: One entry a look, in order of time: machines by slot.
    """

    title: str
    layout: Layout
    looks: tuple[tuple[MachineStacks, ...], ...]


@dataclass(frozen=True, slots=True)
class AwaitStep:
    """Wait until every rank of an attempt has finished a step."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class PageOrder:
    """Call a person, or tell a channel how an incident goes.

    Attributes:
        webhook: Environment variable of the controller that holds the address: it may be a secret,
            and this is history.
        key: The same for every try of one page, and for no other page.
        job: Name of the job.
        incident: Number within the job.
        reason: What a person is needed for, or should know.
        symptom: What was found.
        machines: At which the evidence points.
        story: The newest lines of the incident's story, oldest first.
        event: What is told.
        format: Of the request's body: `json`, which is this order, or `slack`.
    """

    webhook: str
    key: str
    job: str
    incident: int
    reason: str
    symptom: Symptom
    machines: tuple[str, ...]
    story: tuple[str, ...]
    event: Notice = Notice.PAGED
    format: str = "json"
