from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from everstep.core.standby import NOTHING_SEEN, Seen, learned_rate, pause_s, standby_count


@pytest.mark.parametrize(
    ("machines", "standbys"), [(128, 2), (256, 2), (512, 3), (1024, 4)], ids=lambda n: str(n)
)
def test_table_5(machines: int, standbys: int) -> None:
    assert standby_count(machines, 0.0012, 0.99) == standbys


def test_a_small_job_needs_none_at_the_paper_s_rate() -> None:
    assert standby_count(4, 0.0012, 0.99) == 0
    assert standby_count(4, 0.0012, 0.999) == 1


@given(
    st.integers(0, 40),
    st.floats(0, 1, allow_nan=False),
    st.floats(0.01, 0.99, allow_nan=False),
)
@settings(deadline=None)
def test_it_is_the_binomial_quantile(machines: int, rate: float, quantile: float) -> None:
    def at_most(count: int) -> float:
        return math.fsum(
            math.comb(machines, failed) * rate**failed * (1 - rate) ** (machines - failed)
            for failed in range(count + 1)
        )

    count = standby_count(machines, rate, quantile)
    assert 0 <= count <= machines
    assert at_most(count) >= quantile - 1e-9
    assert count == 0 or at_most(count - 1) < quantile + 1e-9


def test_an_exact_tie_is_not_rounded_away() -> None:
    # Two coins: at most one head with probability 3/4 exactly.
    assert standby_count(2, 0.5, 0.75) == 1
    assert standby_count(2, 0.5, math.nextafter(0.75, 1)) == 2


@pytest.mark.timeout(2)
def test_ten_thousand_machines() -> None:
    assert standby_count(10_000, 0.0012, 0.99) == 21
    # P(X <= k) of a fair coin: the median, though no single term is representable as a float.
    assert standby_count(10_000, 0.5, 0.5) == 5_000
    assert standby_count(10_000, 0.0012, 1 - 2**-53) == 50


def test_the_ends_of_the_rate() -> None:
    assert standby_count(100, 0.0, 0.99) == 0
    assert standby_count(100, 1.0, 0.01) == 100
    assert standby_count(0, 0.5, 0.99) == 0


@pytest.mark.parametrize(
    ("machines", "rate", "quantile"), [(-1, 0.1, 0.5), (1, 1.1, 0.5), (1, 0.1, 1.0), (1, 0.1, 0.0)]
)
def test_values_out_of_range_are_refused(machines: int, rate: float, quantile: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        standby_count(machines, rate, quantile)


def test_the_rate_learns_from_the_job() -> None:
    assert learned_rate(0.0012, 1000.0, NOTHING_SEEN) == pytest.approx(0.0012)
    # One failure within the first hour of four machines is no rate of six a day.
    assert learned_rate(0.0012, 1000.0, Seen(1, 4 / 24)) == pytest.approx(2.2 / 1000, rel=1e-3)
    # 50 failures in 10,000 machine-days: 51.2 in 11,000.
    assert learned_rate(0.0012, 1000.0, Seen(50, 10_000.0)) == pytest.approx(51.2 / 11_000)
    assert learned_rate(0.0, 1.0, Seen(9, 2.0)) == 1.0


@given(
    st.floats(0, 1),
    st.floats(0.1, 1e4),
    st.integers(0, 1000),
    st.floats(0, 1e5),
)
def test_what_is_learned_lies_between_the_prior_and_what_was_seen(
    prior: float, weight: float, failures: int, days: float
) -> None:
    rate = learned_rate(prior, weight, Seen(failures, days))
    seen = min(1.0, failures / days) if days else 1.0
    assert min(prior, seen) - 1e-9 <= rate <= max(prior, seen) + 1e-9


def test_pauses_after_machines_in_a_row_that_were_refused() -> None:
    assert [pause_s(refused) for refused in range(6)] == [0, 0, 60, 120, 240, 480]
    assert pause_s(1000) == 3600
