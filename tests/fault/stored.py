"""States of several ranks, saved to a storage folder as their machines would."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from everstep.checkpoint.checksums import checksum
from everstep.checkpoint.storing import HeldShard, Save, SaveOrder
from everstep.checkpoint.tree import FlatTree
from everstep.core.parts import NOTHING_REPLICATED, Replicated
from everstep.core.shard import aligned
from everstep.core.stored import folder_name, short_run
from everstep.storage.folder import Checkpoint

JOB = "toy"
RUN = "0123456789abcdef"


def held(
    rank: int, state: Mapping[Any, Any], replicated: Replicated = NOTHING_REPLICATED
) -> HeldShard:
    flat = FlatTree(state, replicated, rank)
    if replicated.shared:
        flat.take_part()
    start = aligned(len(flat.metadata))
    body = memoryview(bytearray(start + flat.payload_bytes))
    body[: len(flat.metadata)] = flat.metadata
    flat.write(body[start:])
    return HeldShard(rank, body, len(flat.metadata), checksum(body))


def order_of(
    root: Path | str, step: int, layout: str, slot: int, slots: int, ranks: int, **changes: Any
) -> SaveOrder:
    settings: dict[str, Any] = {"attempt": 1, "run": RUN, "give_up_after_s": 20.0, **changes}
    name = folder_name(step, settings["attempt"], settings["run"])
    return SaveOrder(
        url=f"{root}/{JOB}/{name}",
        job=JOB,
        run=short_run(settings["run"]),
        attempt=settings["attempt"],
        step=step,
        parallelism=layout,
        gpus_per_machine=ranks,
        slot=slot,
        num_slots=slots,
        ranks_per_slot=ranks,
        give_up_after_s=settings["give_up_after_s"],
    )


def save(
    root: Path | str,
    step: int,
    layout: str,
    states: Mapping[int, Mapping[Any, Any]],
    ranks_per_slot: int = 1,
    replicated: Replicated = NOTHING_REPLICATED,
    **changes: Any,
) -> Checkpoint:
    """All machines save their part at the same time."""
    shards = {rank: held(rank, state, replicated) for rank, state in states.items()}
    slots = len(states) // ranks_per_slot

    def one(slot: int) -> str:
        order = order_of(root, step, layout, slot, slots, ranks_per_slot, **changes)
        ranks = range(slot * ranks_per_slot, (slot + 1) * ranks_per_slot)
        Save(order, [shards[rank] for rank in ranks], lambda _: None).run()
        return order.url

    with ThreadPoolExecutor(slots) as pool:
        return Checkpoint(next(iter(list(pool.map(one, range(slots))))))
