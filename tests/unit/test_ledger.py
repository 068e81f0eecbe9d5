"""Where time went: every moment once, whatever the steps and incidents are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from everstep.core.ledger import ledger, ratio, totals
from everstep.core.model import StepSeen
from everstep.core.record import Climb, Finding, IncidentRecord, Mark
from everstep.core.report import lost_s, report
from everstep.core.vocabulary import Outcome, Rung, Spent, Symptom


def incident(number: int, *marks: tuple[float, Spent], rung: Rung = Rung.EVICT) -> IncidentRecord:
    finding = Finding(Symptom.AGENT_LOST, ("m1",), (), True, "lost")
    at_s = marks[0][0] if marks else 0.0
    return IncidentRecord(
        number,
        "job",
        at_s,
        at_s,
        Outcome.RECOVERED,
        finding,
        climbs=(Climb(rung, "because", ("m1",), 1, at_s + 0.1),),
        evicted=("m1",) if rung is Rung.EVICT else (),
        marks=tuple(Mark(*mark) for mark in marks),
    )


STEPS = [StepSeen(1, step, 10.0 + step) for step in (1, 2, 3)]
"""Of one second each, the first one finished 11 s after the start."""

AFTER = [*STEPS, StepSeen(2, 3, 20.0), StepSeen(2, 4, 21.0)]
"""The machine goes in the fourth step; the third is done again."""

FAULT = incident(
    1,
    (13.5, Spent.DETECT),
    (14.0, Spent.LOCATE),
    (15.0, Spent.HELD),
    (17.0, Spent.LOCATE),
    (17.5, Spent.RESTART),
)


def test_one_lost_machine() -> None:
    stretches = ledger(AFTER, [FAULT], 0.0, 22.0)
    spent = totals(stretches)
    assert spent == {
        Spent.START: 10.0,
        Spent.PRODUCTIVE: 4.0,
        Spent.REDONE: 0.5 + 1.0,
        Spent.DETECT: 0.5,
        Spent.LOCATE: 1.0 + 0.5,
        Spent.HELD: 2.0,
        Spent.RESTART: 1.5,
        Spent.CHECKPOINT: 0.0,
        Spent.UPDATE: 0.0,
        Spent.END: 1.0,
    }
    assert sum(lost_s(stretches, 1).values()) == 0.5 + 1.5 + 2.0 + 1.5
    assert ratio(stretches, 10.0, 14.0) == pytest.approx(0.75)


def test_standing_still_for_a_checkpoint_is_no_training() -> None:
    stalls = (0.0, 0.25, 0.005, 9.0)
    seen = [StepSeen(1, step, 10.0 + step, stall_s) for step, stall_s in enumerate(stalls, 1)]
    spent = totals(ledger(seen, [], 10.0, 14.0))
    # Less than a hundredth of a step is none, and none is longer than its step.
    assert (spent[Spent.CHECKPOINT], spent[Spent.PRODUCTIVE]) == (1.25, 2.75)


def test_ranks_that_go_on_while_the_fault_is_known() -> None:
    """A NaN is seen after step 2, and step 3 is made all the same: then tests take 4 s."""
    marks = ((12.5, Spent.DETECT), (12.6, Spent.LOCATE), (17.0, Spent.RESTART))
    spent = totals(ledger(AFTER, [incident(1, *marks)], 0.0, 22.0))
    assert (spent[Spent.PRODUCTIVE], spent[Spent.DETECT]) == (4.0, 0.0)
    assert (spent[Spent.LOCATE], spent[Spent.RESTART], spent[Spent.REDONE]) == (4.0, 2.0, 1.0)
    # An incident that was over, as the ranks went on, says nothing of what came later.
    over = replace(incident(1, *marks[:2]), closed_at_s=12.8)
    spent = totals(ledger(AFTER, [over, incident(2, (14.0, Spent.LOCATE))], 0.0, 22.0))
    assert (spent[Spent.REDONE], spent[Spent.LOCATE]) == (1.0 + 1.0, 5.0)
    # One that still is at it.
    still = replace(incident(1, *marks[:2]), closed_at_s=None)
    assert totals(ledger(STEPS, [still], 0.0, 20.0))[Spent.LOCATE] == 7.0


def test_what_a_hang_takes_until_it_is_seen_is_its_detection() -> None:
    """Step 3 is made at 13 s, the ranks fall silent, and that is seen 10 s later: none is lost."""
    marks = ((23.0, Spent.DETECT), (23.25, Spent.LOCATE), (24.0, Spent.RESTART))
    seen = [*STEPS, StepSeen(2, 4, 27.0)]
    hang = incident(1, *marks)
    hang = replace(hang, finding=replace(hang.finding, symptom=Symptom.JOB_HANG))
    stretches = ledger(seen, [hang], 0.0, 27.0)
    spent = totals(stretches)
    assert (spent[Spent.DETECT], spent[Spent.REDONE]) == (10.25, 0.0)
    assert (spent[Spent.LOCATE], spent[Spent.RESTART], spent[Spent.PRODUCTIVE]) == (0.75, 2.0, 4.0)
    assert sum(lost_s(stretches, 1).values()) == 13.0
    # The restart fails of something else: what the first rung answered was the hang all the same.
    (climb,) = hang.climbs
    climbs = (replace(climb, symptom=Symptom.JOB_HANG), replace(climb, symptom=Symptom.CODE_ERROR))
    told = replace(FAULT, climbs=climbs, marks=hang.marks)
    assert totals(ledger(seen, [told], 0.0, 27.0)) == spent
    # And the other way round.
    told = replace(hang, climbs=climbs[::-1])
    assert totals(ledger(seen, [told], 0.0, 27.0))[Spent.REDONE] == 10.0


def test_a_wish_is_no_failure() -> None:
    wish = incident(1, (13.5, Spent.LOCATE), (14.0, Spent.RESTART), rung=Rung.UPDATE)
    spent = totals(ledger(AFTER, [wish], 0.0, 22.0))
    assert (spent[Spent.UPDATE], spent[Spent.LOCATE], spent[Spent.RESTART]) == (5.5, 0.0, 0.0)


def test_a_run_that_never_made_a_step() -> None:
    assert totals(ledger([], [], 0.0, 5.0))[Spent.START] == 5.0
    assert ledger([], [], 5.0, 5.0) == []


MOMENTS = st.floats(0.0, 100.0, allow_nan=False)
STALLS = st.floats(0.0, 5.0, allow_nan=False)
RUNS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), MOMENTS, STALLS), max_size=12).map(
    lambda seen: [StepSeen(*one) for one in sorted(seen, key=lambda one: (one[0], one[2]))]
)
MARKS = st.lists(st.tuples(MOMENTS, st.sampled_from([*Spent])), max_size=6)


@given(RUNS, st.lists(MARKS, max_size=3), MOMENTS, MOMENTS)
def test_classes_add_up_to_the_wall_clock(
    steps: list[StepSeen], marks: list[list[tuple[float, Spent]]], one_s: float, other_s: float
) -> None:
    from_s, to_s = min(one_s, other_s), max(one_s, other_s)
    records = [incident(number, *each) for number, each in enumerate(marks, 1)]
    stretches = ledger(steps, records, from_s, to_s)
    assert sum(totals(stretches).values()) == pytest.approx(to_s - from_s)
    edges = [from_s, *(edge for each in stretches for edge in (each.from_s, each.to_s)), to_s]
    assert edges == sorted(edges)
    assert all(a == b for a, b in zip(edges[::2], edges[1::2], strict=True))


def test_an_incident_has_the_name_of_what_opened_it() -> None:
    """A machine is lost, and the code that joins the restart is bad: told beside it."""
    bad = Finding(Symptom.CODE_ERROR, ("m2",), (3,), False, "SyntaxError")
    record = replace(FAULT, finding=bad, first_finding=FAULT.finding)
    assert record.opened_by is FAULT.finding
    assert (record.machines_named, record.later_symptoms) == (("m1", "m2"), (Symptom.CODE_ERROR,))
    (lost,) = report("job", AFTER, [record], 0.0, 22.0).symptoms
    assert lost.failures() == ["agent_lost", "code_error 1"]
    # Records of older versions have the newest only.
    old = replace(record, first_finding=None)
    assert (old.opened_by, old.later_symptoms) == (bad, ())


@pytest.mark.parametrize("outcome", [Outcome.OPEN, Outcome.HELD])
def test_an_open_incident_is_resolved_by_nothing(outcome: Outcome) -> None:
    still = replace(FAULT, incident=2, outcome=outcome)
    told = report("job", AFTER, [FAULT, still], 0.0, 22.0)
    (lost,) = told.symptoms
    assert (told.mechanisms, lost.rungs) == ((("evict", 1),), (("evict", 1),))
    assert lost.resolved() == "evict 1, open 1"


def test_report_counts_by_symptom_mechanism_and_machine() -> None:
    told = report("job", AFTER, [FAULT], 0.0, 22.0)
    assert (told.steps, told.ettr) == (4, 4.0 / 22.0)
    (lost,) = told.symptoms
    assert (lost.symptom, lost.incidents, lost.worst_s) == ("agent_lost", 1, 5.5)
    assert (told.mechanisms, told.machines) == ((("evict", 1),), (("m1", 1),))
    assert told.curve[-1][:2] == (22.0, told.ettr)
