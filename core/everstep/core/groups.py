"""Where a rank stands among its parallel groups, and which machines a group occupies.

Called by whoever thinks about fault domains: backup placement, restore, over-eviction and the
`plan` command. Everything is coordinate arithmetic, so no torch process group is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from everstep.core.errors import PermanentError

KINDS = ("tp", "cp", "ep", "dp", "pp")
"""Every kind of parallel group, in Megatron's default order."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that differ only in the dimensions of `kind`.

    Attributes:
        kind: A dimension, or several joined with "+" for a block such as "tp+pp".
        ranks: Members, ascending.
        machines: Slots that the members occupy, ascending.
    """

    kind: str
    ranks: tuple[int, ...]
    machines: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The ranks of a job as a grid of parallel dimensions, laid over machines in rank order.

    Attributes:
        gpus_per_machine: Ranks on each machine; slot i runs ranks i * gpus_per_machine onwards.
        tp: Tensor parallel size.
        cp: Context parallel size.
        ep: Expert parallel size; a dimension of its own here, not a part of dp.
        dp: Data parallel size.
        pp: Pipeline parallel size.
        order: Dimensions by how fast they vary with the rank, fastest first. A dimension that is
            not named must have size 1.

    Raises:
        ValueError: A size below 1, an unknown or repeated dimension in `order`, a size above 1
            outside it, or a world that does not fill whole machines.
    """

    gpus_per_machine: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        if min(self.gpus_per_machine, *self.sizes.values()) < 1:
            raise ValueError(f"every size must be at least 1: {self}")
        if len(set(self.order)) != len(self.order) or not set(self.order) <= set(KINDS):
            raise ValueError(f"order must name each of {KINDS} at most once: {self.order}")
        left_out = [kind for kind in KINDS if self.sizes[kind] > 1 and kind not in self.order]
        if left_out:
            raise ValueError(f"order {self.order} leaves out {left_out}, of sizes above 1")
        if self.world_size % self.gpus_per_machine:
            raise ValueError(
                f"{self.world_size} ranks do not fill machines of {self.gpus_per_machine}"
            )

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Size of every dimension."""
        return {"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.dp, "pp": self.pp}

    @cached_property
    def strides(self) -> Mapping[str, int]:
        """By how much the rank grows when a coordinate grows by one; only dimensions in `order`."""
        sizes = [self.sizes[kind] for kind in self.order]
        return dict(zip(self.order, itertools.accumulate([1, *sizes], int.__mul__), strict=False))

    @cached_property
    def wide_kinds(self) -> tuple[str, ...]:
        """Dimensions of more than one coordinate, fastest first."""
        return tuple(kind for kind in self.order if self.sizes[kind] > 1)

    @cached_property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    @property
    def num_machines(self) -> int:
        """Number of machines, which is also the number of slots."""
        return self.world_size // self.gpus_per_machine

    def coordinates(self, rank: int) -> dict[str, int]:
        """The rank's coordinate in every dimension; 0 in those that `order` leaves out.

        Raises:
            ValueError: There is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside 0 to {self.world_size - 1}")
        return {
            kind: rank // self.strides[kind] % self.sizes[kind] if kind in self.strides else 0
            for kind in KINDS
        }

    def rank_at(self, coordinates: Mapping[str, int]) -> int:
        """The rank at these coordinates; dimensions that are left out count as 0.

        Raises:
            ValueError: An unknown dimension, or a coordinate outside it.
        """
        for kind, at in coordinates.items():
            if not 0 <= at < self.sizes.get(kind, 0):
                raise ValueError(f"no coordinate {at} in dimension {kind!r} of {self}")
        return sum(self.strides.get(kind, 0) * at for kind, at in coordinates.items())

    def group(self, kind: str, rank: int) -> tuple[int, ...]:
        """The ranks that differ from `rank` in nothing but dimension `kind`, ascending."""
        return self.block((kind,), rank)

    def groups(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """All groups of a kind, by their first rank."""
        return self._blocks((kind,), range(self.world_size))

    def block(self, kinds: Collection[str], rank: int) -> tuple[int, ...]:
        """The ranks that differ from `rank` in nothing but dimensions `kinds`, ascending."""
        at = self.coordinates(rank)
        first = self.rank_at(at | dict.fromkeys(kinds, 0))
        # Slowest first, so that the product comes out ascending.
        steps = [
            range(0, self.strides[kind] * self.sizes[kind], self.strides[kind])
            for kind in reversed(self.order)
            if kind in kinds
        ]
        return tuple(first + sum(offsets) for offsets in itertools.product(*steps))

    def machine_of(self, rank: int) -> int:
        """Slot of the machine that runs `rank`."""
        return rank // self.gpus_per_machine

    def ranks_of(self, slot: int) -> range:
        """Ranks that the machine in `slot` runs."""
        return range(slot * self.gpus_per_machine, (slot + 1) * self.gpus_per_machine)

    def machines_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Slots of the machines that run `ranks`, ascending."""
        return tuple(sorted({rank // self.gpus_per_machine for rank in ranks}))

    def machines_of_group(self, kind: str, rank: int) -> tuple[int, ...]:
        """Slots of the machines that the `kind` group of `rank` occupies, ascending."""
        return self.machines_of(self.group(kind, rank))

    def smallest_covering_group(self, machines: Iterable[int]) -> Group | None:
        """The fault domain to evict when these machines stand out together.

        Groups of one dimension come first, of those the one on the fewest machines, then by kind
        in `order`, then by rank. Where none covers all machines, blocks over two dimensions are
        tried, and so on up to the whole job. A dimension of size 1 is nobody's fault domain. A
        caller with a single suspect can evict it alone: what comes back for one machine spans
        several where no group lies inside it.

        Paper: ByteRobust 2025, section 5, which isolates the group that all outliers share. Blocks
        are ours, for outliers that share none.

        Returns:
            None when `machines` is empty.

        Raises:
            ValueError: There is no such slot.
        """
        wanted = set(machines)
        if not wanted <= set(range(self.num_machines)):
            raise ValueError(f"slots {sorted(wanted)} are not all below {self.num_machines}")
        if not wanted:
            return None
        kinds = self.wide_kinds or self.order[:1] or KINDS[:1]
        for width in range(1, len(kinds) + 1):
            found = [
                group
                for chosen in itertools.combinations(kinds, width)
                for group in self._around(chosen, min(wanted))
                if wanted <= set(group.machines)
            ]
            if found:
                # The first of the smallest: combinations come in the order of `order`.
                return min(found, key=lambda group: len(group.machines))
        raise AssertionError("the block over all dimensions is the whole job")

    def _around(self, kinds: tuple[str, ...], slot: int) -> list[Group]:
        """The blocks over `kinds` that have a rank on this machine."""
        blocks = self._blocks(kinds, self.ranks_of(slot))
        return [Group("+".join(kinds), ranks, self.machines_of(ranks)) for ranks in blocks]

    def _blocks(self, kinds: tuple[str, ...], ranks: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """The different blocks over `kinds` that `ranks` belong to, by their first appearance."""
        blocks: list[tuple[int, ...]] = []
        seen: set[int] = set()
        for rank in ranks:
            if rank not in seen:
                blocks.append(self.block(kinds, rank))
                seen.update(blocks[-1])
        return tuple(blocks)


def layout_of(parallelism: str, gpus_per_machine: int) -> Layout:
    """The layout that a text such as `tp=2,pp=2,dp=2;order=tp-pp-dp` stands for.

    Raises:
        PermanentError: It stands for none.
    """
    try:
        sizes, order = parallelism.split(";order=")
        named = dict(part.split("=") for part in sizes.split(","))
        return Layout(
            gpus_per_machine,
            **{kind: int(size) for kind, size in named.items()},
            order=tuple(order.split("-")),
        )
    except (ValueError, TypeError) as error:
        raise PermanentError(f"{parallelism!r} is no layout: {error}") from error
