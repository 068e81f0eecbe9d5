"""What histories hold: small payloads as JSON, large ones compressed, and both are read."""

from __future__ import annotations

import hashlib
import zlib

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import CompositePayloadConverter

from everstep.core.orders import MachineReport, PrepareReport, ShardCopy
from everstep.workers.payloads import DATA_CONVERTER, ENCODING, FAST_ENCODING, LEGIBLE_BYTES
from everstep.workflows.batches import MachineReports


def reports(machines: int) -> MachineReports:
    return MachineReports(
        stop=tuple(
            MachineReport(
                f"m{at}", (), tuple(range(8)), tuple(ShardCopy(r, (41, 42), 1) for r in range(16))
            )
            for at in range(machines)
        )
    )


def far_apart() -> MachineReports:
    """What nobody can shrink, and the same once more, 64 kB later."""
    digests = [hashlib.sha256(str(at).encode()).hexdigest() for at in range(1000)]
    found = tuple(PrepareReport(f"m{at}", digest) for at, digest in enumerate([*digests, *digests]))
    return MachineReports(prepare=found)


async def test_small_ones_stay_legible() -> None:
    (payload,) = await DATA_CONVERTER.encode([reports(2)])
    assert payload.metadata["encoding"] == b"json/plain"
    assert b'"machine":"m1"' in payload.data


async def test_large_ones_come_back_from_a_tenth() -> None:
    given = reports(100)
    (plain,) = await pydantic_data_converter.encode([given])
    (payload,) = await DATA_CONVERTER.encode([given])
    assert len(plain.data) > LEGIBLE_BYTES
    assert payload.metadata["encoding"] == FAST_ENCODING
    assert len(payload.data) < len(plain.data) / 10
    assert await DATA_CONVERTER.decode([payload], [MachineReports]) == [given]


async def test_what_repeats_far_apart_is_given_more_time() -> None:
    given = far_apart()
    (plain,) = await pydantic_data_converter.encode([given])
    (payload,) = await DATA_CONVERTER.encode([given])
    assert payload.metadata["encoding"] == ENCODING
    assert len(payload.data) < 0.7 * len(zlib.compress(plain.data, 9))
    assert await DATA_CONVERTER.decode([payload], [MachineReports]) == [given]


def test_readers_of_types_are_made_once_a_process() -> None:
    """A converter is made for each workflow; pydantic takes 60 ms for what reads a batch."""
    one, other = (DATA_CONVERTER.payload_converter_class() for _ in range(2))
    encoding = "json/plain"
    assert isinstance(one, CompositePayloadConverter)
    assert isinstance(other, CompositePayloadConverter)
    assert one is not other
    assert one.converters[encoding.encode()] is other.converters[encoding.encode()]


async def test_what_was_written_before_is_read() -> None:
    given = reports(100)
    payloads = await pydantic_data_converter.encode([given])
    assert await DATA_CONVERTER.decode(payloads, [MachineReports]) == [given]


@pytest.mark.parametrize("cut", [1, 40])
@pytest.mark.parametrize("given", [reports(100), far_apart()], ids=["zlib", "xz"])
async def test_a_damaged_one_is_refused(given: MachineReports, cut: int) -> None:
    (payload,) = await DATA_CONVERTER.encode([given])
    damaged = Payload(metadata=payload.metadata, data=payload.data[:-cut])
    with pytest.raises(ValueError, match="cut short"):
        await DATA_CONVERTER.decode([damaged], [MachineReports])


@pytest.mark.parametrize("encoding", [ENCODING, FAST_ENCODING])
async def test_what_is_no_compressed_data_is_refused(encoding: bytes) -> None:
    broken = Payload(metadata={"encoding": encoding}, data=b"no such thing")
    with pytest.raises(ValueError, match="damaged"):
        await DATA_CONVERTER.decode([broken], [MachineReports])
