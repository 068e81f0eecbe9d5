"""Planned faults, at a step that the job has reached: real signals, and machines that are broken.

A fault is written `KIND@STEP[+SECONDS][:TARGET][,OPTION...]`. It takes place once all ranks have
finished STEP, and SECONDS later, to hit a recovery under way. What is killed gets SIGKILL. What is
broken lies in its machine's folder from then on (`everstep.selfcheck.faults`): the reference
trainer and the checks look there in a run that asked for it, and in no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from everstep.core.errors import InputError, TransientError
from everstep.core.vocabulary import Check
from everstep.selfcheck.faults import InjectedFault, write_fault


class FaultKind(StrEnum):
    """What is killed, or broken."""

    RANK_KILLED = "rank_killed"
    MACHINE_LOST = "machine_lost"
    CONTROLLER_KILLED = "controller_killed"
    ANALYZER_KILLED = "analyzer_killed"
    SERVER_KILLED = "server_killed"
    NAN = "nan"
    SDC = "sdc"
    CUDA_ERROR = "cuda_error"
    TRANSIENT = "transient"
    SLOW = "slow"
    HANG = "hang"
    LINK_BAD = "link_bad"
    CODE_ERROR = "code_error"


KILLED = {
    FaultKind.RANK_KILLED: "RANK",
    FaultKind.MACHINE_LOST: "MACHINE",
    FaultKind.CONTROLLER_KILLED: "",
    FaultKind.ANALYZER_KILLED: "",
    FaultKind.SERVER_KILLED: "",
}
"""What gets a signal, and what has to be named."""

BROKEN = {
    FaultKind.NAN: "NaN in the gradient of the machine's first rank, at every step",
    FaultKind.SDC: "a flipped bit in the products of the machine's first rank; only the bitwise"
    " test sees it",
    FaultKind.CUDA_ERROR: "the machine's first rank crashes, at every step; no check sees it,"
    " only replay does",
    FaultKind.TRANSIENT: "the machine's first rank crashes, once",
    FaultKind.SLOW: "the machine's steps take longer",
    FaultKind.HANG: "the machine's first rank never ends its step",
    FaultKind.LINK_BAD: "what two machines send each other is lost or wrong (MACHINE-MACHINE); the"
    " links check sees it",
}
"""What stays with a machine until it is evicted, and shows at its next step."""

OPTIONS = {
    "once": "shows once and is over",
    "p=0.5": "shows with this probability: at a step, for sdc at a product",
    "hidden": "sdc: no check sees it",
    "gross": "sdc: the GPU check sees it, too",
    "bit=30": "sdc: the bit of a float32 that flips",
    "by=0.5": "slow: by how many seconds",
    "times=1.3": "slow: how many times as long the machine's first rank computes",
    "how=python": "hang: stuck in a lock of Python's (python), in a call that keeps the"
    " interpreter's lock (native), in a data loader whose worker is (loader), stopped by a signal"
    " (stop), or away from the reductions of its tensor-parallel group (skip)",
}

_FORM = re.compile(
    r"(?P<kind>[^@]*)@(?P<step>[^+:,]*)(?:\+(?P<delay>[^:,]*))?(?::(?P<target>[^,]*))?"
    r"(?:,(?P<options>.*))?"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
HANGS = ("python", "native", "loader", "stop", "skip")
"""In what a rank may be stuck."""

_OPTION = re.compile(
    r"(?:(?P<flag>once|hidden|gross)"
    r"|(?P<number>p|bit|by|times)=(?P<value>\d+(?:\.\d+)?)"
    rf"|(?P<word>how)=(?:{'|'.join(HANGS)}))"
)

_ONLY_OF = {
    "hidden": FaultKind.SDC,
    "gross": FaultKind.SDC,
    "bit": FaultKind.SDC,
    "by": FaultKind.SLOW,
    "times": FaultKind.SLOW,
    "how": FaultKind.HANG,
}

_IN_RANGE: dict[str, tuple[Callable[[float], bool], str]] = {
    "p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "bit": (lambda value: value in range(32), "from 0 to 31"),
    "by": (lambda value: value >= 0, "0 seconds or more"),
    "times": (lambda value: value >= 1, "1 or more"),
}

_FIX = (
    "Write KIND@STEP[+SECONDS]:TARGET[,OPTION], for example rank_killed@20:5, machine_lost@30:m1, "
    "machine_lost@30+0.5:m2, controller_killed@30+0.1, sdc@20:m1,p=0.5 or link_bad@20:m0-m1."
)
_KINDS = f"Kinds are: {', '.join(kind.value for kind in FaultKind)}."


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault.

    Attributes:
        kind: What is killed or broken.
        step: Once all ranks have finished this step.
        delay_s: And this much later.
        target: A rank's number, a machine's name, or two with a hyphen between them; empty where
            there is only one to hit.
        options: As they were written, in order.
    """

    kind: FaultKind
    step: int
    delay_s: float
    target: str
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        delay = f"+{self.delay_s:g}" if self.delay_s else ""
        target = f":{self.target}" if self.target else ""
        return f"{self.kind}@{self.step}{delay}{target}{''.join(f',{o}' for o in self.options)}"

    @property
    def machines(self) -> list[str]:
        """The machines that it breaks."""
        return self.target.split("-") if self.kind in BROKEN else []

    def on(self, machine: str) -> InjectedFault:
        """As it lies in the folder of one of its machines."""
        given: dict[str, str] = {}
        for option in self.options:
            name, _, given[name] = option.partition("=")
        seen_by = [] if "hidden" in given else [Check.BITWISE.value]
        if "gross" in given:
            seen_by.append(Check.GPU.value)
        return InjectedFault(
            name=re.sub(r"\W+", "-", str(self)),
            kind=self.kind.value,
            once="once" in given or self.kind is FaultKind.TRANSIENT,
            probability=float(given.get("p", 1.0)),
            bit=int(given.get("bit", 30)),
            seen_by=tuple(seen_by) if self.kind is FaultKind.SDC else (),
            peer=next((other for other in self.machines if other != machine), ""),
            slow_s=float(given.get("by", 0.0 if "times" in given else 0.5)),
            slow_times=float(given.get("times", 1.0)),
            how=given.get("how", HANGS[0]) if self.kind is FaultKind.HANG else "",
        )


def told() -> str:
    """All kinds and options, for the command's help."""
    broken = "; ".join(f"{kind}: {what}" for kind, what in BROKEN.items())
    options = "; ".join(f"{option}: {what}" for option, what in OPTIONS.items())
    return (
        f"Killed, by SIGKILL: {', '.join(KILLED)}. Broken, in the reference trainer, and in checks"
        f" where that is said, until the machine is evicted: {broken}. code_error: the job starts"
        f" with a code version that fails after STEP, and has one before that does not."
        f" Options: {options}."
    )


def parse(text: str, world_size: int, machines: Sequence[str]) -> Fault:
    """Read one fault.

    Args:
        text: As written by a person.
        world_size: Number of ranks in the job.
        machines: Names of all machines, standbys included.

    Raises:
        InputError: It has another form, or names something that the job does not have.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise InputError(f"--fault {text}", "says no step", _FIX)
    if found["kind"] not in list(FaultKind):
        raise InputError(f"--fault {text}", f"there is no kind {found['kind']!r}", _KINDS)
    if not (found["step"].isascii() and found["step"].isdigit()):
        what = f"step {found['step']!r} is no whole number from 0"
        raise InputError(f"--fault {text}", what, _FIX)
    if found["delay"] is not None and not _NUMBER.fullmatch(found["delay"]):
        what = f"{found['delay']!r} is no number of seconds from 0"
        raise InputError(f"--fault {text}", what, _FIX)
    kind, target = FaultKind(found["kind"]), found["target"] or ""
    untargeted = kind is FaultKind.CODE_ERROR or KILLED.get(kind) == ""
    if untargeted == bool(target):
        what = "takes no target" if untargeted else "needs a target"
        raise InputError(f"--fault {text}", f"{kind} {what}", _FIX)
    if kind is FaultKind.RANK_KILLED:
        _check_rank(text, target, world_size)
    elif not untargeted:
        target = _machines(text, kind, target, machines)
    options = () if found["options"] is None else tuple(found["options"].split(","))
    _check_options(text, kind, options)
    return Fault(kind, int(found["step"]), float(found["delay"] or 0), target, options)


def _check_rank(text: str, target: str, world_size: int) -> None:
    if not (target.isdigit() and int(target) < world_size):
        raise InputError(
            f"--fault {text}", f"there is no rank {target}", f"Ranks are 0 to {world_size - 1}."
        )


def _machines(text: str, kind: FaultKind, target: str, machines: Sequence[str]) -> str:
    wanted = [f"m{name}" if name.isdigit() else name for name in target.split("-")]
    for name in wanted:
        if name not in machines:
            raise InputError(
                f"--fault {text}",
                f"there is no machine {name}",
                f"Machines are {machines[0]} to {machines[-1]}.",
            )
    number = 2 if kind is FaultKind.LINK_BAD else 1
    if len(set(wanted)) != number:
        what = "two machines, as in m0-m1" if number == 2 else "one machine"
        raise InputError(f"--fault {text}", f"{kind} needs {what}", _FIX)
    return "-".join(wanted)


def _check_options(text: str, kind: FaultKind, options: Sequence[str]) -> None:
    for option in options:
        found = _OPTION.fullmatch(option)
        if found is None:
            fix = f"Options are: {', '.join(OPTIONS)}."
            raise InputError(f"--fault {text}", f"option {option!r} is not understood", fix)
        name = found["flag"] or found["number"] or found["word"]
        if name not in [one.partition("=")[0] for one in _options_of(kind)]:
            fits = ", ".join(_options_of(kind)) or "none"
            fix = f"Options of {kind} are: {fits}."
            raise InputError(f"--fault {text}", f"{kind} has no option {name}", fix)
        if name in _IN_RANGE:
            is_in_range, told_range = _IN_RANGE[name]
            if not is_in_range(float(found["value"])):
                fix = f"Give a number {told_range}."
                raise InputError(f"--fault {text}", f"option {option} is out of range", fix)


def _options_of(kind: FaultKind) -> list[str]:
    """The options that a kind of fault can have."""
    if kind is FaultKind.LINK_BAD or kind not in BROKEN:
        return []
    return [name for name in OPTIONS if _ONLY_OF.get(name.partition("=")[0], kind) == kind]


def break_machines(fault: Fault, machines_directory: Path) -> None:
    """Put the fault into the folders of its machines."""
    for machine in fault.machines:
        write_fault(faults_directory(machines_directory / machine), fault.on(machine))


def faults_directory(machine_directory: Path) -> Path:
    """Where a machine's faults lie."""
    return machine_directory / "faults"


def kill_rank(rank: int, machines_directory: Path) -> int:
    """SIGKILL the process that runs a rank now.

    Returns:
        Its process id.

    Raises:
        TransientError: No process runs that rank at the moment.
    """
    started = [
        entry
        for journal in machines_directory.glob("*/journal.jsonl")
        for entry in map(json.loads, journal.read_text().splitlines())
        if entry["effect"] == "started" and rank in entry["ranks"]
    ]
    if not started:
        raise TransientError(f"rank {rank} was never started")
    newest = max(started, key=lambda entry: int(entry["attempt"]))
    pid = int(newest["pids"][newest["ranks"].index(rank)])
    try:
        psutil.Process(pid).kill()
    except psutil.NoSuchProcess as error:
        raise TransientError(f"rank {rank} (process {pid}) is not running") from error
    return pid


def kill_machine(agent_pid: int) -> None:
    """SIGKILL an agent and everything that it started, as a power cut would."""
    try:
        agent = psutil.Process(agent_pid)
        family = [agent, *agent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


class FaultPlan:
    """Fires planned faults when their steps are reached.

    Args:
        faults: What is planned.
        fire: Carries one out, after its delay.
    """

    def __init__(self, faults: Sequence[Fault], fire: Callable[[Fault], None]) -> None:
        self._waiting = sorted(faults, key=lambda fault: (fault.step, fault.delay_s))
        self._fire = fire

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """Faults whose step has not been reached."""
        return tuple(self._waiting)

    def reached(self, step: int) -> None:
        """Fire what is due once all ranks have finished `step`."""
        while self._waiting and self._waiting[0].step <= step:
            self._fire(self._waiting.pop(0))
