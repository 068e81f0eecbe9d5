"""What lies in the storage tier, and which of it to restart from.

    FOLDER/JOB/step-000000000120-a2-1f0c9e3d/
        .metadata, __0_0.distcp, ...    torch.distributed.checkpoint's own format
        everstep/seen-0.json, ...       what each machine saw in its ranks' memory
        everstep/plan.json              who writes what, and under which name
        everstep/wrote-0.json, ...      where it lies
        everstep/checkpoint.json        what the whole is

`.metadata` is written last: a folder without it is no checkpoint. The names of step, attempt and
run make sure that no two saves ever write to one folder.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass

from everstep.core.orders import StoredCheckpoint
from everstep.core.vocabulary import Symptom

PLAN = "plan.json"
SUMMARY = "checkpoint.json"
OURS = "everstep"
"""The subfolder of what torch does not need."""

_RUN_CHARS = 8
_NAME = re.compile(r"step-(\d{12})-a(\d+)-([0-9a-z]+)")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class StoragePolicy:
    """What a spec says of the storage tier.

    Attributes:
        url: Folder of all jobs' checkpoints: an fsspec URL, or an absolute path.
        every_steps: Save steps that this divides, or None.
        every_s: Save when this much time has passed since the last save, or None.
        keep: How many complete checkpoints to keep, > 0.
        slow_after_s: How long a save may take before somebody is told.
        give_up_after_s: How long it may take at all.
    """

    url: str
    every_steps: int | None
    every_s: float | None
    keep: int
    slow_after_s: float
    give_up_after_s: float


def is_turn(step: int, every_steps: int | None) -> bool:
    """Whether a step is saved because of its number."""
    return bool(every_steps) and step > 0 and step % (every_steps or 1) == 0


def seen_name(slot: int) -> str:
    """Name of the file with what a machine saw."""
    return f"seen-{slot}.json"


def wrote_name(slot: int) -> str:
    """Name of the file with what a machine wrote."""
    return f"wrote-{slot}.json"


def failed_name(slot: int) -> str:
    """Name of the file by which a machine says that it gave up."""
    return f"failed-{slot}.json"


def folder_name(step: int, attempt: int, run: str) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:012d}-a{attempt}-{short_run(run)}"


def short_run(run: str) -> str:
    """The part of a run's id that names of folders hold."""
    return re.sub("[^0-9a-z]", "", run.lower())[:_RUN_CHARS] or "0"


def parse_name(name: str) -> tuple[int, int, str] | None:
    """Step, attempt and run in a folder's name; None for a folder that is none of ours."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), match[3]) if match else None


def newest_first(checkpoints: Iterable[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Checkpoints by how new they are.

    Not by step: a run that began anew, on purpose, comes after an older one that had come further.
    Within a run attempts count, and clocks do not, as the one that wrote the time may be another's.
    """
    known = list(checkpoints)
    of_run: dict[str, float] = {}
    for one in known:
        of_run[one.run] = max(of_run.get(one.run, 0.0), one.saved_at_s)
    return sorted(known, key=lambda c: (of_run[c.run], c.run, c.attempt, c.step), reverse=True)


def candidates(
    checkpoints: Iterable[StoredCheckpoint], only_run: str | None
) -> list[StoredCheckpoint]:
    """What to restart from, best first.

    Args:
        checkpoints: Complete ones.
        only_run: A run that does not want those of others, or None.
    """
    wanted = None if only_run is None else short_run(only_run)
    return newest_first(c for c in checkpoints if wanted in (None, c.run))


def superfluous(checkpoints: Iterable[StoredCheckpoint], keep: int) -> list[StoredCheckpoint]:
    """Complete checkpoints that are not kept, oldest first; never the newest.

    Args:
        checkpoints: Complete ones.
        keep: How many to keep, > 0.
    """
    return newest_first(checkpoints)[max(1, keep) :][::-1]


def leftovers(names: Iterable[str], complete: Iterable[str], current: str) -> list[str]:
    """Folders of saves that came to nothing, sorted.

    A job saves one step at a time, so beside the current one nobody writes any more.

    Args:
        names: All folders of the job.
        complete: Those that are checkpoints.
        current: The one that was just saved.
    """
    whole = {*complete, current}
    return sorted(name for name in names if parse_name(name) and name not in whole)


def symptom_of(number: int | None, url: str) -> Symptom:
    """What a failed save is a sign of.

    Args:
        number: The system's error number, if there was one.
        url: Where it was to go.
    """
    if number in _NO_ROOM:
        return Symptom.DISK_SPACE
    remote = "://" in url and not url.startswith(("file://", "local://"))
    return Symptom.EXTERNAL_SERVICE_ERROR if remote else Symptom.FILESYSTEM_MOUNT
