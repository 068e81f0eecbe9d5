"""Ranks that really hang, each in its own way: found by their stacks, evicted, and bit-equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome, Rung, Symptom
from tests.e2e.conftest import STEPS
from tests.e2e.local import Finished, everstep, run, write_spec

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(300)]

SOON = {"hang_after_at_least_s": 4.0}

PAPER_STEPS = 24
PAPER_COMMAND = [
    "python", "train.py", "--steps", str(PAPER_STEPS), "--layers", "4", "--width", "32",
    "--context", "32", "--batch", "16",
]  # fmt: skip
PAPER: dict[str, object] = {
    "command": PAPER_COMMAND,
    "machines": 16,
    "parallelism": {"tp": 2, "pp": 4, "dp": 4, "order": "tp-pp-dp"},
}
"""The layout of the paper's figures, small enough for two cores."""

PAPER_PATIENCE_S = 500.0

EVICTED_WITHIN_S = 30.0
"""From the alert to the eviction, whatever else a machine has to do."""


def the_incident(done: Finished) -> IncidentRecord:
    assert done.code == 0, done.explain()
    (record,) = done.incidents
    assert record.outcome is Outcome.RECOVERED
    assert record.finding.symptom is Symptom.JOB_HANG
    first = record.climbs[0]
    assert first.rung is Rung.EVICT, first
    assert first.at_s - record.fault_at_s < EVICTED_WITHIN_S
    assert done.explain().count("Traceback") == 0
    return record


def test_a_rank_stuck_in_a_native_call_is_evicted(
    tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    """It holds the interpreter's lock, so it can neither answer a signal nor tell its recorder."""
    spec = write_spec(tmp_path, STEPS, 1, detection=SOON)
    done = run(spec, tmp_path / "run", "hang@10:m2,how=native")
    record = the_incident(done)
    assert (record.evicted, record.finding.ranks) == (("m2",), (4,))
    assert "call_native (hanging.py)" in record.finding.reason
    assert done.evictions() == ["m2"]
    assert done.digests() == undisturbed
    shown = everstep("incident", "show", "1", done.folder)
    assert "4! 5~" in shown.stdout, shown.stdout
    assert record.stacks[0].picture in shown.stdout


@pytest.fixture(scope="module")
def paper_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("paper-undisturbed")
    spec = write_spec(folder, PAPER_STEPS, 0, **PAPER)
    done = run(spec, folder / "run", patience_s=PAPER_PATIENCE_S)
    assert done.code == 0, done.explain()
    assert len(done.digests()) == 32
    return done.digests()


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("how", "standbys", "evicted"),
    [
        ("stop", 1, ("m5",)),
        ("python", 1, ("m5",)),
        ("native", 1, ("m5",)),
        ("loader", 1, ("m5",)),
        # It waits as everybody does, and holds up its whole pipeline.
        ("skip", 4, ("m4", "m5", "m6", "m7")),
    ],
)
def test_each_way_of_hanging_on_32_ranks(
    how: str,
    standbys: int,
    evicted: tuple[str, ...],
    tmp_path: Path,
    paper_undisturbed: dict[int, str],
) -> None:
    changes = dict(PAPER)
    if standbys > 1:
        # Long enough for the tests of those that went for their group alone.
        changes["command"] = [*PAPER_COMMAND, "--step-time-s", "3"]
    spec = write_spec(tmp_path, PAPER_STEPS, standbys, detection=SOON, **changes)
    done = run(spec, tmp_path / "run", f"hang@8:m5,how={how}", patience_s=PAPER_PATIENCE_S)
    record = the_incident(done)
    assert record.evicted == evicted
    assert 10 in record.finding.ranks
    assert done.digests() == paper_undisturbed
    # No test sees what is wrong with m5: whoever comes back is counted as evicted once.
    assert record.returned == (evicted if standbys > 1 else ())
