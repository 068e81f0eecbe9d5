"""What is usual for each rank, and who stands out, against figures worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from everstep.core.model import RankProgress
from everstep.core.slow.ballot import Ballot, VotePolicy
from everstep.core.slow.usual import LEARN_ROUNDS, SETTLED_ROUNDS, Usual
from everstep.core.slow.work import Measure, WorkBook
from everstep.core.vocabulary import Phase

STEP_S = 0.2


def calm(*costs: float, rounds: int = LEARN_ROUNDS) -> Usual:
    """Has seen rounds that were all alike."""
    usual = Usual(ratio=0.04)
    for _ in range(rounds):
        usual.learn(dict(enumerate(costs)))
    return usual


def outliers(usual: Usual, *costs: float, suspects: tuple[int, ...] = ()) -> tuple[int, ...]:
    own = dict(enumerate(costs))
    standing = usual.look(own, dict.fromkeys(own, STEP_S), suspects)
    assert standing is not None
    return standing.outliers


# --- Who stands out -------------------------------------------------------------------------------


def test_nobody_stands_out_before_a_minute_is_known() -> None:
    usual = calm(0.1, 0.1, rounds=LEARN_ROUNDS - 1)
    assert usual.look({0: 0.1, 1: 0.2}, {0: STEP_S, 1: STEP_S}, ()) is None
    assert not usual.known


@pytest.mark.parametrize("speed", [0.95, 0.9, 0.7, 0.5])
def test_a_rank_on_a_gpu_at_95_percent_stands_out(speed: float) -> None:
    assert outliers(calm(0.1, 0.1, 0.1, 0.1), 0.1, 0.1, 0.1 / speed, 0.1) == (2,)


def test_what_is_uneven_for_good_is_usual() -> None:
    usual = calm(0.05, 0.1, 0.1, 0.15)
    assert outliers(usual, 0.05, 0.1, 0.1, 0.15) == ()
    assert outliers(usual, 0.056, 0.1, 0.1, 0.15) == (0,)


def test_what_slows_all_ranks_names_none() -> None:
    usual = calm(0.05, 0.1, 0.1, 0.15)
    assert outliers(usual, 0.1, 0.2, 0.2, 0.3) == ()
    assert outliers(usual, 0.1, 0.24, 0.2, 0.3) == (1,)


def test_of_two_ranks_the_slow_one_stands_out() -> None:
    standing = calm(0.1, 0.1).look({0: 0.1, 1: 0.12}, {0: STEP_S, 1: STEP_S}, ())
    assert standing is not None
    assert standing.outliers == (1,)
    assert standing.excess == pytest.approx({0: 0.0, 1: 0.2})


def test_half_the_share_is_enough_where_something_else_speaks_against_a_rank() -> None:
    usual = calm(0.1, 0.1, 0.1)
    assert outliers(usual, 0.1, 0.1, 0.103) == ()
    assert outliers(usual, 0.1, 0.1, 0.103, suspects=(2,)) == (2,)
    assert outliers(usual, 0.1, 0.1, 0.1, suspects=(2,)) == ()


def test_what_a_step_does_not_notice_harms_nobody() -> None:
    """A rank whose script logs twice as much: 1 ms of a step of 200 ms, on a GPU's host."""
    usual = calm(0.001, 0.001, 0.001)
    assert outliers(usual, 0.002, 0.001, 0.001) == ()
    assert outliers(usual, 0.004, 0.001, 0.001) == (0,)


def test_noise_widens_the_margin() -> None:
    luck = random.Random(1)  # noqa: S311 - no secret
    usual = Usual(ratio=0.04)
    for _ in range(60):
        usual.learn({rank: 0.1 * luck.gauss(1.0, 0.05) for rank in range(8)})
    own = dict.fromkeys(range(7), 0.1) | {7: 0.108}
    standing = usual.look(own, dict.fromkeys(own, STEP_S), ())
    assert standing is not None
    assert 0.09 < standing.margin < 0.15
    assert 7 not in standing.outliers


def test_slowness_that_creeps_in_is_seen() -> None:
    usual = calm(0.1, 0.1, 0.1, rounds=SETTLED_ROUNDS)
    for number in range(200):
        own = {0: 0.1, 1: 0.1, 2: 0.1 * (1 + number / 2000)}
        standing = usual.look(own, dict.fromkeys(own, STEP_S), ())
        assert standing is not None
        if standing.outliers:
            assert standing.outliers == (2,)
            assert 0.04 < standing.excess[2] < 0.06
            return
        usual.learn(own)
    pytest.fail("10 % were never seen")


def test_a_rank_that_costs_nothing_could_not_be_told() -> None:
    """The process that the agent started is a shell, which waits for the one that trains."""
    usual = calm(0.0, 0.1)
    assert not usual.known
    assert usual.look({0: 0.0, 1: 0.3}, {0: STEP_S, 1: STEP_S}, ()) is None


# --- Counters -------------------------------------------------------------------------------------


def said(rank: int, step: int, at_s: float, **counters: Any) -> RankProgress:
    return RankProgress("m0", 1, rank, step, at_s, Phase.STEP, **counters)


def test_costs_are_of_one_step_and_by_both_measures() -> None:
    book = WorkBook(2)
    for rank in (0, 1):
        book.note(said(rank, 10, 100.0, ran_s=5.0, waited_s=1.0))
    book.begin()
    book.note(said(0, 14, 102.0, ran_s=6.0, waited_s=2.2))
    book.note(said(1, 14, 102.0, ran_s=6.2, waited_s=2.0))
    costs = book.costs()
    cpu, wall = costs[Measure.CPU], costs[Measure.WALL]
    assert [cpu[rank].compute_s for rank in (0, 1)] == pytest.approx([0.25, 0.3])
    assert [wall[rank].compute_s for rank in (0, 1)] == pytest.approx([0.2, 0.25])
    assert cpu[0].step_s == pytest.approx(0.5)
    assert cpu[0].wait_s == pytest.approx(0.25)


def test_the_first_word_of_a_step_counts() -> None:
    """A save and a report are two words of one step, and the rank has gone on by the second."""
    book = WorkBook(1)
    book.note(said(0, 1, 1.0, ran_s=1.0))
    book.begin()
    book.note(said(0, 5, 5.0, ran_s=2.0))
    book.note(said(0, 5, 5.1, ran_s=2.1, waited_s=3.0))
    assert book.costs()[Measure.CPU][0].compute_s == pytest.approx(0.25)


def test_a_round_with_too_few_steps_or_a_silent_rank_tells_nothing() -> None:
    book = WorkBook(2)
    for rank in (0, 1):
        book.note(said(rank, 1, 1.0, ran_s=1.0))
    book.begin()
    assert book.costs() == {}
    book.note(said(0, 9, 5.0, ran_s=2.0))
    book.note(said(1, 3, 5.0, ran_s=2.0))
    assert book.costs() == {}
    book.note(said(1, 4, 5.0, ran_s=None))
    assert book.costs() == {}
    book.note(said(1, 5, 5.0, ran_s=2.0))
    assert list(book.costs()) == [Measure.CPU]


# --- Votes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "elected"),
    [
        ([[2], [2], [2]], ()),
        ([[2], [2], [2], [2]], (2,)),
        ([[2], [], [2], [2], [2]], (2,)),
        ([[2], [], [2], [], [2]], ()),
        ([[2], [2, 3], [2, 3], [3], [2, 3]], (2, 3)),
        ([[0], [1], [2], [3], [0]], ()),
        # What was five rounds ago does not count any more.
        ([[2], [], [], [2], [2], [2]], ()),
        ([[2], [], [2], [2], [2], []], ()),
    ],
)
def test_four_of_five_rounds_name_a_machine(
    rounds: list[list[int]], elected: tuple[int, ...]
) -> None:
    ballot = Ballot(VotePolicy())
    for slots in rounds:
        ballot.note(slots)
    assert ballot.elected() == elected


def test_less_than_a_majority_is_no_policy() -> None:
    with pytest.raises(ValueError, match="2 of 5 is no majority"):
        VotePolicy(flags=2)
