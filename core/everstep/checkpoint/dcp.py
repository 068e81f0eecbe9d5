"""torch.distributed.checkpoint's format: what our items are called in it.

The files are written and read by torch's own classes. Its `.metadata` is a pickle; it is written
for readers without Everstep, and never read by us: the same is made from our JSON.
"""

# torch.distributed.checkpoint is loosely typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportMissingTypeStubs=false
from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    SavePlan as WritePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from everstep.core.leaves import Leaf, Path
from everstep.core.save_plan import Item
from everstep.storage.folder import Located


@dataclass(frozen=True, slots=True)
class Content:
    """What an item is.

    Attributes:
        item: Its key, and offsets of a part of a sharded tensor.
        path: Where it stands in a nested state of all ranks.
        dtype: Of a tensor; empty for a plain value.
        shape: Of the tensor, or of the part.
        whole: Shape of the whole tensor.
    """

    item: Item
    path: Path
    dtype: str
    shape: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def index(self) -> Any:
        """What torch calls it."""
        key, offsets = self.item
        if not self.dtype:
            return MetadataIndex(key)
        return MetadataIndex(key, torch.Size(offsets or (0,) * len(self.shape)))


def content_of(item: Item, leaf: Leaf) -> Content:
    """What a leaf that is stored as `item` is."""
    key, offsets = item
    cell = key.removesuffix(leaf.name).rstrip(".")
    path: Path = leaf.path if leaf.name == ".".join(map(str, leaf.path)) else (leaf.name,)
    # Joined by dots it is the key again: readers count on that.
    path = (cell, *path) if cell else path
    whole = leaf.piece.whole if offsets is not None and leaf.piece is not None else leaf.shape
    return Content(item, path, leaf.dtype, leaf.shape, whole)


class Writer:
    """Writes one machine's items to a checkpoint, as torch would.

    Args:
        url: The checkpoint's folder.
        slot: The machine's.
        local: Whether the folder is on a filesystem of this host, so that files can be synced.
    """

    def __init__(self, url: str, slot: int, local: bool) -> None:
        self._slot = slot
        # What torch does to sync elsewhere is to sync the whole host.
        self._writer: Any = FsspecWriter(url, sync_files=local, overwrite=True)
        self._writer.set_up_storage_writer(slot == 0)

    def write(self, values: Mapping[Item, tuple[Content, Any, str]]) -> dict[Item, Located]:
        """Write tensors, and plain values as bytes, each with its digest, to one file.

        Raises:
            OSError: It cannot be written.
        """
        plan = WritePlan([_write_item(content, value) for content, value, _ in values.values()])
        by_index = {content.index: item for item, (content, _, _) in values.items()}
        plans = [WritePlan([])] * self._slot + [plan]
        plan = self._writer.prepare_global_plan(plans)[self._slot]
        planner = _Planner({content.index: value for content, value, _ in values.values()})
        found: dict[Item, Located] = {}
        for result in self._writer.write_data(plan, planner).wait():
            item, place = by_index[result.index], result.storage_data
            found[item] = Located(place.relative_path, place.offset, place.length, values[item][2])
        return found

    def finish(self, contents: Iterable[Content], located: Mapping[Item, Located]) -> None:
        """Write `.metadata`, which makes it a checkpoint.

        Raises:
            OSError: It cannot be written.
        """
        metadata = metadata_of(contents, located)
        metadata.storage_data = None
        self._writer.finish(metadata, [_results(contents, located)])


@dataclass(frozen=True, slots=True)
class _Result:
    index: Any
    storage_data: Any


def _results(contents: Iterable[Content], located: Mapping[Item, Located]) -> list[_Result]:
    return [
        _Result(content.index, _StorageInfo(at.file, at.offset, at.length))
        for content in contents
        if (at := located.get(content.item)) is not None
    ]


def metadata_of(contents: Iterable[Content], located: Mapping[Item, Located]) -> Any:
    """What `.metadata` holds."""
    contents = list(contents)
    described: dict[str, Any] = {}
    for content in contents:
        key, offsets = content.item
        if not content.dtype:
            described[key] = BytesStorageMetadata()
            continue
        chunk = ChunkStorageMetadata(
            torch.Size(offsets or (0,) * len(content.shape)), torch.Size(content.shape)
        )
        known = described.get(key)
        if known is None:
            described[key] = TensorStorageMetadata(
                _properties(content.dtype), torch.Size(content.whole), [chunk]
            )
        else:
            known.chunks.append(chunk)
    metadata: Any = Metadata(described)
    metadata.planner_data = {content.item[0]: content.path for content in contents}
    metadata.storage_data = {r.index: r.storage_data for r in _results(contents, located)}
    return metadata


class Reader(FsspecReader):
    """torch's reader, without unpickling `.metadata`.

    Args:
        url: The checkpoint's folder.
        metadata: What `metadata_of` makes.
    """

    def __init__(self, url: str, metadata: Any) -> None:
        super().__init__(url)
        self._metadata = metadata

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Any:
        """What it was given."""
        return self._metadata


def dtype_of(name: str) -> torch.dtype:
    """The type that a tree calls by its name."""
    return cast("torch.dtype", getattr(torch, name))


def _properties(dtype: str) -> Any:
    return TensorProperties(dtype=dtype_of(dtype))


def _write_item(content: Content, value: Any) -> Any:
    if not content.dtype:
        size = BytesIOWriteData(len(value))
        return WriteItem(content.index, WriteItemType.BYTE_IO, bytes_io_data=size)
    key_offsets: Sequence[int] = content.item[1] or (0,) * len(content.shape)
    chunk = ChunkStorageMetadata(torch.Size(key_offsets), torch.Size(content.shape))
    data = TensorWriteData(chunk, _properties(content.dtype), torch.Size(content.whole))
    kind = WriteItemType.TENSOR if content.item[1] is None else WriteItemType.SHARD
    return WriteItem(content.index, kind, tensor_data=data)


class _Planner(DefaultSavePlanner):
    """Hands out what was planned here, and plans nothing itself."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        super().__init__()
        self._values = values

    def resolve_data(self, write_item: Any) -> Any:
        value = self._values[write_item.index]
        return io.BytesIO(value) if isinstance(value, bytes) else value
