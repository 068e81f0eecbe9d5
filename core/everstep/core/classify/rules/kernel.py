"""The kernel's own words: panics, machine checks, memory, hung tasks, block devices."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import QUIET, Reading, Rule, Standing

_LINUX = "Linux kernel source and admin guide"
_PANIC = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.85)
_MEMORY = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.9)
_BUS = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.75)
_DISK = Reading(Symptom.STORAGE_ERROR, Label.HOST, Action.EVICT, 0.85)
_SUSPECT = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.CHECK, 0.5)
_OOM = Reading(Symptom.HOST_OOM, Label.HOST, Action.RETRY, 0.9)
_REMOTE = Reading(Symptom.STORAGE_ERROR, Label.STORAGE, Action.RETRY, 0.75)
_SEGFAULT = Reading(Symptom.PROCESS_CRASH, Label.UNKNOWN, Action.CHECK, 0.4)

RULES: tuple[Rule, ...] = (
    Rule(
        "oom report",
        r"(?:dump_header|oom_kill_process|out_of_memory|mem_cgroup_o\w+|pagefault_out_of_memory)\b"
        r"(?:\+|$)|oom-kill:constraint=|\btasks state \(memory values",
        Standing.CONTEXT,
        QUIET,
        "part of the kernel's report on an OOM kill",
        _LINUX + ": mm/oom_kill.c",
        (" oom_kill_process+0x101/0x170", " mem_cgroup_out_of_memory"),
    ),
    Rule(
        "oom killer",
        r"invoked oom-killer|out of memory: kill|killed process \d+|oom_reaper: reaped"
        r"|memory cgroup out of memory|oomkilled|\boom[_ -]kill(?:ed)?\b(?!_)"
        r"|exceeded (?:job |step )?memory limit|oom-kill event|task \d+: out of memory"
        r"|node running low on memory|ray\.exceptions\.outofmemoryerror|out_of_memory job"
        r"|oom_kill [1-9]",
        Standing.PROOF,
        _OOM,
        "the kernel killed a process for memory; the machine is sound",
        _LINUX + ": mm/oom_kill.c; Kubernetes: OOMKilled; slurm: task/cgroup",
        (
            "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=1000",
            "Memory cgroup out of memory: Killed process 88 (python3) total-vm:1kB",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0.",
            "    Reason:       OOMKilled",
        ),
    ),
    Rule(
        "memory corrected",
        r"\b\d+ ce\b.*memory|\bce memory \w+ error|\bcorrected (?:hardware )?(?:memory )?error"
        r"|severity[=:] ?corrected|corrected error, no action required|cmci storm"
        r"|event severity: corrected|\bcorrectable\b|mce_notify_irq",
        Standing.CONTEXT,
        QUIET,
        "an error that the hardware corrected",
        _LINUX + ": EDAC, RAS",
        (
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)",
            "{2}[Hardware Error]: event severity: corrected",
            "mce: CMCI storm detected: switching to poll mode",
        ),
    ),
    Rule(
        "memory uncorrected",
        r"\b\d+ ue\b.*(?:memory|on )|\bue memory \w+ error|uncorrect(?:ed|able) (?:hardware "
        r"|memory )"
        r"|memory failure: 0x|hardware memory corruption|uncorrected error|uncorrectable error"
        r"|uncorrectable ecc",
        Standing.PROOF,
        _MEMORY,
        "the machine's memory has an error that cannot be corrected",
        _LINUX + ": EDAC, hwpoison",
        (
            "EDAC MC1: 2 UE memory scrubbing error on CPU_SrcID#0_MC#1_Chan#0_DIMM#1",
            "Memory failure: 0x1f3b2: Killing python:77 due to hardware memory corruption",
        ),
    ),
    Rule(
        "machine check fatal",
        r"fatal machine check|processor context corrupt|timeout: not all cpus entered"
        r"|event severity: (?:fatal|recoverable)|machine check: processor context"
        r"|machine check exception: (?!0 )",
        Standing.PROOF,
        _MEMORY,
        "the processor found an error that it could not correct",
        _LINUX + ": arch/x86 machine check; ACPI APEI",
        (
            "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
            "{1}[Hardware Error]: event severity: fatal",
        ),
    ),
    Rule(
        "machine check status",
        r"machine check(?: event)?: \d+ bank \d+: [0-9a-f]{16}",
        Standing.CONTEXT,
        QUIET,
        "a machine check bank; its bit 61 tells corrected from uncorrected",
        "Intel SDM vol. 3B: IA32_MCi_STATUS",
        ("EDAC skx MC1: CPU 3: Machine Check Event: 0 Bank 7: 8c00004000010090",),
    ),
    Rule(
        "panic",
        r"kernel panic|not syncing:|unable to handle kernel|bug: unable to handle|kernel bug at"
        r"|general protection fault(?!.*\bin \S+\.so)|\boops: \d|double fault:|hard lockup"
        r"|rebooting in \d+ seconds",
        Standing.PROOF,
        _PANIC,
        "the kernel itself failed",
        _LINUX,
        (
            "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b",
            "BUG: unable to handle page fault for address: ffffa0b1c2d3e4f5",
            "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12",
        ),
    ),
    Rule(
        "lockup",
        r"soft lockup|rcu\w*:? (?:info: )?\w* ?(?:self-)?detected (?:expedited )?stall",
        Standing.SIGN,
        _SUSPECT,
        "a processor did not schedule for long",
        _LINUX + ": lockup watchdogs, RCU stall warnings",
        (
            "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:77]",
            "rcu: INFO: rcu_sched self-detected stall on CPU",
        ),
    ),
    Rule(
        "hung task",
        r"blocked for more than \d+ seconds",
        Standing.SIGN,
        _SUSPECT,
        "a task waits in the kernel and cannot be killed",
        _LINUX + ": hung task detector",
        ("INFO: task python3:77 blocked for more than 120 seconds.",),
    ),
    Rule(
        "pcie uncorrected",
        r"pcie bus error: severity=uncorrected|uncorrected \((?:non-)?fatal\)"
        r"|dpc: containment event"
        r"|aer: uncorrected|pcie link.*lost|pcie.*surprise (?:link )?down",
        Standing.PROOF,
        _BUS,
        "PCIe lost or damaged a transaction",
        _LINUX + ": PCIe AER",
        ("pcieport 0000:17:01.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=TLP",),
    ),
    Rule(
        "file system damaged",
        r"(?:ext4|xfs|btrfs|f2fs)[^:]*: ?(?:error|corruption|.*(?:i/o|internal) error"
        r"|.*metadata corruption|.*shut(?:ting)? ?down|.*has been shut)|ext4-fs error"
        r"|xfs_force_shutdown"
        r"|remounting filesystem read-only|detected aborted journal|journal has aborted"
        r"|aborting journal",
        Standing.PROOF,
        _DISK,
        "a local file system is damaged or its disk fails",
        _LINUX + ": fs/ext4, fs/xfs, fs/jbd2",
        (
            "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm sh: reading"
            " directory",
            "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
            "XFS (nvme1n1): Metadata corruption detected at xfs_agf_verify, xfs_agf block 0x1",
            "XFS (dm-3): Filesystem has been shut down due to log error (0x2).",
        ),
    ),
    Rule(
        "disk error",
        r"i/o error, dev |buffer i/o error|critical (?:medium|target) error|medium error"
        r"|unrecovered read error|failed command: |ata\d+(?:\.\d+)?: (?:exception|failed)"
        r"|nvme\w*:.*(?:controller is down|removing after probe failure|disabling device"
        r"|device not ready|csts=0xffffffff|frozen state error)|smart.*(?:failing|failed)"
        r"|lost async page write|raid.*(?:disk failure|degraded)",
        Standing.PROOF,
        _DISK,
        "a disk of the machine fails",
        _LINUX + ": block layer, drivers/nvme, libata",
        (
            "blk_update_request: I/O error, dev nvme0n1, sector 1024 op 0x0:(READ) flags 0x80700",
            "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
            "nvme nvme1: Removing after probe failure status: -19",
            "Buffer I/O error on dev sdb, logical block 0, async page read",
        ),
    ),
    Rule(
        "disk slow",
        r"nvme\w*: i/o (?:tag )?\d+.*timeout|nvme\w*: abort status",
        Standing.SIGN,
        Reading(Symptom.STORAGE_ERROR, Label.HOST, Action.CHECK, 0.5),
        "a disk answers late",
        _LINUX + ": drivers/nvme/host/pci.c",
        ("nvme nvme0: I/O 123 QID 5 timeout, aborting",),
    ),
    Rule(
        "remote storage",
        r"nfs: server \S+ (?:not responding|timed out)|lustre(?:error)?:.*(?:lost|evicted|timed out"
        r"|not connected|failed)|libceph:.*(?:down|closed|lost|timed?)|ceph:.*(?:hung|lost|evict)"
        r"|cifs:? ?vfs:.*(?:error|not respond|reconnect)|mmfs\w*:.*(?:error|unmount|expel)"
        r"|beegfs.*(?:error|timed out)|nfs_?\w*: .*(?:stale|error)|fuse.*(?:aborted|not connected)",
        Standing.CAUSE,
        _REMOTE,
        "a file server does not answer",
        _LINUX + ": NFS and Ceph clients; Lustre, GPFS, BeeGFS manuals",
        (
            "nfs: server filer-1 not responding, still trying",
            "LustreError: 11-0: fs-OST0003-osc: operation ost_read failed: rc = -107 timed out",
        ),
    ),
    Rule(
        "segfault line",
        r"segfault at [0-9a-f]+ ip|traps: .*(?:general protection|trap)",
        Standing.SIGN,
        _SEGFAULT,
        "a program touched memory that it does not own",
        _LINUX + ": arch/x86/mm/fault.c",
        ("python3[77]: segfault at 10 ip 00007f1 sp 00007f2 error 4 in libtorch_cpu.so[7f+1]",),
    ),
    Rule(
        "processor hot",
        r"cpu\d*: (?:core|package) temperature.*throttled|cpu clock throttled",
        Standing.SIGN,
        Reading(Symptom.MFU_DECLINE, Label.HOST, Action.CHECK, 0.5),
        "a processor slows itself down for heat",
        _LINUX + ": x86 thermal interrupt",
        ("CPU12: Package temperature above threshold, cpu clock throttled (total events = 3)",),
    ),
    Rule(
        "iommu fault",
        r"io_page_fault|iommu.*fault|dmar:.*fault",
        Standing.SIGN,
        Reading(Symptom.JOB_HANG, Label.INFRASTRUCTURE, Action.CHECK, 0.5),
        "the IOMMU stopped a device's transfer; peer-to-peer copies hang",
        _LINUX + ": IOMMU; NCCL troubleshooting: PCI access control",
        ("nvidia 0000:0a:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x002f]",),
    ),
)
