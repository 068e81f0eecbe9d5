"""What the stacks of all ranks mean: reads them from the evidence store, any controller can."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from temporalio import activity

from everstep.activities.evidence import EvidenceStore
from everstep.activities.failure import as_failures
from everstep.activities.heartbeat import beating
from everstep.activities.trace import MANIFEST
from everstep.core.errors import EverstepError
from everstep.core.groups import Layout
from everstep.core.hang import JudgedStacks, hearing_doubts
from everstep.core.orders import RankStacks
from everstep.core.stacks import picture, summary
from everstep.core.stacks.dump import Answer, RankDump, Snapshot
from everstep.core.stacks.judge import judge
from everstep.core.stacks.pyspy import Reader
from everstep.core.stacks.recorder import Recorder, read_recorder
from everstep.workflows.effects import JudgeOrder, MachineStacks
from everstep.workflows.ports import StackPort

_READERS = 16
"""Files read at once: an object store takes milliseconds for each of thousands."""


class StackJudge(StackPort):
    """Judges stacks, and keeps pictures of the verdict as evidence.

    Args:
        evidence: Where the pictures are kept; dumps are read from where machines have put them.
    """

    def __init__(self, evidence: EvidenceStore) -> None:
        self._evidence = evidence

    @activity.defn(name="stacks.judge")
    async def judge(self, order: JudgeOrder) -> JudgedStacks:
        """Say who holds a job up.

        Effect: the job as a grid lies in the evidence store, in text and as SVG.
        Idempotent by: the digests of what it reads and writes.
        Heartbeats: yes.
        Gives up when: never by itself; a dump that cannot be read is a rank that did not answer.
        """
        with as_failures():
            async with beating():
                return await asyncio.to_thread(self._judge, order)

    def _judge(self, order: JudgeOrder) -> JudgedStacks:
        reader = Reader()
        with ThreadPoolExecutor(_READERS) as pool:
            seen = [_read(order.layout, machines, reader, pool) for machines in order.looks]
        judgement = judge(order.layout, seen)
        reasons = (*judgement.reasons, *hearing_doubts(seen[-1]))
        judgement = replace(judgement, reasons=reasons)
        groups = summary.silent(seen[-1], order.layout.world_size)
        silent = [rank for group in groups for rank in group.ranks]
        title = f"{order.title}: {judgement.verdict}"
        return JudgedStacks(
            judgement,
            self._evidence.url,
            self._evidence.put(picture.text(order.layout, judgement, silent).encode()),
            self._evidence.put(picture.svg(order.layout, judgement, silent, title).encode()),
        )


def _read(
    layout: Layout, machines: Sequence[MachineStacks], reader: Reader, pool: ThreadPoolExecutor
) -> Snapshot:
    """One look at all ranks; one of which nothing can be read did not answer."""
    stores = {url: EvidenceStore(url) for url in {m.evidence for m in machines if m.evidence}}
    ranks: dict[int, RankDump] = {}
    entries: list[tuple[EvidenceStore, RankStacks]] = []
    lists = pool.map(partial(_listed, stores), machines)
    for slot, (machine, found) in enumerate(zip(machines, lists, strict=True)):
        if isinstance(found, str):
            unheard = RankDump(Answer.NO_ANSWER, detail=f"nor did its machine: {found}")
            ranks.update(dict.fromkeys(layout.ranks_of(slot), unheard))
        else:
            entries += [(stores[machine.evidence], entry) for entry in found]
    recorders: dict[int, Recorder] = {}
    for (_, entry), (text, recorder) in zip(entries, pool.map(_texts, entries), strict=True):
        ranks[entry.rank] = (
            RankDump(Answer.NO_ANSWER, detail="its dump cannot be read")
            if text is None
            else reader.read(text)
        )
        if recorder is not None and (known := read_recorder(recorder)) is not None:
            recorders[entry.rank] = known
    return Snapshot(ranks, recorders)


def _listed(
    stores: Mapping[str, EvidenceStore], machine: MachineStacks
) -> Sequence[RankStacks] | str:
    """A machine's list of dumps, or why there is none."""
    if not machine.manifest:
        return machine.why
    try:
        return MANIFEST.validate_json(stores[machine.evidence].get(machine.manifest))
    except (EverstepError, ValueError) as error:
        return str(error)


def _texts(entry: tuple[EvidenceStore, RankStacks]) -> tuple[bytes | None, bytes | None]:
    store, stacks = entry
    return _text(store, stacks.digest), _text(store, stacks.recorder_digest)


def _text(store: EvidenceStore, digest: str) -> bytes | None:
    if not digest:
        return None
    try:
        return store.get(digest)
    except EverstepError:
        return None
