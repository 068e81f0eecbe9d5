"""Reads a stored checkpoint back, every byte checked against its digest before anybody uses it."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import zipfile
from dataclasses import dataclass, replace
from typing import Any

import torch

from everstep.checkpoint.checksums import checksum
from everstep.core.errors import PermanentError
from everstep.core.leaves import Leaf, leaves_of, note_of
from everstep.core.parts import PartNote
from everstep.core.save_plan import Item
from everstep.core.shard import aligned, body_bytes
from everstep.storage.folder import Description, Located, digest_of

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
"""What torch raises for bytes that are not what it has written."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What was put into memory.

    Attributes:
        rank: Whose state it is.
        metadata_bytes: Size of its description.
        payload_bytes: Size of its tensors.
        checksum: Of the body; 0 if only the part was put there.
        part_bytes: Size of its part of what the DP group has in common.
        part_checksum: Of the part.
        part_whole: Fingerprint of what it is a part of; 0 when the state is whole.
    """

    rank: int
    metadata_bytes: int
    payload_bytes: int
    checksum: int
    part_bytes: int = 0
    part_checksum: int = 0
    part_whole: int = 0


class Retrieval:
    """Reads one checkpoint.

    Args:
        description: What it says of itself.
    """

    def __init__(self, description: Description) -> None:
        self._description = description
        self._layout = description.layout
        self._seen: dict[int, dict[int, dict[str, Any]]] = {}
        self._wrote: dict[int, dict[Item, Located]] = {}

    def fill(self, rank: int, fd: int) -> Filled:
        """Put a rank's state into memory as it was saved.

        Args:
            rank: Whose.
            fd: Memory without contents; gets the size that it needs.

        Raises:
            PermanentError: Something is damaged or missing.
        """
        seen = self._seen_of(rank)
        metadata = seen["metadata"].encode()
        payload_bytes = int(seen["payload_bytes"])
        size_bytes = body_bytes(len(metadata), payload_bytes)
        os.ftruncate(fd, size_bytes)
        body = memoryview(mmap.mmap(fd, size_bytes))
        body[: len(metadata)] = metadata
        payload = body[aligned(len(metadata)) :]
        leaves = leaves_of(seen["metadata"], rank)
        for leaf, digest in zip(leaves, seen["digests"], strict=True):
            if leaf.kind == "tensor" and leaf.numel > 0:
                self._load(leaf, digest, rank, payload)
        filled = Filled(rank, len(metadata), payload_bytes, checksum(body))
        note = note_of(seen["metadata"])
        return filled if note is None else _with_part(filled, note, payload[note.start :])

    def fill_part(self, rank: int, fd: int) -> Filled:
        """Put into memory what a rank keeps for its DP group, and nothing else of it.

        Args:
            rank: Whose.
            fd: Memory without contents; gets the size that it needs.

        Raises:
            PermanentError: Something is damaged or missing, or its state is whole.
        """
        seen = self._seen_of(rank)
        note = note_of(seen["metadata"])
        if note is None or not note.whole:
            raise PermanentError(f"rank {rank} keeps no part for others")
        size_bytes = note.part.size_bytes
        os.ftruncate(fd, size_bytes)
        body = memoryview(mmap.mmap(fd, size_bytes) if size_bytes else bytearray())
        for leaf, digest in zip(leaves_of(seen["metadata"], rank), seen["digests"], strict=True):
            if leaf.is_common and leaf.numel > 0:
                self._load(replace(leaf, offset=leaf.offset - note.start), digest, rank, body)
        filled = Filled(rank, len(seen["metadata"].encode()), int(seen["payload_bytes"]), 0)
        return _with_part(filled, note, body)

    def check(self, share: int, shares: int) -> None:
        """Read a share of everything that was written.

        Raises:
            PermanentError: Something is damaged or missing.
        """
        for slot in range(share, self._description.num_slots, shares):
            self._seen_by(slot)
            for (key, _), at in self._wrote_by(slot).items():
                data = self._read(at)
                # A plain value's digest is that of all of it.
                if digest_of(data) != at.digest:
                    _checked(_tensor(data, at, key), at.digest, at, key)

    def _load(self, leaf: Leaf, digest: str, rank: int, payload: memoryview) -> None:
        item = self._description.plan.item(leaf, rank, self._layout)
        writer = self._description.plan.writer.get(item)
        places = {} if writer is None else self._wrote_by(self._description.slot_of(writer))
        at = places.get(item)
        if at is None:
            raise PermanentError(f"{item[0]} of rank {rank} was not written")
        tensor = _tensor(self._read(at), at, item[0])
        if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{leaf.dtype}", leaf.shape):
            raise PermanentError(f"{at.file}: {item[0]} is {tensor.dtype} {tuple(tensor.shape)}")
        data = _checked(tensor, digest, at, item[0])
        payload[leaf.offset : leaf.offset + len(data)] = data

    def _read(self, at: Located) -> bytes:
        try:
            return self._description.checkpoint.read_range(at)
        except OSError as error:
            raise PermanentError(f"{at.file} cannot be read: {error}") from error

    def _seen_of(self, rank: int) -> dict[str, Any]:
        of_slot = self._seen_by(self._description.slot_of(rank))
        if rank not in of_slot:
            raise PermanentError(f"rank {rank} is not in the checkpoint")
        return of_slot[rank]

    def _seen_by(self, slot: int) -> dict[int, dict[str, Any]]:
        if slot not in self._seen:
            self._seen[slot] = _described(lambda: self._description.seen(slot))
        return self._seen[slot]

    def _wrote_by(self, slot: int) -> dict[Item, Located]:
        if slot not in self._wrote:
            self._wrote[slot] = _described(lambda: self._description.wrote(slot))
        return self._wrote[slot]


def _with_part(filled: Filled, note: PartNote, part: memoryview) -> Filled:
    if not note.whole:
        return filled
    return replace(
        filled,
        part_bytes=note.part.size_bytes,
        part_checksum=checksum(part),
        part_whole=note.whole,
    )


def _described(read: Any) -> Any:
    try:
        return read()
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise PermanentError(f"its description cannot be read: {error!r}") from error


def _tensor(data: bytes, at: Located, key: str) -> torch.Tensor:
    try:
        # Makes tensors and nothing else.
        loaded: Any = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except _UNREADABLE as error:
        raise PermanentError(f"{at.file}: {key} is damaged: {error}") from error
    if not isinstance(loaded, torch.Tensor):
        raise PermanentError(f"{at.file}: {key} is no tensor")
    return loaded


def _checked(tensor: torch.Tensor, digest: str, at: Located, key: str) -> memoryview:
    """The tensor's bytes."""
    tensor = tensor.contiguous()
    data = memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
    found = bytes(data) if tensor.nbytes else b""
    if digest_of(found) != digest:
        raise PermanentError(f"{at.file}: {key} is damaged: its digest is another")
    return memoryview(found)
