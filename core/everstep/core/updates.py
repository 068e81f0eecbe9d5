"""Changes of a job's code and arguments that wait for a restart: merged, and put into a command.

The job's workflow keeps them; the incident whose restart they join applies them. Settings are part
of a code version, so a rollback takes them back, too.

Paper: ByteRobust, section 6.1 (hot update). A change that is not urgent joins the next restart,
which a failure brings sooner or later, or is made when its window ends. Departs from the paper in
that arguments are versioned with the code.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from everstep.core.memory import CodeVersion, version_of
from everstep.core.names import PRIVATE_PREFIXES, TORCHRUN_VARIABLES

Settings = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they were set."""

MAX_UPDATES = 50
"""Updates remembered; the paper's jobs were changed 20 to 31 times in three months."""

_SETTINGS_DIGITS = 6
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class UpdateState(StrEnum):
    """What has become of an update."""

    PENDING = "pending"
    APPLIED = "applied"
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Update:
    """One change that somebody asked for.

    Attributes:
        number: Within the job, from 1.
        version: The code that it brings; empty when it only sets arguments.
        directory: Where that lies on every machine.
        settings: Arguments to set; see `command_with`.
        author: Who asked.
        reason: Why.
        at_s: When it was accepted.
        due_at_s: When it is made at the latest; not after `at_s` for an urgent one.
        state: What has become of it.
        became: The code version that it is part of, once applied.
        undone: Why it was rolled back; empty while it was not.
    """

    number: int
    version: str
    directory: str
    settings: Settings
    author: str
    reason: str
    at_s: float
    due_at_s: float
    state: UpdateState = UpdateState.PENDING
    became: str = ""
    undone: str = ""

    @property
    def urgent(self) -> bool:
        """Whether training stops for it at once."""
        return self.due_at_s <= self.at_s

    def text(self) -> str:
        """What it changes, in words."""
        parts = [f"code {self.version}"] if self.version else []
        parts += [f"{key}={value}" for key, value in self.settings]
        why = f" ({self.reason})" if self.reason else ""
        return f"update {self.number} by {self.author}: {', '.join(parts)}{why}"

    def asking(self) -> str:
        """The command that asks for it once more."""
        parts = ["everstep", "hot-update"]
        parts += ["--code", self.directory] if self.directory else []
        for key, value in self.settings:
            parts += ["--set", f"{key}={value}"]
        return shlex.join(parts)


def outcome(update: Update, codes: Sequence[CodeVersion], among: Sequence[Update]) -> str:
    """What has become of an update, in words.

    Args:
        update: The update.
        codes: The job's code versions, with what became of them.
        among: All updates of the job: some may have been rolled back with this one.
    """
    if update.state is UpdateState.PENDING:
        return "waits for a restart"
    if update.state is UpdateState.CANCELLED:
        return "withdrawn"
    why = _undone(update, codes)
    if not why:
        return f"made, as {update.became}"
    others = [
        str(o.number) for o in among if o.number != update.number and _undone(o, codes) == why
    ]
    if not others:
        return f"rolled back: {why}"
    which = f"update{'s' if len(others) > 1 else ''} {', '.join(others)}"
    return (
        f"rolled back together with {which}, whichever of them it was: {why};"
        f" to ask for this one alone: {update.asking()}"
    )


def _undone(update: Update, codes: Sequence[CodeVersion]) -> str:
    """Why an update was rolled back, or empty; a job of an older version knows it of its code."""
    if update.state is not UpdateState.APPLIED:
        return update.undone
    code = version_of(codes, update.became)
    return "" if code is None else code.failed


def told(updates: Sequence[Update], codes: Sequence[CodeVersion]) -> list[dict[str, Any]]:
    """The updates as JSON values, each with what it changes and what has become of it in words."""
    return [
        {**asdict(update), "text": update.text(), "outcome": outcome(update, codes, updates)}
        for update in updates
    ]


def pending(updates: Sequence[Update]) -> tuple[Update, ...]:
    """Those that wait, in order."""
    return tuple(update for update in updates if update.state is UpdateState.PENDING)


def next_due_s(updates: Sequence[Update]) -> float | None:
    """When the first of those that wait is due, or None."""
    return min((update.due_at_s for update in pending(updates)), default=None)


def merged(running: CodeVersion, updates: Sequence[Update]) -> CodeVersion:
    """The version that runs once these are made, one after the other, in one restart.

    The newest code wins, and of each setting the newest value. One version is one pair of code and
    settings, so two updates that come to the same are the same version.

    Args:
        running: What runs now.
        updates: At least one, in the order in which they were asked for.
    """
    code, directory = running.code or running.version, running.directory
    settings = dict(running.settings)
    for update in updates:
        if update.version:
            code, directory = update.version, update.directory
        for key, value in update.settings:
            # The one that was set last comes last.
            settings.pop(key, None)
            settings[key] = value
    newest = updates[-1]
    return CodeVersion(
        version=_version(code, settings),
        directory=directory,
        code=code,
        settings=tuple(settings.items()),
        author=newest.author,
        reason="; ".join(update.reason for update in updates if update.reason),
        at_s=newest.at_s,
    )


def applied(updates: Sequence[Update], numbers: Sequence[int], version: str) -> list[Update]:
    """The updates after some were made."""
    return [
        replace(update, state=UpdateState.APPLIED, became=version)
        if update.number in numbers
        else update
        for update in updates
    ]


def rolled_back(updates: Sequence[Update], versions: Sequence[str], reason: str) -> list[Update]:
    """The updates after the code versions that some had become were taken out."""
    return [
        replace(update, state=UpdateState.ROLLED_BACK, undone=reason)
        if update.state is UpdateState.APPLIED and update.became in versions
        else update
        for update in updates
    ]


def cancelled(updates: Sequence[Update], number: int) -> list[Update]:
    """The updates after one was withdrawn."""
    return [
        replace(update, state=UpdateState.CANCELLED) if update.number == number else update
        for update in updates
    ]


def objection(settings: Mapping[str, str]) -> str:
    """Why these cannot be set, or empty."""
    for key, value in settings.items():
        if "\0" in key + value:
            return f"{key!r}: there is a NUL in it"
        if key.startswith(PRIVATE_PREFIXES) or key in TORCHRUN_VARIABLES:
            return f"{key!r} is set by Everstep for each rank"
        if not (_VARIABLE.fullmatch(key) or _OPTION.fullmatch(key)):
            return f"{key!r} is neither an option's name (lr) nor a variable's (NCCL_DEBUG)"
    return ""


def command_with(command: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """A command with its options set: replaced where it has them, else added at its end.

    `lr=3e-4` replaces what follows `--lr`, or `--lr=...`. A name all in capitals is a variable of
    the environment (`variables_of`), and no option.
    """
    parts = list(command)
    for key, value in settings:
        if _VARIABLE.fullmatch(key):
            continue
        option = f"--{key}"
        places = [i for i, part in enumerate(parts) if part == option]
        joined = [i for i, part in enumerate(parts) if part.startswith(f"{option}=")]
        for place in joined:
            parts[place] = f"{option}={value}"
        for place in reversed(places):
            has_value = not "".join(parts[place + 1 : place + 2]).startswith("--")
            parts[place + 1 : place + 1 + has_value] = [value]
        if not places and not joined:
            parts += [option, value]
    return tuple(parts)


def variables_of(settings: Settings) -> dict[str, str]:
    """The settings that are variables of the environment."""
    return {key: value for key, value in settings if _VARIABLE.fullmatch(key)}


def _version(code: str, settings: Mapping[str, str]) -> str:
    if not settings:
        return code
    # Which was set first makes no difference to what runs.
    text = json.dumps(sorted(settings.items()))
    return f"{code}+{hashlib.sha256(text.encode()).hexdigest()[:_SETTINGS_DIGITS]}"
