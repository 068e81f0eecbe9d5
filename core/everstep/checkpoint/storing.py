"""Saves one machine's part of a step to the storage tier: what `checkpoint.tier` runs for it.

    each machine    look at its ranks' shards, write what is there            seen-N.json
    slot 0          wait for all of these, decide names and writers           plan.json
    each machine    write its items in torch's format                         __N_0.distcp,
                                                                              wrote-N.json
    slot 0          wait for all of these, say what it is                     checkpoint.json
                    and make it a checkpoint                                  .metadata

The machines meet in the folder alone. Whoever waits gives up when another one says that it has
(failed-N.json); whoever dies lets the others wait until their time is over.
"""

from __future__ import annotations

import errno
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from everstep.checkpoint import dcp, rebuilding
from everstep.checkpoint.checksums import checksum
from everstep.core import leaves as leaves_module
from everstep.core.errors import EverstepError, PermanentError, TransientError
from everstep.core.faultpoint import reached
from everstep.core.groups import layout_of
from everstep.core.leaves import Leaf, leaves_of
from everstep.core.save_plan import Item, SavePlan, SeenLeaf, plan_from_json, plan_save
from everstep.core.shard import aligned
from everstep.core.stored import (
    OURS,
    PLAN,
    SUMMARY,
    failed_name,
    leftovers,
    seen_name,
    superfluous,
    wrote_name,
)
from everstep.storage.folder import (
    METADATA,
    Checkpoint,
    JobFolder,
    Located,
    digest_of,
)

_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
_PAUSE_GROWTH = 1.3


@dataclass(frozen=True, slots=True)
class HeldShard:
    """A rank's state, in memory that nobody else writes to.

    Attributes:
        rank: Whose.
        body: Metadata, padding and payload.
        metadata_bytes: Size of the first.
        checksum: Of the body.
    """

    rank: int
    body: memoryview
    metadata_bytes: int
    checksum: int

    @property
    def metadata(self) -> str:
        """Its description."""
        return bytes(self.body[: self.metadata_bytes]).decode()

    @property
    def payload(self) -> memoryview:
        """Its tensors."""
        return self.body[aligned(self.metadata_bytes) :]


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """One machine's part in a save.

    Attributes:
        url: The checkpoint's folder.
        job: The job's name.
        run: The run, as folders name it.
        attempt: In which the step was finished.
        step: What is saved.
        parallelism: The layout as text.
        gpus_per_machine: Of the layout.
        slot: The machine's.
        num_slots: How many machines save.
        ranks_per_slot: How many ranks each of them has.
        give_up_after_s: How long it may take.
    """

    url: str
    job: str
    run: str
    attempt: int
    step: int
    parallelism: str
    gpus_per_machine: int
    slot: int
    num_slots: int
    ranks_per_slot: int
    give_up_after_s: float


class Save:
    """One machine's part in one save.

    Args:
        order: What to do.
        shards: The states of its ranks.
        on_phase: Called with what it does next, for whoever wonders why it takes so long.
    """

    def __init__(
        self, order: SaveOrder, shards: Sequence[HeldShard], on_phase: Callable[[str], None]
    ) -> None:
        self._order = order
        self._shards = {shard.rank: shard for shard in shards}
        self._on_phase = on_phase
        self._layout = layout_of(order.parallelism, order.gpus_per_machine)
        self._checkpoint = Checkpoint(order.url)
        local = "file" in _protocols(self._checkpoint.fs)
        self._writer = dcp.Writer(order.url, order.slot, local)
        self._deadline_s = time.monotonic() + order.give_up_after_s

    def run(self) -> None:
        """Save.

        Raises:
            PermanentError: A shard is damaged, or another machine gave up.
            TransientError: The others did not do their part in time.
            OSError: The storage cannot be written or read.
        """
        try:
            self._run()
        except (EverstepError, OSError) as error:
            self._tell_failure(error)
            raise

    def _run(self) -> None:
        order = self._order
        self._on_phase("writing")
        self._checkpoint.make()
        seen = {rank: self._look_at(shard) for rank, shard in self._shards.items()}
        reached("storage_before_seen")
        self._checkpoint.write_json(seen_name(order.slot), self._show_seen(seen))
        if order.slot == 0:
            everything = self._see_all()
            plan = plan_save(everything, self._layout)
            self._checkpoint.write_json(PLAN, plan.to_json())
        else:
            everything = seen
            plan = self._wait_for_plan()
        reached("storage_before_write")
        self._on_phase("writing")
        self._write(plan, seen)
        reached("storage_after_write")
        if order.slot == 0:
            self._complete(plan, everything)
        else:
            self._wait("slot 0 to complete the checkpoint", self._is_complete)

    # --- What is there ----------------------------------------------------------------------------

    def _look_at(self, shard: HeldShard) -> list[SeenLeaf]:
        if checksum(shard.body) != shard.checksum:
            raise PermanentError(f"rank {shard.rank}'s state was damaged in memory")
        found = leaves_of(shard.metadata, shard.rank)
        return [(leaf, digest_of(_bytes_of(leaf, shard.payload))) for leaf in found]

    def _show_seen(self, seen: Mapping[int, Sequence[SeenLeaf]]) -> dict[str, Any]:
        return {
            "ranks": {
                str(rank): {
                    "metadata": self._shards[rank].metadata,
                    "payload_bytes": len(self._shards[rank].payload),
                    "digests": [digest for _, digest in of_rank],
                }
                for rank, of_rank in seen.items()
            }
        }

    def _see_all(self) -> dict[int, list[SeenLeaf]]:
        slots = range(self._order.num_slots)
        self._wait_for_files([seen_name(slot) for slot in slots])
        everything: dict[int, list[SeenLeaf]] = {}
        for slot in slots:
            content = self._checkpoint.read_json(seen_name(slot))
            for rank, one in content["ranks"].items():
                found = leaves_of(one["metadata"], int(rank))
                everything[int(rank)] = list(zip(found, one["digests"], strict=True))
        return everything

    # --- Writing ----------------------------------------------------------------------------------

    def _write(self, plan: SavePlan, seen: Mapping[int, Sequence[SeenLeaf]]) -> None:
        values: dict[Item, tuple[dcp.Content, Any, str]] = {}
        for rank, of_rank in seen.items():
            for leaf, digest in of_rank:
                item = plan.item(leaf, rank, self._layout)
                if plan.writer.get(item) == rank:
                    value = _value_of(leaf, self._shards[rank].payload)
                    if isinstance(value, bytes):
                        digest = digest_of(value)
                    values[item] = dcp.content_of(item, leaf), value, digest
        located = self._writer.write(values) if values else {}
        items = [
            [key, offsets, at.file, at.offset, at.length, at.digest]
            for (key, offsets), at in located.items()
        ]
        self._checkpoint.write_json(wrote_name(self._order.slot), {"items": items})

    def _complete(self, plan: SavePlan, everything: Mapping[int, Sequence[SeenLeaf]]) -> None:
        order = self._order
        slots = range(order.num_slots)
        self._wait_for_files([wrote_name(slot) for slot in slots])
        located: dict[Item, Located] = {}
        for slot in slots:
            for key, offsets, *place in self._checkpoint.read_json(wrote_name(slot))["items"]:
                located[key, None if offsets is None else tuple(offsets)] = Located(*place)
        lacking = [item for item in plan.writer if item not in located]
        if lacking:
            raise PermanentError(f"nobody wrote {lacking[0]}, and {len(lacking) - 1} others")
        contents = contents_of(plan, everything, self._layout)
        summary = {
            "version": 1,
            "job": order.job,
            "run": order.run,
            "attempt": order.attempt,
            "step": order.step,
            "parallelism": order.parallelism,
            "gpus_per_machine": order.gpus_per_machine,
            "num_slots": order.num_slots,
            "ranks_per_slot": order.ranks_per_slot,
            "saved_at_s": time.time(),
            "size_bytes": sum(at.length for at in located.values()),
        }
        self._checkpoint.write_json(SUMMARY, summary)
        reached("storage_before_metadata")
        self._writer.finish(contents, located)
        reached("storage_after_metadata")

    # --- The others -------------------------------------------------------------------------------

    def _wait_for_plan(self) -> SavePlan:
        self._wait_for_files([PLAN])
        return plan_from_json(self._checkpoint.read_json(PLAN))

    def _is_complete(self) -> bool:
        return self._checkpoint.exists(METADATA)

    def _wait_for_files(self, names: Sequence[str]) -> None:
        lacking = list(names)

        def all_there() -> bool:
            there = self._there(lacking)
            lacking[:] = [name for name in lacking if name not in there]
            return not lacking

        self._wait("the other machines", all_there, lacking)

    def _wait(self, what: str, is_so: Callable[[], bool], lacking: Sequence[str] = ()) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while not is_so():
            self._on_phase(f"waiting for {what}")
            self._look_for_failure()
            if time.monotonic() > self._deadline_s:
                still = f" (missing: {', '.join(lacking[:3])})" if lacking else ""
                raise TransientError(f"gave up waiting for {what}{still}")
            time.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    def _look_for_failure(self) -> None:
        order = self._order
        # Slot 0 looks at everybody and gives up with anybody; the others look at slot 0.
        slots = range(1, order.num_slots) if order.slot == 0 else range(1)
        names = {failed_name(slot): slot for slot in slots}
        for name in sorted(self._there(list(names))):
            reason = self._checkpoint.read_json(name)["reason"]
            raise PermanentError(f"the machine in slot {names[name]} gave up: {reason}")

    def _there(self, names: Sequence[str]) -> set[str]:
        """Which of these files of ours are there."""
        if len(names) > 1:
            return self._checkpoint.ours().intersection(names)
        return {name for name in names if self._checkpoint.exists(f"{OURS}/{name}")}

    def _tell_failure(self, error: Exception) -> None:
        try:
            self._checkpoint.write_json(failed_name(self._order.slot), {"reason": str(error)})
        except (OSError, EverstepError):
            # What failed was the storage: the others find out for themselves.
            return


def retain(url: str, job: str, current: str, keep: int) -> None:
    """Delete what is older than the newest `keep` checkpoints, and what was never finished.

    Raises:
        PermanentError, OSError: Something cannot be read or deleted.
    """
    folder = JobFolder(url, job)
    report = folder.look("")
    complete = [one.name for one in report.checkpoints]
    unfinished = [name for name, _ in report.unusable if not folder.checkpoint(name).is_complete]
    for one in superfluous(report.checkpoints, keep):
        folder.checkpoint(one.name).remove()
    for name in leftovers(unfinished, complete, current):
        folder.checkpoint(name).remove()


def contents_of(
    plan: SavePlan, everything: Mapping[int, Sequence[SeenLeaf]], layout: Any
) -> list[dcp.Content]:
    """What all items of a checkpoint are, in a fixed order."""
    found: dict[Item, dcp.Content] = {}
    for rank in sorted(everything):
        for leaf, _ in everything[rank]:
            item = plan.item(leaf, rank, layout)
            # Of a rank that holds nothing of it, the place says nothing.
            empty = item[1] is not None and leaf.numel == 0
            if item in plan.writer and item not in found and not empty:
                found[item] = dcp.content_of(item, leaf)
    return list(found.values())


def number_of(error: BaseException) -> int | None:
    """The system's error number at the bottom of an error, if there is one."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.errno is not None:
            return at.errno
        at = at.__cause__ or at.__context__
    return None


def text_of(error: BaseException) -> str:
    """An error in words, with the name of its number."""
    number = number_of(error)
    name = "" if number is None else f" ({errno.errorcode.get(number, number)})"
    return f"{str(error) or type(error).__name__}{name}"


def _value_of(leaf: Leaf, payload: memoryview) -> Any:
    if leaf.kind == "value":
        data = io.BytesIO()
        torch.save(rebuilding.rebuild_value(leaf.node), data)
        return data.getvalue()
    dtype = dcp.dtype_of(leaf.dtype)
    if leaf.numel == 0:
        return torch.empty(leaf.shape, dtype=dtype)
    flat = torch.frombuffer(payload, dtype=dtype, count=leaf.numel, offset=leaf.offset)
    return flat.view(leaf.shape)


def _bytes_of(leaf: Leaf, payload: memoryview) -> bytes | memoryview:
    if leaf.kind == "value":
        return leaves_module.text_of(leaf.node).encode()
    size_bytes = leaf.numel * dcp.dtype_of(leaf.dtype).itemsize
    return payload[leaf.offset : leaf.offset + size_bytes]


def _protocols(fs: Any) -> tuple[str, ...]:
    protocol = fs.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
