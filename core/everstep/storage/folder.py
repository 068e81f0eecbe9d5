"""A job's checkpoints in a folder: what lies where, read and written safely.

For child processes of agents and of the command: a filesystem may hang for as long as it likes.
Our own files are JSON with a digest of themselves; nothing is unpickled here.
"""

# fsspec is not annotated.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fsspec.core import url_to_fs

from everstep.core.errors import PermanentError
from everstep.core.groups import Layout, layout_of
from everstep.core.orders import StorageReport, StoredCheckpoint
from everstep.core.save_plan import SavePlan, plan_from_json
from everstep.core.stored import OURS, PLAN, SUMMARY, parse_name, seen_name, wrote_name

METADATA = ".metadata"
"""torch's file; with it a checkpoint is complete."""

DIGEST_BYTES = 16
COPY_BYTES = 16 * 2**20


def digest_of(data: bytes | memoryview) -> str:
    """What tells bytes from all others."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Located:
    """Where an item lies in a checkpoint.

    Attributes:
        file: Name of the file in the checkpoint's folder.
        offset: Where it begins.
        length: Its size there.
        digest: Of a tensor's bytes, or of all that lies there for a plain value.
    """

    file: str
    offset: int
    length: int
    digest: str


class Checkpoint:
    """One checkpoint's folder.

    Args:
        url: The folder, as fsspec writes it.

    Raises:
        PermanentError: There is no such kind of filesystem.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs, self.path = _filesystem(self.url)

    @property
    def is_complete(self) -> bool:
        """Whether it is a checkpoint already."""
        return self.exists(METADATA)

    def make(self) -> None:
        """Make the folder; it may be there."""
        self.fs.makedirs(f"{self.path}/{OURS}", exist_ok=True)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        self.fs.invalidate_cache()
        return bool(self.fs.exists(f"{self.path}/{name}"))

    def ours(self) -> set[str]:
        """Names of all of our files in it."""
        self.fs.invalidate_cache()
        listed = self.fs.ls(f"{self.path}/{OURS}", detail=False)
        return {str(path).rpartition("/")[2] for path in listed}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of our files, as a whole or not at all."""
        text = json.dumps(content)
        data = json.dumps({"digest": digest_of(text.encode()), "content": text}).encode()
        partial = f"{self.path}/{OURS}/.{name}.{uuid.uuid4().hex}"
        self.fs.pipe_file(partial, data)
        self.fs.mv(partial, f"{self.path}/{OURS}/{name}")

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one of our files.

        Raises:
            PermanentError: It is damaged.
            OSError: It cannot be read.
        """
        data = self.fs.cat_file(f"{self.path}/{OURS}/{name}")
        try:
            outer = json.loads(data)
            if digest_of(outer["content"].encode()) == outer["digest"]:
                return cast("dict[str, Any]", json.loads(outer["content"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PermanentError(f"{OURS}/{name} is damaged: {error!r}") from error
        raise PermanentError(f"{OURS}/{name} is damaged: its digest is another")

    def read_range(self, at: Located) -> bytes:
        """The bytes of an item.

        Raises:
            PermanentError: The file was cut short.
            OSError: It cannot be read.
        """
        end = at.offset + at.length
        data = bytes(self.fs.cat_file(f"{self.path}/{at.file}", start=at.offset, end=end))
        if len(data) != at.length:
            raise PermanentError(f"{at.file} was cut short")
        return data

    def remove(self) -> None:
        """Delete the folder; what makes it a checkpoint goes first."""
        if self.is_complete:
            self.fs.rm_file(f"{self.path}/{METADATA}")
        if self.fs.exists(self.path):
            self.fs.rm(self.path, recursive=True)


@dataclass(frozen=True)
class Description:
    """Everything that a complete checkpoint says of itself, but for its bytes.

    Attributes:
        checkpoint: Its folder.
        summary: What it is.
        plan: Names and writers.
    """

    checkpoint: Checkpoint
    summary: Mapping[str, Any]
    plan: SavePlan

    @property
    def layout(self) -> Layout:
        """The layout that it was saved in."""
        return layout_of(self.summary["parallelism"], int(self.summary["gpus_per_machine"]))

    @property
    def num_slots(self) -> int:
        """How many machines wrote it."""
        return int(self.summary["num_slots"])

    def slot_of(self, rank: int) -> int:
        """The machine that a rank was on."""
        return rank // int(self.summary["ranks_per_slot"])

    def seen(self, slot: int) -> dict[int, dict[str, Any]]:
        """What a machine saw, by rank: `metadata`, `payload_bytes`, and `digests` of leaves."""
        content = self.checkpoint.read_json(seen_name(slot))
        return {int(rank): one for rank, one in content["ranks"].items()}

    def wrote(self, slot: int) -> dict[tuple[str, tuple[int, ...] | None], Located]:
        """What a machine wrote, and where it lies."""
        content = self.checkpoint.read_json(wrote_name(slot))
        return {
            (key, None if offsets is None else tuple(offsets)): Located(*place)
            for key, offsets, *place in content["items"]
        }


def describe(checkpoint: Checkpoint) -> Description:
    """Read a complete checkpoint's description.

    Raises:
        PermanentError: It is damaged.
        OSError: It cannot be read.
    """
    summary = checkpoint.read_json(SUMMARY)
    return Description(checkpoint, summary, plan_from_json(checkpoint.read_json(PLAN)))


class JobFolder:
    """All checkpoints of one job.

    Args:
        url: The storage tier's folder.
        job: The job's name.

    Raises:
        PermanentError: There is no such kind of filesystem.
    """

    def __init__(self, url: str, job: str) -> None:
        self._job = job
        self._url = f"{url.rstrip('/')}/{job}"
        self._fs, self._path = _filesystem(self._url)

    def checkpoint(self, name: str) -> Checkpoint:
        """The checkpoint's folder, whether or not it is there."""
        return Checkpoint(f"{self._url}/{name}")

    def names(self) -> list[str]:
        """Folders of saves, sorted; none when the job has none."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self._path):
            return []
        listed = self._fs.ls(self._path, detail=False)
        names = [str(path).rstrip("/").rpartition("/")[2] for path in listed]
        return sorted(name for name in names if parse_name(name))

    def look(self, machine: str) -> StorageReport:
        """What lies there.

        Raises:
            OSError: The folder cannot be read.
        """
        complete: list[StoredCheckpoint] = []
        unusable: list[tuple[str, str]] = []
        for name in self.names():
            try:
                complete.append(self._read(name))
            except (PermanentError, OSError, KeyError, TypeError, ValueError) as error:
                unusable.append((name, str(error) or repr(error)))
        return StorageReport(machine, tuple(complete), tuple(unusable))

    def _read(self, name: str) -> StoredCheckpoint:
        checkpoint = self.checkpoint(name)
        if not checkpoint.is_complete:
            raise PermanentError("it was not finished")
        summary = checkpoint.read_json(SUMMARY)
        if summary["job"] != self._job:
            raise PermanentError(f"it is of job {summary['job']!r}")
        parsed = parse_name(name)
        if parsed is None or parsed[0] != summary["step"]:
            raise PermanentError(f"it is of step {summary['step']}")
        return StoredCheckpoint(
            name=name,
            step=parsed[0],
            attempt=parsed[1],
            run=parsed[2],
            saved_at_s=float(summary["saved_at_s"]),
            layout=str(summary["parallelism"]),
            size_bytes=int(summary["size_bytes"]),
        )


def is_empty(url: str) -> bool:
    """Whether nothing is in a folder, or it is not there.

    Raises:
        PermanentError: There is no such kind of filesystem.
        OSError: It cannot be read.
    """
    fs, path = _filesystem(url)
    return not fs.exists(path) or not fs.ls(path, detail=False)


def copy_checkpoint(checkpoint: Checkpoint, url: str) -> None:
    """Copy a checkpoint to any filesystem; what makes it one goes last.

    Raises:
        PermanentError: There is no such kind of filesystem.
        OSError: Something cannot be read or written.
    """
    fs, path = _filesystem(url)
    root = checkpoint.path.rstrip("/")
    files: list[str] = [*checkpoint.fs.find(root)]
    for file in sorted(files, key=lambda file: file.endswith(METADATA)):
        target = f"{path}/{file.removeprefix(root).lstrip('/')}"
        fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        with checkpoint.fs.open(file, "rb") as source, fs.open(target, "wb") as sink:
            while data := source.read(COPY_BYTES):
                sink.write(data)


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        found: tuple[Any, Any] = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise PermanentError(f"{url}: {error}") from error
    return found[0], str(found[1])
