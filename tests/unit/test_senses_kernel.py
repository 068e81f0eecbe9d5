"""What lines of the kernel log mean, alone and in context."""

from __future__ import annotations

import json

import pytest

from everstep.core.senses import thresholds
from everstep.core.senses.inspection import Inspection
from everstep.core.senses.kernel import Kind, parse_event
from everstep.core.senses.kernel_judge import KernelJudge
from everstep.core.senses.kmsg import KernelRecord, SequenceGaps, parse_journal, parse_record
from everstep.core.senses.xid import Weight, Xid, bus_id, parse_sxid, parse_xid
from everstep.core.vocabulary import Symptom, Verdict


def kernel(text: str, at_s: float = 100.0, facility: int = 0) -> KernelRecord:
    return KernelRecord(None, facility, 3, at_s, text)


def judged(*lines: str | tuple[float, str], cgroup: str = "") -> list[Inspection]:
    """What a fresh judge says to lines; those without a time come one second apart."""
    judge = KernelJudge(cgroup)
    timed = [(100.0 + i, x) if isinstance(x, str) else x for i, x in enumerate(lines)]
    said = [judge.judge(kernel(text, at_s)) for at_s, text in timed]
    return [inspection for inspection in said if inspection is not None]


def xid(gpu: str, code: int, rest: str = "pid=1, name=python") -> str:
    return f"NVRM: Xid (PCI:0000:{gpu}): {code}, {rest}"


def test_a_record_of_the_device_is_read_and_its_continuation_left_out() -> None:
    raw = b"6,1234,5000000,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=+usb:1-1\n"
    assert parse_record(raw) == KernelRecord(1234, 0, 6, 5.0, "usb 1-1: new device")
    by_program = parse_record(b"11,7,1000000,-,caller=T1;NVRM: Xid\n")
    assert by_program is not None
    assert (by_program.facility, by_program.level, by_program.by_kernel) == (1, 3, False)
    assert parse_record(b"no record at all") is None
    assert parse_record(b"a,b,c;text") is None


def test_a_line_of_journald_is_read_whatever_it_made_of_the_text() -> None:
    entry = {"MESSAGE": "hello", "__MONOTONIC_TIMESTAMP": "2500000", "PRIORITY": "4"}
    expected = KernelRecord(None, 0, 4, 2.5, "hello")
    assert parse_journal(json.dumps(entry).encode()) == expected
    as_bytes = {**entry, "MESSAGE": list(b"hello")}
    assert parse_journal(json.dumps(as_bytes).encode()) == expected
    assert parse_journal(b'{"MESSAGE": null}') is None
    assert parse_journal(b"-- No entries --") is None


def test_lost_records_are_counted() -> None:
    gaps = SequenceGaps()
    assert [gaps.note(KernelRecord(n, 0, 6, 0.0, "")) for n in (5, 6, 10, 11)] == [0, 0, 3, 0]
    assert gaps.lost == 3
    assert gaps.note(KernelRecord(None, 0, 6, 0.0, "")) == 0


def test_places_on_the_bus_have_one_spelling() -> None:
    assert {bus_id(t) for t in ("0000:1a:00", "00000000:1A:00.0", "0000:1A:00.0")} == {"0000:1a:00"}


@pytest.mark.parametrize(
    ("line", "gpu", "code"),
    [
        ("NVRM: Xid (PCI:0000:1a:00): 79, pid=1, GPU has fallen off the bus.", "0000:1a:00", 79),
        ("kernel: NVRM: Xid (PCI:0000:1a:00): 48", "0000:1a:00", 48),
        ("NVRM: Xid (0000:01:00): 31, Ch 0000000b", "0000:01:00", 31),
    ],
)
def test_xids_are_read_in_every_form(line: str, gpu: str, code: int) -> None:
    found = parse_xid(line)
    assert found is not None
    assert (found.gpu, found.code) == (gpu, code)


def test_a_line_that_only_speaks_of_xids_is_none() -> None:
    assert parse_event("NVRM: _kgspLogXid119: Note: Please also check logs above.") is None
    assert parse_event("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01") is None


@pytest.mark.parametrize(
    ("code", "symptom"),
    [
        (48, Symptom.GPU_MEMORY_ERROR),
        (64, Symptom.GPU_MEMORY_ERROR),
        (74, Symptom.GPU_UNAVAILABLE),
        (79, Symptom.GPU_UNAVAILABLE),
        (94, Symptom.GPU_MEMORY_ERROR),
        (95, Symptom.GPU_MEMORY_ERROR),
        (119, Symptom.GPU_UNAVAILABLE),
        (140, Symptom.GPU_MEMORY_ERROR),
    ],
)
def test_an_xid_that_asks_for_a_reset_is_a_certain_fault(code: int, symptom: Symptom) -> None:
    (found,) = judged(xid("1a:00", code))
    assert (found.verdict, found.symptom, found.confident) == (Verdict.FAULTY, symptom, True)
    assert found.subject == "GPU 0000:1a:00"


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 68, 69, 156])
def test_an_xid_of_the_program_or_a_healed_one_is_no_fault(code: int) -> None:
    assert [i.verdict for i in judged(xid("1a:00", code))] == [Verdict.HEALTHY]


def test_an_unknown_xid_is_neither_healthy_nor_a_fault() -> None:
    (found,) = judged(xid("1a:00", 999))
    assert found.verdict is Verdict.UNOBSERVABLE


def test_a_recovery_action_says_by_its_words_what_it_is() -> None:
    reset = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    back = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert judged(xid("48:00", 154, reset))[0].confident
    assert judged(xid("48:00", 154, back))[0].verdict is Verdict.HEALTHY


def test_a_nonfatal_link_error_is_suspected_and_a_fatal_one_is_certain() -> None:
    assert Xid("g", 145, "RLW_RXPIPE Nonfatal XC0 i0 Link 11").meaning().weight is Weight.SUSPECT
    assert Xid("g", 145, "RLW_RXPIPE Fatal XC0 i0 Link 11").meaning().weight is Weight.FAULT


def test_history_of_programs_on_other_gpus_is_not_blamed() -> None:
    said = judged(
        xid("00:05", 43),
        xid("00:07", 31, "MMU Fault: ENGINE GRAPHICS"),
        xid("00:08", 94, "Contained: SM (0x1). RST: No, D-RST: No"),
    )
    assert [(i.subject, i.verdict) for i in said if i.verdict is Verdict.FAULTY] == [
        ("GPU 0000:00:08", Verdict.FAULTY)
    ]


def test_the_first_broken_gpu_is_blamed_for_what_others_say_after_it() -> None:
    said = judged(
        "nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 24007, Severity 1 Engine instance 12",
        xid("48:00", 74, "NVLink: fatal error detected on link 8"),
        (190.0, xid("0b:00", 119, "Timeout after 45s of waiting for RPC response from GPU3 GSP!")),
        (5000.0, xid("0b:00", 79)),
    )
    assert [i.subject for i in said] == ["NVSwitch 0000:aa:00"] * 3 + ["GPU 0000:0b:00"]
    assert "then GPU 0000:0b:00, Xid 119" in said[2].detail


def test_only_fatal_switch_errors_are_faults() -> None:
    soft = parse_sxid("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 30")
    hard = parse_sxid("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM")
    assert soft is not None
    assert hard is not None
    assert (soft.fatal, hard.fatal) == (False, True)


def test_a_task_that_hangs_after_channels_were_torn_down_means_a_stuck_driver() -> None:
    hung = "INFO: task cache_mgr:6209 blocked for more than 120 seconds."
    alone = judged(hung)[0]
    assert (alone.symptom, alone.confident) == (Symptom.JOB_HANG, False)
    after = judged((100.0, xid("61:00", 45)), (292.0, hung))[1]
    assert (after.symptom, after.confident, after.subject) == (
        Symptom.GPU_UNAVAILABLE,
        True,
        "GPU 0000:61:00",
    )
    late = judged((100.0, xid("61:00", 45)), (100.0 + thresholds.HUNG_AFTER_XID_S + 1, hung))[1]
    assert not late.confident


def test_exceptions_on_one_multiprocessor_then_a_timeout_are_suspected() -> None:
    warp = "Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter"
    found = judged(xid("cb:00", 13, warp), xid("cb:00", 109, "CTX SWITCH TIMEOUT"))[1]
    assert (found.verdict, found.confident) == (Verdict.FAULTY, False)
    assert "one multiprocessor only (7/7/0)" in found.detail


def test_corrected_memory_errors_are_healthy_below_their_rate() -> None:
    one = "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0"
    quiet = [(float(i), one) for i in range(thresholds.CORRECTED_PER_DAY)]
    assert {i.verdict for i in judged(*quiet)} == {Verdict.HEALTHY}
    over = judged(*quiet, (50.0, one))[-1]
    assert (over.verdict, over.confident) == (Verdict.FAULTY, False)
    slow = [(i * 3600.0, one) for i in range(200)]
    assert {i.verdict for i in judged(*slow)} == {Verdict.HEALTHY}


def test_one_letter_tells_an_uncorrected_memory_error() -> None:
    found = judged("EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#2_DIMM#0")[0]
    assert (found.symptom, found.confident) == (Symptom.OS_KERNEL_PANIC, True)


def test_the_status_of_a_machine_check_says_whether_it_was_corrected() -> None:
    bad = parse_event("EDAC skx MC3: CPU 10: Machine Check Event: 0 Bank 8: fc00010001010092")
    good = parse_event("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 4: 9c00000000000000")
    assert bad is not None
    assert good is not None
    assert (bad.kind, good.kind) == (Kind.MEMORY_UNCORRECTED, Kind.MEMORY_CORRECTED)


OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,"
    "oom_memcg={limit},task_memcg={victim},task=python,pid=4242,uid=0"
)


def test_memory_kills_are_told_with_the_victims_cgroup() -> None:
    line = OOM.format(limit="/pods/train", victim="/pods/train/ranks")
    (found,) = judged(line, cgroup="/pods/train")
    assert (found.verdict, found.symptom, found.confident) == (
        Verdict.FAULTY,
        Symptom.CPU_OOM,
        False,
    )
    assert "python:4242 in /pods/train/ranks" in found.detail


def test_a_neighbours_memory_kill_does_not_concern_the_job_unless_the_machine_ran_out() -> None:
    other = OOM.format(limit="/pods/other", victim="/pods/other/x")
    assert judged(other, cgroup="/pods/train")[0].verdict is Verdict.HEALTHY
    whole = (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,"
        "global_oom,task_memcg=/pods/other,task=stress,pid=7,uid=0"
    )
    assert judged(whole, cgroup="/pods/train")[0].verdict is Verdict.FAULTY


@pytest.mark.parametrize(
    ("line", "symptom", "subject"),
    [
        ("EXT4-fs error (device nvme0n1p5): ext4_find_entry:1", Symptom.DISK_FAULT, "nvme0n1p5"),
        ("EXT4-fs (sda1): Remounting filesystem read-only", Symptom.DISK_FAULT, "sda1"),
        ("XFS (nvme1n1): Corruption detected. Unmount and run", Symptom.DISK_FAULT, "nvme1n1"),
        ("blk_update_request: I/O error, dev sdb, sector 12", Symptom.DISK_FAULT, "sdb"),
        ("critical medium error, dev nvme0n1, sector 9", Symptom.DISK_FAULT, "nvme0n1"),
        ("nvme nvme3: Device not ready; aborting reset", Symptom.DISK_FAULT, "nvme3"),
        ("Kernel panic - not syncing: Fatal exception", Symptom.OS_KERNEL_PANIC, "kernel"),
        ("BUG: unable to handle page fault for address: 0", Symptom.OS_KERNEL_PANIC, "kernel"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s!", Symptom.OS_KERNEL_PANIC, "CPU#3"),
    ],
)
def test_faults_of_the_host_are_certain(line: str, symptom: Symptom, subject: str) -> None:
    (found,) = judged(line)
    assert (found.symptom, found.subject, found.confident) == (symptom, subject, True)


def test_a_file_server_that_comes_back_is_healthy_again() -> None:
    away, back = judged("nfs: server store not responding, still trying", "nfs: server store OK")
    assert (away.verdict, away.symptom) == (Verdict.FAULTY, Symptom.FILESYSTEM_MOUNT)
    assert (back.verdict, back.item, back.subject) == (Verdict.HEALTHY, away.item, away.subject)


@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs (nvme0n1p5): re-mounted. Opts: errors=remount-ro. Quota mode: none.",
        "EXT4-fs (vda): mounted filesystem 0 r/w without journal. Quota mode: none.",
        "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 14418): ACCESS_REG(0x805) op_mod(0x1)"
        " failed, status bad operation(0x2), syndrome (0x9a6171), err(-22)",
        "mlx5_core 0000:5c:00.0: Detected insufficient power on the PCIe slot (27W).",
        "igb 0000:00:14.0 eth0: igb: eth0 NIC Link is Down",
        "mce: [Hardware Error]: Machine check events logged",
        "EDAC skx MC3: HANDLING MCE MEMORY ERROR",
        '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        "Call Trace:",
        "pt_main_thread[25364]: segfault at 7f79 ip 0 sp 0 error 4 in libnccl.so.2[7f+d3]",
        "I/O error, dev loop3, sector 0 op 0x0:(READ)",
        "blk_update_request: I/O error, dev fd0, sector 0",
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "ACPI BIOS Error (bug): Could not resolve symbol",
    ],
)
def test_harmless_lines_say_nothing(line: str) -> None:
    assert judged(line) == []


def test_what_programs_write_counts_only_where_a_test_asks_for_it() -> None:
    line = kernel(xid("1a:00", 79), facility=1)
    assert KernelJudge().judge(line) is None
    assert KernelJudge(accept_programs=True).judge(line) is not None
