from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from everstep.core import ettr
from everstep.core.model import StepSeen
from everstep.core.progress import NO_STEP, StepBoard


def test_slowest_rank_counts() -> None:
    board = StepBoard(2, 5.0)
    assert board.note(1, 0, 5, 10.0) is None
    assert board.note(1, 1, 4, 10.1) == StepSeen(1, 4, 10.1)
    assert board.note(1, 0, 6, 10.2) is None
    assert board.note(1, 1, 6, 10.3) == StepSeen(1, 6, 10.3)


def test_new_attempt_starts_afresh_and_old_reports_change_nothing() -> None:
    board = StepBoard(2, 5.0)
    board.note(1, 0, 5, 1.0)
    board.note(1, 1, 5, 1.0)
    assert board.note(2, 0, 5, 2.0) is None
    assert board.note(1, 1, 9, 2.1) is None
    assert board.reached(2, 5, 2.3) is None
    assert board.note(2, 1, 5, 2.2) == StepSeen(2, 5, 2.2)
    assert board.reached(2, 5, 2.3) is not None
    assert board.reached(1, 5, 2.3) is None
    assert board.reached(2, 6, 2.3) is None


def test_ranks_that_report_nothing_count_once_they_have_lived() -> None:
    board = StepBoard(2, 5.0)
    board.started(1, [0], 0, 10.0)
    assert board.reached(1, 1, 100.0) is None
    board.started(1, [1], 0, 12.0)
    assert board.reached(1, 1, 16.9) is None
    assert board.reached(1, 1, 17.0) == StepSeen(1, NO_STEP, 17.0)
    assert board.reached(2, 1, 17.0) is None
    board.started(2, [0, 1], 7, 20.0)
    assert board.reached(2, 1, 24.0) is None


def test_job_that_reported_once_is_not_taken_for_running_because_it_is_silent() -> None:
    board = StepBoard(2, 5.0)
    board.note(1, 0, 3, 1.0)
    board.started(2, [0, 1], 3, 10.0)
    assert board.reached(2, 4, 1000.0) is None


def test_step_that_was_restored_is_not_told_as_done_again() -> None:
    board = StepBoard(2, 5.0)
    board.started(2, [0, 1], 7, 10.0)
    assert board.note(2, 0, 7, 11.0) is None
    assert board.note(2, 1, 7, 11.0) is None
    assert board.reached(2, 7, 11.0) is None
    assert board.note(2, 0, 8, 12.0) is None
    assert board.note(2, 1, 8, 12.5) == StepSeen(2, 8, 12.5)


def test_one_rank_that_reports_makes_steps_count_for_all() -> None:
    board = StepBoard(2, 5.0)
    board.started(1, [0, 1], 0, 10.0)
    board.note(1, 0, 0, 11.0)
    assert board.reached(1, 1, 100.0) is None


def test_a_steps_stall_is_that_of_the_rank_which_stood_longest() -> None:
    board = StepBoard(2, 5.0)
    for rank in (0, 1):
        # Since before anybody listened.
        board.note(1, rank, 4, 10.0, stalled_s=7.0)
    board.note(1, 0, 5, 11.0, stalled_s=7.5)
    # It runs ahead: what it stands still in step 6 is no part of step 5.
    board.note(1, 0, 6, 11.5, stalled_s=9.5)
    assert board.note(1, 1, 5, 12.0, stalled_s=7.25) == StepSeen(1, 5, 12.0, 0.5)
    assert board.note(1, 1, 6, 13.0, stalled_s=7.25) == StepSeen(1, 6, 13.0, 2.0)
    # A step that is told twice, and one of a rank that says nothing.
    assert board.note(1, 0, 7, 14.0, stalled_s=9.75) is None
    board.note(1, 0, 7, 14.0, stalled_s=10.0)
    assert board.note(1, 1, 7, 14.0) == StepSeen(1, 7, 14.0, 0.5)
    board.note(2, 0, 8, 20.0, stalled_s=0.0)
    assert board.note(2, 1, 8, 20.0, stalled_s=0.0) == StepSeen(2, 8, 20.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=80))
def test_board_never_says_more_than_the_slowest_rank(reports: list[tuple[int, int]]) -> None:
    board = StepBoard(4, 5.0)
    newest: dict[int, int] = {}
    told: list[int] = []
    for rank, step in reports:
        newest[rank] = max(step, newest.get(rank, -1))
        seen = board.note(1, rank, step, 0.0)
        if seen is not None:
            told.append(seen.step)
            assert seen.step == min(newest.values())
    assert told == sorted(set(told))


def steps(*triples: tuple[int, int, float]) -> list[StepSeen]:
    return [StepSeen(*triple) for triple in triples]


def test_undisturbed_run_is_productive_but_for_its_start() -> None:
    # Start-up takes 4 s, then steps of 1 s: the first step counts as one usual step.
    meter = ettr.measure(steps((1, 1, 5.0), (1, 2, 6.0), (1, 3, 7.0)), 0.0, 7.0)
    assert (meter.wall_s, meter.productive_s, meter.redone_s) == (7.0, 3.0, 0.0)
    assert meter.ratio == pytest.approx(3 / 7)


def test_redone_step_and_recovery_are_lost() -> None:
    # Steps 1-3 at 1 s; a fault after 3; restart from 2 at t=10: step 3 is redone, step 4 is new.
    seen = steps((1, 1, 1.0), (1, 2, 2.0), (1, 3, 3.0), (2, 3, 10.0), (2, 4, 11.0))
    meter = ettr.measure(seen, 0.0, 11.0)
    assert (meter.productive_s, meter.redone_s) == (4.0, 1.0)
    assert meter.lost_s == 7.0


def test_standing_still_for_a_checkpoint_is_lost() -> None:
    seen = [StepSeen(1, 1, 1.0), StepSeen(1, 2, 2.0), StepSeen(1, 3, 5.0, 2.0)]
    assert ettr.measure(seen, 0.0, 5.0).productive_s == 3.0


def test_nothing_seen_is_nothing_productive() -> None:
    assert ettr.measure([], 0.0, 10.0).ratio == 0.0
    assert ettr.measure([], 5.0, 5.0).ratio == 0.0


def test_steps_that_one_rank_prints_are_the_jobs() -> None:
    board = StepBoard(4, 30.0)
    board.started(1, range(4), 0, 10.0)
    assert board.note(1, 3, 7, 11.0, from_log=True) == StepSeen(1, 7, 11.0)
    assert board.reached(1, 7, 12.0) == StepSeen(1, 7, 11.0)
    # One that speaks for itself speaks for itself alone.
    assert board.note(2, 0, 8, 13.0) is None
