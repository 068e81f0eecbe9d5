"""The escalation ladder: from evidence and the rungs already climbed to the next rung.

Called by the incident workflow until training is stable again. It always ends: an eviction names
machines that this incident has not evicted yet, or that came back since then and go for good now,
an update is made once, every other rung is climbed once an incident, and what is left is a person.
An eviction that a person has denied is asked for once more after each restart that brought new
certain evidence against the machine. Tests between two attempts (`CHECKS`, `REPLAY`) only name
machines; that these go is a rung of its own, so that one place holds everything that guards an
eviction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from everstep.core.classify.names import Action
from everstep.core.record import Climb, Finding
from everstep.core.vocabulary import ClimbOutcome, Mode, Rung, Symptom

FOLLOWED_ABOVE = 0.5
"""What ranks said last chooses the first rung where a careful reader of it would be right more
often than not."""

SUSPECTED_OF = (
    Symptom.CUDA_ERROR,
    Symptom.GPU_UNAVAILABLE,
    Symptom.GPU_MEMORY_ERROR,
    Symptom.DISK_FAULT,
)
"""What points at the machine of the rank that said it, and may be the code's doing all the same."""

TESTS = (Rung.CHECKS, Rung.REPLAY)
"""Rungs after which the job is not started again: they only name machines."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be done without asking; from the job's spec.

    Attributes:
        machines: Machines in the job.
        max_evicted_ratio: Largest share of them evicted in the window, 0 to 1.
        max_restarts_without_progress: Restarts in a row that may bring no new step.
        modes: How each rung may be performed; automatic where it is not named.
        evict_suspects: Whether the machine of a rank that complained of it goes untested.
    """

    machines: int
    max_evicted_ratio: float
    max_restarts_without_progress: int
    modes: Mapping[Rung, Mode] = field(default_factory=dict[Rung, Mode])
    evict_suspects: bool = False

    @property
    def max_evicted(self) -> int:
        """Most machines that may be evicted in the window; always at least one."""
        return max(1, math.floor(self.machines * self.max_evicted_ratio))


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand beside the evidence.

    Attributes:
        evicted_in_window: Machines evicted in the window so far, this incident's included.
        restarts_without_progress: Restarts of this incident after which no new step was seen.
        code_proven: Whether the code version that runs has ever made a healthy step.
        unavailable: Rungs that cannot be climbed at all, each with why.
        approved: Whether a person has allowed the next rung, past every limit.
        updates: Changes of code or arguments that wait for a restart.
        returned: Machines that this incident evicted for their group alone, and let come back.
        asks_again: Whether an eviction that was not performed may be asked for once more.
        spares_code: Whether a machine that is gone, and stays, leaves code and trials alone.
    """

    evicted_in_window: int = 0
    restarts_without_progress: int = 0
    code_proven: bool = True
    unavailable: Mapping[Rung, str] = field(default_factory=dict[Rung, str])
    approved: bool = False
    updates: int = 0
    returned: Collection[str] = ()
    asks_again: bool = True
    spares_code: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The next rung, whom it concerns, why, and whether a person has to say yes.

    Attributes:
        rung: PAGE with mode APPROVE: wait for a person; with AUTOMATIC: a person has said that the
            job is to be started again all the same.
        machines: Whom to evict; empty for other rungs.
        reason: One sentence.
        mode: AUTOMATIC: perform it. APPROVE: wait for a person's yes or no. OBSERVE: note it as
            climbed with outcome OBSERVED, and ask again.
        only_way: Whether nothing is left beside it, so that no is no answer.
    """

    rung: Rung
    machines: tuple[str, ...]
    reason: str
    mode: Mode = Mode.AUTOMATIC
    only_way: bool = False


def next_rung(
    finding: Finding, climbed: Sequence[Climb], policy: Policy, standing: Standing
) -> Decision:
    """Choose the next rung.

    Paper: sections 4.1 to 4.3 and Fig. 5. A certain fault of a machine is evicted; an error of user
    code, or a failure of a version that never made a healthy step, is rolled back; what shows no
    culprit is checked, tried again, rolled back, and replayed, in this order. When the same symptom
    comes back after an eviction or a rollback, trying again is left out. Departs from the paper by
    the brakes (modes, the share of machines evicted in a window, restarts without progress); by
    what ranks said last, which puts a rollback first where it accuses the code or its
    configuration, and trying again where it accuses a service, a network outside, or the data; by
    asking for a person when data fail twice; by trying again first when somebody ended a rank by a
    signal; and by its last rung before a person: a machine at which every failure of the incident
    pointed goes, unless a replay ran it through without a failure. Where the policy evicts
    suspects, a machine goes untested for what a rank of its own said, the first time. Where a
    person is needed and a machine is gone whose eviction was not performed, the person is asked for
    that: without it no restart can bring a step.

    Args:
        finding: What the evidence of the newest failure says.
        climbed: Rungs of this incident so far, in order, those not performed included.
        policy: What may be done without asking.
        standing: How things stand.
    """
    case = _Case(finding, climbed, standing, policy)
    stuck = standing.restarts_without_progress
    if stuck >= policy.max_restarts_without_progress and (case.gone or not standing.approved):
        return _for_a_person(case, f"{stuck} restarts brought no new step")
    if case.data_accused_again:
        mode = Mode.AUTOMATIC if standing.approved else Mode.APPROVE
        return Decision(Rung.PAGE, (), f"the data have to be mended: {finding.reason}", mode)
    for rung, rule in _RULES:
        decision = None if case.closed(rung) else rule(case)
        if decision is not None:
            return _braked(decision, case)
    return _for_a_person(case, "nothing left to try")


def _for_a_person(case: _Case, why: str) -> Decision:
    """What only a person can say: that a machine goes that is gone, or to start all the same."""
    reason = case.finding.reason
    mode = Mode.AUTOMATIC if case.standing.approved else Mode.APPROVE
    if case.gone:
        reason = f"{why} without the eviction of {', '.join(case.gone)}: {reason}"
        return Decision(Rung.EVICT, case.gone, reason, mode, only_way=True)
    if case.standing.approved:
        why = "approved by a person"
    return Decision(Rung.PAGE, (), f"{why}: {reason}", mode)


def _braked(decision: Decision, case: _Case) -> Decision:
    policy, standing = case.policy, case.standing
    mode = policy.modes.get(decision.rung, Mode.AUTOMATIC)
    if mode is Mode.OBSERVE:
        return replace(decision, mode=mode)
    if standing.approved:
        return decision
    if any(case.eviction_of(m) is ClimbOutcome.DENIED for m in decision.machines):
        reason = f"denied before, and seen again: {decision.reason}"
        return replace(decision, mode=Mode.APPROVE, reason=reason)
    total = standing.evicted_in_window + len(decision.machines)
    if decision.machines and total > policy.max_evicted:
        reason = (
            f"evicting {', '.join(decision.machines)} would make {total} evictions within the"
            f" window, and at most {policy.max_evicted} of {policy.machines} machines may go"
            f" without approval: {decision.reason}"
        )
        return replace(decision, mode=Mode.APPROVE, reason=reason)
    return replace(decision, mode=mode)


class _Case:
    """An incident as the rules look at it."""

    def __init__(
        self, finding: Finding, climbed: Sequence[Climb], standing: Standing, policy: Policy
    ) -> None:
        self.finding = finding
        self.climbed = climbed
        self.standing = standing
        self.policy = policy

    def closed(self, rung: Rung) -> bool:
        """Whether a rung cannot be climbed, or not once more."""
        if rung in self.standing.unavailable:
            return True
        if rung is Rung.UPDATE and self.standing.updates:
            # Each one is somebody's wish, and is made once.
            return False
        return rung is not Rung.EVICT and any(climb.rung is rung for climb in self.climbed)

    def present(self, machines: Sequence[str]) -> tuple[str, ...]:
        """Those that no eviction of this incident has named since they came last, sorted.

        One that a person denied does not count where new certain evidence came after it.
        """
        named = Counter(
            machine
            for at, climb in enumerate(self.climbed)
            if climb.rung is Rung.EVICT
            for machine in climb.machines
            if not self._seen_again(at, machine)
        )
        back = self.standing.returned
        return tuple(m for m in sorted({*machines}) if named[m] <= (m in back))

    def _seen_again(self, at: int, machine: str) -> bool:
        """Whether certain evidence against a machine came after this denial of its eviction."""
        denial, finding = self.climbed[at], self.finding
        if denial.outcome is not ClimbOutcome.DENIED or not self.standing.asks_again:
            return False
        if not finding.confident or machine not in finding.machines:
            return False
        restarted = any(
            climb.rung not in TESTS and climb.outcome is ClimbOutcome.DONE
            for climb in self.climbed[at + 1 :]
        )
        return restarted or denial.symptom not in (None, finding.symptom)

    def eviction_of(self, machine: str) -> ClimbOutcome | None:
        """What the newest eviction that named a machine brought, or None if there was none."""
        evictions = [climb for climb in self.climbed if climb.rung is Rung.EVICT]
        return next((c.outcome for c in reversed(evictions) if machine in c.machines), None)

    def _left_out(self, *outcomes: ClimbOutcome) -> tuple[str, ...]:
        """Machines with certain evidence against them whose newest eviction came to this."""
        certain = self.finding.machines if self.finding.confident else ()
        return tuple(m for m in certain if self.eviction_of(m) in outcomes)

    @property
    def gone(self) -> tuple[str, ...]:
        """Machines that answer nothing, and whose eviction was chosen and not performed."""
        if self.finding.symptom is not Symptom.AGENT_LOST or not self.standing.asks_again:
            return ()
        return self._left_out(ClimbOutcome.DENIED, ClimbOutcome.OBSERVED)

    @property
    def clears_code(self) -> bool:
        """Whether no code could run, for a machine that is gone and stays."""
        return bool(self.gone) and self.standing.spares_code

    @property
    def no_culprit(self) -> str:
        """Why nobody is evicted for what the evidence says, in words."""
        if denied := self._left_out(ClimbOutcome.DENIED):
            return f"a person denied the eviction of {', '.join(denied)}"
        if observed := self._left_out(ClimbOutcome.OBSERVED):
            return f"the eviction of {', '.join(observed)} is only noted"
        return "no machine stands out for certain"

    @property
    def restarts(self) -> list[Climb]:
        """Rungs after which the job was started again."""
        rungs = (Rung.EVICT, Rung.REATTEMPT, Rung.ROLLBACK)
        done = ClimbOutcome.DONE
        return [climb for climb in self.climbed if climb.rung in rungs and climb.outcome is done]

    def outcome(self, rung: Rung) -> ClimbOutcome | None:
        """What a rung brought, or None if it has not been climbed."""
        return next((climb.outcome for climb in self.climbed if climb.rung is rung), None)

    def advised(self, action: Action) -> bool:
        """Whether what the ranks said last asks for this first, and is worth following."""
        finding = self.finding
        return finding.first_action == action and finding.confidence > FOLLOWED_ABOVE

    @property
    def tried_again(self) -> bool:
        """Whether the job has been started again since this failure came first."""
        return any(climb.symptom in (None, self.finding.symptom) for climb in self.restarts)

    @property
    def data_accused_again(self) -> bool:
        """Whether the data failed before and after a restart, and no person has said go on yet."""
        accused = self.advised(Action.FIX_DATA) and self.tried_again
        return accused and self.outcome(Rung.PAGE) is None

    @property
    def code_alone(self) -> bool:
        """Whether code is to blame, and has not been cleared by failing in an older version too."""
        rolled_back = self.outcome(Rung.ROLLBACK) is ClimbOutcome.DONE
        return self.finding.symptom is Symptom.CODE_ERROR and not rolled_back


def _evict(machines: tuple[str, ...], reason: str) -> Decision | None:
    return Decision(Rung.EVICT, machines, reason) if machines else None


def _asked_for(case: _Case) -> Decision | None:
    """Somebody wants other code or arguments: no rank failed, and no machine is accused."""
    finding = case.finding
    if finding.symptom is not Symptom.CODE_DATA_ADJUSTMENT or finding.ranks or finding.machines:
        return None
    return Decision(Rung.UPDATE, (), finding.reason)


def _named_by_tests(case: _Case) -> Decision | None:
    named = [climb for climb in case.climbed if climb.outcome is ClimbOutcome.FOUND]
    machines = case.present([machine for climb in named for machine in climb.machines])
    return _evict(machines, named[-1].reason if named else "")


def _certain(case: _Case) -> Decision | None:
    if not case.finding.confident:
        return None
    return _evict(case.present(case.finding.machines), case.finding.reason)


def _isolated(case: _Case) -> Decision | None:
    """Whom the analysis of silence or slowness has isolated: a group, likely with innocent ones."""
    if case.finding.symptom not in (Symptom.JOB_HANG, Symptom.MFU_DECLINE):
        return None
    return _evict(case.present(case.finding.machines), case.finding.reason)


def _refused_again(case: _Case) -> Decision | None:
    if case.finding.symptom is not Symptom.CONTAINER_ERROR or not case.restarts:
        return None
    return _evict(case.present(case.finding.machines), case.finding.reason)


def _code_accused(case: _Case) -> Decision | None:
    if case.finding.symptom is Symptom.CODE_ERROR:
        return Decision(Rung.ROLLBACK, (), f"an error of the code: {case.finding.reason}")
    if case.advised(Action.ROLLBACK):
        reason = f"the code or its configuration is accused: {case.finding.reason}"
        return Decision(Rung.ROLLBACK, (), reason)
    if not case.standing.code_proven and not case.clears_code:
        reason = f"this code version never made a healthy step: {case.finding.reason}"
        return Decision(Rung.ROLLBACK, (), reason)
    return None


def _killed(case: _Case) -> Decision | None:
    """Somebody ended a rank: a second's restart tells more than minutes of tests."""
    if not case.finding.killed or case.restarts:
        return None
    return Decision(Rung.REATTEMPT, (), f"ended from outside, by no crash: {case.finding.reason}")


def _passing(case: _Case) -> Decision | None:
    """What no machine of the job did: storage, a service, a network, data that were read wrong."""
    if case.tried_again or not (case.advised(Action.RETRY) or case.advised(Action.FIX_DATA)):
        return None
    return Decision(Rung.REATTEMPT, (), f"it may pass by itself: {case.finding.reason}")


def _suspected(case: _Case) -> Decision | None:
    """Whom a rank of its own complained of: replaced in seconds, where tests take minutes."""
    finding = case.finding
    alone = len(finding.machines) == 1 and finding.symptom in SUSPECTED_OF
    if not (case.policy.evict_suspects and alone) or case.restarts:
        return None
    return _evict(case.present(finding.machines), f"suspected, not tested: {finding.reason}")


def _checks(case: _Case) -> Decision | None:
    if case.code_alone:
        return None
    return Decision(Rung.CHECKS, (), f"{case.no_culprit}: {case.finding.reason}")


def _reattempt(case: _Case) -> Decision | None:
    if case.tried_again:
        return None
    checked = {
        ClimbOutcome.PASSED: "all checks passed, so it may have been transient",
        ClimbOutcome.COULD_NOT_TELL: "the checks could not clear all machines; one more try",
    }.get(case.outcome(Rung.CHECKS) or ClimbOutcome.DONE, case.no_culprit)
    return Decision(Rung.REATTEMPT, (), f"{checked}: {case.finding.reason}")


def _rollback(case: _Case) -> Decision | None:
    if case.clears_code:
        return None
    last = case.restarts[-1].rung if case.restarts else None
    tried = {
        Rung.EVICT: "the failure came back after an eviction",
        Rung.REATTEMPT: "the failure came back after a reattempt",
    }.get(last or Rung.PAGE, "nothing else is left to try first")
    return Decision(Rung.ROLLBACK, (), f"{tried}: {case.finding.reason}")


def _replay(case: _Case) -> Decision | None:
    if case.code_alone or case.clears_code:
        return None
    return Decision(Rung.REPLAY, (), f"the failure came back each time: {case.finding.reason}")


def _stood_out(case: _Case) -> Decision | None:
    """The machine at which every failure pointed, where no replay says otherwise."""
    if not case.restarts or case.outcome(Rung.REPLAY) is ClimbOutcome.PASSED:
        return None
    each_time = [climb.suspects for climb in case.restarts]
    machines = [m for m in case.finding.machines if all(m in suspects for suspects in each_time)]
    return _evict(case.present(machines), f"it stood out each time: {case.finding.reason}")


_RULES: tuple[tuple[Rung, Callable[[_Case], Decision | None]], ...] = (
    (Rung.UPDATE, _asked_for),
    (Rung.EVICT, _named_by_tests),
    (Rung.EVICT, _certain),
    (Rung.EVICT, _isolated),
    (Rung.EVICT, _refused_again),
    (Rung.ROLLBACK, _code_accused),
    (Rung.REATTEMPT, _killed),
    (Rung.REATTEMPT, _passing),
    (Rung.EVICT, _suspected),
    (Rung.CHECKS, _checks),
    (Rung.REATTEMPT, _reattempt),
    (Rung.ROLLBACK, _rollback),
    (Rung.REPLAY, _replay),
    (Rung.EVICT, _stood_out),
)
"""The ladder, from its first rung to its last; the first rule that applies decides."""
