"""The kernel log as a stream: real lines in the real device."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fault.sensing import sensing

from everstep.agent.probes import boot, kmsg
from everstep.agent.probes.monitor import MonitorConfig
from everstep.core.errors import UnobservableError
from everstep.core.senses.kmsg import KernelRecord
from everstep.core.vocabulary import Symptom, Verdict


def write(line: str) -> None:
    """Write one record.

    A fresh descriptor each, since the kernel limits the rate of one; and with its newline, without
    which the kernel waits for the line to be continued.
    """
    with kmsg.KMSG.open("w") as device:
        device.write(f"<3>{line}\n")


@pytest.fixture
def device() -> None:
    """Skips where the kernel log may not be read and written."""
    try:
        kmsg.KmsgReader().close()
        write("everstep test begins")
    except (OSError, UnobservableError) as error:
        pytest.skip(f"no kernel log here: {error}")


def of_tests(machine: str = "m1") -> MonitorConfig:
    return MonitorConfig(machine=machine, gpus=0, accept_programs=True)


@pytest.mark.usefixtures("device")
async def test_an_xid_becomes_one_certain_alert_within_a_second() -> None:
    async with sensing(of_tests()) as seen:
        await seen.until(lambda: seen.verdict("host.kernel_log") is Verdict.HEALTHY)
        write(
            "kernel: NVRM: Xid (PCI:0000:b7:00): 79, pid='<unknown>', GPU has fallen off the bus."
        )
        took_s = await seen.until(lambda: bool(seen.about("0000:b7:00")))
        write(
            "kernel: NVRM: Xid (PCI:0000:b7:00): 79, pid='<unknown>', GPU has fallen off the bus."
        )
        write("kernel: NVRM: Xid (PCI:0000:b7:00): 45, pid=1, Ch 00000008")
        marker = f"{uuid.uuid4().hex[:8]}"
        write(f"EXT4-fs error (device {marker}): ext4_find_entry:1")
        await seen.until(lambda: bool(seen.about(marker)))
        (alert,) = seen.about("0000:b7:00")
        disk = seen.about(marker)[0]
    assert took_s < 1.0
    assert (alert.symptom, alert.machine, alert.confident, alert.subject) == (
        Symptom.GPU_UNAVAILABLE,
        "m1",
        True,
        "GPU 0000:b7:00",
    )
    assert (disk.symptom, disk.confident) == (Symptom.DISK_FAULT, True)


@pytest.mark.usefixtures("device")
async def test_harmless_lines_and_those_before_the_start_raise_nothing() -> None:
    write("kernel: NVRM: Xid (PCI:0000:b8:00): 79, GPU has fallen off the bus.")
    async with sensing(of_tests()) as seen:
        await seen.until(lambda: seen.verdict("host.kernel_log") is Verdict.HEALTHY)
        write("EXT4-fs (nvme0n1p5): re-mounted. Opts: errors=remount-ro. Quota mode: none.")
        write("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0")
        write("igb 0000:00:14.0 eth0: igb: eth0 NIC Link is Down")
        write("NVRM: Xid (PCI:0000:b9:00): 31, pid=1, name=python, MMU Fault")
        marker = f"{uuid.uuid4().hex[:8]}"
        write(f"EXT4-fs error (device {marker}): ext4_find_entry:1")
        await seen.until(lambda: bool(seen.about(marker)))
        raised = [alert for alert in seen.alerts if marker not in alert.detail]
    assert raised == []


@pytest.mark.usefixtures("device")
async def test_lines_of_programs_are_no_evidence_outside_tests() -> None:
    async with sensing(MonitorConfig(machine="m1", gpus=0)) as seen:
        await seen.until(lambda: seen.verdict("host.kernel_log") is Verdict.HEALTHY)
        with_own = kmsg.KmsgReader()
        write("kernel: NVRM: Xid (PCI:0000:ba:00): 79, GPU has fallen off the bus.")
        await seen.until(lambda: any("ba:00" in record.text for record in with_own.read()))
        with_own.close()
        await seen.until(lambda: seen.verdict("host.memory") is not None)
        assert seen.about("0000:ba:00") == []


async def test_a_log_that_cannot_be_read_is_could_not_tell_and_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no journalctl either
    config = MonitorConfig(machine="m1", gpus=0, kernel_log=tmp_path / "none")
    async with sensing(config) as seen:
        await seen.until(lambda: seen.verdict("host.kernel_log") is not None)
        assert seen.verdict("host.kernel_log") is Verdict.UNOBSERVABLE
    with pytest.raises(UnobservableError, match="journalctl"):
        await kmsg.since_boot(tmp_path / "none")


async def test_journald_stands_in_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl = tmp_path / "journalctl"
    journalctl.write_text(
        "#!/bin/sh\n"
        'echo \'{"MESSAGE":"NVRM: Xid (PCI:0000:bb:00): 95, pid=1",'
        '"__MONOTONIC_TIMESTAMP":"5000000","PRIORITY":"3","SYSLOG_FACILITY":"0"}\'\n'
        'case "$*" in *--follow*) exec /bin/sleep 60;; esac\n'
    )
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = MonitorConfig(machine="m1", gpus=0, kernel_log=tmp_path / "none")
    async with sensing(config) as seen:
        await seen.until(lambda: bool(seen.about("0000:bb:00")))
    assert [record.text[:9] for record in await kmsg.since_boot(tmp_path / "none")] == ["NVRM: Xid"]


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("Kernel panic - not syncing: Fatal exception", Verdict.FAULTY),
        ("usb 1-1: new high-speed USB device", Verdict.UNOBSERVABLE),
    ],
)
async def test_journald_is_asked_for_a_crash_before_this_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, verdict: Verdict
) -> None:
    journalctl = tmp_path / "journalctl"
    journalctl.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--boot=-1*) echo \'{{"MESSAGE":"{line}",'
        '"__MONOTONIC_TIMESTAMP":"5000000","PRIORITY":"0","SYSLOG_FACILITY":"0"}\';; esac\n'
    )
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await boot.look(stores=())
    assert (found.item, found.verdict) == ("host.last_boot", verdict)


async def test_without_journald_and_firmware_a_crash_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await boot.look(stores=())
    assert found.verdict is Verdict.UNOBSERVABLE
    assert "journalctl" in found.detail


def test_an_overrun_goes_on_and_its_loss_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").touch()
    script: list[bytes | OSError] = [
        b"6,10,1000,-;one\n",
        OSError(errno.EPIPE, "overrun"),
        b"6,25,2000,-;two\n",
        BlockingIOError(errno.EAGAIN, "empty"),
    ]

    def read(_fd: int, _count: int) -> bytes:
        answer = script.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    reader = kmsg.KmsgReader(tmp_path / "log")
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read)
        records = reader.read()
    reader.close()
    assert [record.text for record in records] == ["one", "two"]
    assert reader.lost == 14


@pytest.mark.usefixtures("device")
async def test_the_whole_log_since_boot_is_read() -> None:
    marker = uuid.uuid4().hex
    write(marker)
    records = await kmsg.since_boot()
    found: Callable[[KernelRecord], bool] = lambda record: record.text == marker  # noqa: E731
    assert [record.facility for record in records if found(record)] == [1]
