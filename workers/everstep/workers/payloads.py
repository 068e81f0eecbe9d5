"""How what workflows and activities send each other is written into histories.

As JSON by pydantic. What is large is compressed: reports and orders of thousands of ranks are alike
but for their numbers, and shrink to a tenth or less, far below what Temporal takes in one message
(2 MiB) and in one history. What is small stays legible in Temporal's web UI.

By zlib at its fastest, which takes a fifth of xz's time, where it leaves little; else by xz, since
what repeats may lie a hundred kilobytes apart: of the loans of 100 machines in DP groups of 150,
1.5 MB, zlib leaves 390 kB, and xz 17 kB in 20 ms.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

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

FAST_ENCODING = b"binary/everstep-zlib"
"""Likewise."""

LEGIBLE_BYTES = 16 << 10
"""Up to here nothing is compressed: an order, a report or a record of a job of tens of machines."""

LITTLE_BYTES = 32 << 10
"""What zlib may leave: the assignment of 1,200 machines becomes 4 kB, orders to 600 10 kB."""

MOST_BYTES = 256 << 20
"""Nothing of ours is near; whatever claims to be is not unpacked."""

_FASTEST = 1

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
    plain = payload.SerializeToString()
    data = zlib.compress(plain, _FASTEST)
    if len(data) <= LITTLE_BYTES:
        return Payload(metadata={"encoding": FAST_ENCODING}, data=data)
    return Payload(metadata={"encoding": ENCODING}, data=lzma.compress(plain, preset=_PRESET))


def _unpacked(payload: Payload) -> Payload:
    encoding = payload.metadata.get("encoding")
    if encoding == FAST_ENCODING:
        unpacking: _Unpacking = zlib.decompressobj()
    elif encoding == ENCODING:
        unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    else:
        return payload
    try:
        data = unpacking.decompress(payload.data, MOST_BYTES)
    except (lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"a payload is damaged: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"a payload is cut short, or larger than {MOST_BYTES} bytes")
    return Payload.FromString(data)


class _Unpacking(Protocol):
    """What `zlib` and `lzma` unpack with."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


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
