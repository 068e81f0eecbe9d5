"""Under which name each leaf of a job's state is stored, and who writes it.

Called by the machine of slot 0 once it knows what all ranks hold; and, with the plan that was
stored, by whoever reads it back. Each distinct value is written once, under a name that says of
which coordinates it is, and the copies' owners share the work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from everstep.core.errors import PermanentError
from everstep.core.groups import Layout
from everstep.core.leaves import Leaf

SeenLeaf = tuple[Leaf, str]
"""A leaf and the digest of its bytes."""

Item = tuple[str, tuple[int, ...] | None]
"""What is written once: a key, and the offsets of a part of a sharded tensor."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What the key of a leaf consists of.

    Attributes:
        kinds: Dimensions in whose groups the values differ; empty when all ranks agree.
        whole: Whether parts of a sharded tensor are stored as such. If not, each is a tensor of its
            own, as nobody could say what the whole is.
    """

    kinds: tuple[str, ...]
    whole: bool


@dataclass(frozen=True)
class SavePlan:
    """A save, decided.

    Attributes:
        naming: By the name of a leaf.
        writer: The rank that writes an item.
    """

    naming: Mapping[str, Naming]
    writer: Mapping[Item, int]

    def item(self, leaf: Leaf, rank: int, layout: Layout) -> Item:
        """What a rank's leaf is stored as.

        Raises:
            PermanentError: The plan does not know it.
        """
        naming = self.naming.get(leaf.name)
        if naming is None:
            raise PermanentError(f"{leaf.name} of rank {rank} is not in the plan of the save")
        offsets = leaf.piece.offsets if naming.whole and leaf.piece is not None else None
        return key_of(leaf.name, naming.kinds, layout, rank), offsets

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "naming": {name: [list(n.kinds), n.whole] for name, n in self.naming.items()},
            "writer": [
                [key, None if offsets is None else list(offsets), rank]
                for (key, offsets), rank in self.writer.items()
            ],
        }


def plan_from_json(content: Mapping[str, Any]) -> SavePlan:
    """What `to_json` made.

    Raises:
        PermanentError: It did not make this.
    """
    try:
        naming = {
            str(name): Naming(tuple(kinds), bool(whole))
            for name, (kinds, whole) in content["naming"].items()
        }
        writer = {
            (str(key), None if offsets is None else tuple(offsets)): int(rank)
            for key, offsets, rank in content["writer"]
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PermanentError(f"unreadable plan of a save: {error!r}") from error
    return SavePlan(naming, cast("Mapping[Item, int]", writer))


def key_of(name: str, kinds: Sequence[str], layout: Layout, rank: int) -> str:
    """The key of a leaf: its name, after the coordinates that it depends on: `@tp0,pp1.model.w`."""
    if not kinds:
        return name
    return f"{cell_of(kinds, layout, rank)}.{name}"


def cell_of(kinds: Sequence[str], layout: Layout, rank: int) -> str:
    """Some of a rank's coordinates as text: `@tp0,pp1`."""
    at = layout.coordinates(rank)
    return "@" + ",".join(f"{kind}{at[kind]}" for kind in kinds)


def plan_save(held: Mapping[int, Sequence[SeenLeaf]], layout: Layout) -> SavePlan:
    """Decides names and writers.

    Args:
        held: For each rank its leaves.
        layout: The job's ranks.
    """
    members: dict[str, dict[int, SeenLeaf]] = {}
    for rank in sorted(held):
        for seen in held[rank]:
            members.setdefault(seen[0].name, {})[rank] = seen
    naming = {name: _naming(of_name, layout) for name, of_name in members.items()}
    holders: dict[Item, list[int]] = {}
    sizes: dict[Item, int] = {}
    plan = SavePlan(naming, {})
    for of_name in members.values():
        for rank, (leaf, _) in of_name.items():
            item = plan.item(leaf, rank, layout)
            if item[1] is not None and leaf.numel == 0:
                continue
            holders.setdefault(item, []).append(rank)
            sizes[item] = leaf.numel
    return SavePlan(naming, _share_out(holders, sizes))


def _naming(members: Mapping[int, SeenLeaf], layout: Layout) -> Naming:
    """The fewest dimensions such that ranks that agree in them agree in the value."""
    for whole in (True, False):
        for count in range(len(layout.wide_kinds) + 1):
            for kinds in itertools.combinations(layout.wide_kinds, count):
                if all(_agree(cell, whole) for cell in _cells(members, kinds, layout)):
                    return Naming(kinds, whole)
    raise AssertionError("a rank agrees with itself")


def _cells(
    members: Mapping[int, SeenLeaf], kinds: Sequence[str], layout: Layout
) -> Collection[list[SeenLeaf]]:
    cells: dict[tuple[int, ...], list[SeenLeaf]] = {}
    for rank, seen in members.items():
        at = layout.coordinates(rank)
        cells.setdefault(tuple(at[kind] for kind in kinds), []).append(seen)
    return cells.values()


def _agree(cell: Sequence[SeenLeaf], whole: bool) -> bool:
    first, digest = cell[0]
    if not whole or all(leaf.piece is None for leaf, _ in cell):
        wanted = (first.kind, first.dtype, first.shape, digest)
        return all((leaf.kind, leaf.dtype, leaf.shape, d) == wanted for leaf, d in cell)
    parts: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {}
    for leaf, of_leaf in cell:
        if leaf.piece is None or first.piece is None:
            return False
        if (leaf.dtype, leaf.piece.whole) != (first.dtype, first.piece.whole):
            return False
        if leaf.numel == 0:
            continue
        if parts.setdefault(leaf.piece.offsets, (leaf.shape, of_leaf)) != (leaf.shape, of_leaf):
            return False
    covered = sum(math.prod(shape) for shape, _ in parts.values())
    return first.piece is not None and covered == math.prod(first.piece.whole)


def _share_out(holders: Mapping[Item, Sequence[int]], sizes: Mapping[Item, int]) -> dict[Item, int]:
    """The largest items first, each to the holder that has least to write so far."""
    load: dict[int, int] = {}
    writer: dict[Item, int] = {}
    for item in sorted(holders, key=lambda item: (-sizes[item], item[0], item[1] or ())):
        rank = min(holders[item], key=lambda rank: (load.get(rank, 0), rank))
        load[rank] = load.get(rank, 0) + sizes[item]
        writer[item] = rank
    return writer
