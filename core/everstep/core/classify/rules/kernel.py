"""The kernel's own words: panics, machine checks, memory, hung tasks, block devices."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import QUIET, Reading, Rule, Standing

_LINUX = "Linux kernel source and admin guide"
_PANIC = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.85)
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
        r"|\bout_of_me\w*\+?|low on resource: memory|memorypressure|node running low on memory"
        r"|ray\.exceptions\.outofmemoryerror|out_of_memory job"
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
        "panic",
        r"kernel panic\b(?= *(?:[-:;,.()\[\]]|$|on\b|at\b|in\b|occurred|detected))"
        r"|not syncing:|unable to handle kernel|bug: unable to handle|kernel bug at"
        r"|general protection fault(?!.*\bin \S+\.so)|\boops: \w|double fault:|hard lockup"
        r"|bug: bad page|list_(?:add|del) corruption|kernel stack (?:overflow|is corrupted)"
        r"|critical temperature reached|thermal shut ?down|bug: unable|internal error: oops"
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
        r"soft lockup|rcu\w*:? (?:info: )?\w* ?(?:self-)?detected (?:expedited )?stall"
        r"|detected stalls? on cpu",
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
        "frame in the driver",
        r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?:nvidia\w*|amdgpu)\]",
        Standing.CONTEXT,
        QUIET,
        "a task stands in the GPU's driver",
        _LINUX + ": call traces",
        (" rmapiLockAcquire+0x294/0x360 [nvidia]",),
    ),
    Rule(
        "memory short",
        r"page allocation (?:failure|stalls)|kswapd.*blocked|vmalloc.*fail",
        Standing.SIGN,
        Reading(Symptom.HOST_OOM, Label.HOST, Action.RETRY, 0.5),
        "the kernel found no memory where it needed some",
        _LINUX + ": mm/page_alloc.c",
        ("python3: page allocation failure: order:5, mode:0x40dc0(GFP_KERNEL|__GFP_COMP)",),
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
        "iommu fault",
        r"io_page_fault|iommu.*fault|dmar:.*fault",
        Standing.SIGN,
        Reading(Symptom.JOB_HANG, Label.INFRASTRUCTURE, Action.CHECK, 0.5),
        "the IOMMU stopped a device's transfer; peer-to-peer copies hang",
        _LINUX + ": IOMMU; NCCL troubleshooting: PCI access control",
        ("nvidia 0000:0a:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x002f]",),
    ),
)
