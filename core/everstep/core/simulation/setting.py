"""What a simulated run is given: the job, the times that things take, and what the policy changes.

Made from a spec and preset files by `everstep.spec.simulation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from everstep.core.groups import Layout
from everstep.core.ladder import Policy
from everstep.core.placement import BackupPlan
from everstep.core.simulation.chance import Spread
from everstep.core.vocabulary import Check, Rung


class Method(StrEnum):
    """Who decides what is done about a fault."""

    LADDER = "ladder"
    """Everstep."""
    REQUEUE = "requeue"
    """Restart all, through the queue, and hope."""
    STRESS_TEST = "stress_test"
    """Stop, stress-test the suspects, replace whom that names, and restart."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long things take, in seconds.

    Attributes:
        detect: From a fault to its alert, by `Way.detection`.
        detect_by_timeout: The same without inspection of machines: what the naive peers have.
        step_s: One step of training.
        stop: From the alert to all ranks stopped and judged.
        look: Asking all ranks where they stand, once.
        check: One test of all machines at once, by test; links: one meeting.
        replay_round: Running the job, made small, on all groups at once.
        restore: Fetching shards from other machines.
        restore_from_storage: The same from storage, the listing included.
        start: From the order to ranks that begin a step.
        join: From the loss of a machine to another one that waits for a slot.
        person: From a page to a person who has found and mended the cause.
        requeue: A restart of the whole job through the queue.
        reschedule: A restart in which only evicted machines are scheduled anew.
        stress: A stress test of the suspects, by symptom; where there is none it finds nothing.
        stress_default: How long such a test goes on that finds nothing.
    """

    detect: Mapping[str, Spread]
    detect_by_timeout: Mapping[str, Spread]
    step_s: float
    stop: Spread
    look: Spread
    check: Mapping[Check, Spread]
    replay_round: Spread
    restore: Spread
    restore_from_storage: Spread
    start: Spread
    join: Spread
    person: Spread
    requeue: Spread
    reschedule: Spread
    stress: Mapping[str, Spread]
    stress_default: Spread


@dataclass(frozen=True, slots=True)
class Choices:
    """What a policy does otherwise than the spec says.

    Attributes:
        name: Of the policy.
        method: Who decides.
        group: Whether a hang's whole parallel group goes where nothing points at one machine; else
            one machine of it does.
        bitwise: Whether NaN is followed by the bitwise test.
        retry_first: Whether each incident begins with a reattempt.
        evict_suspects: As in `ladder.Policy`; None: as the spec says.
        checkpoint_every_steps: Steps from one state in memory to the next, >= 1.
        standbys: Machines kept warm; None: as the spec says.
    """

    name: str = "everstep"
    method: Method = Method.LADDER
    group: bool = True
    bitwise: bool = True
    retry_first: bool = False
    evict_suspects: bool | None = None
    checkpoint_every_steps: int = 1
    standbys: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The job, and how it is recovered.

    Attributes:
        layout: The job's ranks, those of a machine that lie in one TP group as one.
        backup: Who keeps whose copy.
        policy: What the ladder may do without asking.
        unavailable: Rungs that cannot be climbed.
        standbys: Machines kept warm.
        window_s: Of evictions that count against the policy's share.
        evidence_window_s: How long evidence settles.
        probation_steps: Healthy steps that close an incident.
        probation_s: Time that closes an incident.
        first_step_timeout_s: Longest wait for an attempt's first step.
        stacks_apart_s: Between two looks at ranks that hang.
        storage_every_s: Between two saves to storage; None: there is none.
        durations: How long things take.
        choices: What the policy changes.
        seed: What all chance follows from.
        days: How long the job runs.
    """

    layout: Layout
    backup: BackupPlan
    policy: Policy
    unavailable: Mapping[Rung, str]
    standbys: int
    window_s: float
    evidence_window_s: float
    probation_steps: int
    probation_s: float
    first_step_timeout_s: float
    stacks_apart_s: float
    storage_every_s: float | None
    durations: Durations
    choices: Choices = field(default_factory=Choices)
    seed: int = 1
    days: float = 90.0
