"""The logs of a run's ranks: which there are, and their lines with the times they were written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from everstep.core.classify.reader import MAX_LINE_BYTES
from everstep.core.logtimes import NOTE_BYTES, SUFFIX, Line, Note, decode, timed
from everstep.workers.local.folder import RunFolder

_CHUNK_BYTES = 1 << 20
_NOTES_AT_ONCE = 4_096
_RANK = re.compile(r"rank-(\d+)\.log")
_LINE = re.compile(rb"[^\n]*\n")
_ATTEMPT = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True, slots=True)
class RankLog:
    """The log of one rank in one attempt."""

    rank: int
    machine: str
    path: Path

    @property
    def attempt(self) -> int:
        """Which start of the ranks, by its folder's name."""
        return int(self.path.parent.name.rpartition("-")[2])

    def chunks(self) -> Iterator[bytes]:
        """Its bytes; few are held in memory."""
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def lines(self) -> Iterator[Line]:
        """Its lines with their times; few are held in memory."""
        with self.path.open("rb") as file:
            yield from timed(self.rank, _pieces(file), self._notes())

    def _notes(self) -> Iterator[Note]:
        try:
            file = self.path.with_name(self.path.name + SUFFIX).open("rb")
        except FileNotFoundError:
            return
        with file:
            while data := file.read(_NOTES_AT_ONCE * NOTE_BYTES):
                yield from decode(data)


def attempts(folder: RunFolder) -> list[int]:
    """Attempts that left logs, ascending."""
    names = (path.name for path in folder.machines.glob("*/attempt-*"))
    return sorted({int(found[1]) for name in names if (found := _ATTEMPT.fullmatch(name))})


def find(folder: RunFolder, attempt: int, ranks: Collection[int] | None) -> list[RankLog]:
    """The logs of an attempt, by rank.

    Args:
        folder: The run's folder.
        attempt: Which attempt.
        ranks: Which ranks, or None for all.
    """
    paths = folder.machines.glob(f"*/attempt-{attempt}/rank-*.log")
    logs = [
        RankLog(int(found[1]), path.parent.parent.name, path)
        for path in paths
        if (found := _RANK.fullmatch(path.name))
    ]
    return sorted((g for g in logs if ranks is None or g.rank in ranks), key=lambda g: g.rank)


@dataclass(slots=True)
class Follower:
    """Reads one log as it grows, as far as its times are known."""

    log: RankLog
    _read_bytes: int = 0
    _noted_bytes: int = 0
    _number: int = 0
    _carry: bytes = b""

    def new_lines(self) -> list[Line]:
        """The whole lines that have come since the last call."""
        times = self.log.path.with_name(self.log.path.name + SUFFIX)
        data = _read_from(times, self._noted_bytes)
        notes = list(decode(data))
        if not notes:
            return []
        self._noted_bytes += len(notes) * NOTE_BYTES
        start = self._read_bytes - len(self._carry)
        fresh = _read_from(self.log.path, self._read_bytes, notes[-1].size_bytes)
        self._read_bytes += len(fresh)
        text = self._carry + fresh
        cut = text.rfind(b"\n") + 1
        text, self._carry = text[:cut], text[cut:]
        sizes = (Note(note.at_s, max(0, note.size_bytes - start)) for note in notes)
        lines = list(timed(self.log.rank, _LINE.findall(text), sizes, self._number))
        self._number += text.count(b"\n")
        return lines


@dataclass(slots=True)
class Followers:
    """Reads the logs of an attempt as they grow; new ones are found as they come.

    Attributes:
        folder: The run's folder.
        attempt: Which attempt, or None for the newest one at any time.
        ranks: Which ranks, or None for all.
    """

    folder: RunFolder
    attempt: int | None
    ranks: Collection[int] | None
    _known: dict[Path, Follower] = field(default_factory=dict[Path, Follower])

    def new_lines(self) -> list[tuple[RankLog, Line]]:
        """What has come since the last call, by time."""
        there = attempts(self.folder)
        attempt = self.attempt or (there[-1] if there else 0)
        for log in find(self.folder, attempt, self.ranks):
            self._known.setdefault(log.path, Follower(log))
        fresh = [(f.log, line) for f in self._known.values() for line in f.new_lines()]
        return sorted(fresh, key=lambda pair: (pair[1].at_s, pair[1].rank))


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.readline(MAX_LINE_BYTES):
        yield piece


def _read_from(path: Path, start: int, end: int | None = None) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else max(0, end - start))
    except FileNotFoundError:
        return b""
