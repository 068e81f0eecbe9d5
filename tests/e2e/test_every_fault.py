"""Every kind of broken machine, link and code in a real run: the rung, the blame, the weights.

What is killed is in `test_run` and `test_control_plane_killed`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import ClimbOutcome, Outcome, Rung, Symptom
from everstep.workers.local.code import CODE_ERROR
from tests.e2e.local import EXAMPLE, Finished, assert_nothing_left, everstep, run, write_spec

pytestmark = [
    pytest.mark.soak,
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.timeout(900),
]

STEPS = 30

# As many machines as it takes to tell which of them computes other bits, one rank on each.
FOUR: dict[str, object] = {
    "machines": 4,
    "gpus_per_machine": 1,
    "parallelism": {"tp": 1, "pp": 1, "dp": 4, "order": "tp-pp-dp"},
    "replay": {"steps": 2, "shows_ratio": 1.0},
    "ladder": {"probation_steps": 1, "probation_s": 0.2, "check_timeout_s": 120},
}

CHECKS, EVICT, REATTEMPT = Rung.CHECKS, Rung.EVICT, Rung.REATTEMPT
ROLLBACK, REPLAY = Rung.ROLLBACK, Rung.REPLAY


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests by rank of a run without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(write_spec(folder, STEPS, 0, **FOUR), folder / "run")
    assert done.code == 0, done.explain()
    assert sorted(done.digests()) == [0, 1, 2, 3]
    return done.digests()


def only_incident(done: Finished, expected: dict[int, str]) -> IncidentRecord:
    """The one incident of a run that ended as if nothing had been."""
    assert done.code == 0, done.explain()
    [record] = done.incidents
    assert record.outcome is Outcome.RECOVERED, done.explain()
    assert done.digests() == expected
    assert_nothing_left(done.folder)
    return record


@dataclass(frozen=True)
class Case:
    """A fault, and how its incident must go.

    Attributes:
        fault: As on the command line.
        symptoms: What it may be found to be.
        rungs: What is climbed, in order.
        evicted: Who may be the one that goes; empty: nobody.
        told: What one of the reasons says.
    """

    fault: str
    symptoms: tuple[Symptom, ...]
    rungs: tuple[Rung, ...]
    evicted: tuple[str, ...]
    told: str


CASES = {
    "nan": Case(
        "nan@10:m1", (Symptom.NAN_VALUE,), (CHECKS, REATTEMPT, REPLAY, EVICT), ("m1",), "replay"
    ),
    "gross": Case(
        "sdc@10:m1,gross", (Symptom.NAN_VALUE,), (CHECKS, EVICT), ("m1",), "gpu test: m1"
    ),
    "cuda_error": Case(
        "cuda_error@10:m1",
        (Symptom.CUDA_ERROR,),
        (CHECKS, REATTEMPT, REPLAY, EVICT),
        ("m1",),
        "replay",
    ),
    "transient": Case(
        "transient@10:m1",
        (Symptom.INFINIBAND_ERROR, Symptom.PROCESS_CRASH),
        (CHECKS, REATTEMPT),
        (),
        "all checks passed",
    ),
    "link_bad": Case(
        "link_bad@10:m0-m1",
        (Symptom.INFINIBAND_ERROR, Symptom.PROCESS_CRASH),
        (CHECKS, EVICT),
        ("m0", "m1"),
        "the link between m0 and m1",
    ),
    "code_error": Case(
        "code_error@10", (Symptom.CODE_ERROR,), (ROLLBACK,), (), "an error of the code"
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_fault_ends_on_its_rung_with_the_right_one_blamed(
    kind: str, tmp_path: Path, expected: dict[int, str]
) -> None:
    case = CASES[kind]
    done = run(write_spec(tmp_path, STEPS, 1, **FOUR), tmp_path / "run", case.fault)
    record = only_incident(done, expected)
    assert record.finding.symptom in case.symptoms, done.explain()
    assert tuple(climb.rung for climb in record.climbs) == case.rungs, done.explain()
    assert any(case.told in climb.reason for climb in record.climbs), done.explain()
    assert len(done.evictions()) == (1 if case.evicted else 0)
    assert {*done.evictions()} <= {*case.evicted}
    accused = [entry.text for entry in record.timeline if "is taken out" in entry.text]
    assert bool(accused) == (ROLLBACK in case.rungs)
    # The version that runs at the end is not the broken one.
    assert not (done.folder / "code" / record.code_version / CODE_ERROR).exists()


def test_silent_corruption_is_found_by_the_bitwise_test(
    tmp_path: Path, expected: dict[int, str]
) -> None:
    """Section 4.3, first half: GPU and links pass, and the bits of a reference model do not."""
    done = run(write_spec(tmp_path, STEPS, 1, **FOUR), tmp_path / "run", "sdc@10:m1")
    record = only_incident(done, expected)
    assert record.finding.symptom is Symptom.NAN_VALUE
    checks, evict = record.climbs
    assert (checks.rung, checks.outcome, checks.machines) == (CHECKS, ClimbOutcome.FOUND, ("m1",))
    assert "bitwise test: m1" in checks.reason
    assert evict.machines == ("m1",)
    assert done.evictions() == ["m1"]


def test_corruption_that_no_check_sees_is_found_by_replay(
    tmp_path: Path, expected: dict[int, str]
) -> None:
    """Section 4.3, all of it: checks pass, reattempt and rollback fail, replay names the one."""
    before = tmp_path / "before"
    shutil.copytree(EXAMPLE, before)
    (before / "CHANGES").write_text("an older version of the same\n")
    code = {"directory": str(EXAMPLE), "previous": str(before)}
    spec = write_spec(tmp_path, STEPS, 1, **FOUR, code=code)
    done = run(spec, tmp_path / "run", "sdc@10:m1,hidden")
    record = only_incident(done, expected)
    assert [(climb.rung, climb.outcome) for climb in record.climbs] == [
        (CHECKS, ClimbOutcome.PASSED),
        (REATTEMPT, ClimbOutcome.DONE),
        (ROLLBACK, ClimbOutcome.DONE),
        (REPLAY, ClimbOutcome.FOUND),
        (EVICT, ClimbOutcome.DONE),
    ], done.explain()
    assert "bitwise" in record.climbs[0].reason
    assert done.evictions() == ["m1"]
    shown = everstep("incident", "show", "1", done.folder).stdout
    places = [shown.index(f"rung {rung}") for rung in (CHECKS, REATTEMPT, ROLLBACK, REPLAY, EVICT)]
    assert places == sorted(places), shown
