"""SIGKILL to the control plane in the middle of recoveries: they complete, each effect once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import STEPS
from tests.e2e.local import SMALL, run, write_spec
from tests.e2e.test_run import check

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(400)]

# A recovery takes about a second, so these hit it from its first activity to its last.
DELAYS_S = (0.02, 0.25, 0.5, 0.75, 1.1)
# One machine's ranks not in turn: a machine that fails twice within one incident is evicted.
RANKS = (0, 2, 1, 3, 0)


# A development server that SIGKILL ends between two writes may count an answer for a task that it
# has forgotten, which no replay can repeat: seen once in some dozens of such runs.
@pytest.mark.parametrize("victim", ["controller", pytest.param("server", marks=pytest.mark.soak)])
def test_recovery_survives_kills_at_any_point(
    victim: str, tmp_path: Path, small_undisturbed: dict[int, str]
) -> None:
    faults: list[str] = []
    for number, (rank, delay_s) in enumerate(zip(RANKS, DELAYS_S, strict=True)):
        step = 4 + 7 * number
        faults += [f"rank_killed@{step}:{rank}", f"{victim}_killed@{step}+{delay_s}"]
    done = run(write_spec(tmp_path, STEPS, 1, **SMALL), tmp_path / "run", *faults)
    check(done, small_undisturbed, incidents=len(DELAYS_S))
    assert len(done.state["faults"]) == len(faults), done.explain()
    assert done.evictions() == []


@pytest.mark.soak
def test_eviction_takes_place_once_whenever_the_controller_dies(
    tmp_path: Path, small_undisturbed: dict[int, str]
) -> None:
    faults: list[str] = []
    for machine, delay_s in enumerate((0.1, 0.4, 0.7, 1.0)):
        step = 5 + 12 * machine
        faults += [f"machine_lost@{step}:m{machine}", f"controller_killed@{step}+{delay_s}"]
    # Twice as many as there are machines: each counts for a moment only.
    safety = {"max_evicted_ratio": 1.0, "window_s": 0.1}
    done = run(write_spec(tmp_path, STEPS, 4, **SMALL, safety=safety), tmp_path / "run", *faults)
    check(done, small_undisturbed, incidents=4)
    assert done.evictions() == ["m0", "m1", "m2", "m3"]


@pytest.mark.soak
def test_analyzer_killed_with_a_machine_lost_at_the_same_time(
    tmp_path: Path, small_undisturbed: dict[int, str]
) -> None:
    """A machine that dies while no analyzer looks is missed by the next one."""
    faults = [
        "analyzer_killed@10",
        "machine_lost@10:m1",
        "analyzer_killed@30+0.4",
        "rank_killed@30:1",
    ]
    done = run(write_spec(tmp_path, STEPS, 1, **SMALL), tmp_path / "run", *faults)
    check(done, small_undisturbed, incidents=2)
    assert done.evictions() == ["m1"]
