"""One look at all ranks: where each stands, sorted by what it says about a hang."""

from __future__ import annotations

import re
from dataclasses import dataclass

from everstep.core.groups import Layout
from everstep.core.stacks.collectives import Odd, judge_recorders
from everstep.core.stacks.dominant import outliers
from everstep.core.stacks.dump import Answer, Snapshot
from everstep.core.stacks.place import Place, Stand
from everstep.core.stacks.roles import Child, Places

_TRANSFER = re.compile(r"send|recv|receive|p2p|communicate")


@dataclass(frozen=True, slots=True)
class Look:
    """One snapshot, read.

    Attributes:
        places: Where each rank stands that said so and runs.
        children: Loaders and writers, by rank; ranks without any are left out.
        silent_children: Children that did not answer, by rank.
        silent: Ranks that did not answer, with what is known of it.
        outside: Ranks outside any collective, ascending.
        outliers: Ranks whose stack is not an ordinary one, ascending.
        odd: What the recorders say.
    """

    places: dict[int, Place]
    children: dict[int, tuple[Child, ...]]
    silent_children: dict[int, tuple[str, ...]]
    silent: dict[int, str]
    outside: tuple[int, ...]
    outliers: tuple[int, ...]
    odd: Odd


def look(layout: Layout, snapshot: Snapshot, known: Places) -> Look:
    """Read a snapshot.

    Args:
        layout: The job.
        snapshot: What was heard.
        known: Where stacks stand; keeps what it works out.
    """
    places: dict[int, Place] = {}
    children: dict[int, tuple[Child, ...]] = {}
    silent_children: dict[int, tuple[str, ...]] = {}
    silent: dict[int, str] = {}
    for rank in range(layout.world_size) if snapshot.ranks else ():
        dump = snapshot.of(rank)
        place = known.of_rank(dump) if dump.answer is Answer.ANSWERED else None
        if place is None:
            silent[rank] = _silence(dump.answer, dump.detail)
        else:
            places[rank] = place
        if found := known.of_children(dump):
            children[rank] = found
        if dump.silent_children:
            silent_children[rank] = dump.silent_children
    waiting = {rank for rank, place in places.items() if place.stand is Stand.WAITING}
    # gloo does not record these, so a rank that waits in one looks as if it waited in nothing.
    in_transfer = {rank for rank in waiting if _TRANSFER.search(places[rank].at)}
    in_transfer |= {
        rank
        for rank, recorder in snapshot.recorders.items()
        if rank not in places and not recorder.records_transfers
    }
    odd = judge_recorders(layout, snapshot.recorders, in_transfer)
    outside = tuple(rank for rank in places if rank not in waiting and rank not in odd.in_step)
    keys = {rank: place.key for rank, place in places.items()}
    unusual = outliers(layout, keys)
    return Look(places, children, silent_children, silent, outside, unusual, odd)


_SAID = {
    Answer.ANSWERED: "said nothing",
    Answer.NO_ANSWER: "did not answer",
    Answer.STOPPED: "is stopped",
    Answer.REFUSED: "could not be attached to",
    Answer.GONE: "has no process",
}


def _silence(answer: Answer, detail: str) -> str:
    return f"{_SAID[answer]}: {detail}" if detail else _SAID[answer]
