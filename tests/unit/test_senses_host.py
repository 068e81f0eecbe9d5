from __future__ import annotations

import pytest

from everstep.core.senses.host import (
    ClockWatch,
    DiskUse,
    judge_disk,
    judge_last_boot,
    judge_memory,
    judge_mount,
    mount_of,
    parse_mounts,
)
from everstep.core.senses.inspection import exit_code, faulty, healthy, unobservable
from everstep.core.vocabulary import Symptom, Verdict

GB = 10**9


@pytest.mark.parametrize(
    ("use", "verdict", "symptom"),
    [
        (DiskUse(100 * GB, 50 * GB, 1000, 900, False), Verdict.HEALTHY, None),
        (DiskUse(100 * GB, 1 * GB, 1000, 900, False), Verdict.FAULTY, Symptom.DISK_SPACE),
        (DiskUse(100 * GB, 50 * GB, 1000, 9, False), Verdict.FAULTY, Symptom.DISK_SPACE),
        (DiskUse(100 * GB, 50 * GB, 0, 0, False), Verdict.HEALTHY, None),
        (DiskUse(100 * GB, 50 * GB, 1000, 900, True), Verdict.FAULTY, Symptom.DISK_FAULT),
        (DiskUse(0, 0, 0, 0, False), Verdict.UNOBSERVABLE, None),
    ],
)
def test_room_on_a_disk(use: DiskUse, verdict: Verdict, symptom: Symptom | None) -> None:
    found = judge_disk("/data", use)
    assert (found.verdict, found.symptom) == (verdict, symptom)


def test_memory_pressure_and_a_kernel_without_it() -> None:
    text = "some avg10={0} avg60=0.00 avg300=0.00 total=0\nfull avg10={0} avg60=0.00 total=0\n"
    assert judge_memory(text.format("0.50")).verdict is Verdict.HEALTHY
    assert judge_memory(text.format("45.00")).symptom is Symptom.CPU_OOM
    assert judge_memory("").verdict is Verdict.UNOBSERVABLE


def test_a_step_of_the_clock_is_seen_and_slewing_is_not() -> None:
    watch = ClockWatch()
    assert watch.look(1000.0, 10.0).verdict is Verdict.HEALTHY
    assert watch.look(1002.001, 12.0).verdict is Verdict.HEALTHY
    step = watch.look(1064.0, 14.0)
    assert (step.verdict, step.confident) == (Verdict.FAULTY, False)
    assert "+60.0 s" in step.detail
    assert watch.look(1066.0, 16.0).verdict is Verdict.HEALTHY


def test_mount_points_are_found_and_spaces_in_them_read() -> None:
    text = (
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "30 22 0:30 / /data\\040set rw - nfs server:/x rw\n"
    )
    mounts = parse_mounts(text)
    assert mounts == {"/", "/data set"}
    assert mount_of("/data set/run", mounts) == "/data set"
    assert mount_of("/data sets", mounts) == "/"


def test_a_mount_that_is_gone_or_does_not_answer_is_a_fault() -> None:
    assert judge_mount("/d", True, "").verdict is Verdict.HEALTHY
    assert judge_mount("/d", False, "").symptom is Symptom.FILESYSTEM_MOUNT
    assert "stale" in judge_mount("/d", True, "does not answer: stale file handle").detail


def test_only_a_recent_crash_is_told_of() -> None:
    text = "<6>[1.0] booting\n<0>[9.0] Kernel panic - not syncing: Fatal exception\n"
    fresh = judge_last_boot([("dmesg-efi-1", 3600.0, text)])
    assert (fresh.verdict, fresh.confident) == (Verdict.FAULTY, False)
    assert "Kernel panic" in fresh.evidence[0]
    assert judge_last_boot([("dmesg-efi-1", 30 * 86_400.0, text)]).verdict is Verdict.HEALTHY
    assert judge_last_boot([("console", 60.0, "<6>[1.0] all well")]).verdict is Verdict.HEALTHY


def test_exit_codes_put_faults_before_doubts_and_nothing_seen_is_a_doubt() -> None:
    good, bad = healthy("a", "b", ""), faulty("a", "b", None, "")
    unsure = unobservable("a", "b", "")
    assert exit_code([good, good]) == 0
    assert exit_code([good, unsure, bad]) == 1
    assert exit_code([good, unsure]) == 3
    assert exit_code([]) == 3
