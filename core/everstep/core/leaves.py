"""The leaves of a saved state, read from its description, and their places in whole tensors.

Whoever stores states outside memory (`checkpoint.storing`) takes them apart into leaves. The
description is the JSON that `checkpoint.tree` makes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from everstep.core.errors import PermanentError
from everstep.core.parts import PartNote, Span, note_from_json

Path = tuple[str | int, ...]
"""Keys of dicts as text, indexes of lists as numbers, as torch.distributed.checkpoint does."""

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a part of a sharded tensor belongs.

    Attributes:
        whole: Shape of the whole tensor.
        offsets: Where the part begins.
    """

    whole: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor or a plain value.

    Attributes:
        path: Where it stands in the state.
        name: The same as text, unique in its state.
        kind: What it is.
        node: Its description: a plain value's, or the local tensor's.
        dtype: Of a tensor; else empty.
        shape: Of a tensor, of its local part if it is sharded.
        offset: Where its bytes begin in the payload.
        piece: Of a sharded tensor whose part is a box of the whole; else None.
    """

    path: Path
    name: str
    kind: Literal["tensor", "value"]
    node: Any
    dtype: str = ""
    shape: tuple[int, ...] = ()
    offset: int = 0
    piece: Piece | None = None

    @property
    def numel(self) -> int:
        """Number of elements of a tensor."""
        return math.prod(self.shape)

    @property
    def is_common(self) -> bool:
        """Whether it is equal on all ranks of a DP group, which keep it together."""
        return self.kind == "tensor" and self.node[0] == "replicated"


def leaves_of(metadata: str, rank: int) -> list[Leaf]:
    """All leaves of a state, in order.

    Args:
        metadata: The description.
        rank: Whose state it is: tells which part of sharded tensors it holds.

    Raises:
        PermanentError: It does not describe a state.
    """
    try:
        root, note = _opened(json.loads(metadata))
        reader = _Reader(rank, note)
        reader.walk(root, ())
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise PermanentError(f"unreadable description of a state: {error!r}") from error
    return reader.leaves


def note_of(metadata: str) -> PartNote | None:
    """What a description says of the part that the state holds; None when it is no such state.

    Raises:
        PermanentError: It does not describe a state.
    """
    try:
        return _opened(json.loads(metadata))[1]
    except (ValueError, IndexError, RecursionError) as error:
        raise PermanentError(f"unreadable description of a state: {error!r}") from error


def _opened(root: Any) -> tuple[Any, PartNote | None]:
    if not isinstance(root, list) or root[:1] != ["part"]:
        return cast("Any", root), None
    parts: list[Any] = root  # pyright: ignore[reportUnknownVariableType] - of Any
    _, content, inner = parts
    return inner, note_from_json(content)


class _Reader:
    def __init__(self, rank: int, note: PartNote | None) -> None:
        self.leaves: list[Leaf] = []
        self._rank = rank
        self._note = note
        self._names: dict[str, int] = {}

    def walk(self, node: Any, path: Path) -> None:
        if not isinstance(node, list) or _is_value(node):
            self._add(path, "value", _plain(node))
            return
        parts: list[Any] = node  # pyright: ignore[reportUnknownVariableType] - of Any
        kind, *rest = parts
        match kind:
            case "dict" | "ordered dict":
                for key, item in rest:
                    self.walk(item, (*path, str(key)))
            case "list" | "tuple":
                self._walk_items(rest, path)
            case "named tuple":
                self._walk_items(rest[2:], path)
            case "tensor" | "replicated":
                self._add_tensor(path, parts, None)
            case "dtensor":
                local, description = rest
                self._add_tensor(path, local, piece_of(description, local[2], self._rank))
            case _:
                self._add(path, "value", node)

    def _walk_items(self, items: Sequence[Any], path: Path) -> None:
        for index, item in enumerate(items):
            self.walk(item, (*path, index))

    def _add_tensor(self, path: Path, node: Sequence[Any], piece: Piece | None) -> None:
        kind, dtype, shape, _strides, offset, *row_bytes = node
        more = {"dtype": str(dtype), "shape": tuple(shape), "offset": int(offset), "piece": piece}
        if kind == "replicated":
            if self._note is None:
                raise ValueError("a replicated tensor outside a part")
            span = Span(int(offset), shape[0] if shape else 1, int(row_bytes[0]))
            more |= _in_part(self._note, span, tuple(shape), piece)
        self._add(path, "tensor", list(node), **more)

    def _add(self, path: Path, kind: Literal["tensor", "value"], node: Any, **more: Any) -> None:
        text = ".".join(map(str, path))
        # {"a.b": ..., "a": {"b": ...}} is a state, too.
        count = self._names[text] = self._names.get(text, 0) + 1
        name = text if count == 1 else f"{text}#{count}"
        self.leaves.append(Leaf(path, name, kind, node, **more))


def _is_value(node: Any) -> bool:
    """Whether a node is a plain value, or a list of nothing else: torch does not take it apart."""
    if not isinstance(node, list):
        return True
    kind, *rest = cast("Sequence[Any]", node)
    if kind in ("list", "tuple"):
        return all(map(_is_value, rest))
    if kind == "named tuple":
        return all(map(_is_value, rest[2:]))
    return kind not in ("dict", "ordered dict", "tensor", "replicated", "dtensor")


def _plain(node: Any) -> Any:
    """A plain value's node without named tuples, whose classes other readers do not have."""
    if not isinstance(node, list):
        return node
    kind, *rest = cast("Sequence[Any]", node)
    if kind == "named tuple":
        return ["tuple", *map(_plain, rest[2:])]
    return [kind, *map(_plain, rest)] if kind in ("list", "tuple") else [kind, *rest]


def piece_of(description: Sequence[Any], shape: Sequence[int], rank: int) -> Piece | None:
    """Which part of a whole tensor a rank holds; None when it is not a box of it.

    Args:
        description: What `checkpoint.dtensors` makes of a DTensor.
        shape: Of the local part.
        rank: Who holds it.
    """
    _device, mesh, _names, placements, whole, _strides = description
    found = _find(mesh, rank)
    if found is None or any(kind == "Partial" for kind, *_ in placements):
        return None
    ranges: list[list[Interval]] = [[(0, size)] for size in whole]
    for (at, of), (kind, *arguments) in zip(found, placements, strict=True):
        if kind == "Replicate":
            continue
        dim = int(arguments[0])
        splits = int(arguments[1]) if kind == "_StridedShard" else 1
        ranges[dim] = [
            interval
            for part in range(splits)
            for interval in _chunk(_chunk(ranges[dim], part, splits), at, of)
        ]
    boxes = [_joined(intervals) for intervals in ranges]
    if any(box is None for box in boxes):
        return None
    ends = cast("list[Interval]", boxes)
    if [end - begin for begin, end in ends] != list(shape):
        return None
    return Piece(tuple(whole), tuple(begin for begin, _ in ends))


def is_equal_on(description: Sequence[Any], rank: int, group: Iterable[int]) -> bool:
    """Whether a DTensor's local part on a rank is that of all others of a group in its mesh.

    A rank outside the mesh has a tensor of its own, of which nothing is said here.
    """
    _device, mesh, _names, placements, *_ = description
    own = _find(mesh, rank)
    if own is None:
        return False
    replicated = [kind == "Replicate" for kind, *_ in placements]
    places = [place for other in group if (place := _find(mesh, other)) is not None]
    return all(
        same or one == another
        for place in places
        for same, (one, _), (another, _) in zip(replicated, own, place, strict=True)
    )


def _in_part(
    note: PartNote, span: Span, shape: tuple[int, ...], piece: Piece | None
) -> dict[str, Any]:
    """What is there of a tensor that is equal on all ranks of a DP group: some of its rows.

    A state that holds them all is as any other; else each rank's rows are a piece of the tensor.
    """
    first, last = note.part.rows_of(span)
    place = note.start + span.offset + first * span.row_bytes - note.part.begin
    if not note.whole:
        return {"offset": place}
    known = piece or Piece(shape, (0,) * len(shape))
    offsets = (known.offsets[0] + first, *known.offsets[1:]) if shape else ()
    there = (last - first, *shape[1:]) if shape or first == last else ()
    return {"offset": place, "shape": there, "piece": Piece(known.whole, offsets)}


def _find(mesh: Any, rank: int) -> list[tuple[int, int]] | None:
    """The rank's index in each dimension of a mesh, with the dimension's size."""
    if not isinstance(mesh, list):
        return [] if mesh == rank else None
    rows = cast("Sequence[Any]", mesh)
    for index, row in enumerate(rows):
        inner = _find(row, rank)
        if inner is not None:
            return [(index, len(rows)), *inner]
    return None


def _chunk(intervals: Sequence[Interval], index: int, of: int) -> list[Interval]:
    """What `torch.chunk` gives for rows that lie in these intervals."""
    total = sum(end - begin for begin, end in intervals)
    size = -(-total // of)
    skip, left = index * size, size
    found: list[Interval] = []
    for begin, end in intervals:
        start = begin + min(skip, end - begin)
        skip -= start - begin
        stop = min(end, start + left)
        left -= stop - start
        if start < stop:
            found.append((start, stop))
    return found


def _joined(intervals: Sequence[Interval]) -> Interval | None:
    """Intervals as one; (0, 0) for none; None when there are gaps."""
    if not intervals:
        return 0, 0
    for (_, end), (begin, _) in itertools.pairwise(intervals):
        if end != begin:
            return None
    return intervals[0][0], intervals[-1][1]


def text_of(node: Any) -> str:
    """A plain value's description as text, equal for equal values only."""
    return json.dumps(node, sort_keys=True)
