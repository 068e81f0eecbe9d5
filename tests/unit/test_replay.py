"""Dual-phase replay against the paper's example, all single faults, pairs, and faults that hide."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from everstep.core.groups import Layout
from everstep.core.replay import (
    MAX_ROUNDS,
    Conclusion,
    Round,
    Scheme,
    next_round,
    repeats_for,
    scheme_for,
    scheme_of,
)
from everstep.core.suspicion import Group, Trial, TrialOutcome

FAILED, PASSED, UNTOLD = TrialOutcome.FAILED, TrialOutcome.PASSED, TrialOutcome.COULD_NOT_TELL
FIG_6 = scheme_of(24, 4)


def dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - chance that can be had again, no secret


def replay(
    scheme: Scheme, outcome: Callable[[Group], TrialOutcome]
) -> tuple[Conclusion, list[list[Trial]]]:
    """Play all rounds, and hold each to what every round must keep."""
    rounds: list[list[Trial]] = []
    while isinstance(wanted := next_round(scheme, rounds), Round):
        assert len(rounds) < MAX_ROUNDS
        taken = [machine for group in wanted.groups for machine in group.machines]
        assert taken
        assert len(taken) == len(set(taken)), "groups of a round run side by side"
        assert all(len(group.machines) % scheme.unit == 0 for group in wanted.groups)
        rounds.append([Trial(group, outcome(group)) for group in wanted.groups])
    return wanted, rounds


def faulty(*machines: int) -> Callable[[Group], TrialOutcome]:
    return lambda group: FAILED if {*machines} & {*group.machines} else PASSED


def failed(trials: list[Trial]) -> list[int]:
    return [index for index, trial in enumerate(trials) if trial.outcome is FAILED]


def test_figure_6_finds_machine_13_in_groups_3_and_1() -> None:
    assert (FIG_6.m, FIG_6.n) == (4, 6)
    conclusion, rounds = replay(FIG_6, faulty(13))
    assert [failed(trials) for trials in rounds] == [[3], [1]]
    assert conclusion.evict == (13,)


def test_machine_9_is_the_crossing_of_8_to_11_and_remainder_3() -> None:
    conclusion, (first, second) = replay(FIG_6, faulty(9))
    assert [t.group.machines for t in first if t.outcome is FAILED] == [(8, 9, 10, 11)]
    assert [t.group.machines for t in second if t.outcome is FAILED] == [(3, 9, 15, 21)]
    assert conclusion.evict == (9,)


@pytest.mark.parametrize(
    ("layout", "scheme"),
    [
        # The paper's Fig. 6; and 1,200 machines with pipelines of 8, of k = 1, 2, 3 the largest.
        (Layout(2, tp=2, pp=4, dp=6, order=("tp", "pp", "dp")), Scheme(24, 4, 4, 6)),
        (Layout(8, tp=8, pp=8, dp=150, order=("tp", "pp", "dp")), Scheme(1200, 8, 24, 50)),
        # Several copies on one machine, and a pipeline that ends within one.
        (Layout(8, tp=2, dp=36, order=("tp", "dp")), Scheme(9, 1, 3, 3)),
        (Layout(4, tp=2, pp=3, dp=4, order=("tp", "pp", "dp")), Scheme(6, 3, 3, 2)),
    ],
)
def test_scheme_keeps_every_dimension_but_dp(layout: Layout, scheme: Scheme) -> None:
    assert scheme_for(layout) == scheme


def test_any_one_of_2_to_1200_machines_lies_in_one_crossing() -> None:
    """Phase by phase, for every number of machines: no two machines share both their groups."""
    for machines in range(2, 1201):
        for unit in (1, 8):
            scheme = scheme_of(machines, unit)
            if not scheme.divisible or machines % unit or scheme.m > scheme.n:
                continue
            crossings = {(i // scheme.m, i % scheme.n) for i in range(machines)}
            assert len(crossings) == machines, scheme


@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_any_single_fault_is_found_in_two_phases(unit: int) -> None:
    small = [m for m in range(2, 33) if m % unit == 0]
    chosen = dice(unit)
    large = [chosen.randrange(5, 151) * 8 for _ in range(4)] + [1200]
    for machines in [*small, *large]:
        scheme = scheme_of(machines, unit)
        if scheme.m > scheme.n:
            continue
        some = range(machines) if machines < 33 else chosen.sample(range(machines), 4)
        for machine in some:
            conclusion, rounds = replay(scheme, faulty(machine))
            assert conclusion.evict == (machine,), (scheme, machine)
            assert len(rounds) == 2, (scheme, machine)


ROUNDS_OF_PAIRS = {
    (24, 4): {2: 120, 3: 156},
    (24, 1): {2: 120, 3: 156},
    (8, 2): {2: 24, 3: 4},
    (9, 3): {2: 18, 4: 18},
    (13, 1): {2: 44, 3: 34},
    (23, 4): {3: 193, 4: 60},
    # Fewer copies of the model than machines to a copy: no crossing is a single machine.
    (8, 4): {3: 4, 4: 4, 5: 10, 6: 8, 7: 2},
    (6, 3): {3: 6, 4: 6, 5: 2, 6: 1},
}
"""By machines and machines to a copy: how many pairs of faults take how many rounds."""


@pytest.mark.parametrize(("machines", "unit"), ROUNDS_OF_PAIRS)
def test_every_pair_of_faults_is_resolved_exactly(machines: int, unit: int) -> None:
    scheme, rounds_taken = scheme_of(machines, unit), Counter[int]()
    for pair in itertools.combinations(range(machines), 2):
        conclusion, rounds = replay(scheme, faulty(*pair))
        assert conclusion.evict == pair, (conclusion, pair)
        rounds_taken[len(rounds)] += 1
    assert dict(rounds_taken) == ROUNDS_OF_PAIRS[machines, unit]


@pytest.mark.parametrize(("machines", "unit"), [(24, 4), (1200, 8)])
def test_more_faults_are_resolved_too(machines: int, unit: int) -> None:
    chosen = dice(machines)
    for _ in range(5):
        several = tuple(sorted(chosen.sample(range(machines), 3)))
        assert replay(scheme_of(machines, unit), faulty(*several))[0].evict == several


@pytest.mark.parametrize(("machines", "unit"), [(24, 4), (13, 1), (8, 4)])
def test_fault_that_shows_half_the_time_is_found(machines: int, unit: int) -> None:
    seed = 7
    chance, repeats, runs = dice(seed), repeats_for(0.5, 0.99), 500
    found = 0
    for _ in range(runs):
        machine = chance.randrange(machines)

        def outcome(group: Group, machine: int = machine) -> TrialOutcome:
            shows = machine in group.machines and any(chance.random() < 0.5 for _ in range(repeats))
            return FAILED if shows else PASSED

        found += replay(scheme_of(machines, unit), outcome)[0].evict == (machine,)
    assert found / runs >= 0.99, f"seed {seed}"


def test_repeats_make_a_fault_show_in_both_phases() -> None:
    assert repeats_for(0.5, 0.99) == 8
    assert (1 - 0.5**8) ** 2 >= 0.99 > (1 - 0.5**7) ** 2
    assert repeats_for(1.0, 0.99) == 1


def test_not_reproduced_evicts_nobody() -> None:
    conclusion, rounds = replay(FIG_6, faulty())
    assert (conclusion.outcome, conclusion.evict, len(rounds)) == (PASSED, (), 2)


def test_failure_everywhere_is_no_machines() -> None:
    for scheme in (FIG_6, scheme_of(1200, 8)):
        conclusion, _ = replay(scheme, lambda _: FAILED)
        assert (conclusion.outcome, conclusion.evict) == (UNTOLD, ())
        assert "no machine stands out" in conclusion.reason


@pytest.mark.parametrize("machines", [2, 3])
def test_failure_everywhere_is_no_machines_even_where_each_failed_alone(machines: int) -> None:
    conclusion, rounds = replay(scheme_of(machines, 1), lambda _: FAILED)
    assert (conclusion.outcome, conclusion.evict, len(rounds)) == (UNTOLD, (), 2)


def test_link_between_two_machines_names_the_company_and_evicts_nobody() -> None:
    conclusion, _ = replay(FIG_6, lambda g: FAILED if {3, 9} <= {*g.machines} else PASSED)
    assert (conclusion.outcome, conclusion.evict) == (UNTOLD, ())
    assert {3, 9} <= {*conclusion.undecided}


def test_job_of_one_copy_cannot_be_divided() -> None:
    conclusion, rounds = replay(scheme_of(8, 8), faulty(3))
    assert (conclusion.outcome, rounds) == (UNTOLD, [])
    assert "nothing to compare" in conclusion.reason


def test_what_could_not_be_told_is_never_healthy() -> None:
    def dark(*machines: int, bad: int | None = None) -> Callable[[Group], TrialOutcome]:
        def outcome(group: Group) -> TrialOutcome:
            if {*machines} & {*group.machines}:
                return UNTOLD
            return FAILED if bad in group.machines else PASSED

        return outcome

    nobody, _ = replay(FIG_6, dark(2))
    assert (nobody.outcome, nobody.evict, nobody.undecided) == (UNTOLD, (), (2,))
    found, _ = replay(FIG_6, dark(14, bad=13))
    assert (found.evict, found.undecided) == ((13,), (14,))
    hidden, _ = replay(FIG_6, dark(13, bad=13))
    assert (hidden.outcome, hidden.undecided) == (UNTOLD, (13,))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 6).flatmap(lambda u: st.tuples(st.just(u), st.integers(u, 40))),
    st.data(),
)
def test_any_outcomes_end_and_name_only_machines_that_failed(
    sizes: tuple[int, int], data: st.DataObject
) -> None:
    unit, machines = sizes
    scheme = scheme_of(machines, unit)
    chance = dice(data.draw(st.integers(0, 10_000)))
    conclusion, rounds = replay(scheme, lambda _: chance.choice([FAILED, PASSED, UNTOLD]))
    told = [trial for trials in rounds for trial in trials]
    for machine in conclusion.evict:
        assert any(t.outcome is FAILED and machine in t.group.subjects for t in told)
    if conclusion.outcome is PASSED:
        assert all(t.outcome is not FAILED for t in told)
        passed = {m for t in told if t.outcome is PASSED for m in t.group.machines}
        assert passed == set(range(machines))
    assert (conclusion.outcome is FAILED) == bool(conclusion.evict)
