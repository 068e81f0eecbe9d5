"""Which bytes of what a DP group has in common each of its ranks keeps.

The tensors that are equal on all ranks of a group lie one after the other in a payload that no rank
holds as a whole: it is cut into as many parts as the group has ranks. Every rank comes to the same
cuts by itself. A cut lies between two rows of a tensor or between tensors, so that a part consists
of whole tensors and of rows of at most two more, which can be stored as parts of sharded tensors.

Paper: ByteRobust 2025, section 6.3, says that states are deduplicated within the DP group. How is
ours.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.core.errors import PermanentError
from everstep.core.shard import ALIGNMENT_BYTES, aligned


@dataclass(frozen=True, slots=True)
class Replicated:
    """What the job says is equal on all ranks of a DP group.

    Attributes:
        names: Keys of the state, deeper ones joined by dots; empty: nothing is.
        group_size: Ranks in a group.
        group_stride: By how much their numbers differ from one to the next.
    """

    names: tuple[str, ...] = ()
    group_size: int = 1
    group_stride: int = 1

    @property
    def shared(self) -> bool:
        """Whether there is anything to share out, and anybody to share it with."""
        return bool(self.names) and self.group_size > 1

    def index_of(self, rank: int) -> int:
        """The rank's place in its group."""
        return rank // self.group_stride % self.group_size

    def group_of(self, rank: int) -> range:
        """The ranks of a rank's group, ascending."""
        first = rank - self.index_of(rank) * self.group_stride
        return range(first, first + self.group_size * self.group_stride, self.group_stride)


NOTHING_REPLICATED = Replicated()


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor with elements lies in the common payload.

    Attributes:
        offset: Where it begins, a multiple of `ALIGNMENT_BYTES`.
        rows: Size of its first dimension; 1 if it has none.
        row_bytes: Size of a row, > 0.
    """

    offset: int
    rows: int
    row_bytes: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts that a common payload is cut into.

    Attributes:
        index: Which one.
        bounds: Where the parts begin, ascending, and where the last one ends.
    """

    index: int
    bounds: tuple[int, ...]

    @property
    def num_parts(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    @property
    def begin(self) -> int:
        """Where this one begins."""
        return self.bounds[self.index]

    @property
    def size_bytes(self) -> int:
        """How large it is."""
        return self.size_of(self.index)

    def size_of(self, index: int) -> int:
        """How large another one is."""
        return self.bounds[index + 1] - self.bounds[index]

    def rows_of(self, span: Span) -> tuple[int, int]:
        """The rows of a tensor in this part, from the first to before the last; (0, 0) for none."""
        begin = max(span.offset, self.begin)
        end = min(span.end, self.bounds[self.index + 1])
        if begin >= end:
            return 0, 0
        return (begin - span.offset) // span.row_bytes, (end - span.offset) // span.row_bytes

    def pieces_of(self, offset: int, size_bytes: int) -> list[tuple[int, int, int]]:
        """Where bytes of the payload lie: parts, and from where to where in each."""
        first = bisect.bisect_right(self.bounds, offset) - 1
        found: list[tuple[int, int, int]] = []
        for index in range(max(0, first), self.num_parts):
            start, stop = self.bounds[index], self.bounds[index + 1]
            begin, end = max(offset, start), min(offset + size_bytes, stop)
            if begin < end:
                found.append((index, begin - start, end - start))
            if stop >= offset + size_bytes:
                break
        return found


def cut(spans: Sequence[Span], num_parts: int) -> tuple[int, ...]:
    """The bounds of parts that are as equal as rows allow.

    Args:
        spans: The tensors, ascending; between two of them lies nothing but padding.
        num_parts: How many parts, > 0; some are empty when there are too few rows.

    Returns:
        `num_parts` + 1 bounds; all but those at the end are multiples of `ALIGNMENT_BYTES`.
    """
    total = spans[-1].end if spans else 0
    offsets = [span.offset for span in spans]
    bounds = [0]
    for index in range(1, num_parts):
        wanted = total * index // num_parts
        at = spans[bisect.bisect_right(offsets, wanted) - 1] if spans else None
        bounds.append(min(total, 0 if at is None else _nearest_cut(at, wanted)))
    return (*bounds, total)


def _nearest_cut(span: Span, wanted: int) -> int:
    """The place between rows of a tensor, or at one of its ends, that is nearest."""
    # So many rows fill whole cache lines, on which tensors in a part begin.
    unit = span.row_bytes * (ALIGNMENT_BYTES // math.gcd(ALIGNMENT_BYTES, span.row_bytes))
    end = aligned(span.end)
    if unit >= span.end - span.offset:
        return span.offset if wanted - span.offset < end - wanted else end
    return min(end, span.offset + (wanted - span.offset + unit // 2) // unit * unit)


@dataclass(frozen=True, slots=True)
class PartNote:
    """What the description of a state says of the part that it holds.

    Attributes:
        part: The part.
        start: Where it begins in the state's payload.
        whole: Fingerprint of the common payload's composition and of the cuts: what other parts
            must have in common with it.
    """

    part: Part
    start: int
    whole: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "index": self.part.index,
            "bounds": list(self.part.bounds),
            "start": self.start,
            "whole": self.whole,
        }


def note_from_json(content: Mapping[str, Any]) -> PartNote:
    """What `to_json` made.

    Raises:
        PermanentError: It did not make this.
    """
    try:
        bounds = tuple(int(bound) for bound in content["bounds"])
        part = Part(int(content["index"]), bounds)
        note = PartNote(part, int(content["start"]), int(content["whole"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PermanentError(f"unreadable description of a part: {error!r}") from error
    rising = all(one <= other for one, other in itertools.pairwise(bounds))
    if not rising or not 0 <= part.index < part.num_parts:
        raise PermanentError(f"{content} describes no part")
    return note
