"""Dual-phase replay: which machines run the job, made small, until the faulty one is named.

Called by the incident workflow when stop-time checks, a reattempt and a rollback have not helped,
and by `everstep plan --replay`. The caller makes the trials; this module only says which, and what
they mean. Machines are numbered 0 to machines - 1, by slot.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from everstep.core.groups import Layout
from everstep.core.suspicion import Group, Reading, Trial, TrialOutcome, read

MAX_ROUNDS = 16
"""Rounds after which what is not decided by then stays undecided; two faulty machines take three in
most layouts, and a fault that hides takes one more."""

ALL_FAIL_ROUNDS = 4
"""Rounds in which every group failed after which no machine is to blame. Two faulty machines in few
large groups can make all of them fail for two or three differently cut rounds."""

NEW_COMPANY_AMONG = 4
"""Among how many times its size a group looks for machines that have not met."""

SHOWS_RATIO = 0.5
FOUND_RATIO = 0.99


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the machines are cut into groups.

    Attributes:
        machines: How many there are.
        unit: Machines that one copy of the model fills: every dimension but dp, kept as it is.
        m: Machines of a group of phase 1, a multiple of `unit`.
        n: Groups of phase 1, and of phase 2.
    """

    machines: int
    unit: int
    m: int
    n: int

    @property
    def divisible(self) -> bool:
        """Whether there is more than one copy of the model to compare."""
        return self.n > 1

    @property
    def used(self) -> int:
        """Machines that the two phases cover; what does not fill a copy is tried afterwards."""
        return self.machines // self.unit * self.unit


@dataclass(frozen=True, slots=True)
class Round:
    """Groups without common machines, to be tried side by side.

    Attributes:
        groups: Each of whole copies of the model.
        purpose: How they were cut, in words.
    """

    groups: tuple[Group, ...]
    purpose: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a replay has found.

    Attributes:
        outcome: FAILED: machines are named. PASSED: the failure was not reproduced.
            COULD_NOT_TELL: it was, or might have been, and nobody can be named.
        evict: The faulty machines, ascending; empty unless FAILED.
        undecided: Machines about which nothing could be told, ascending.
        reason: One sentence with what decided.
    """

    outcome: TrialOutcome
    evict: tuple[int, ...]
    undecided: tuple[int, ...]
    reason: str


def scheme_for(layout: Layout, machines: int | None = None) -> Scheme:
    """The scheme for a job.

    Paper: Algorithm 1; m = k x PP size in machines and m <= n, so that the crossing is one
    machine. k is the largest that divides the copies of the model evenly, since larger groups
    communicate more like the job. Departs from it where no k does: with copies that fill one
    machine each, groups may be uneven; with more machines to a copy than copies, the crossing holds
    several machines, and further rounds tell them apart.

    Args:
        layout: The job's ranks.
        machines: Machines at hand, where not all slots are filled.
    """
    per_copy = layout.world_size // layout.sizes["dp"]
    unit = per_copy // math.gcd(per_copy, layout.gpus_per_machine)
    return scheme_of(layout.num_machines if machines is None else machines, unit)


def scheme_of(machines: int, unit: int) -> Scheme:
    """The scheme for a number of machines, of which `unit` hold one copy of the model."""
    copies = machines // unit
    wide = [k for k in range(1, copies + 1) if copies % k == 0 and k * unit <= copies // k]
    k = max(wide, default=1)
    if k == 1 and unit == 1 and copies > 3:
        k = math.isqrt(copies)
    return Scheme(machines, unit, k * unit, -(-copies // k))


def repeats_for(shows: float = SHOWS_RATIO, found: float = FOUND_RATIO) -> int:
    """How often each trial must run so that a fault is seen in both phases.

    Ours: the paper has no rule for faults that show only sometimes. Solves
    (1 - (1 - shows)^r)^2 >= found for the smallest r.

    Args:
        shows: Probability that the fault shows in one run, above 0 and at most 1.
        found: Probability with which it has to be seen in both, above 0 and below 1.
    """
    if shows >= 1:
        return 1
    missed = 1 - math.sqrt(found)
    return max(1, math.ceil(math.log(missed) / math.log(1 - shows)))


def next_round(scheme: Scheme, rounds: Sequence[Sequence[Trial]]) -> Round | Conclusion:
    """What to try next, or what has been found.

    Paper: Algorithm 1 for the first two rounds, id // m and id mod n; one machine in both a failed
    group of the first and one of the second is the crossing. Beyond it: where the crossings do not
    decide, because several machines are faulty, a fault hid, or a trial could not be told, machines
    are tried one by one among cleared ones. Nobody is named because nothing was found.

    Args:
        scheme: From `scheme_for`.
        rounds: The trials of each round so far, in order.
    """
    if not scheme.divisible:
        return _could_not_tell(
            range(scheme.machines), "one copy of the model fills all machines: nothing to compare"
        )
    if len(rounds) < 2:
        return _phase(scheme, len(rounds) + 1)
    trials = [trial for each in rounds for trial in each]
    reading = read(range(scheme.machines), trials)
    failed_everywhere = all(trial.outcome is TrialOutcome.FAILED for trial in trials)
    # Nothing is pending where each machine failed alone: a whole job is nobody's hardware either.
    if failed_everywhere and (not reading.pending or len(rounds) >= ALL_FAIL_ROUNDS):
        return _could_not_tell(
            (), f"all groups failed in {len(rounds)} rounds: no machine stands out, code or data do"
        )
    if not reading.pending:
        return _conclude(reading)
    untold_twice = all(t.outcome is TrialOutcome.COULD_NOT_TELL for e in rounds[-2:] for t in e)
    if untold_twice or len(rounds) >= MAX_ROUNDS:
        return _conclude(reading)
    return _one_by_one(scheme, reading) or _cut_differently(scheme, reading, rounds)


def _phase(scheme: Scheme, phase: int) -> Round:
    used = range(scheme.used)
    if phase == 1:
        cuts = [used[i : i + scheme.m] for i in range(0, len(used), scheme.m)]
        purpose = f"phase 1: machine // {scheme.m}"
    else:
        cuts = [used[i :: scheme.n] for i in range(scheme.n)]
        purpose = f"phase 2: machine mod {scheme.n}"
    return Round(tuple(Group(tuple(cut)) for cut in cuts), purpose)


def _one_by_one(scheme: Scheme, reading: Reading) -> Round | None:
    """One subject a group, as many as cleared machines can accompany; None if not a single one."""
    largest = max(scheme.unit, scheme.m)
    sizes = [s for s in range(largest, 0, -scheme.unit) if s % scheme.unit == 0]
    enough = [s for s in sizes if (s - 1) * len(reading.pending) <= len(reading.cleared)]
    size = enough[0] if enough else scheme.unit
    at_once = len(reading.pending) if size == 1 else len(reading.cleared) // (size - 1)
    if at_once == 0:
        return None
    groups: list[Group] = []
    for number, subject in enumerate(reading.pending[:at_once]):
        company = reading.cleared[number * (size - 1) : (number + 1) * (size - 1)]
        groups.append(Group((subject,), company))
    return Round(tuple(groups), "one by one, among cleared machines")


def _cut_differently(scheme: Scheme, reading: Reading, rounds: Sequence[Sequence[Trial]]) -> Round:
    """All machines that are not faulty, each in the company of some that it has not met yet.

    For the case that no machine is cleared: two faulty ones that meet clear all the others' groups.
    """
    met = _met(scheme, rounds)
    left = [m for m in range(scheme.machines) if m not in reading.faulty]
    groups: list[Group] = []
    while len(left) >= scheme.unit:
        group = [left.pop(0)]
        while len(group) < scheme.unit:
            # A bounded look ahead: a workflow has milliseconds for this, at 1,200 machines, too.
            ahead = left[: NEW_COMPANY_AMONG * scheme.unit]
            stranger = min(ahead, key=lambda one: sum(one in met[other] for other in group))
            left.remove(stranger)
            group.append(stranger)
        groups.append(Group(tuple(sorted(group))))
    return Round(tuple(groups), "all machines, in new company")


def _met(scheme: Scheme, rounds: Sequence[Sequence[Trial]]) -> list[set[int]]:
    met: list[set[int]] = [set() for _ in range(scheme.machines)]
    for trial in (trial for each in rounds for trial in each):
        for machine in trial.group.machines:
            met[machine].update(trial.group.machines)
    return met


def _conclude(reading: Reading) -> Conclusion:
    if reading.faulty:
        names = ", ".join(map(str, reading.faulty))
        reason = f"machines {names} each explain a group that failed"
        if len(reading.faulty) == 1:
            reason = f"machine {names} is the one that the failed groups have in common"
        return Conclusion(TrialOutcome.FAILED, reading.faulty, reading.pending, reason)
    if reading.disputed:
        together = reading.disputed[0].machines
        return _could_not_tell(
            together,
            f"machines {', '.join(map(str, together))} failed together, and none of them alone",
        )
    if reading.pending:
        return _could_not_tell(reading.pending, "some trials could not be told")
    return Conclusion(TrialOutcome.PASSED, (), (), "not reproduced: no group failed")


def _could_not_tell(undecided: Collection[int], reason: str) -> Conclusion:
    return Conclusion(TrialOutcome.COULD_NOT_TELL, (), tuple(undecided), reason)
