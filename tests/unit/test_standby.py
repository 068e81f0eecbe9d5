from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from everstep.core.standby import standby_count


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
