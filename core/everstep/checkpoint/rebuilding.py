"""From bytes back to a training state: what `tree` writes, read.

Nothing of what is stored is looked up in the script's modules, and nothing of it runs.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import torch

from everstep.checkpoint import dtensors
from everstep.checkpoint.tree import Node, typed
from everstep.core.errors import PermanentError
from everstep.core.parts import (
    Part,
    note_from_json,
)


def rebuild(metadata: bytes, payload: memoryview, parts: Sequence[memoryview] = ()) -> Any:
    """The state that was written, with fresh tensors on the CPU, DTensors on their mesh's devices.

    Named tuples come back as equal ones of a new class: nothing of the stored state is looked up
    in the script's modules.

    Args:
        metadata: The description.
        payload: The tensors.
        parts: What the ranks of the DP group keep for each other, by index, if this state holds
            only one part of it.

    Raises:
        PermanentError: The bytes do not describe a state, parts are missing, or a DTensor is in it
            and the process group is not there yet.
    """
    try:
        return _Rebuilder(payload, parts).begin(json.loads(metadata))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise PermanentError(f"unreadable state: {error!r}") from error


def rebuild_value(node: Node) -> Any:
    """The plain value that a node describes.

    Raises:
        PermanentError: It describes none.
    """
    return rebuild(json.dumps(node).encode(), memoryview(b""))


class _Rebuilder:
    def __init__(self, payload: memoryview, parts: Sequence[memoryview]) -> None:
        self._payload = payload
        self._parts = parts
        self._part = Part(0, (0, 0))
        self._tensors: dict[str, torch.Tensor] = {}

    def begin(self, root: Node) -> Any:
        if not isinstance(root, list) or root[:1] != ["part"]:
            return self.rebuild(root)
        parts: list[Node] = root  # pyright: ignore[reportUnknownVariableType] - of Any
        _, content, inner = parts
        note = note_from_json(content)
        self._part = note.part
        if not note.whole:
            self._parts = [self._payload[note.start :][: note.part.size_bytes]]
        sizes = [note.part.size_of(index) for index in range(note.part.num_parts)]
        if list(map(len, self._parts)) != sizes:
            raise PermanentError(f"parts of {list(map(len, self._parts))} B where {sizes} belong")
        return self.rebuild(inner)

    def rebuild(self, node: Node) -> Any:
        if isinstance(node, dict):
            raise ValueError("a node is a plain value or a list")
        if not isinstance(node, list):
            return node
        kind, *rest = cast("Sequence[Node]", node)
        match kind:
            case "int":
                return int(rest[0], 16)
            case "float":
                return float.fromhex(rest[0])
            case "complex":
                return complex(*map(float.fromhex, rest))
            case "bytes":
                return base64.b64decode(rest[0])
            case "tensor" | "replicated":
                return self._tensor(kind, *rest)
            case "dtensor":
                return dtensors.put_together(self.rebuild(rest[0]), rest[1])
            case _:
                return self._container(kind, rest)

    def _container(self, kind: Node, rest: Sequence[Node]) -> Any:
        match kind:
            case "dict":
                return {key: self.rebuild(item) for key, item in rest}
            case "ordered dict":
                return OrderedDict((key, self.rebuild(item)) for key, item in rest)
            case "counter":
                return Counter({key: self.rebuild(item) for key, item in rest})
            case "list":
                return [self.rebuild(item) for item in rest]
            case "tuple":
                return tuple(self.rebuild(item) for item in rest)
            case "named tuple":
                name, fields, *items = rest
                return _named_tuple(name, tuple(fields))(*map(self.rebuild, items))
            case _:
                raise ValueError(f"a node of kind {kind!r}")

    def _tensor(
        self,
        kind: str,
        dtype_name: str,
        shape: list[int],
        strides: list[int],
        offset: int,
        _row_bytes: int = 0,
    ) -> torch.Tensor:
        dtype = getattr(torch, dtype_name)
        key = f"{kind} {offset} {dtype} {shape} {strides}"
        tensor = self._tensors.get(key)
        if tensor is None:
            tensor = torch.empty_strided(shape, strides, dtype=dtype)
            place = (
                typed(self._payload, offset, dtype, shape)
                if kind == "tensor"
                else self._joined(offset, dtype, shape)
            )
            if place is not None:
                # One that was stored once for several names is one again.
                self._tensors[key] = tensor.copy_(place)
        return tensor

    def _joined(self, offset: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        """A tensor of the common payload, whose rows may lie in several parts."""
        pieces = self._part.pieces_of(offset, math.prod(shape) * dtype.itemsize)
        rows = [
            torch.frombuffer(self._parts[index][begin:end], dtype=dtype)
            for index, begin, end in pieces
        ]
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).view(shape)


@lru_cache(maxsize=1024)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    # Its fields are known only now, so not to a type checker.
    make: Any = namedtuple
    return make(name, fields)
