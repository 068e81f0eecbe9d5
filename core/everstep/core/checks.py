"""Stop-time checks: what the programs of a check are told, and from what they say to a verdict.

The agent starts the programs (`everstep.agent.checks`), which import torch (`everstep.selfcheck`);
this is what both speak, and all that is decided about it. Paper: ByteRobust, section 4.3 and
Fig. 5. "Could not tell" is what every ending without evidence comes to.
"""

from __future__ import annotations

import hashlib
import json
import signal
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everstep.core.orders import CheckOrder, CheckResult
from everstep.core.vocabulary import Check, Verdict

CUDA = "cuda"

OWN_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a program which runs well everywhere else raises by itself on a broken machine."""

SLOW_RATIO = 0.7
"""A figure below this share of the other machines' median is slow."""

FEWEST_PEERS = 3
"""Fewer other machines than this make no median that could be trusted."""

PROGRAM_SHARE = 0.8
"""Share of a check's deadline after which its programs give up by themselves, and can say why."""


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """What one program of a check is told; JSON on its command line.

    Attributes:
        check: What to check.
        machine: This machine.
        local_rank: Index of the program on the machine, and of its GPU.
        local_size: Number of programs on the machine.
        rank: Its rank among all programs that meet.
        machines: Machines that meet, in the order of their ranks; each has `local_size` of them.
        key: What those that meet share, and no other check has.
        store: Where they meet: a file, or `host:port`.
        limit_s: When to give up, seconds from the start.
        model: `dense` or `moe`.
        device: `cpu`, `cuda`, or empty.
    """

    check: Check
    machine: str
    local_rank: int
    local_size: int
    rank: int
    machines: tuple[str, ...]
    key: str
    store: str
    limit_s: float
    model: str = "dense"
    device: str = ""

    def text(self) -> str:
        """As it goes on a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> ProgramSettings:
        """From a command line."""
        fields = json.loads(text)
        fields["check"] = Check(fields["check"])
        fields["machines"] = tuple(fields["machines"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one program of a check found.

    Attributes:
        verdict: Its verdict.
        detail: One sentence with what decided.
        digest: For `bitwise`.
        peers: For `links`: machines that were not reached, or sent wrong content.
        figures: What was measured, by name with unit; more is better.
    """

    verdict: Verdict
    detail: str
    digest: str = ""
    peers: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    def line(self) -> str:
        """As it goes through the pipe to the agent."""
        return json.dumps(asdict(self)) + "\n"


def began(device: str) -> str:
    """The line with which a program says that torch is loaded, and on what it works now."""
    return json.dumps({"began": device}) + "\n"


@dataclass(frozen=True, slots=True)
class Ending:
    """How one program of a check ended, and what it had said.

    Attributes:
        local_rank: Which one.
        lines: What came through the pipe.
        exit_code: Exit status, or None.
        signal: Signal that ended it, or None.
        timed_out: Whether it was still running at the deadline.
        last_line: The last line of its log.
    """

    local_rank: int
    lines: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    timed_out: bool
    last_line: str = ""

    @property
    def device(self) -> str:
        """What it worked on; empty if it did not get that far."""
        return str(self._said().get("began", ""))

    @property
    def answer(self) -> Answer:
        """What it found; for a program that did not say so, what its end is evidence of."""
        said = self._said()
        if "verdict" not in said:
            return self._without_answer()
        return Answer(
            Verdict(said["verdict"]),
            str(said["detail"]),
            str(said["digest"]),
            tuple(said["peers"]),
            {name: float(value) for name, value in said["figures"].items()},
        )

    def _said(self) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for line in self.lines:
            try:
                said |= json.loads(line)
            except (ValueError, TypeError):
                # Cut short by the end of the program.
                continue
        return said

    def _without_answer(self) -> Answer:
        told = f"; its last line: {self.last_line}" if self.last_line else ""
        if self.timed_out:
            how = f"did not return in time{told}"
            # A kernel or a driver call that never comes back is what a broken GPU looks like.
            faulty = self.device == CUDA
        elif self.signal is not None:
            how = f"was ended by {_signal_name(self.signal)}{told}"
            crashed = self.signal in OWN_CRASHES
            faulty = bool(self.device) and (
                crashed or (self.device == CUDA and self.signal == signal.SIGABRT)
            )
        else:
            how = f"ended with status {self.exit_code} and no answer{told}"
            faulty = False
        where = f" on {self.device}" if self.device else " before torch was loaded"
        verdict = Verdict.FAULTY if faulty else Verdict.UNOBSERVABLE
        return Answer(verdict, f"the program{where} {how}")


def judge(order: CheckOrder, machine: str, endings: Sequence[Ending], took_s: float) -> CheckResult:
    """What all programs of a machine's check say together.

    One that is faulty makes the machine faulty, and one that could not tell makes it unobservable.
    """
    answers = [(ending.local_rank, ending.answer) for ending in endings]
    found = [answer for _, answer in answers]
    verdict = _worst([answer.verdict for answer in found])
    guilty = [(rank, answer) for rank, answer in answers if answer.verdict is verdict]
    whole = bool(found) and all(answer.digest for answer in found)
    peers = {peer for answer in found for peer in answer.peers}
    if order.check is Check.LINKS and verdict is Verdict.FAULTY and not peers:
        # It never returned: whoever of them it was.
        peers = {info.machine for info in order.peers} - {machine}
    devices = sorted({ending.device for ending in endings} - {""})
    return CheckResult(
        machine=machine,
        check=order.check,
        verdict=verdict,
        detail=_told(guilty, len(found)),
        digest=_joined([answer.digest for answer in found]) if whole else "",
        peers=tuple(sorted(peers)),
        took_s=took_s,
        device=devices[0] if len(devices) == 1 else "",
        figures=_worst_figures(found),
    )


def judge_twice(first: CheckResult, again: CheckResult) -> CheckResult:
    """The bitwise test of a machine with no others to be held against: it must repeat itself."""
    for result in (first, again):
        if result.verdict is not Verdict.HEALTHY:
            return result
    if not first.digest or first.digest != again.digest:
        return replace(first, verdict=Verdict.FAULTY, detail="computes other bits each time")
    return replace(first, detail=f"{first.detail}: the same bits twice")


def reference_sizes(num_ranks: int) -> tuple[int, int, int]:
    """Sizes of the bitwise test's reference model on a machine: TP (or EP), PP, DP.

    The paper's 2 x 2 x 2 on 8 GPUs; on fewer, dimensions fall away from the right, and on more, DP
    grows.
    """
    first = 2 if num_ranks % 2 == 0 else 1
    second = 2 if num_ranks % 4 == 0 else 1
    return first, second, num_ranks // (first * second)


def slower_than_peers(results: Sequence[CheckResult], ratio: float = SLOW_RATIO) -> dict[str, str]:
    """Machines of which a figure lies far below that of the other machines, each with why.

    Machines are compared with their own kind: those of which the same check ran on the same device.

    Args:
        results: One a machine, of one check.
        ratio: How far, as a share of the others' median, in (0, 1).

    Returns:
        By machine, in the order of `results`; nothing where fewer than three others were measured.
    """
    slow: dict[str, str] = {}
    for result in results:
        for name, value in result.figures:
            others = [
                dict(other.figures)[name]
                for other in results
                if other.machine != result.machine
                and (other.check, other.device) == (result.check, result.device)
                and name in dict(other.figures)
            ]
            if len(others) < FEWEST_PEERS:
                continue
            median = statistics.median(others)
            if value < ratio * median:
                slow[result.machine] = (
                    f"{name} is {value:.3g}, {value / median:.0%} of the other machines' median"
                )
                break
    return slow


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    for verdict in (Verdict.FAULTY, Verdict.UNOBSERVABLE):
        if verdict in verdicts:
            return verdict
    return Verdict.HEALTHY if verdicts else Verdict.UNOBSERVABLE


def _told(guilty: Sequence[tuple[int, Answer]], of: int) -> str:
    if not guilty:
        return "no program of the check ran"
    rank, first = guilty[0]
    more = f" (and {len(guilty) - 1} more of {of})" if 1 < len(guilty) < of else ""
    return first.detail if len(guilty) == of else f"local rank {rank}: {first.detail}{more}"


def _joined(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _worst_figures(answers: Sequence[Answer]) -> tuple[tuple[str, float], ...]:
    names = sorted({name for answer in answers for name in answer.figures})
    return tuple(
        (name, min(answer.figures[name] for answer in answers if name in answer.figures))
        for name in names
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
