"""What flight recorders tell: who did not come to a collective, came with another, or ran ahead.

For each process group, the oldest collective that some member waits in is looked at. Members are
absent (did not call it), arrived (called it, and wait), or ahead (done with it). An absent one is
excused if it waits somewhere else: it is held up by others, as everybody behind it is. Numbers
alone do not tell the odd one, for the root of a broadcast may run ahead of all others; so operation
and element count are compared first, and then the smaller part is the odd one, behind or ahead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from everstep.core.groups import Layout
from everstep.core.stacks.recorder import GroupProgress, Recorder, Work
from everstep.core.stacks.words import ranks_text

MAX_ODD_RATIO = 0.25
"""A larger part of a group is no odd one: its ranks took different ways."""

_EVERYBODY = ("0", "default_pg")
# Members give different counts by design.
_UNEVEN = re.compile(r"all_?to_?all|^_?gather|^_?scatter|_v$|object|coalesced")
_KIND_OF_WORD = {
    "tp": "tp", "tensor": "tp", "cp": "cp", "context": "cp", "ep": "ep", "expert": "ep",
    "dp": "dp", "data": "dp", "pp": "pp", "pipeline": "pp", "pipe": "pp",
}  # fmt: skip


@dataclass(slots=True)
class Odd:
    """What the recorders say.

    Attributes:
        ranks: Who stands out, with the reason.
        diverged: Sentences on groups whose members went different ways, with no odd one.
        held_up: Members of groups that all arrived and got no further, with the reason.
        in_step: Ranks that wait in the same collective as others of their group.
    """

    ranks: dict[int, str] = field(default_factory=dict[int, str])
    diverged: list[str] = field(default_factory=list[str])
    held_up: list[tuple[tuple[int, ...], str]] = field(
        default_factory=list[tuple[tuple[int, ...], str]]
    )
    in_step: set[int] = field(default_factory=set[int])


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    members: tuple[int, ...] | None
    progress: dict[int, GroupProgress]


def judge_recorders(
    layout: Layout, recorders: Mapping[int, Recorder], in_transfer: Collection[int]
) -> Odd:
    """Who stands out by the recorders.

    Args:
        layout: The job; says who is in a group that the recorder does not list.
        recorders: By rank.
        in_transfer: Ranks whose stacks stand in a send or a receive.
    """
    odd = Odd()
    waits_in: Counter[int] = Counter()
    for rank, recorder in recorders.items():
        waits_in[rank] = sum(group.waits or group.in_transfer for group in recorder.groups)
    for group in _groups(layout, recorders):
        _judge_group(group, waits_in, in_transfer, odd)
    return odd


def _groups(layout: Layout, recorders: Mapping[int, Recorder]) -> list[_Group]:
    world = tuple(range(layout.world_size))
    found: dict[tuple[str, int, int], _Group] = {}
    for rank in sorted(recorders):
        for progress in recorders[rank].groups:
            members = progress.members
            if members is None:
                members = _members(layout, rank, progress, world)
            # Long tuples are not compared: groups of one name that differ do so in their first
            # rank or in their size.
            key = (progress.name, members[0] if members else -1, len(members or ()))
            group = found.get(key)
            if group is None:
                group = found[key] = _Group(_title(progress), members, {})
            group.progress[rank] = progress
    return [found[key] for key in sorted(found)]


def _members(
    layout: Layout, rank: int, progress: GroupProgress, world: tuple[int, ...]
) -> tuple[int, ...] | None:
    if progress.name in _EVERYBODY or progress.description in _EVERYBODY:
        return world
    words = re.split(r"[^a-z0-9]+|_", progress.description.lower())
    kinds = {_KIND_OF_WORD[word] for word in words if word in _KIND_OF_WORD}
    return layout.group(kinds.pop(), rank) if len(kinds) == 1 else None


def _title(progress: GroupProgress) -> str:
    described = progress.description and progress.description != progress.name
    return f"{progress.name} ({progress.description})" if described else progress.name


def _judge_group(
    group: _Group, waits_in: Mapping[int, int], in_transfer: Collection[int], odd: Odd
) -> None:
    heard = group.progress
    stuck_at = min((p.completed + 1 for p in heard.values() if p.waits), default=None)
    if stuck_at is None or len(heard) < 2:
        return
    absent = [rank for rank, p in heard.items() if p.enqueued < stuck_at]
    ahead = [rank for rank, p in heard.items() if p.completed >= stuck_at]
    arrived = [r for r, p in heard.items() if p.enqueued >= stuck_at > p.completed]
    where = f"collective {stuck_at} of group {group.name}"
    works = {rank: heard[rank].works.get(stuck_at) for rank in (*arrived, *ahead)}
    if _judge_works(works, where, odd):
        return
    what = next((f" ({work})" for work in works.values() if work is not None), "")
    if len(arrived) > 1:
        odd.in_step.update(arrived)
    free = [rank for rank in absent if not waits_in[rank] and rank not in in_transfer]
    if free and 2 * len(free) <= len(heard):
        for rank in free:
            odd.ranks.setdefault(
                rank,
                f"rank {rank} did not come to {where}{what}, in which {ranks_text(arrived)}"
                " wait, and waits in no other",
            )
    elif free:
        _judge_minority(arrived, heard, f"waits alone in {where}{what}", where, odd)
    elif ahead and not absent and len(arrived) < len(ahead):
        _judge_minority(
            arrived, heard, f"is not done with {where}{what}, as others are", where, odd
        )
    elif ahead and not absent:
        further = [rank for rank in ahead if heard[rank].waits]
        _judge_minority(further, heard, f"is ahead of {where}{what}, in {{}}", where, odd)
    elif not absent and set(arrived) == set(group.members or heard):
        reason = f"all members came to {where}{what}, the same one, and it does not end"
        odd.held_up.append((tuple(sorted(arrived)), reason))


def _judge_works(works: Mapping[int, Work | None], where: str, odd: Odd) -> bool:
    """Whether members came to one collective with different ones, which then explains the wait."""
    known = {rank: _comparable(work) for rank, work in works.items() if work is not None}
    counts = Counter(known.values())
    if len(counts) < 2:
        return False
    (usual, most), (_, second) = counts.most_common(2)
    if most == second and counts.total() > 2:
        odd.diverged.append(f"members came to {where} with {_listed(counts)}")
        return True
    strange = [rank for rank, work in known.items() if work != usual]
    if counts.total() == 2:
        strange = list(known)
    elif len(strange) > max(1.0, MAX_ODD_RATIO * counts.total()):
        odd.diverged.append(f"members came to {where} with {_listed(counts)}")
        return True
    for rank in strange:
        others = [other for other in known if known[other] != known[rank]]
        odd.ranks[rank] = (
            f"rank {rank} came to {where} with {works[rank]},"
            f" {ranks_text(others)} with {works[others[0]]}"
        )
    return True


def _comparable(work: Work) -> Work:
    return Work(work.operation, None) if _UNEVEN.search(work.operation) else work


def _listed(works: Iterable[Work]) -> str:
    return " and ".join(sorted(str(work) for work in works))


def _judge_minority(
    ranks: list[int], heard: Mapping[int, GroupProgress], what: str, where: str, odd: Odd
) -> None:
    if not ranks:
        return
    if len(ranks) > max(1.0, MAX_ODD_RATIO * len(heard)):
        odd.diverged.append(f"only {ranks_text(ranks)} of {len(heard)} came to {where}")
        return
    for rank in ranks:
        progress = heard[rank]
        work = progress.works.get(progress.enqueued)
        now = f"collective {progress.enqueued}" + (f" ({work})" if work is not None else "")
        odd.ranks.setdefault(rank, f"rank {rank} {what.replace('{}', now)}")
