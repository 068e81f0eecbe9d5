from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings, strategies as st

from everstep.core.classify.names import Action
from everstep.core.evidence import classify, same_failure
from everstep.core.ladder import Decision, Policy, Standing, next_rung
from everstep.core.ladder_table import ladder_rows
from everstep.core.model import Alert, RankExit
from everstep.core.record import Climb, Finding
from everstep.core.vocabulary import ClimbOutcome, Mode, Observer, Rung, Symptom

EVICT, CHECKS, REATTEMPT = Rung.EVICT, Rung.CHECKS, Rung.REATTEMPT
ROLLBACK, REPLAY, PAGE = Rung.ROLLBACK, Rung.REPLAY, Rung.PAGE
CRASH, NAN = Symptom.PROCESS_CRASH, Symptom.NAN_VALUE
POLICY = Policy(machines=8, max_evicted_ratio=0.5, max_restarts_without_progress=3)
STANDING = Standing()
NO_TESTS: dict[Rung, str] = dict.fromkeys((CHECKS, ROLLBACK, REPLAY), "not here")
MACHINES = [f"m{i}" for i in range(8)]


def finding(
    machines: tuple[str, ...] = (), confident: bool = False, symptom: Symptom = CRASH
) -> Finding:
    return Finding(symptom, machines, (), confident, "because")


@dataclass
class Incident:
    """Climbs with scripted outcomes of its tests, for as long as its failure comes back."""

    found: dict[Rung, tuple[ClimbOutcome, tuple[str, ...]]] = field(
        default_factory=dict[Rung, tuple[ClimbOutcome, tuple[str, ...]]]
    )
    policy: Policy = POLICY
    standing: Standing = STANDING
    climbs: list[Climb] = field(default_factory=list[Climb])

    def again(self, failure: Finding) -> Decision:
        """The next rung for a failure; it is climbed unless a person has to say so first."""
        standing = replace(self.standing, evicted_in_window=len(self.evicted))
        decision = next_rung(failure, self.climbs, self.policy, standing)
        if decision.mode is Mode.APPROVE:
            return decision
        tests = decision.rung in (CHECKS, REPLAY)
        outcome, machines = self.found.get(decision.rung, (ClimbOutcome.PASSED, ()))
        if decision.mode is Mode.OBSERVE:
            outcome, machines = ClimbOutcome.OBSERVED, decision.machines
        elif not tests:
            outcome, machines = ClimbOutcome.DONE, decision.machines
        suspects, symptom = failure.machines, failure.symptom
        self.climbs.append(
            Climb(decision.rung, decision.reason, machines, 1, 0.0, outcome, symptom, suspects)
        )
        return decision

    def all(self, failure: Finding) -> list[Rung]:
        """All rungs while one failure keeps coming back."""
        rungs: list[Rung] = []
        while not rungs or rungs[-1] is not PAGE:
            rungs.append(self.again(failure).rung)
        return rungs

    @property
    def evicted(self) -> list[str]:
        done = ClimbOutcome.DONE
        evictions = [c for c in self.climbs if c.rung is EVICT and c.outcome is done]
        return [machine for climb in evictions for machine in climb.machines]


def test_certain_fault_is_evicted_at_once_then_the_ladder_climbs() -> None:
    incident = Incident()
    decision = incident.again(finding(("m3",), confident=True))
    assert (decision.rung, decision.machines) == (EVICT, ("m3",))
    # It comes back with nobody standing out: the eviction has been a restart, none more is tried.
    assert incident.all(finding()) == [CHECKS, ROLLBACK, REPLAY, PAGE]


def test_crash_without_a_culprit_climbs_every_rung_once() -> None:
    assert Incident().all(finding()) == [CHECKS, REATTEMPT, ROLLBACK, REPLAY, PAGE]
    assert Incident().all(finding(symptom=NAN)) == [CHECKS, REATTEMPT, ROLLBACK, REPLAY, PAGE]


def test_rank_that_somebody_killed_is_tried_again_before_anything_is_tested() -> None:
    killed = replace(finding(("m3",)), killed=True)
    assert Incident().all(killed) == [REATTEMPT, CHECKS, ROLLBACK, REPLAY, PAGE]
    without_tests = Incident(standing=Standing(unavailable=NO_TESTS))
    assert without_tests.all(killed) == [REATTEMPT, EVICT, PAGE]


def test_suspect_goes_untested_only_where_the_policy_says_so() -> None:
    policy = replace(POLICY, evict_suspects=True)
    gpu = finding(("m3",), symptom=Symptom.CUDA_ERROR)
    incident = Incident(policy=policy)
    # It comes back on another machine: that one is tested with all others.
    assert incident.again(gpu).machines == ("m3",)
    others = finding(("m6",), symptom=Symptom.CUDA_ERROR)
    assert incident.all(others) == [CHECKS, ROLLBACK, REPLAY, PAGE]
    assert Incident().again(gpu).rung is CHECKS
    for other in (finding(("m3",)), finding(("m3",), symptom=NAN), replace(gpu, machines=())):
        assert Incident(policy=policy).again(other).rung is CHECKS


def test_what_checks_name_is_evicted_and_what_then_comes_back_is_rolled_back() -> None:
    incident = Incident({CHECKS: (ClimbOutcome.FOUND, ("m5",))})
    assert incident.all(finding(symptom=NAN)) == [CHECKS, EVICT, ROLLBACK, REPLAY, PAGE]
    assert incident.evicted == ["m5"]


def test_what_replay_names_is_evicted() -> None:
    incident = Incident({REPLAY: (ClimbOutcome.FOUND, ("m2",))})
    assert incident.all(finding(symptom=NAN)) == [
        CHECKS, REATTEMPT, ROLLBACK, REPLAY, EVICT, PAGE
    ]  # fmt: skip
    assert incident.evicted == ["m2"]


def test_replay_that_does_not_reproduce_evicts_nobody() -> None:
    incident = Incident()
    assert incident.all(finding(("m3",))) == [CHECKS, REATTEMPT, ROLLBACK, REPLAY, PAGE]
    assert incident.evicted == []


def test_without_an_answer_from_replay_the_machine_that_stood_out_each_time_goes() -> None:
    untold = Incident({REPLAY: (ClimbOutcome.COULD_NOT_TELL, ())})
    assert untold.all(finding(("m3",)))[-3:] == [REPLAY, EVICT, PAGE]
    assert untold.evicted == ["m3"]
    elsewhere = Incident(standing=Standing(unavailable=NO_TESTS))
    assert elsewhere.again(finding(("m3",))).rung is REATTEMPT
    assert elsewhere.again(finding(("m4",))).rung is PAGE


def test_code_error_is_rolled_back_and_accuses_machines_only_if_older_code_fails_too() -> None:
    error = finding(symptom=Symptom.CODE_ERROR)
    assert Incident().all(error) == [ROLLBACK, CHECKS, REPLAY, PAGE]
    nowhere = Incident(standing=Standing(unavailable={ROLLBACK: "no earlier version"}))
    assert nowhere.all(error) == [REATTEMPT, PAGE]


def test_version_without_a_healthy_step_is_rolled_back_first() -> None:
    fresh = Standing(code_proven=False)
    assert next_rung(finding(), [], POLICY, fresh).rung is ROLLBACK
    certain = next_rung(finding(("m1",), confident=True), [], POLICY, fresh)
    assert certain.rung is EVICT, "a machine that is gone is not the code's fault"


def test_other_failure_after_an_eviction_is_still_tried_again() -> None:
    incident = Incident()
    incident.again(finding(("m1",), confident=True, symptom=Symptom.AGENT_LOST))
    assert [incident.again(finding()).rung for _ in range(2)] == [CHECKS, REATTEMPT]


def test_isolated_group_of_a_hang_is_evicted_at_once() -> None:
    hang = finding(("m4", "m5"), symptom=Symptom.JOB_HANG)
    decision = next_rung(hang, [], POLICY, STANDING)
    assert (decision.rung, decision.machines) == (EVICT, ("m4", "m5"))


def test_hang_of_the_program_itself_is_rolled_back() -> None:
    hang = replace(finding(symptom=Symptom.JOB_HANG), first_action="rollback_code", confidence=0.6)
    assert Incident().all(hang) == [ROLLBACK, CHECKS, REPLAY, PAGE]


def test_machine_that_refuses_again_is_evicted() -> None:
    incident = Incident()
    refusal = finding(("m2",), symptom=Symptom.CONTAINER_ERROR)
    assert [incident.again(refusal).rung for _ in range(3)] == [CHECKS, REATTEMPT, EVICT]


def test_untold_checks_are_not_called_passed() -> None:
    untold = Incident({CHECKS: (ClimbOutcome.COULD_NOT_TELL, ())})
    assert untold.again(finding()).rung is CHECKS
    decision = untold.again(finding())
    assert decision.rung is REATTEMPT
    assert "passed" not in decision.reason
    assert "could not" in decision.reason


SAID = {
    "GPU": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "kernel": "RuntimeError: CUDA error: unspecified launch failure",
    "NCCL": "ncclSystemError: System call or external library call failed or device error.",
    "assert": "CUDA error: device-side assert triggered",
    "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "address": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "mistake": "TypeError: unsupported operand type(s) for +: 'NoneType' and 'Tensor'",
    "disk": "OSError: [Errno 28] No space left on device: '/ckpt/7'",
    "storage": "OSError: [Errno 116] Stale file handle: '/mnt/ckpt/step-7'",
    "image": "OSError: image file is truncated (13 bytes not processed)",
}


@pytest.mark.parametrize(
    ("said", "rungs"),
    [
        ("GPU", [EVICT, CHECKS, ROLLBACK, REPLAY]),
        ("kernel", [CHECKS, REATTEMPT, ROLLBACK, REPLAY]),
        ("NCCL", [CHECKS, REATTEMPT, ROLLBACK, REPLAY]),
        ("assert", [ROLLBACK, CHECKS, REPLAY]),
        ("memory", [ROLLBACK, CHECKS, REPLAY]),
        # As often a mistake of the code as not: what costs nobody a version comes first.
        ("address", [CHECKS, REATTEMPT, ROLLBACK, REPLAY]),
        ("mistake", [ROLLBACK, CHECKS, REPLAY]),
        ("disk", [REATTEMPT, CHECKS, ROLLBACK, REPLAY]),
        ("storage", [REATTEMPT, CHECKS, ROLLBACK, REPLAY]),
        ("image", [REATTEMPT]),
    ],
    ids=[*SAID],
)
def test_what_a_rank_said_last_chooses_the_first_rung(said: str, rungs: list[Rung]) -> None:
    lines = ("Traceback (most recent call last):", SAID[said])
    ended = RankExit(3, "m1", 1, 1, None, 10.0, 7, lines)
    alert = Alert(Observer.AGENT, CRASH, 10.0, "rank 3 ended", 1, "m1", 3, ended)
    failure = classify([alert], [ended], [])
    assert Incident().all(failure) == [*rungs, PAGE], failure


def advising(action: Action, confidence: float = 0.8) -> Finding:
    return replace(finding(), first_action=action.value, confidence=confidence)


def test_advice_that_is_as_likely_wrong_is_not_followed() -> None:
    for action in (Action.ROLLBACK, Action.RETRY, Action.FIX_DATA):
        assert next_rung(advising(action), [], POLICY, STANDING).rung is not CHECKS
        assert next_rung(advising(action, 0.5), [], POLICY, STANDING).rung is CHECKS


def test_advice_of_a_rollback_without_an_earlier_version_still_looks_at_machines() -> None:
    nowhere = Incident(standing=Standing(unavailable={ROLLBACK: "no earlier version"}))
    assert nowhere.all(advising(Action.ROLLBACK)) == [CHECKS, REATTEMPT, REPLAY, PAGE]


def test_what_checks_name_goes_though_the_code_was_accused_first() -> None:
    incident = Incident({CHECKS: (ClimbOutcome.FOUND, ("m5",))})
    assert incident.all(advising(Action.ROLLBACK)) == [ROLLBACK, CHECKS, EVICT, REPLAY, PAGE]


def test_data_that_fail_twice_ask_for_a_person_and_then_machines_are_looked_at() -> None:
    incident = Incident()
    data = advising(Action.FIX_DATA)
    assert incident.again(data).rung is REATTEMPT
    asked = incident.again(data)
    assert (asked.rung, asked.mode) == (PAGE, Mode.APPROVE)
    assert "mended" in asked.reason
    incident.standing = Standing(approved=True)
    assert incident.again(data).mode is Mode.AUTOMATIC
    incident.standing = STANDING
    assert incident.again(data).rung is CHECKS


def test_budget_turns_an_eviction_into_a_question() -> None:
    full = Standing(evicted_in_window=4)
    certain = finding(("m3",), confident=True)
    held = next_rung(certain, [], POLICY, full)
    assert (held.rung, held.machines, held.mode) == (EVICT, ("m3",), Mode.APPROVE)
    assert "5 evictions" in held.reason
    assert "at most 4 of 8" in held.reason
    approved = next_rung(certain, [], POLICY, replace(full, approved=True))
    assert (approved.rung, approved.mode) == (EVICT, Mode.AUTOMATIC)


def test_restarts_without_progress_page() -> None:
    stuck = Standing(restarts_without_progress=3)
    certain = finding(("m3",), confident=True)
    assert next_rung(certain, [], POLICY, stuck).rung is PAGE
    assert next_rung(certain, [], POLICY, replace(stuck, approved=True)).rung is EVICT


def test_person_at_the_end_may_have_the_job_started_again() -> None:
    incident = Incident()
    incident.all(finding())
    incident.standing = Standing(approved=True)
    decision = incident.again(finding())
    assert (decision.rung, decision.mode) == (PAGE, Mode.AUTOMATIC)


def test_modes_of_rungs() -> None:
    asked = replace(POLICY, modes={CHECKS: Mode.OBSERVE, REATTEMPT: Mode.APPROVE})
    incident = Incident(policy=asked)
    assert incident.again(finding()).mode is Mode.OBSERVE
    waiting = incident.again(finding())
    assert (waiting.rung, waiting.mode) == (REATTEMPT, Mode.APPROVE)
    said_no = Climb(REATTEMPT, "", (), 1, 0.0, ClimbOutcome.DENIED, CRASH, ())
    incident.climbs.append(said_no)
    assert incident.again(finding()).rung is ROLLBACK


def test_all_observed_ends_at_a_person_without_an_effect() -> None:
    shadow = Incident(policy=replace(POLICY, modes=dict.fromkeys(Rung, Mode.OBSERVE)))
    assert shadow.all(finding(("m1",), confident=True))[0] is EVICT
    assert shadow.evicted == []
    assert {climb.outcome for climb in shadow.climbs} == {ClimbOutcome.OBSERVED}


def test_table_shows_every_rung_and_follows_what_is_available() -> None:
    rows = ladder_rows(POLICY)
    assert {decision.rung for row in rows for decision in row.climbs} == set(Rung)
    assert all(row.climbs[-1].rung is PAGE for row in rows)
    short = ladder_rows(POLICY, NO_TESTS)
    assert {d.rung for row in short for d in row.climbs} == {Rung.UPDATE, EVICT, REATTEMPT, PAGE}


def test_a_persons_wish_is_made_as_often_as_it_is_uttered_and_no_machine_pays() -> None:
    wish = finding(symptom=Symptom.CODE_DATA_ADJUSTMENT)
    one = next_rung(wish, [], POLICY, Standing(updates=1, code_proven=False))
    assert (one.rung, one.machines, one.mode) == (Rung.UPDATE, (), Mode.AUTOMATIC)
    made = [Climb(Rung.UPDATE, "because", (), 1, 0.0, symptom=Symptom.CODE_DATA_ADJUSTMENT)]
    assert next_rung(wish, made, POLICY, Standing(updates=1)).rung is Rung.UPDATE
    assert next_rung(wish, made, POLICY, STANDING).rung is not Rung.UPDATE
    failed = next_rung(finding(("m1",)), made, POLICY, Standing(code_proven=False))
    assert failed.rung is ROLLBACK


def advised_finding(
    machines: list[str], confident: bool, symptom: Symptom, action: str, confidence: float
) -> Finding:
    found = finding(tuple(sorted(machines)), confident, symptom)
    return replace(found, first_action=action, confidence=confidence)


FINDINGS = st.builds(
    advised_finding,
    st.lists(st.sampled_from(MACHINES), max_size=3, unique=True),
    st.booleans(),
    st.sampled_from([*Symptom]),
    st.sampled_from(["", *Action]),
    st.floats(0.0, 1.0),
)
OUTCOMES = st.sampled_from(
    [ClimbOutcome.PASSED, ClimbOutcome.COULD_NOT_TELL, ClimbOutcome.FOUND]
).flatmap(
    lambda outcome: st.tuples(
        st.just(outcome),
        st.lists(st.sampled_from(MACHINES), min_size=1, max_size=2, unique=True).map(tuple)
        if outcome is ClimbOutcome.FOUND
        else st.just(()),
    )
)


@settings(deadline=None)
@given(
    st.lists(FINDINGS, min_size=1, max_size=6),
    st.tuples(OUTCOMES, OUTCOMES),
    st.floats(0.05, 1.0),
    st.dictionaries(st.sampled_from([*Rung]), st.sampled_from([*Mode])),
    st.sets(st.sampled_from([CHECKS, ROLLBACK, REPLAY])),
    st.booleans(),
)
def test_ladder_always_ends_within_its_limits(
    failures: list[Finding],
    tests: tuple[tuple[ClimbOutcome, tuple[str, ...]], tuple[ClimbOutcome, tuple[str, ...]]],
    ratio: float,
    modes: dict[Rung, Mode],
    unavailable: set[Rung],
    proven: bool,
) -> None:
    """Whatever keeps failing, and whatever tests say."""
    incident = Incident(
        {CHECKS: tests[0], REPLAY: tests[1]},
        replace(POLICY, max_evicted_ratio=ratio, modes=modes),
        Standing(code_proven=proven, unavailable=dict.fromkeys(unavailable, "")),
    )
    for number in range(100):
        failure = failures[number % len(failures)]
        decision = incident.again(failure)
        if decision.rung is EVICT:
            named = {m for c in incident.climbs if c.rung in (CHECKS, REPLAY) for m in c.machines}
            assert {*decision.machines} <= {*failure.machines} | named
        if decision.mode is Mode.APPROVE:
            break
    else:
        raise AssertionError("a hundred rungs and no end")
    assert len(incident.evicted) == len(set(incident.evicted)) <= max(1, int(8 * ratio))
    once = [climb.rung for climb in incident.climbs if climb.rung is not EVICT]
    assert len(once) == len(set(once))
    assert not {climb.rung for climb in incident.climbs} & unavailable


@given(FINDINGS.filter(lambda failure: not failure.confident), st.tuples(OUTCOMES, OUTCOMES))
def test_transient_fault_evicts_nobody_whom_no_test_names(
    failure: Finding,
    tests: tuple[tuple[ClimbOutcome, tuple[str, ...]], tuple[ClimbOutcome, tuple[str, ...]]],
) -> None:
    """It shows once: the first restart ends the incident."""
    if failure.symptom in (Symptom.JOB_HANG, Symptom.MFU_DECLINE):
        return  # Whom the analysis of a hang isolates goes at once.
    incident = Incident({CHECKS: tests[0], REPLAY: tests[1]})
    while incident.again(failure).rung in (CHECKS, REPLAY):
        pass
    assert {*incident.evicted} <= {*tests[0][1]}


def test_same_failure_is_the_same_symptom_that_nothing_certain_tells_apart() -> None:
    def certain(machine: str) -> Finding:
        return finding((machine,), confident=True)

    def killed(machine: str, rank: int) -> Finding:
        return Finding(CRASH, (machine,), (rank,), False, "SIGKILL", killed=True)

    assert same_failure(finding(("m1", "m2")), finding(("m2",)))
    assert same_failure(finding(), finding())
    assert same_failure(finding(("m1",)), finding(("m2",))), "who ends first says little"
    assert not same_failure(finding(), finding(symptom=NAN))
    assert same_failure(certain("m1"), certain("m1"))
    assert not same_failure(certain("m1"), certain("m2"))
    assert not same_failure(killed("m1", 3), killed("m2", 5))
    assert same_failure(killed("m1", 3), killed("m4", 3)), "its replacement runs the same rank"


def test_machine_that_came_back_is_evicted_once_more_and_then_never_again() -> None:
    hang = finding(("m1", "m2"), symptom=Symptom.JOB_HANG)
    incident = Incident()
    assert incident.again(hang).machines == ("m1", "m2")
    incident.standing = replace(STANDING, returned=("m2",))
    assert incident.again(hang).machines == ("m2",)
    assert incident.again(hang).rung is CHECKS


GONE = finding(("m2",), confident=True, symptom=Symptom.AGENT_LOST)


def denied(failure: Finding) -> Climb:
    """A person said no to the eviction of the machines that a finding names."""
    machines, symptom = failure.machines, failure.symptom
    return Climb(EVICT, "because", machines, 1, 0.0, ClimbOutcome.DENIED, symptom, machines)


def test_denied_machine_that_does_not_answer_the_restart_is_asked_for_again() -> None:
    incident = Incident({CHECKS: (ClimbOutcome.COULD_NOT_TELL, ())}, climbs=[denied(GONE)])
    checks = incident.again(GONE)
    assert (checks.rung, incident.again(GONE).rung) == (CHECKS, REATTEMPT)
    assert "no machine stands out" not in checks.reason
    assert "a person denied the eviction of m2" in checks.reason
    again = incident.again(GONE)
    assert (again.rung, again.machines, again.mode) == (EVICT, ("m2",), Mode.APPROVE)
    assert "denied before" in again.reason
    assert not again.only_way
    yes = next_rung(GONE, incident.climbs, POLICY, Standing(approved=True))
    assert (yes.rung, yes.machines, yes.mode) == (EVICT, ("m2",), Mode.AUTOMATIC)
    incident.climbs.append(denied(GONE))
    last = next_rung(GONE, incident.climbs, POLICY, Standing(code_proven=False))
    assert (last.rung, last.only_way) == (EVICT, True), "no other code could run without it"
    before = next_rung(GONE, incident.climbs, POLICY, Standing(spares_code=False))
    assert before.rung is ROLLBACK, "a no counts until there is new evidence"


def test_denied_machine_is_asked_for_again_at_once_for_another_certain_fault() -> None:
    warm = finding(("m2",), confident=True, symptom=Symptom.GPU_UNAVAILABLE)
    incident = Incident(climbs=[denied(warm)])
    assert incident.again(warm).rung is CHECKS
    assert incident.again(GONE).machines == ("m2",)


def test_denied_machine_is_not_asked_for_again_for_what_is_not_certain_or_of_another() -> None:
    vague = finding(("m2",), symptom=Symptom.AGENT_LOST)
    incident = Incident(climbs=[denied(GONE)])
    assert incident.all(vague)[:4] == [CHECKS, REATTEMPT, ROLLBACK, REPLAY]
    other = finding(("m5",), confident=True, symptom=Symptom.AGENT_LOST)
    assert incident.again(other).machines == ("m5",)


def test_with_nothing_left_the_machine_that_is_gone_is_what_the_incident_waits_for() -> None:
    no_rungs = Standing(unavailable=dict.fromkeys([CHECKS, REATTEMPT, ROLLBACK, REPLAY], "no"))
    climbed = [denied(GONE)]
    held = next_rung(GONE, climbed, POLICY, no_rungs)
    assert (held.rung, held.machines, held.mode) == (EVICT, ("m2",), Mode.APPROVE)
    assert held.only_way
    assert held.reason == "nothing left to try without the eviction of m2: because"
    yes = next_rung(GONE, climbed, POLICY, replace(no_rungs, approved=True))
    assert (yes.rung, yes.machines, yes.mode) == (EVICT, ("m2",), Mode.AUTOMATIC)
    evicted = [*climbed, replace(denied(GONE), outcome=ClimbOutcome.DONE)]
    assert next_rung(GONE, evicted, POLICY, no_rungs).rung is PAGE
    alive = finding(("m2",), confident=True, symptom=Symptom.GPU_UNAVAILABLE)
    assert next_rung(alive, [denied(alive)], POLICY, no_rungs).rung is PAGE


def test_yes_after_restarts_without_a_step_evicts_the_machine_that_is_gone_and_not_less() -> None:
    stuck = Standing(restarts_without_progress=3)
    observed = [replace(denied(GONE), outcome=ClimbOutcome.OBSERVED)]
    shadow = replace(POLICY, modes={EVICT: Mode.OBSERVE})
    for climbed, policy in (([denied(GONE)], POLICY), (observed, shadow)):
        held = next_rung(GONE, climbed, policy, stuck)
        assert (held.rung, held.mode, held.only_way) == (EVICT, Mode.APPROVE, True)
        assert "3 restarts brought no new step without the eviction of m2" in held.reason
        yes = next_rung(GONE, climbed, policy, replace(stuck, approved=True))
        assert (yes.rung, yes.machines, yes.mode) == (EVICT, ("m2",), Mode.AUTOMATIC)


def test_incident_that_left_an_eviction_out_before_this_was_known_goes_on_as_it_did() -> None:
    before = Incident(standing=Standing(asks_again=False), climbs=[denied(GONE)])
    assert before.all(GONE) == [CHECKS, REATTEMPT, ROLLBACK, REPLAY, PAGE]
