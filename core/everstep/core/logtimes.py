"""When a log's lines were written, kept beside it: `rank-00003.log.times`.

Ranks write their logs themselves, so that nothing that happens to an agent holds up training. The
agent looks how long each log is, many times a second, and notes when it grew to which size. A line
is as old as the first note that its end lies within. Times are the agent's clock, so lines of
different machines are ordered as well as their clocks agree.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SUFFIX = ".times"

_NOTE = struct.Struct("<dQ")

NOTE_BYTES = _NOTE.size


@dataclass(frozen=True, slots=True)
class Note:
    """At `at_s`, Unix seconds, the log was found to have grown to `size_bytes`."""

    at_s: float
    size_bytes: int

    def encode(self) -> bytes:
        """As it stands in the file: 16 bytes."""
        return _NOTE.pack(self.at_s, self.size_bytes)


def decode(data: bytes) -> Iterator[Note]:
    """The notes in these bytes; one that was cut off is left out."""
    whole = len(data) - len(data) % NOTE_BYTES
    return (Note(at_s, size) for at_s, size in _NOTE.iter_unpack(data[:whole]))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of one rank's log.

    Attributes:
        at_s: When it was seen, Unix seconds on its agent's clock; of one that nobody timed, that
            of the line before it.
        rank: Whose it is.
        number: Its number in the log, from 0.
        text: The line, without its newline.
    """

    at_s: float
    rank: int
    number: int
    text: bytes


def timed(
    rank: int, lines: Iterable[bytes], notes: Iterable[Note], first: int = 0
) -> Iterator[Line]:
    """Give every line its time.

    Args:
        rank: Whose log it is.
        lines: Its lines in order, each with its newline; a very long one may come in pieces.
        notes: Its notes in order.
        first: Number of the first line.
    """
    coming = iter(notes)
    note = next(coming, None)
    end, at_s, number = 0, 0.0, first
    for line in lines:
        end += len(line)
        while note is not None and note.size_bytes < end:
            at_s, note = note.at_s, next(coming, None)
        if note is not None:
            at_s = note.at_s
        yield Line(at_s, rank, number, line.rstrip(b"\r\n"))
        number += line.endswith(b"\n")


def merge(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """All lines by time; those of one rank keep their order, and few are held in memory."""
    return heapq.merge(*logs, key=lambda line: (line.at_s, line.rank))
