"""Planned faults: real signals to real processes, at a step that the job has reached.

A fault is written `KIND@STEP[+SECONDS][:TARGET]`: once all ranks have finished STEP (and SECONDS
later, to hit a recovery under way) the target gets SIGKILL.
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


class FaultKind(StrEnum):
    """What is killed."""

    RANK_KILLED = "rank_killed"
    MACHINE_LOST = "machine_lost"
    CONTROLLER_KILLED = "controller_killed"
    ANALYZER_KILLED = "analyzer_killed"
    SERVER_KILLED = "server_killed"


TARGETED = (FaultKind.RANK_KILLED, FaultKind.MACHINE_LOST)

_FORM = re.compile(
    r"(?P<kind>[a-z_]+)@(?P<step>\d+)(?:\+(?P<delay>\d+(?:\.\d+)?))?(?::(?P<target>[\w.-]+))?"
)

_FIX = (
    "Write KIND@STEP[+SECONDS]:TARGET, for example rank_killed@20:5, machine_lost@30:m1, "
    "machine_lost@30+0.5:m2 or controller_killed@30+0.1; kinds: "
    f"{', '.join(kind.value for kind in FaultKind)}."
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault.

    Attributes:
        kind: What is killed.
        step: Once all ranks have finished this step.
        delay_s: And this much later.
        target: A rank's number, or a machine's name; empty where there is only one to hit.
    """

    kind: FaultKind
    step: int
    delay_s: float
    target: str

    def __str__(self) -> str:
        delay = f"+{self.delay_s:g}" if self.delay_s else ""
        target = f":{self.target}" if self.target else ""
        return f"{self.kind}@{self.step}{delay}{target}"


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
    if found is None or found["kind"] not in list(FaultKind):
        raise InputError(f"--fault {text}", "is not understood", _FIX)
    kind, target = FaultKind(found["kind"]), found["target"] or ""
    if (kind in TARGETED) != bool(target):
        what = "needs a target" if kind in TARGETED else "takes no target"
        raise InputError(f"--fault {text}", f"{kind} {what}", _FIX)
    if kind is FaultKind.RANK_KILLED and not (target.isdigit() and int(target) < world_size):
        raise InputError(
            f"--fault {text}", f"there is no rank {target}", f"Ranks are 0 to {world_size - 1}."
        )
    if kind is FaultKind.MACHINE_LOST:
        target = f"m{target}" if target.isdigit() else target
        if target not in machines:
            raise InputError(
                f"--fault {text}",
                f"there is no machine {target}",
                f"Machines are {machines[0]} to {machines[-1]}.",
            )
    return Fault(kind, int(found["step"]), float(found["delay"] or 0), target)


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
