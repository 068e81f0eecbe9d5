"""How processes end: signals, exit codes, schedulers, containers, data loader workers."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_SIGNAL = "signal(7); torch: elastic multiprocessing"
_SHM = Reading(Symptom.PROCESS_CRASH, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.75)
_KILLED = Reading(Symptom.HOST_OOM, Label.HOST, Action.RETRY, 0.55)
_CRASH = Reading(Symptom.PROCESS_CRASH, Label.UNKNOWN, Action.CHECK, 0.4)
_STOPPED = Reading(Symptom.PREEMPTION, Label.MANUAL, Action.RETRY, 0.6)
_FOLLOWS = Reading(Symptom.PROCESS_CRASH, Label.UNKNOWN, Action.CHECK, 0.25)
_AFTER = Reading(Symptom.NONE, Label.INFRASTRUCTURE, Action.NONE, 0.6)
_MEMORY = Reading(Symptom.HOST_OOM, Label.HOST, Action.RETRY, 0.7)

RULES: tuple[Rule, ...] = (
    Rule(
        "launcher leaving",
        r"in _?exit_barrier\b|_exit_barrier",
        Standing.CONTEXT,
        _AFTER,
        "the launcher waits for other launchers; its workers are done",
        "torch: elastic agent",
        ('  File "x/elastic/agent/server/api.py", line 906 in _exit_barrier',),
    ),
    Rule(
        "finished",
        r"training (?:is |has )?(?:been )?(?:done|complete|completed|finished)\b|finished training"
        r"|after training is done|`?max_(?:steps|epochs)\S* reached|reached max\w*[_ ](?:steps"
        r"|epochs|iter\w*)"
        r"|training completed successfully|successfully finished|job (?:finished"
        r"|completed) successfully",
        Standing.CONTEXT,
        _AFTER,
        "the work was done before",
        "trainers' last lines",
        ("[after training is done] datetime: 2024-01-01 00:00:00",),
    ),
    Rule(
        "loader bus error",
        r"unexpected bus error encountered in worker|killed by signal: bus error",
        Standing.CAUSE,
        _SHM,
        "a data loader's worker ran out of shared memory",
        "torch: DataLoader signal handling",
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error.",),
    ),
    Rule(
        "loader killed",
        r"killed by signal: killed|dataloader worker.*exited unexpectedly",
        Standing.CAUSE,
        _KILLED,
        "a data loader's worker was killed, mostly for memory",
        "torch: DataLoader signal handling",
        ("RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly",),
    ),
    Rule(
        "host memory full",
        r"defaultcpuallocator: can't allocate|\bmemoryerror\b|std::bad_alloc"
        r"|unable to allocate [\d.]+ [gmt]ib"
        r"|cannot allocate memory|enomem|errno 12\b|cudahostalloc.*fail"
        r"|not enough memory: you tried",
        Standing.CAUSE,
        _MEMORY,
        "the machine or the container has no memory left",
        "errno(3): ENOMEM",
        ("OSError: [Errno 12] Cannot allocate memory",),
    ),
    Rule(
        "sigbus",
        r"\bsigbus\b|signal 7\b|exit ?code *: *-7\b|exit (?:code|status) 135\b|\bbus error\b"
        r"|signal: bus",
        Standing.SIGN,
        _CRASH,
        "memory that is mapped could not be had: a full /dev/shm, a cut file, or broken memory",
        _SIGNAL,
        ("  traceback : Signal 7 (SIGBUS) received by PID 77",),
    ),
    Rule(
        "sigkill",
        r"\bsigkill\b|signal 9\b|exit ?code *: *-9\b|exit(?:ed with)? (?:code|status)[ :=]*137\b"
        r"|raisedsignal:9"
        r"|^\s*killed\s*$|: line \d+: +\d+ killed\b|\bkilled +(?:python|torchrun|srun)"
        r"|exitcode[:=] *137\b|signal: killed",
        Standing.SIGN,
        _KILLED,
        "killed from outside, mostly by the kernel for memory",
        _SIGNAL,
        ("failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: /usr/bin/python",),
    ),
    Rule(
        "sigsegv",
        r"killed by signal: seg|\bsigsegv\b|signal 11\b|exit ?code *: *-11\b|segmentation fault"
        r"|exit (?:code"
        r"|status) 139\b"
        r"|\bsigill\b|\bsigfpe\b|exitcode *: *-[48]\b|illegal instruction|signal: segmentation",
        Standing.SIGN,
        _CRASH,
        "a process crashed in native code",
        _SIGNAL,
        ("Fatal Python error: Segmentation fault",),
    ),
    Rule(
        "sigterm",
        r"\bsigterm\b|signal 15\b|exit ?code *: *-15\b|\bterminated\b|exit (?:code|status) 143\b"
        r"|closing signal",
        Standing.CONSEQUENCE,
        _STOPPED,
        "told to stop, by a launcher or a scheduler",
        _SIGNAL,
        ("W0101 torch/distributed/elastic] Sending process 77 closing signal SIGTERM",),
    ),
    Rule(
        "sigabrt",
        r"\bsigabrt\b|signal 6\b|exit ?code *: *-6\b|exit (?:code|status) 134\b|terminate called"
        r"|\baborted\b"
        r"|double free|corrupted size|free\(\): invalid|malloc\(\)",
        Standing.CONSEQUENCE,
        _FOLLOWS,
        "a process ended itself after an error",
        _SIGNAL,
        ("terminate called after throwing an instance of 'c10::Error'",),
    ),
    Rule(
        "launcher's summary",
        r"childfailederror|exit ?code *: *[1-9]|root cause \(first observed failure\)"
        r"|exited with (?:exit )?code [1-9]"
        r"|crashloopbackoff|processraisedexception|processexitedexception|non-zero exit"
        r"|returned non-zero"
        r"|subprocess.*(?:failed|died)|worker.*(?:died|dead)|actordiederror|workercrashederror"
        r"|engine(?:core)?.*(?:died|dead)|rayactorerror",
        Standing.CONSEQUENCE,
        _FOLLOWS,
        "a launcher tells that a worker failed",
        "torch: elastic; Kubernetes; Ray",
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",),
    ),
)
