"""Who holds a hung job up, from the stacks and flight recorders of all ranks.

Paper: ByteRobust 2025, section 5. The paper looks at stacks only; stronger evidence
comes first here:

1. who did not answer, cannot be attached to, or is stopped;
2. who stands outside any collective while others wait in one;
3. by the flight recorders, who is missing in a collective, came with another operation or size, or
   ran ahead;
4. whose stack is not an ordinary one (`dominant`);
5. whose data loader or checkpoint writer stands where no other's does.

What the first of these gives is the suspicion; `domain` makes machines of it. Nothing is concluded
from evidence that points at more than half of the job. Called on dumps in files by a person, and in
a hang by the incident.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.groups import Layout
from everstep.core.stacks.domain import MACHINE, Domain, domain_of
from everstep.core.stacks.dominant import outliers
from everstep.core.stacks.dump import Snapshot
from everstep.core.stacks.evidence import Look, look
from everstep.core.stacks.moving import goes_on, moved_ranks, ranks_that_completed
from everstep.core.stacks.roles import Places
from everstep.core.stacks.verdict import DOUBT, Judgement, NextStep, StackVerdict
from everstep.core.stacks.words import ranks_text, runs_text

SCATTERED_RATIO = 0.02
"""Silent ranks on more of the machines than this, with no group in common, are the tracer's
trouble: even a large job does not lose every fiftieth machine in one instant."""

MIN_SCATTERED = 2
"""Machines; in a small job two may be silent for reasons of their own."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """Ranks that one kind of evidence points at, and what it points with."""

    ranks: tuple[int, ...]
    reasons: tuple[str, ...]
    each_on_evidence: bool
    can_move: bool = True


def judge(layout: Layout, snapshots: Sequence[Snapshot], known_hung: bool = True) -> Judgement:
    """Who holds the job up.

    Args:
        layout: The job.
        snapshots: At least one, in order of time. Two that are some seconds apart tell who moves
            from who is stuck.
        known_hung: Whether something else says that the job stands still, so that with one
            snapshot everybody counts as stuck; else it takes two to evict who could also move.
    """
    known = Places()
    looks = [look(layout, snapshot, known) for snapshot in snapshots]
    moved, compared = moved_ranks([item.places for item in looks])
    if goes_on(len(moved), compared):
        return _moving(f"{len(moved)} of {compared} ranks moved between the dumps")
    for before, after in itertools.pairwise(snapshots):
        completed, of = ranks_that_completed(before, after)
        if goes_on(len(completed), of):
            return _moving(f"{len(completed)} of {of} ranks finished a collective in between")
    doubts: list[str] = []
    suspicions = [_suspicion(layout, item, doubts) for item in looks]
    last = suspicions[-1]
    if last is None:
        return _unobservable(looks[-1], doubts)
    lasting = set(last.ranks).intersection(*(item.ranks for item in suspicions if item is not None))
    if not lasting:
        told = "; then ".join(ranks_text(item.ranks) for item in suspicions if item is not None)
        return _moving(f"the odd one is another in each dump: {told}", last.ranks, doubts)
    stuck = tuple(sorted(lasting.difference(moved) if last.can_move else lasting))
    if not stuck:
        reason = f"{ranks_text(lasting)} moved between the dumps, so nobody is stuck in one place"
        return _moving(reason, tuple(sorted(lasting)), (*last.reasons, *doubts))
    domain = domain_of(layout, stuck, last.each_on_evidence)
    if domain is None:
        doubts.append(
            f"{ranks_text(stuck)} stand out, but share no group that is less than half of the job"
        )
        return _unobservable(looks[-1], doubts, stuck, last.reasons)
    if len(looks) == 1 and last.can_move and not known_hung:
        reasons = (*last.reasons, *_as_doubts([_one_look(domain), *doubts]))
        return Judgement(StackVerdict.UNOBSERVABLE, stuck, None, reasons, NextStep.LOOK_AGAIN)
    reasons = (*last.reasons, _reach(domain), *_as_doubts(doubts))
    by_group = not last.each_on_evidence
    return Judgement(StackVerdict.EVICT, stuck, domain, reasons, by_group=by_group)


def _suspicion(layout: Layout, seen: Look, doubts: list[str]) -> _Suspicion | None:
    """The first kind of evidence that points at somebody."""
    doubts.clear()
    # Also kinds that do not decide may have something to say.
    silent = _silent(layout, seen, doubts)
    outside = _outside(layout, seen, doubts)
    if silent is not None and outside is not None:
        ranks = tuple(sorted({*silent.ranks, *outside.ranks}))
        if domain_of(layout, ranks, each_on_evidence=True) is not None:
            return _Suspicion(ranks, (*silent.reasons, *outside.reasons), True, can_move=False)
    return (
        silent
        or outside
        or _recorded(layout, seen, doubts)
        or _unusual(layout, seen, doubts)
        or _children(layout, seen)
    )


def _silent(layout: Layout, seen: Look, doubts: list[str]) -> _Suspicion | None:
    if not seen.places:
        return None
    others = {*seen.outliers, *_few(layout, seen.outside)}
    suspects: list[int] = []
    beside: list[int] = []
    for rank in seen.silent:
        if rank in seen.odd.in_step:
            doubts.append(f"rank {rank} {seen.silent[rank]}; its recorder waits as its group does")
        elif _is_beside(layout, seen, rank, others):
            beside.append(rank)
            doubts.append(
                f"rank {rank} {seen.silent[rank]}, but its model replica stands like most, and"
                " others do not"
            )
        else:
            suspects.append(rank)
    if not suspects:
        return None
    domain = domain_of(layout, suspects, each_on_evidence=True)
    if domain is None or (domain.num_parts > 1 and _is_common(layout, domain.machines)):
        doubts.append(f"{ranks_text(suspects)} did not answer: too many to suspect each")
        return None
    if _is_common(layout, layout.machines_of(beside)):
        doubts.append(f"{ranks_text(suspects)} did not answer either, as so many others")
        return None
    reasons = [f"rank {rank} {seen.silent[rank]}" for rank in suspects]
    return _Suspicion(tuple(suspects), _shortened(reasons), True, can_move=False)


def _is_common(layout: Layout, machines: Sequence[int]) -> bool:
    """Whether silence on so many machines, with no group in common, is no evidence any more."""
    return len(machines) > max(MIN_SCATTERED, SCATTERED_RATIO * layout.num_machines)


def _is_beside(layout: Layout, seen: Look, rank: int, others: set[int]) -> bool:
    """Whether a silent rank does not explain who stands out.

    Ranks of one model replica wait for each other long before the replicas meet: one that holds its
    replica up is seen there. Where all of the others in it have come as far as most ranks have, and
    somebody elsewhere has not, it is that one for whom all wait.
    """
    if not others or layout.dp == 1:
        return False
    kinds = [kind for kind in layout.wide_kinds if kind != "dp"]
    replica = [member for member in layout.block(kinds, rank) if member in seen.places]
    return bool(replica) and others.isdisjoint(replica)


def _few(layout: Layout, ranks: tuple[int, ...]) -> tuple[int, ...]:
    return ranks if 2 * len(ranks) <= layout.world_size else ()


def _outside(layout: Layout, seen: Look, doubts: list[str]) -> _Suspicion | None:
    ranks = seen.outside
    if not ranks or 2 * len(ranks) > len(seen.places):
        return None
    if domain_of(layout, ranks, each_on_evidence=True) is None:
        doubts.append(f"{ranks_text(ranks)} are outside any collective: too many to suspect each")
        return None
    reasons = [
        f"rank {rank} is outside any collective, in {seen.places[rank].at}{_loader(seen, rank)}"
        for rank in ranks
    ]
    waiting = _others(seen, ranks, "waits in one", "wait in one")
    return _Suspicion(ranks, (*_shortened(reasons), waiting), True)


def _others(seen: Look, ranks: Sequence[int], does: str, do: str) -> str:
    count = len(seen.places) - len(ranks)
    return f"1 other rank {does}" if count == 1 else f"{count} other ranks {do}"


def _loader(seen: Look, rank: int) -> str:
    told = [
        f"its {child.role} {child.pid} in {child.place.at}" for child in seen.children.get(rank, ())
    ]
    told += seen.silent_children.get(rank, ())
    return f" ({', '.join(told)})" if told else ""


def _recorded(layout: Layout, seen: Look, doubts: list[str]) -> _Suspicion | None:
    odd = seen.odd
    doubts.extend(f"{sentence}: ranks took different ways" for sentence in odd.diverged)
    if odd.ranks:
        ranks = tuple(sorted(odd.ranks))
        return _Suspicion(ranks, _shortened([odd.ranks[rank] for rank in ranks]), True)
    if odd.diverged or len(odd.held_up) != 1:
        return None
    ranks, reason = odd.held_up[0]
    if 2 * len(layout.machines_of(ranks)) > layout.num_machines:
        doubts.append(f"{ranks_text(ranks)}: {reason}; it may be any of them")
        return None
    return _Suspicion(ranks, (f"{ranks_text(ranks)}: {reason}",), False)


def _unusual(layout: Layout, seen: Look, doubts: list[str]) -> _Suspicion | None:
    ranks = seen.outliers
    if not ranks or seen.odd.diverged:
        return None
    if domain_of(layout, ranks, each_on_evidence=False) is None:
        doubts.append(f"{ranks_text(ranks)} stand apart from the others, in too much of the job")
        return None
    by_place: dict[str, list[int]] = {}
    for rank in ranks:
        by_place.setdefault(seen.places[rank].at, []).append(rank)
    reasons = [f"{ranks_text(members)} in {at}" for at, members in by_place.items()]
    ordinary = _others(seen, ranks, "stands where most do", "stand where most do")
    return _Suspicion(ranks, (*_shortened(reasons), ordinary), False)


def _children(layout: Layout, seen: Look) -> _Suspicion | None:
    """Ranks whose loaders or writers stand where no ordinary rank's do."""
    keys: dict[int, tuple[object, ...]] = {
        rank: tuple(sorted({(child.role.value, child.place.key) for child in children}))
        for rank, children in seen.children.items()
    }
    for rank in seen.places if seen.silent_children else ():
        count = len(seen.silent_children.get(rank, ()))
        keys[rank] = (*keys.get(rank, ()), count)
    ranks = outliers(layout, keys)
    if not ranks or domain_of(layout, ranks, each_on_evidence=True) is None:
        return None
    reasons = [f"rank {rank} waits as others do, but{_loader(seen, rank)}" for rank in ranks]
    return _Suspicion(ranks, _shortened(reasons), True)


def _reach(domain: Domain) -> str:
    count = len(domain.machines)
    machines = f"the machine in slot {domain.machines[0]}" if count == 1 else f"{count} machines"
    if domain.kind == MACHINE:
        return f"no group lies within {machines}, which goes alone"
    if domain.num_parts > 1:
        return f"they share no group that is small: {machines}, in {domain.num_parts} replicas"
    return f"the smallest group around them is of kind {domain.kind}: {machines}"


def _one_look(domain: Domain) -> str:
    slots = "slot" if len(domain.machines) == 1 else "slots"
    return (
        "one look cannot tell a rank that moves from one that stands; if these stand where they do"
        f" some seconds later, too, evict {slots} {runs_text(domain.machines)}"
    )


def _moving(reason: str, suspects: tuple[int, ...] = (), more: Sequence[str] = ()) -> Judgement:
    return Judgement(
        StackVerdict.MOVING, suspects, None, (reason, *_as_doubts(more)), NextStep.LOOK_AGAIN
    )


def _unobservable(
    seen: Look,
    doubts: Sequence[str],
    suspects: tuple[int, ...] = (),
    reasons: Sequence[str] = (),
) -> Judgement:
    told, step = _why(seen)
    said = (*reasons, *told, *_as_doubts(doubts))
    return Judgement(StackVerdict.UNOBSERVABLE, suspects, None, said, step)


def _why(seen: Look) -> tuple[tuple[str, ...], NextStep]:
    if not seen.places and not seen.silent:
        return ("the recorders point at nobody",), NextStep.REPLAY
    if not seen.places:
        return (f"none of {len(seen.silent)} ranks answered",), NextStep.LOOK_AGAIN
    if seen.odd.diverged:
        return ("ranks took different ways through the program",), NextStep.PERSON
    places = {place.key for place in seen.places.values()}
    where = next(iter(seen.places.values())).at
    everybody = f"all ranks that answered ({len(seen.places)})" if seen.silent else "all ranks"
    if len(seen.outside) == len(seen.places):
        inside = f" in {where}," if len(places) == 1 else ""
        told = f"{everybody} are{inside} outside any collective: the program itself"
        return (told,), NextStep.PERSON
    if len(places) == 1:
        return (f"{everybody} stand alike, in {where}",), NextStep.REPLAY
    return (f"ranks stand in {len(places)} places, and none stands out",), NextStep.REPLAY


def _as_doubts(sentences: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{DOUBT}{sentence}" for sentence in _shortened(sentences))


_SENTENCES_SHOWN = 8


def _shortened(sentences: Sequence[str]) -> tuple[str, ...]:
    if len(sentences) <= _SENTENCES_SHOWN:
        return tuple(sentences)
    left = len(sentences) - _SENTENCES_SHOWN
    return (*sentences[:_SENTENCES_SHOWN], f"and {left} more like these")
