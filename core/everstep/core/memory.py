"""What is remembered of machines and code versions across incidents, and what follows from it.

The job's workflow keeps it, bounded, through continue-as-new; incidents are handed it and hand back
what they add.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MAX_MACHINES = 500
"""Machines remembered; the paper's largest job lost some 130 in three months."""

MAX_VERSIONS = 50
"""Code versions remembered; the paper's jobs changed theirs 20 to 31 times in three months."""

EVICTIONS_BEFORE_BARRED = 2
"""After so many evictions a machine's own word that it is healthy no longer counts."""


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """One version of the job's code, and what became of it.

    Attributes:
        version: Identifier, which follows from its content.
        directory: Where it lies on every machine.
        proven: Whether it has made a healthy step.
        failed: Why it was taken out; empty while it was not.
        code: Identifier of the code alone; empty where that is the version's.
        settings: Arguments and variables that it runs with, beside the spec's.
        author: Who asked for it; empty for what the job began with.
        reason: Why.
        at_s: When it was asked for.
    """

    version: str
    directory: str
    proven: bool = False
    failed: str = ""
    code: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    author: str = ""
    reason: str = ""
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineHistory:
    """What is remembered of one machine across incidents.

    Attributes:
        machine: Its name.
        evictions: How often it was evicted.
        last_evicted_s: When last.
        last_reason: Why last.
        admitted: Number of evictions that a person has pardoned: it may join again after them.
        cleared: Number of evictions for its group alone, after which its tests found nothing.
        finding: What tests found when it was to become a standby, was one, or had been evicted for
            its group; empty if they never told anything.
    """

    machine: str
    evictions: int
    last_evicted_s: float
    last_reason: str
    admitted: int = 0
    cleared: int = 0
    finding: str = ""


def after_eviction(
    known: Sequence[MachineHistory], machine: str, at_s: float, reason: str
) -> list[MachineHistory]:
    """The histories with one eviction more; the machine that was evicted last comes last."""
    before = history_of(known, machine)
    now = replace(before, evictions=before.evictions + 1, last_evicted_s=at_s, last_reason=reason)
    return [*(h for h in known if h.machine != machine), now][-MAX_MACHINES:]


def after_admission(known: Sequence[MachineHistory], machine: str) -> list[MachineHistory]:
    """The histories after a person has said that the machine may join again."""
    return [
        replace(h, admitted=h.evictions - h.cleared) if h.machine == machine else h for h in known
    ]


def after_tests(
    known: Sequence[MachineHistory], machine: str, cleared: bool, finding: str
) -> list[MachineHistory]:
    """The histories after a machine was tested that had been evicted for its group alone.

    Args:
        known: The histories.
        machine: Its name.
        cleared: Whether it passed, and none of its ranks had stood out with the group's others.
        finding: What the tests found.
    """
    return [
        replace(h, cleared=h.cleared + cleared, finding=finding) if h.machine == machine else h
        for h in known
    ]


def after_refusal(
    known: Sequence[MachineHistory], machine: str, at_s: float, finding: str
) -> list[MachineHistory]:
    """The histories after a machine was not let in, or not left, among the standbys."""
    evicted = after_eviction(known, machine, at_s, finding)
    return [replace(h, finding=finding) if h.machine == machine else h for h in evicted]


def num_failures(known: Iterable[MachineHistory]) -> int:
    """Machines that failed; those that were evicted for their group alone, and healthy, did not."""
    return sum(history.evictions - history.cleared for history in known)


def history_of(known: Iterable[MachineHistory], machine: str) -> MachineHistory:
    """What is remembered of a machine; an empty history when nothing is."""
    for history in known:
        if history.machine == machine:
            return history
    return MachineHistory(machine, 0, 0.0, "")


def barred(history: MachineHistory) -> bool:
    """Whether a machine that says it is healthy must not be let back in for that alone.

    Ours: the paper lets a repaired machine return. One that was evicted twice has passed the
    self-check once too often. Evictions for its group alone do not count once tests have passed.
    """
    return history.evictions - history.admitted - history.cleared >= EVICTIONS_BEFORE_BARRED


def with_version(known: Sequence[CodeVersion], version: str, directory: str) -> list[CodeVersion]:
    """The versions with this one as the newest; what was known of it is kept."""
    before = version_of(known, version) or CodeVersion(version, directory)
    others = [code for code in known if code.version != version]
    return [*others, replace(before, directory=directory)][-MAX_VERSIONS:]


def with_code(known: Sequence[CodeVersion], code: CodeVersion) -> list[CodeVersion]:
    """The versions with this one as the newest, and a chance of its own if it failed before."""
    others = [one for one in known if one.version != code.version]
    return [*others, code][-MAX_VERSIONS:]


def proven(known: Sequence[CodeVersion], version: str) -> list[CodeVersion]:
    """The versions after this one has made a healthy step."""
    return [replace(c, proven=True) if c.version == version else c for c in known]


def failed(known: Sequence[CodeVersion], version: str, reason: str) -> list[CodeVersion]:
    """The versions after this one was taken out."""
    return [replace(c, failed=reason) if c.version == version else c for c in known]


def version_of(known: Iterable[CodeVersion], version: str) -> CodeVersion | None:
    """What is remembered of a version, or None."""
    return next((code for code in known if code.version == version), None)


def rollback_target(known: Sequence[CodeVersion], running: str) -> CodeVersion | None:
    """The version to go back to: the newest one before the running one that was not taken out.

    One that made a healthy step is preferred to newer ones that never did.

    Args:
        known: Versions, oldest first.
        running: The one that fails.
    """
    names = [code.version for code in known]
    before = known[: names.index(running)] if running in names else known
    good = [code for code in before if not code.failed]
    return next((code for code in reversed(good) if code.proven), good[-1] if good else None)


def given_up(known: Sequence[CodeVersion], running: str) -> tuple[str, ...]:
    """The versions that a rollback takes back: the running one, and those it passes over.

    Args:
        known: Versions, oldest first; there is one to go back to.
        running: The one that fails.
    """
    target = rollback_target(known, running)
    names = [code.version for code in known]
    after = names[names.index(target.version) + 1 :] if target is not None else []
    return (*after[: after.index(running)], running) if running in after else (*after, running)
