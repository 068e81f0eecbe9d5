"""The ledger that is kept up step by step, beside the one that sees the whole run."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.unit.test_ledger import AFTER, FAULT, MARKS, MOMENTS, RUNS, incident

from everstep.core.ledger import ledger, ratio, totals
from everstep.core.meter import Meter
from everstep.core.model import StepSeen
from everstep.core.vocabulary import Spent


def metered(steps: list[StepSeen], window_s: float = 3600.0) -> Meter:
    meter = Meter(window_s)
    for seen in steps:
        meter.step(seen)
    return meter


def test_it_says_the_same_but_for_the_first_step_of_all() -> None:
    # What a usual step takes is not known yet when the first one is finished.
    expected = totals(ledger(AFTER, [FAULT], 0.0, 22.0))
    expected[Spent.START] += 1.0
    expected[Spent.PRODUCTIVE] -= 1.0
    meter = metered(AFTER)
    assert meter.spent([FAULT], 0.0, 22.0) == expected
    meter.settle([FAULT], 0.0)
    assert meter.spent([], 0.0, 22.0) == expected


def test_the_newest_hour() -> None:
    meter = metered(AFTER, window_s=8.0)
    assert meter.recent_ratio(0.0, 21.0) == ratio(ledger(AFTER, [FAULT], 0.0, 21.0), 13.0, 21.0)
    assert meter.recent_ratio(20.0, 21.0) == 1.0
    assert meter.recent_ratio(0.0, 100.0) == 0.0
    assert metered([]).recent_ratio(0.0, 1.0) == 0.0


def test_while_training_stands_the_open_incident_says_for_what() -> None:
    meter = metered(AFTER[:3])
    spent = meter.spent([FAULT], 0.0, 16.0)
    assert (spent[Spent.REDONE], spent[Spent.DETECT], spent[Spent.HELD]) == (0.5, 0.5, 1.0)
    assert spent[Spent.END] == 0.0


@given(RUNS, MARKS, MARKS, MOMENTS)
def test_classes_add_up_to_the_wall_clock(
    steps: list[StepSeen],
    marks: list[tuple[float, Spent]],
    later: list[tuple[float, Spent]],
    from_s: float,
) -> None:
    from_s = min([from_s, *(seen.at_s for seen in steps)])
    now_s = max([from_s, *(seen.at_s for seen in steps)]) + 1.0
    records = [incident(1, *marks), incident(2, *later)]
    meter = metered(steps)
    before = meter.spent(records, from_s, now_s)
    assert sum(before.values()) == pytest.approx(now_s - from_s)
    assert min(before.values()) >= 0.0
    meter.settle(records, from_s)
    assert meter.spent(records, from_s, now_s) == pytest.approx(before)
