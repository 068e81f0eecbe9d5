"""The host's senses on real file systems and clocks; the command that shows everything once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.probes.host import HostProbe, look_at_last_boot, own_cgroup
from everstep.core.senses import thresholds
from everstep.core.senses.inspection import Inspection
from everstep.core.vocabulary import Symptom, Verdict


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(point)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], capture_output=True, check=False)


def of(found: list[Inspection], item: str, subject: Path) -> Inspection:
    return next(i for i in found if i.item == item and i.subject == str(subject))


def test_a_disk_that_fills_up_is_a_fault_and_healthy_once_emptied(small_disk: Path) -> None:
    probe = HostProbe([str(small_disk / "run")])
    assert of(probe.look(), "host.space", small_disk).verdict is Verdict.HEALTHY
    (small_disk / "log").write_bytes(bytes(8 << 20))
    full = of(probe.look(), "host.space", small_disk)
    assert (full.verdict, full.symptom) == (Verdict.FAULTY, Symptom.DISK_SPACE)
    (small_disk / "log").unlink()
    assert of(probe.look(), "host.space", small_disk).verdict is Verdict.HEALTHY


def test_a_disk_that_becomes_read_only_is_a_fault(small_disk: Path) -> None:
    probe = HostProbe([str(small_disk)])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert of(probe.look(), "host.space", small_disk).symptom is Symptom.DISK_FAULT


def test_a_mount_that_goes_away_is_a_fault(small_disk: Path) -> None:
    probe = HostProbe([str(small_disk)])
    assert of(probe.look(), "host.mount", small_disk).verdict is Verdict.HEALTHY
    subprocess.run(["umount", str(small_disk)], check=True)
    gone = of(probe.look(), "host.mount", small_disk)
    assert (gone.verdict, gone.symptom) == (Verdict.FAULTY, Symptom.FILESYSTEM_MOUNT)


def test_a_file_system_that_does_not_answer_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    probe = HostProbe(["/"], clock=lambda: now_s[0])
    read_end, write_end = os.pipe()

    def stuck(_path: str) -> os.statvfs_result:
        os.read(read_end, 1)
        raise OSError("let go at last")

    monkeypatch.setattr(os, "statvfs", stuck)
    began_s = time.monotonic()
    assert [i for i in probe.look() if i.subject == "/"] == []
    now_s[0] += thresholds.MOUNT_DEADLINE_S + 1
    (hung,) = (i for i in probe.look() if i.subject == "/")
    assert time.monotonic() - began_s < 2.0
    assert (hung.verdict, hung.symptom) == (Verdict.FAULTY, Symptom.FILESYSTEM_MOUNT)
    os.close(write_end)
    os.close(read_end)


def test_a_step_of_the_wall_clock_is_seen() -> None:
    wall_s = [1000.0]
    probe = HostProbe([], wall=lambda: wall_s[0], clock=lambda: 50.0)
    probe.look()
    wall_s[0] -= 30.0
    (found,) = (i for i in probe.look() if i.item == "host.clock")
    assert (found.verdict, found.detail) == (Verdict.FAULTY, "the wall clock was set by -30.0 s")


def test_a_kernel_without_memory_pressure_is_could_not_tell(tmp_path: Path) -> None:
    probe = HostProbe([], proc=tmp_path)
    assert {i.item: i.verdict for i in probe.look()}["host.memory"] is Verdict.UNOBSERVABLE


def test_a_crash_that_firmware_kept_is_told(tmp_path: Path) -> None:
    assert look_at_last_boot([tmp_path / "none"]).verdict is Verdict.UNOBSERVABLE
    assert look_at_last_boot([tmp_path]).verdict is Verdict.HEALTHY
    (tmp_path / "dmesg-efi-1").write_text("<0>[9.0] Kernel panic - not syncing: Fatal\n")
    assert look_at_last_boot([tmp_path]).verdict is Verdict.FAULTY


def test_the_own_cgroup_is_read_in_both_layouts(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/pods/train\n")
    assert own_cgroup(tmp_path) == "/pods/train"
    (tmp_path / "self/cgroup").write_text("4:memory:/job/7\n2:cpu:/\n0::/\n")
    assert own_cgroup(tmp_path) == "/job/7"
    assert own_cgroup(tmp_path / "none") == ""


def check(*words: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Run `everstep check --json`."""
    done = subprocess.run(
        [sys.executable, "-m", "everstep.cli.main", "check", "--json", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_command_says_could_not_tell_and_why_where_a_sense_is_missing(tmp_path: Path) -> None:
    code, said = check("--path", str(tmp_path), LD_LIBRARY_PATH=str(tmp_path))
    drivers = [i for i in said["inspections"] if i["item"] == "gpu.driver"]
    if not drivers:
        pytest.skip("this machine has NVML")
    assert drivers[0]["verdict"] == "unobservable"
    assert "NVML" in drivers[0]["detail"]
    assert code == said["exit_code"] != 0


def test_of_a_path_that_is_not_there_the_command_could_not_tell(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    code, said = check("--path", str(absent), "--gpus", "0")
    (found,) = [i for i in said["inspections"] if i["subject"] == str(absent)]
    assert found["verdict"] == "unobservable"
    assert code == said["exit_code"] != 0


def test_the_command_finds_a_full_disk(small_disk: Path) -> None:
    (small_disk / "log").write_bytes(bytes(8 << 20))
    code, said = check("--path", str(small_disk), "--gpus", "0")
    faults = [i for i in said["inspections"] if i["verdict"] == "faulty"]
    assert code == said["exit_code"] == 1
    assert (str(small_disk), "disk_space") in [(i["subject"], i["symptom"]) for i in faults]
