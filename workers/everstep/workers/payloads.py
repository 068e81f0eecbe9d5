"""How what workflows and activities send each other is written into histories.

As JSON by pydantic. What is large is compressed: reports and orders of thousands of ranks are alike
but for their numbers, and shrink to a tenth or less, far below what Temporal takes in one message
(2 MiB) and in one history. What is small stays legible in Temporal's web UI.

xz, since what repeats may lie a hundred kilobytes apart: of the loans of 100 machines in DP groups
of 150, 1.5 MB, zlib leaves 390 kB, and xz 17 kB in the same 20 ms.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import replace

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import (
    PydanticJSONPlainPayloadConverter,
    pydantic_data_converter,
)
from temporalio.converter import (
    CompositePayloadConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadCodec,
)

ENCODING = b"binary/everstep-xz"
"""Wire format: histories are read for as long as they are kept."""

LEGIBLE_BYTES = 16 << 10
"""Up to here nothing is compressed: an order, a report or a record of a job of tens of machines."""

MOST_BYTES = 256 << 20
"""Nothing of ours is near; whatever claims to be is not unpacked."""

_PRESET = 1
"""Looks back for a megabyte; higher ones take ten times as long for a tenth less."""


class LargeOnes(PayloadCodec):
    """Compresses large payloads; reads both kinds, so that it can be put to use at any time."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Each payload as it is stored."""
        return [_packed(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Each payload as it was.

        Raises:
            ValueError: One is damaged, or larger than any of ours.
        """
        return [_unpacked(payload) for payload in payloads]


def _packed(payload: Payload) -> Payload:
    if len(payload.data) <= LEGIBLE_BYTES:
        return payload
    data = lzma.compress(payload.SerializeToString(), preset=_PRESET)
    return Payload(metadata={"encoding": ENCODING}, data=data)


def _unpacked(payload: Payload) -> Payload:
    if payload.metadata.get("encoding") != ENCODING:
        return payload
    unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        data = unpacking.decompress(payload.data, MOST_BYTES)
    except lzma.LZMAError as error:
        raise ValueError(f"a payload is damaged: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"a payload is cut short, or larger than {MOST_BYTES} bytes")
    return Payload.FromString(data)


_JSON = PydanticJSONPlainPayloadConverter(max_cached_type_adapters=128)


class Json(CompositePayloadConverter):
    """pydantic's converter, with readers of types that are made once a process.

    A workflow's instance has a converter of its own. Readers of its types, made anew for each, take
    longer than all else in a workflow that orders a batch.
    """

    def __init__(self) -> None:
        super().__init__(
            *(
                _JSON if isinstance(usual, JSONPlainPayloadConverter) else usual
                for usual in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )


DATA_CONVERTER = replace(
    pydantic_data_converter, payload_converter_class=Json, payload_codec=LargeOnes()
)
"""What every client, worker and replay of ours uses."""
