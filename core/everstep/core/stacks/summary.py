"""All ranks' stacks as a few groups, for a person to read."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.stacks.dump import Answer, Snapshot
from everstep.core.stacks.place import Stand
from everstep.core.stacks.roles import Places


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks that stand alike.

    Attributes:
        title: What they are, such as "rank" or "data loader".
        ranks: Ascending.
        stand: Whether they wait for others.
        calls: Where they stand, innermost call first.
    """

    title: str
    ranks: tuple[int, ...]
    stand: Stand
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SilentGroup:
    """Ranks that gave no stack, for the same reason."""

    ranks: tuple[int, ...]
    answer: Answer
    detail: str


def groups(snapshot: Snapshot) -> list[StackGroup]:
    """Groups of equal stacks, the largest first; loaders and writers after the ranks."""
    known = Places()
    found: dict[tuple[str, Stand, tuple[str, ...]], list[int]] = {}
    for rank in sorted(snapshot.ranks):
        dump = snapshot.ranks[rank]
        place = known.of_rank(dump)
        if place is not None:
            found.setdefault(("rank", place.stand, place.key), []).append(rank)
        for child in known.of_children(dump):
            key = (child.role.value, child.place.stand, child.place.key)
            found.setdefault(key, []).append(rank)
    made = [
        StackGroup(title, tuple(ranks), stand, tuple(reversed(calls)))
        for (title, stand, calls), ranks in found.items()
    ]
    return sorted(made, key=lambda item: (item.title != "rank", -len(item.ranks), item.ranks))


def silent(snapshot: Snapshot, world_size: int) -> list[SilentGroup]:
    """Ranks that did not answer, by the reason."""
    found: dict[tuple[Answer, str], list[int]] = {}
    for rank in range(world_size) if snapshot.ranks else ():
        dump = snapshot.of(rank)
        if dump.answer is not Answer.ANSWERED:
            found.setdefault((dump.answer, dump.detail), []).append(rank)
    return [SilentGroup(tuple(ranks), *reason) for reason, ranks in found.items()]
