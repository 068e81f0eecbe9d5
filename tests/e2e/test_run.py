"""Whole runs with real faults: they end with the very weights of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.core.vocabulary import Outcome, Rung, Symptom
from tests.e2e.conftest import STEPS
from tests.e2e.local import SMALL, Finished, assert_nothing_left, run, write_spec

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(400)]


def check(done: Finished, undisturbed: dict[int, str], incidents: int) -> None:
    """What holds after every run, whatever was killed."""
    assert done.code == 0, done.explain()
    assert done.digests() == undisturbed
    records = done.incidents
    assert len(records) == incidents, done.explain()
    assert {record.outcome for record in records} <= {Outcome.RECOVERED}
    assert all(record.lost_steps <= 1 for record in records), done.explain()
    assert set(done.starts_by_machine().values()) == {1}
    assert_nothing_left(done.folder)
    # Who reads the folder would wait at one for ever.
    assert not [path for path in done.folder.rglob("*") if path.is_fifo()]


def test_killed_ranks_of_every_coordinate(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    faults = [f"rank_killed@{5 + 7 * rank}:{rank}" for rank in range(8)]
    done = run(write_spec(tmp_path, STEPS, 1), tmp_path / "run", *faults)
    check(done, undisturbed, incidents=8)
    assert [r.finding.ranks for r in done.incidents] == [(rank,) for rank in range(8)]
    assert {c.rung for r in done.incidents for c in r.climbs} == {Rung.REATTEMPT}
    assert done.evictions() == []


@pytest.mark.soak
def test_ranks_and_a_machine_lost_when_dp_groups_keep_their_state_once(
    tmp_path: Path, small_undisturbed: dict[int, str]
) -> None:
    replicated = {"checkpoint": {"replicated": ["model", "optimizer"]}}
    spec = write_spec(tmp_path, STEPS, 1, **SMALL, **replicated)
    done = run(spec, tmp_path / "run", "rank_killed@15:3", "machine_lost@30:m0")
    check(done, small_undisturbed, incidents=2)
    assert done.evictions() == ["m0"]
    # Each machine has fetched what the other's ranks keep, at both restarts.
    borrowed = {tuple(entry["borrowed"]) for entry in done.effects("restored")}
    assert borrowed == {(0, 1), (2, 3)}
    assert all(not entry["failed"] for entry in done.effects("restored"))


@pytest.mark.soak
def test_a_machine_that_is_missing_comes_by_itself_and_is_tested(
    tmp_path: Path, small_undisturbed: dict[int, str]
) -> None:
    spec = write_spec(tmp_path, STEPS, 0, **SMALL, standby={"count": 0})
    done = run(spec, tmp_path / "run", "machine_lost@30:m1")
    check(done, small_undisturbed, incidents=1)
    [record] = done.incidents
    assert record.replacements == ("m2",)
    assert [entry["test"] for entry in done.effects("tested")] == ["gpu", "machine"]
    notes = [text for _, text in done.state["notes"]]
    assert notes == [
        "asked the cluster for 1 machine: slots are vacant and no standby is left",
        "m2 passed its tests and waits for a slot",
    ]


@pytest.mark.soak
def test_every_machine_is_lost_once(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    faults = [f"machine_lost@{5 + 12 * m}:m{m}" for m in range(4)]
    done = run(write_spec(tmp_path, STEPS, 4), tmp_path / "run", *faults)
    check(done, undisturbed, incidents=4)
    assert {r.finding.symptom for r in done.incidents} == {Symptom.AGENT_LOST}
    assert done.evictions() == ["m0", "m1", "m2", "m3"]
    assert [r.replacements for r in done.incidents] == [("m4",), ("m5",), ("m6",), ("m7",)]


@pytest.mark.soak
def test_second_machine_lost_while_the_first_recovers(
    tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    # m0 and m1 keep their copies on m3 and m2: whatever the moment, no shard loses both copies.
    faults = ["machine_lost@20:m0", "machine_lost@20+0.4:m1"]
    done = run(write_spec(tmp_path, STEPS, 2), tmp_path / "run", *faults)
    assert done.code == 0, done.explain()
    assert done.digests() == undisturbed
    assert sorted(done.evictions()) == ["m0", "m1"]
    assert sum(r.lost_steps for r in done.incidents) <= 2
    assert set(done.starts_by_machine().values()) == {1}
    assert_nothing_left(done.folder)


def test_machine_lost_with_the_one_that_keeps_its_copies(
    tmp_path: Path, undisturbed: dict[int, str]
) -> None:
    """No copy is left of some shards: the job starts anew, says so, and still ends the same."""
    faults = ["machine_lost@20:m0", "machine_lost@20+0.03:m3"]
    done = run(write_spec(tmp_path, STEPS, 2), tmp_path / "run", *faults)
    assert done.code == 0, done.explain()
    assert done.digests() == undisturbed
    assert sorted(done.evictions()) == ["m0", "m3"]
    story = [entry.text for record in done.incidents for entry in record.timeline]
    assert any("no copy left of some shards" in text for text in story), story
    assert [r.restored_step for r in done.incidents] == [0]
    assert done.incidents[0].lost_steps >= 20
    assert_nothing_left(done.folder)
