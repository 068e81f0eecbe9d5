"""The layout of a rank's state in shared memory: a region with two slots, written alternately.

Three parties work on the same bytes: the rank that writes its own shard, the agent that owns the
memory and reads it, and the transfer code that fills a slot from the network. They may be killed at
any instruction. What makes a slot readable is its header, which is written after its body:

    invalidate -> write the body -> commit

A slot that was begun and not committed reads as empty, and the other slot still holds the step
before. Two slots suffice because a rank overwrites one only when all ranks have the step that is
in the other (`checkpoint.saver`).

    region   header, padded to a page | slot 0 | slot 1
    slot     header, padded to 128 B  | body of up to `slot_bytes`
    body     metadata, padded to 64 B | payload
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from everstep.core.errors import PermanentError

NUM_SLOTS = 2
WORD_BYTES = 8
BLOCK_BYTES = 4096
"""What a checksum sums up at once."""
ALIGNMENT_BYTES = 64
"""Where payloads and the tensors inside them begin: a cache line."""

_MAGIC = b"EVRSHARD"
_VERSION = 4
_PAGE_BYTES = 4096
_REGION_HEADER = struct.Struct("<8sIQ")
_HEADER_BYTES = 128
_COMMIT_WORD = struct.Struct("<Q")
_NOT_COMMITTED = 0
# Sequence, attempt, step, rank, metadata bytes, payload bytes, job, layout, part bytes, part whole,
# checksums of the body and of the part. The first is the commit word; a checksum of all follows.
_FIELDS = struct.Struct("<QQQQQQQQQQII")
_CHECKSUM = struct.Struct("<I")


def aligned(num_bytes: int, to_bytes: int = ALIGNMENT_BYTES) -> int:
    """The next multiple of `to_bytes`."""
    return -(-num_bytes // to_bytes) * to_bytes


def body_bytes(metadata_bytes: int, payload_bytes: int) -> int:
    """Size of a slot's body that holds that much metadata and payload."""
    return aligned(metadata_bytes) + payload_bytes


def region_bytes(slot_bytes: int) -> int:
    """Size of a region whose slots take bodies of up to `slot_bytes`."""
    return _PAGE_BYTES + NUM_SLOTS * _slot_stride(slot_bytes)


def checksum(body: memoryview) -> int:
    """What tells a body from any other that it may turn into by accident.

    The sums of the 64-bit words of each block, and a CRC over the sums. One changed word always
    shows, and so do blocks that are missing, stale or in each other's place. Chosen for the ranks,
    which compute it after every step: with vector instructions it takes a fifth of a CRC's time.
    This is the definition, at some 150 MB/s; the ranks have a faster one (`checkpoint.checksums`).
    """
    num_blocks = len(body) // BLOCK_BYTES
    last = body[num_blocks * BLOCK_BYTES :]
    sums = b"".join(
        (_sum_of_words(body[start : start + BLOCK_BYTES]) % 2**64).to_bytes(WORD_BYTES, "little")
        for start in range(0, num_blocks * BLOCK_BYTES, BLOCK_BYTES)
    )
    return checksum_of_sums(sums, _sum_of_words(last))


_slow_checksum = checksum


def checksum_of_sums(sums: bytes, last: int) -> int:
    """From the sums of the whole blocks, 8 bytes each, and that of what is left over."""
    return zlib.crc32((last % 2**64).to_bytes(WORD_BYTES, "little"), zlib.crc32(sums))


def word_of(rest: memoryview) -> int:
    """Fewer than 8 bytes as a word."""
    return int.from_bytes(rest, "little")


def _sum_of_words(part: memoryview) -> int:
    end = len(part) // WORD_BYTES * WORD_BYTES
    return sum(part[:end].cast("Q")) + word_of(part[end:])


def _slot_stride(slot_bytes: int) -> int:
    return aligned(_HEADER_BYTES + slot_bytes, _PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a shard belongs.

    Attributes:
        job: Name of the job.
        layout: Sizes and order of its parallelism; a rank's part of the state depends on them.
    """

    job: str = ""
    layout: str = ""

    @property
    def job_print(self) -> int:
        """Fingerprint of the job, as shards carry it."""
        return fingerprint(self.job)

    @property
    def layout_print(self) -> int:
        """Fingerprint of the layout, as shards carry it."""
        return fingerprint(self.layout)

    def check(self, shard: Shard) -> None:
        """Make sure that a shard belongs here.

        Raises:
            PermanentError: It is another job's, or was saved in another layout.
        """
        what = f"rank {shard.rank}'s step {shard.step}"
        if shard.job != self.job_print:
            raise PermanentError(f"{what} was saved by another job than {self.job!r}")
        if shard.layout != self.layout_print:
            raise PermanentError(
                f"{what} was saved in another layout than {self.layout!r}: it cannot be restored"
            )


def fingerprint(text: str) -> int:
    """63 bits, which every language's integers hold."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True, slots=True)
class Shard:
    """What the header of a committed slot says.

    Attributes:
        rank: Whose state it is.
        step: Step after which it was taken.
        attempt: Attempt in which it was taken.
        metadata_bytes: Size of the description of the state.
        payload_bytes: Size of the tensors.
        checksum: Checksum of the body.
        job: Fingerprint of the job.
        layout: Fingerprint of the job's layout.
        part_bytes: Size of the end of the payload that is this rank's part of what its DP group
            has in common (`core.parts`).
        part_checksum: Checksum of the part alone.
        part_whole: Fingerprint of what it is a part of; 0 when all that the state needs is here.
    """

    rank: int
    step: int
    attempt: int
    metadata_bytes: int
    payload_bytes: int
    checksum: int
    job: int
    layout: int
    part_bytes: int = 0
    part_checksum: int = 0
    part_whole: int = 0

    @property
    def body_bytes(self) -> int:
        """Size of metadata, padding and payload."""
        return body_bytes(self.metadata_bytes, self.payload_bytes)

    @property
    def part_start(self) -> int:
        """Where the part begins in the body."""
        return self.body_bytes - self.part_bytes


class Region:
    """A view of the bytes of one rank's two slots.

    Args:
        buffer: The whole memory, writable, as `format_region` left it or as others use it.

    Raises:
        PermanentError: The memory is not a region of this version, or is cut short.
    """

    def __init__(self, buffer: memoryview) -> None:
        if len(buffer) < _PAGE_BYTES:
            raise PermanentError(f"{len(buffer)} B are too few for a shard region")
        magic, version, self.slot_bytes = _REGION_HEADER.unpack_from(buffer)
        if magic != _MAGIC or version != _VERSION:
            raise PermanentError(f"not a shard region of version {_VERSION}: {magic!r}, {version}")
        if len(buffer) < region_bytes(self.slot_bytes):
            raise PermanentError(f"shard region of {region_bytes(self.slot_bytes)} B was cut short")
        self._buffer = buffer

    @property
    def memory(self) -> memoryview:
        """All of it; the same object each time."""
        return self._buffer

    def invalidate(self, slot: int) -> None:
        """Make a slot read as empty; to be called before its body is touched."""
        _COMMIT_WORD.pack_into(self._buffer, self._offset(slot), _NOT_COMMITTED)

    def body(self, slot: int) -> memoryview:
        """The slot's body, whether or not it is committed."""
        start = self.body_offset(slot)
        return self._buffer[start : start + self.slot_bytes]

    def body_offset(self, slot: int) -> int:
        """Where the slot's body begins in the memory."""
        return self._offset(slot) + _HEADER_BYTES

    def commit(self, slot: int, shard: Shard) -> None:
        """Declare the body written; to be called after its last byte.

        The commit word comes last, and is covered by the header's checksum: a header that was
        written in part reads as empty.

        Raises:
            ValueError: The body does not fit.
        """
        if shard.body_bytes > self.slot_bytes:
            raise ValueError(f"{shard.body_bytes} B in a slot of {self.slot_bytes} B")
        offset = self._offset(slot)
        sequence = 1 + max(self._sequence(other) for other in range(NUM_SLOTS))
        fields = _FIELDS.pack(
            sequence,
            shard.attempt,
            shard.step,
            shard.rank,
            shard.metadata_bytes,
            shard.payload_bytes,
            shard.job,
            shard.layout,
            shard.part_bytes,
            shard.part_whole,
            shard.checksum,
            shard.part_checksum,
        )
        word = _COMMIT_WORD.size
        header = fields + _CHECKSUM.pack(zlib.crc32(fields))
        self._buffer[offset : offset + word] = _COMMIT_WORD.pack(_NOT_COMMITTED)
        self._buffer[offset + word : offset + len(header)] = header[word:]
        self._buffer[offset : offset + word] = header[:word]

    def read_slot(self, slot: int) -> Shard | None:
        """What the slot holds, or None when nothing whole was committed to it.

        The body is not looked at: see `intact`.
        """
        # One copy first: the writer may invalidate the slot between two reads.
        header = bytes(self._header(slot))
        fields = header[: _FIELDS.size]
        (crc32,) = _CHECKSUM.unpack_from(header, _FIELDS.size)
        sequence, attempt, step, rank, metadata_bytes, payload_bytes, *rest = _FIELDS.unpack(fields)
        job, layout, part_bytes, part_whole, body_sum, part_sum = rest
        if sequence == _NOT_COMMITTED or crc32 != zlib.crc32(fields):
            return None
        shard = Shard(
            rank, step, attempt, metadata_bytes, payload_bytes, body_sum, job, layout,
            part_bytes, part_sum, part_whole,
        )  # fmt: skip
        return shard if shard.body_bytes <= self.slot_bytes else None

    def committed(self) -> list[tuple[int, Shard]]:
        """Slots that hold something, with what they hold, oldest step first."""
        found = [(slot, self.read_slot(slot)) for slot in range(NUM_SLOTS)]
        whole = [(slot, shard) for slot, shard in found if shard is not None]
        return sorted(whole, key=lambda pair: (pair[1].step, self._sequence(pair[0])))

    def newest(self) -> tuple[int, Shard] | None:
        """The slot of the highest step, with what it holds."""
        committed = self.committed()
        return committed[-1] if committed else None

    def find(self, step: int) -> tuple[int, Shard] | None:
        """The slot that holds this step, with what it holds."""
        matches = [pair for pair in self.committed() if pair[1].step == step]
        return matches[-1] if matches else None

    def intact(self, slot: int, checksum: Callable[[memoryview], int] = _slow_checksum) -> bool:
        """Whether the slot's body has the checksum that it was committed with.

        Args:
            slot: Which one.
            checksum: How to compute it, if not as `checksum`.
        """
        shard = self.read_slot(slot)
        if shard is None:
            return False
        return checksum(self.body(slot)[: shard.body_bytes]) == shard.checksum

    def slot_to_overwrite(self, keep_step: int | None) -> int:
        """The slot whose content is missed least: an empty one, else the oldest.

        Args:
            keep_step: Step whose slot is never chosen, or None when no step matters.
        """
        steps = {slot: shard.step for slot, shard in self.committed()}
        free = [slot for slot in range(NUM_SLOTS) if steps.get(slot, -1) != keep_step]
        # Both can hold the step to keep; one of them is enough.
        return min(free or range(NUM_SLOTS), key=lambda slot: steps.get(slot, -1))

    def discard_after(self, step: int) -> None:
        """Empty the slots of later steps: the job restarts from `step`."""
        for slot, shard in self.committed():
            if shard.step > step:
                self.invalidate(slot)

    def _offset(self, slot: int) -> int:
        if not 0 <= slot < NUM_SLOTS:
            raise ValueError(f"slot {slot} of {NUM_SLOTS}")
        return _PAGE_BYTES + slot * _slot_stride(self.slot_bytes)

    def _header(self, slot: int) -> memoryview:
        offset = self._offset(slot)
        return self._buffer[offset : offset + _HEADER_BYTES]

    def _sequence(self, slot: int) -> int:
        return int(_COMMIT_WORD.unpack_from(self._buffer, self._offset(slot))[0])


def format_region(buffer: memoryview, slot_bytes: int) -> Region:
    """Make fresh memory of at least `region_bytes(slot_bytes)` a region with empty slots."""
    _REGION_HEADER.pack_into(buffer, 0, _MAGIC, _VERSION, slot_bytes)
    region = Region(buffer)
    for slot in range(NUM_SLOTS):
        region.invalidate(slot)
    return region
