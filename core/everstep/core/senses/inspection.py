"""The result of looking at one thing on a machine, and what several of them add up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from everstep.core.vocabulary import Symptom, Verdict

EXIT_HEALTHY = 0
EXIT_FAULTY = 1
EXIT_COULD_NOT_TELL = 3


@dataclass(frozen=True, slots=True)
class Inspection:
    """What one look at one thing said.

    Attributes:
        item: What was looked at, as `sense.thing`: `gpu.temperature`.
        subject: Which one of them: `GPU 0000:1a:00`, `eth0`, `/data`.
        verdict: Healthy, faulty, or could not tell; the last is never read as the first.
        detail: One sentence with the figures that decided.
        symptom: What a fault of this kind is called in alerts; None when it is not faulty, or when
            it is worth telling a person only.
        confident: Whether it points at this machine for certain and is bad enough to leave it.
        evidence: Lines that decided, oldest first.
    """

    item: str
    subject: str
    verdict: Verdict
    detail: str
    symptom: Symptom | None = None
    confident: bool = False
    evidence: tuple[str, ...] = ()


def healthy(item: str, subject: str, detail: str, *evidence: str) -> Inspection:
    """Looked, and found in order."""
    return Inspection(item, subject, Verdict.HEALTHY, detail, evidence=evidence)


def unobservable(item: str, subject: str, detail: str, *evidence: str) -> Inspection:
    """Could not tell, and why."""
    return Inspection(item, subject, Verdict.UNOBSERVABLE, detail, evidence=evidence)


def faulty(
    item: str,
    subject: str,
    symptom: Symptom | None,
    detail: str,
    evidence: Sequence[str] = (),
    confident: bool = False,
) -> Inspection:
    """Something is wrong."""
    return Inspection(item, subject, Verdict.FAULTY, detail, symptom, confident, tuple(evidence))


class Judged(Protocol):
    """Whatever has a verdict."""

    @property
    def verdict(self) -> Verdict:
        """It."""
        ...


def exit_code(found: Iterable[Judged]) -> int:
    """0 all healthy, 1 something faulty, 3 nothing faulty but something could not be told.

    Having looked at nothing at all is "could not be told".
    """
    verdicts = {one.verdict for one in found}
    if Verdict.FAULTY in verdicts:
        return EXIT_FAULTY
    return EXIT_HEALTHY if verdicts == {Verdict.HEALTHY} else EXIT_COULD_NOT_TELL
