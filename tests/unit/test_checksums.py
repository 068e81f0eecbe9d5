"""The ranks' fast checksum is the one that is defined for shards."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from everstep.checkpoint import checksums
from everstep.core.shard import BLOCK_BYTES, checksum


@given(st.binary(max_size=100), st.integers(0, 3), st.integers(-9, 9))
def test_it_is_equal_for_any_body(data: bytes, num_blocks: int, more: int) -> None:
    size = max(0, num_blocks * BLOCK_BYTES + more)
    body = bytearray((data * (size // max(1, len(data)) + 1))[:size])
    assert checksums.checksum(memoryview(body)) == checksum(memoryview(body))


@pytest.mark.parametrize("size", [0, 7, 8, 4095, 4096, 4097, 1_000_003])
def test_sums_that_overflow_are_equal(size: int) -> None:
    for body in (bytearray(b"\xff" * size), bytearray(random.Random(size).randbytes(size))):  # noqa: S311
        assert checksums.checksum(memoryview(body)) == checksum(memoryview(body))
