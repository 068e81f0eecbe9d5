"""Finds a rank's state in its machine's memory, each byte compared with its checksum before use."""

from __future__ import annotations

import logging
import mmap
import os
from typing import Any

from everstep.checkpoint import rebuilding
from everstep.checkpoint.agent_link import AgentLink
from everstep.checkpoint.checksums import checksum
from everstep.checkpoint.saver import map_region
from everstep.checkpoint.sharing import replicated_of
from everstep.core import channel
from everstep.core.errors import PermanentError
from everstep.core.shard import Origin, Region, Shard, aligned

logger = logging.getLogger(__name__)

_MENDING_PATIENCE_S = 600.0


class Restoring:
    """The way back from memory.

    Args:
        link: To the agent.
        me: Who the rank is.
    """

    def __init__(self, link: AgentLink, me: channel.Welcome) -> None:
        self._link = link
        self._me = me
        self._who = f"rank {me.rank} on {me.machine}"

    def state(self, step: int, fd: int | None) -> tuple[Any, Region]:
        """The state after a step, in memory of its own, and the region that it was in.

        Args:
            step: The step.
            fd: The region's descriptor.

        Raises:
            PermanentError: It is damaged here and on the machine of its backup, or what others keep
                of it is; or is another job's or layout's; or the agent is gone.
        """
        region, slot, shard = self._found(step, fd)
        while not region.intact(slot, checksum):
            # Another machine's copy, until there is none left: then the agent refuses.
            logger.warning("%s: step %d is damaged; asking for its backup", self._who, shard.step)
            damaged = channel.Damaged(shard.step)
            _, fd = self._link.ask(damaged, channel.Restored, _MENDING_PATIENCE_S)
            region, slot, shard = self._found(shard.step, fd)
        body = region.body(slot)[: shard.body_bytes]
        payload = body[aligned(shard.metadata_bytes) :]
        parts = self._parts(shard, body) if shard.part_whole else []
        return rebuilding.rebuild(bytes(body[: shard.metadata_bytes]), payload, parts), region

    def _found(self, step: int, fd: int | None) -> tuple[Region, int, Shard]:
        region = map_region(fd)
        found = region.find(step)
        if found is None:
            raise PermanentError(f"{self._who}: step {step} is not in its memory")
        Origin(self._me.job, self._me.layout).check(found[1])
        return region, *found

    def _parts(self, shard: Shard, body: memoryview) -> list[memoryview]:
        """What the ranks of the DP group keep for each other, in their order."""
        return [
            body[shard.part_start :] if rank == shard.rank else self._borrowed(rank, shard)
            for rank in replicated_of(self._me).group_of(shard.rank)
        ]

    def _borrowed(self, rank: int, own: Shard) -> memoryview:
        lent, fd = self._link.ask(channel.Borrow(rank, own.step), channel.Lent)
        part = self._memory_of(lent, fd, own)
        if checksum(part) == lent.checksum:
            return part
        logger.warning("%s: rank %d's part of step %d is damaged", self._who, rank, own.step)
        damaged = channel.DamagedPart(rank, own.step)
        lent, fd = self._link.ask(damaged, channel.Lent, _MENDING_PATIENCE_S)
        part = self._memory_of(lent, fd, own)
        if checksum(part) != lent.checksum:
            raise PermanentError(f"{self._who}: rank {rank}'s part of step {own.step} is damaged")
        return part

    def _memory_of(self, lent: channel.Lent, fd: int | None, own: Shard) -> memoryview:
        if fd is None:
            raise PermanentError("the agent's answer lacks the shared memory")
        try:
            if lent.whole != own.part_whole:
                raise PermanentError(
                    f"{self._who}: rank {lent.rank}'s part of step {own.step} belongs to another"
                    " state than this rank's"
                )
            if lent.size_bytes == 0:
                return memoryview(bytearray())
            return memoryview(mmap.mmap(fd, 0))[lent.offset :][: lent.size_bytes]
        finally:
            os.close(fd)
