"""What is in storage, which of it is newest, and what goes."""

from __future__ import annotations

import errno

import pytest

from everstep.core import stored
from everstep.core.orders import StoredCheckpoint
from everstep.core.vocabulary import Symptom


def one(step: int, attempt: int = 1, run: str = "a", at_s: float | None = None) -> StoredCheckpoint:
    name = stored.folder_name(step, attempt, run)
    return StoredCheckpoint(name, step, attempt, run, at_s or float(step), "dp=1;order=dp", 1)


def test_names_can_be_read_back_and_others_are_none() -> None:
    name = stored.folder_name(120, 2, "1F0C9e3d-77aa")
    assert name == "step-000000000120-a2-1f0c9e3d"
    assert stored.parse_name(name) == (120, 2, "1f0c9e3d")
    assert stored.parse_name("step-12") is None
    assert stored.short_run("") == "0"


def test_a_later_attempt_is_newer_whatever_clocks_say() -> None:
    redone = one(20, attempt=2, at_s=5.0)
    assert stored.newest_first([one(30), redone, one(10)]) == [redone, one(30), one(10)]


def test_a_run_from_scratch_is_newer_than_one_that_had_come_further() -> None:
    old, new = one(500, run="a", at_s=100.0), one(10, run="b", at_s=200.0)
    assert stored.candidates([old, new], None) == [new, old]
    assert stored.candidates([old, new], "a") == [old]
    assert stored.candidates([old], "b") == []


@pytest.mark.parametrize(("keep", "left"), [(1, 1), (2, 2), (9, 4), (0, 1)])
def test_the_newest_are_kept(keep: int, left: int) -> None:
    known = [one(step) for step in (10, 40, 20, 30)]
    gone = stored.superfluous(known, keep)
    assert [c.step for c in gone] == [10, 20, 30, 40][: 4 - left]


def test_what_was_never_finished_goes_but_not_what_is_a_checkpoint_or_none_of_ours() -> None:
    names = [one(step).name for step in (10, 20, 30)]
    assert stored.leftovers([*names, "notes"], [names[0]], names[2]) == [names[1]]


def test_turns() -> None:
    assert [step for step in range(10) if stored.is_turn(step, 4)] == [4, 8]
    assert not stored.is_turn(4, None)
    assert not stored.is_turn(4, 0)


def test_what_a_failure_is_a_sign_of() -> None:
    assert stored.symptom_of(errno.ENOSPC, "/x") is Symptom.DISK_SPACE
    assert stored.symptom_of(errno.EROFS, "/x") is Symptom.FILESYSTEM_MOUNT
    assert stored.symptom_of(None, "s3://x") is Symptom.EXTERNAL_SERVICE_ERROR
