from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from everstep.core.evidence import same_failure
from everstep.core.ladder import Brake, next_rung
from everstep.core.model import Climb, Finding, Rung, Symptom

BRAKE = Brake(
    machines=8,
    max_evicted_ratio=0.5,
    evicted_in_window=0,
    restarts_without_progress=0,
    max_restarts_without_progress=3,
)
MACHINES = [f"m{i}" for i in range(8)]


def finding(machines: tuple[str, ...] = (), confident: bool = False) -> Finding:
    return Finding(Symptom.PROCESS_CRASH, machines, (), confident, "because")


def climb(rung: Rung, machines: tuple[str, ...] = ()) -> Climb:
    return Climb(rung, "", machines, 1, 0.0)


def test_certain_fault_is_evicted_at_once() -> None:
    decision = next_rung(finding(("m3",), confident=True), [], BRAKE)
    assert (decision.rung, decision.machines) == (Rung.EVICT, ("m3",))


def test_uncertain_fault_is_tried_again_first_then_its_machine_goes() -> None:
    crash = finding(("m3",))
    assert next_rung(crash, [], BRAKE).rung is Rung.REATTEMPT
    second = next_rung(crash, [climb(Rung.REATTEMPT)], BRAKE)
    assert (second.rung, second.machines) == (Rung.EVICT, ("m3",))


def test_nobody_standing_out_ends_at_a_person() -> None:
    assert next_rung(finding(), [climb(Rung.REATTEMPT)], BRAKE).rung is Rung.PAGE


def test_machine_is_not_evicted_twice() -> None:
    climbed = [climb(Rung.REATTEMPT), climb(Rung.EVICT, ("m3",))]
    assert next_rung(finding(("m3",)), climbed, BRAKE).rung is Rung.PAGE


def test_brake_pages_instead_of_evicting_too_many() -> None:
    full = replace(BRAKE, evicted_in_window=4)
    held = next_rung(finding(("m3",), confident=True), [], full)
    assert (held.rung, held.machines) == (Rung.PAGE, ("m3",))
    assert "5 evictions" in held.reason
    assert "at most 4 of 8" in held.reason
    approved = next_rung(finding(("m3",), confident=True), [], replace(full, approved=True))
    assert approved.rung is Rung.EVICT


def test_restarts_without_progress_page() -> None:
    stuck = replace(BRAKE, restarts_without_progress=3)
    assert next_rung(finding(("m3",), confident=True), [], stuck).rung is Rung.PAGE


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(MACHINES), max_size=3, unique=True), st.booleans()),
        min_size=1,
    ),
    st.floats(0.05, 1.0),
)
def test_ladder_always_ends_within_its_budget(
    failures: list[tuple[list[str], bool]], ratio: float
) -> None:
    """Whatever keeps failing: finitely many rungs, no machine twice, never beyond the budget."""
    climbed: list[Climb] = []
    evicted: list[str] = []
    for step in range(100):
        machines, confident = failures[step % len(failures)]
        brake = replace(BRAKE, max_evicted_ratio=ratio, evicted_in_window=len(evicted))
        decision = next_rung(finding(tuple(sorted(machines)), confident), climbed, brake)
        if decision.rung is Rung.PAGE:
            break
        climbed.append(climb(decision.rung, decision.machines))
        evicted += decision.machines
    else:
        raise AssertionError("a hundred rungs and no end")
    assert len(evicted) == len(set(evicted)) <= max(1, int(8 * ratio))
    assert sum(c.rung is Rung.REATTEMPT for c in climbed) <= 1


def test_same_failure_is_same_symptom_on_a_common_machine() -> None:
    assert same_failure(finding(("m1", "m2")), finding(("m2",)))
    assert same_failure(finding(), finding())
    assert not same_failure(finding(("m1",)), finding(("m2",)))
    assert not same_failure(finding(("m1",)), finding())
    assert not same_failure(
        finding(("m1",)), Finding(Symptom.AGENT_LOST, ("m1",), (), True, "gone")
    )
