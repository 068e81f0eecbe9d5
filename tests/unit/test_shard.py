"""The layout of shared memory: what was begun and not committed is never read."""

from __future__ import annotations

import random

import pytest

from everstep.core.errors import PermanentError
from everstep.core.shard import (
    BLOCK_BYTES,
    NUM_SLOTS,
    Origin,
    Region,
    Shard,
    checksum,
    format_region,
    region_bytes,
)

SLOT_BYTES = 1000


@pytest.fixture
def memory() -> bytearray:
    return bytearray(region_bytes(SLOT_BYTES))


@pytest.fixture
def region(memory: bytearray) -> Region:
    return format_region(memoryview(memory), SLOT_BYTES)


def write(region: Region, slot: int, step: int, attempt: int = 1) -> Shard:
    shard_bytes = 64 + 200
    body = region.body(slot)
    body[:shard_bytes] = bytes([step % 256]) * shard_bytes
    shard = Shard(7, step, attempt, 50, 200, checksum(body[:shard_bytes]), 1, 2)
    region.commit(slot, shard)
    return shard


def test_a_fresh_region_is_empty(region: Region) -> None:
    assert region.newest() is None
    assert region.committed() == []
    assert not region.intact(0)


def test_a_committed_slot_is_read_by_another_view_of_the_memory(
    memory: bytearray, region: Region
) -> None:
    shard = write(region, 1, step=5)
    other = Region(memoryview(memory))
    assert other.newest() == (1, shard)
    assert other.find(5) == (1, shard)
    assert other.find(4) is None
    assert other.intact(1)


def test_the_slots_do_not_touch_each_other(region: Region) -> None:
    for slot in range(NUM_SLOTS):
        region.body(slot)[:] = bytes([slot + 1]) * SLOT_BYTES
        size = SLOT_BYTES - 64
        total = checksum(region.body(slot)[: size + 64])
        region.commit(slot, Shard(0, slot, 1, 1, size, total, 1, 2))
    assert all(region.intact(slot) for slot in range(NUM_SLOTS))


def test_an_invalidated_slot_reads_as_empty_and_the_other_stays(region: Region) -> None:
    older = write(region, 0, step=1)
    write(region, 1, step=2)
    region.invalidate(1)
    assert region.read_slot(1) is None
    assert region.newest() == (0, older)


def test_a_damaged_header_reads_as_empty(memory: bytearray, region: Region) -> None:
    before = bytes(memory)
    write(region, 0, step=3)
    header = [at for at in range(4096, 4096 + 128) if memory[at] != before[at]]
    assert len(header) > 8
    for at in header:
        memory[at] ^= 0x10
        assert region.read_slot(0) is None, f"byte {at}"
        memory[at] ^= 0x10
    assert region.read_slot(0) is not None


def test_a_header_written_in_part_reads_as_empty(memory: bytearray, region: Region) -> None:
    write(region, 0, step=3)
    old = bytes(memory[4096 : 4096 + 128])
    region.invalidate(0)
    write(region, 0, step=4)
    new = bytes(memory[4096 : 4096 + 128])
    for cut in range(1, 72):
        mixed = new[:cut] + old[cut:]
        memory[4096 : 4096 + 128] = mixed
        if mixed not in (old, new):
            assert region.read_slot(0) is None, f"cut after byte {cut}"


def test_a_flipped_bit_in_the_body_is_noticed(region: Region) -> None:
    write(region, 0, step=3)
    region.body(0)[100] ^= 1
    assert region.read_slot(0) is not None
    assert not region.intact(0)


def test_any_changed_byte_and_any_moved_block_changes_the_checksum() -> None:
    body = bytearray(random.Random(1).randbytes(2 * BLOCK_BYTES + 100 + 5))  # noqa: S311
    whole = checksum(memoryview(body))
    for at in [*range(0, len(body), 97), *range(len(body) - 10, len(body))]:
        body[at] ^= 1 << at % 8
        assert checksum(memoryview(body)) != whole, f"byte {at}"
        body[at] ^= 1 << at % 8
    first, second, rest = body[:BLOCK_BYTES], body[BLOCK_BYTES : 2 * BLOCK_BYTES], body[-105:]
    assert checksum(memoryview(second + first + rest)) != whole
    assert checksum(memoryview(first + first + rest)) != whole
    assert checksum(memoryview(first + second)) != whole
    assert checksum(memoryview(first + second + rest)) == whole


def test_the_slot_to_overwrite_is_empty_or_the_oldest_and_never_the_one_to_keep(
    region: Region,
) -> None:
    assert region.slot_to_overwrite(None) == 0
    write(region, 0, step=8)
    assert region.slot_to_overwrite(8) == 1
    write(region, 1, step=9)
    assert region.slot_to_overwrite(9) == 0
    assert region.slot_to_overwrite(8) == 1
    assert region.slot_to_overwrite(None) == 0


def test_a_shard_of_another_job_or_layout_is_told_apart() -> None:
    ours = Origin("a", "tp=2")
    shard = Shard(3, 7, 1, 1, 1, 0, ours.job_print, ours.layout_print)
    ours.check(shard)
    with pytest.raises(PermanentError, match="rank 3's step 7 was saved by another job than 'b'"):
        Origin("b", "tp=2").check(shard)
    with pytest.raises(PermanentError, match="saved in another layout than 'tp=4'"):
        Origin("a", "tp=4").check(shard)


def test_later_steps_are_discarded(region: Region) -> None:
    write(region, 0, step=8)
    write(region, 1, step=9)
    region.discard_after(8)
    assert [shard.step for _, shard in region.committed()] == [8]
    region.discard_after(0)
    assert region.newest() is None


def test_a_body_that_does_not_fit_is_refused(region: Region) -> None:
    with pytest.raises(ValueError, match="in a slot of 1000 B"):
        region.commit(0, Shard(0, 1, 1, 1, SLOT_BYTES, 0, 1, 2))
    with pytest.raises(ValueError, match="slot 2"):
        region.body(2)


def test_memory_that_is_no_region_is_refused(memory: bytearray, region: Region) -> None:
    with pytest.raises(PermanentError, match="too few"):
        Region(memoryview(bytearray(10)))
    with pytest.raises(PermanentError, match="not a shard region"):
        Region(memoryview(bytearray(len(memory))))
    with pytest.raises(PermanentError, match="cut short"):
        Region(memoryview(memory)[:-1])
