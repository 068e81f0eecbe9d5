"""A training state as bytes: JSON that describes the tree, and the tensors' raw bytes.

Nothing is pickled: neither the copy from another machine's memory nor a leftover of an older code
version can run anything. A node of the JSON is a plain value, or a list whose first item says what
the rest is.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from everstep.checkpoint import dtensors
from everstep.core.errors import PermanentError
from everstep.core.faultpoint import reached
from everstep.core.leaves import is_equal_on
from everstep.core.parts import (
    NOTHING_REPLICATED,
    Part,
    PartNote,
    Replicated,
    Span,
    cut,
)
from everstep.core.shard import aligned, fingerprint

Node = Any
"""A node of the JSON description."""

_SMALL_BYTES = 64 * 1024
_JSON_INT_BITS = 64

_SUB_BYTE_DTYPES = frozenset(
    f"torch.{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)
)
"""torch names them, and copies none of them."""


class FlatTree:
    """A state, measured and described, ready to be written.

    Large tensors are not copied: they must not change until `write` returns. Small ones are, at
    once: what changes outside of the optimizer is small (running statistics, counters, metrics).

    Args:
        state: Nested dicts (keys str or int), lists, tuples and named tuples of tensors on any
            device, DTensors among them, and of int, float, complex, str, bool, bytes and None.
            A tensor that is in it several times is stored once. Ordered dicts and counters come
            back as such, other mappings as dicts, and subclasses of the rest as what they extend.
        replicated: What of it is equal on all ranks of the DP group. With something in it that is,
            one of `take_part` and `take_whole` has to be called before anything else is done.
        rank: Whose state it is.

    Raises:
        TypeError: Something else is in it; the text names its path.
    """

    def __init__(
        self, state: Mapping[Any, Any], replicated: Replicated = NOTHING_REPLICATED, rank: int = 0
    ) -> None:
        self._tensors: list[_Placed] = []
        # With the tensor itself: the address of one that is gone may be another's.
        self._nodes: dict[object, tuple[Node, torch.Tensor]] = {}
        self._rank = rank
        self._replicated = replicated
        self._prefixes = tuple(map(_path_of, replicated.names)) if replicated.shared else ()
        self._common: list[_Placed] = []
        self._common_nodes: list[Node] = []
        self._common_bytes = 0
        self.part: PartNote | None = None
        self.payload_bytes = 0
        self.metadata: bytes = json.dumps(self._describe(state, "state")).encode()
        self._nodes.clear()
        self._own = self.payload_bytes, self.metadata, len(self._tensors)

    @property
    def cuda_devices(self) -> tuple[torch.device, ...]:
        """The GPUs on which tensors lie, by index."""
        placed = itertools.chain(self._tensors, self._common)
        devices = {one.tensor.device for one in placed if one.tensor.is_cuda}
        return tuple(sorted(devices, key=lambda device: device.index))

    @property
    def common(self) -> list[torch.Tensor]:
        """The tensors that are equal on all ranks of the DP group."""
        return [placed.tensor for placed in self._common]

    @property
    def composition(self) -> int:
        """Fingerprint of what these tensors are; 0 when there are none."""
        return fingerprint(json.dumps(self._common_nodes)) if self._common else 0

    @property
    def part_bytes(self) -> int:
        """Size of this rank's part of them, at the end of the payload; 0 when it holds them all."""
        return self.part.part.size_bytes if self.part is not None and self.part.whole else 0

    def copy_small(self) -> None:
        """Copy the small ones of the common tensors, and of what was taken of them.

        Until something is taken, this is for both.
        """
        count = self._own[2]
        self._tensors[count:] = [placed.kept() for placed in self._tensors[count:]]
        if self.part is None:
            self._common = [placed.kept() for placed in self._common]

    def take_part(self) -> None:
        """Be what this rank keeps for its DP group, beside what is its own."""
        size, rank = self._replicated.group_size, self._rank
        bounds = cut([placed.span for placed in self._common], size)
        whole = fingerprint(json.dumps([bounds, self.composition]))
        self._take(Part(self._replicated.index_of(rank), bounds), whole)

    def take_whole(self) -> None:
        """Be the whole state of this rank."""
        self._take(Part(0, (0, self._common_bytes)), 0)

    def _take(self, part: Part, whole: int) -> None:
        own_bytes, metadata, count = self._own
        start = aligned(own_bytes)
        self.part = PartNote(part, start, whole)
        self.payload_bytes = start + part.size_bytes
        note = json.dumps(self.part.to_json()).encode()
        self.metadata = b'["part", ' + note + b", " + metadata + b"]"
        del self._tensors[count:]
        for placed in self._common:
            first, last = part.rows_of(placed.span)
            if first < last:
                offset = start + placed.span.offset + first * placed.span.row_bytes - part.begin
                rows = placed.tensor[first:last]
                self._tensors.append(_Placed(offset, rows, placed.version, placed.path))

    def write(self, payload: memoryview) -> None:
        """Copy all tensors to their places in memory of at least `payload_bytes`.

        Copies from GPUs are only begun, on their current streams.
        """
        for placed in self._tensors:
            tensor = placed.tensor
            place = typed(payload, placed.offset, tensor.dtype, tensor.shape)
            if place is not None:
                place.copy_(tensor, non_blocking=True)
                reached("mid_copy")

    def check_unchanged(self) -> None:
        """Make sure that nobody has written to a tensor since the state was taken.

        Raises:
            PermanentError: Somebody has: what was copied may be a mixture.
        """
        for placed in self._tensors:
            if placed.version != _version(placed.tensor):
                raise PermanentError(
                    f"{placed.path} was changed while it was copied: only after"
                    " wait_before_update() may the saved tensors be changed"
                )

    def _describe(self, value: object, path: str) -> Node:
        match value:
            case torch.Tensor():
                return self._place(value, path)
            case Mapping():
                return self._describe_mapping(cast("Mapping[object, object]", value), path)
            case list():
                return ["list", *self._describe_items(cast("list[object]", value), path)]
            case tuple():
                items = cast("tuple[object, ...]", value)
                fields: Sequence[str] | None = getattr(items, "_fields", None)
                kind: list[Node] = ["tuple"]
                if fields is not None:
                    kind = ["named tuple", type(items).__name__, list(fields)]
                return [*kind, *self._describe_items(items, path)]
            case _:
                return _describe_scalar(value, path)

    def _describe_items(self, items: Iterable[object], path: str) -> list[Node]:
        return [self._describe(item, f"{path}[{i}]") for i, item in enumerate(items)]

    def _describe_mapping(self, value: Mapping[object, object], path: str) -> Node:
        match value:
            case OrderedDict():
                node: list[Node] = ["ordered dict"]
            case Counter():
                node = ["counter"]
            case _:
                node = ["dict"]
        for key, item in value.items():
            if type(key) not in (str, int):
                raise _unsupported(key, f"{path}: key {key!r}", "keys are str or int")
            node.append([key, self._describe(item, f"{path}[{key!r}]")])
        return node

    def _place(self, tensor: torch.Tensor, path: str) -> Node:
        common = bool(self._prefixes) and path.startswith(self._prefixes)
        if not dtensors.is_dtensor(tensor):
            return self._place_dense(tensor, path, common)
        local, description = dtensors.take_apart(tensor)
        if common:
            group = self._replicated.group_of(self._rank)
            common = is_equal_on(description, self._rank, group)
        return ["dtensor", self._place_dense(local, path, common), description]

    def _place_dense(self, tensor: torch.Tensor, path: str, common: bool) -> Node:
        if (objection := _objection(tensor)) is not None:
            raise _unsupported(tensor, path, objection)
        # A clone of a view is dense, and so is its place.
        tensor = tensor.detach()
        known = _identity(tensor)
        if known in self._nodes:
            return self._nodes[known][0]
        whole = tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        parts = [dtype, list(tensor.shape), _dense_strides(tensor)]
        if common and tensor.numel() > 0:
            node = self._place_common(tensor, path, parts)
        else:
            offset = aligned(self.payload_bytes)
            self.payload_bytes = offset + tensor.nbytes
            node = ["tensor", *parts, offset]
            self._tensors.append(_Placed(offset, tensor, _version(tensor), path).kept())
        if tensor.numel() > 0:
            self._nodes[known] = node, whole
        return node

    def _place_common(self, tensor: torch.Tensor, path: str, parts: list[Node]) -> Node:
        offset = aligned(self._common_bytes)
        self._common_bytes = offset + tensor.nbytes
        # A scalar is one row.
        rows = tensor if tensor.dim() else tensor.unsqueeze(0)
        node = ["replicated", *parts, offset, tensor.nbytes // len(rows)]
        self._common.append(_Placed(offset, rows, _version(tensor), path))
        self._common_nodes.append(node)
        return node


@dataclass(frozen=True, slots=True)
class _Placed:
    offset: int
    tensor: torch.Tensor
    version: int
    path: str

    @property
    def span(self) -> Span:
        """Its rows; only of one that has some."""
        rows = len(self.tensor)
        return Span(self.offset, rows, self.tensor.nbytes // rows)

    def kept(self) -> _Placed:
        """The same, or a copy if that is small."""
        if self.tensor.nbytes > _SMALL_BYTES:
            return self
        tensor = self.tensor.clone()
        return _Placed(self.offset, tensor, _version(tensor), self.path)


def _objection(tensor: torch.Tensor) -> str | None:
    """Why the tensor is not just the bytes that it shows, and what to give instead."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return "give the plain tensors that it is made of"
    # Asked first: one of them raises when it is asked for more.
    if tensor.is_nested:
        return "it is nested: give its parts, as unbind() has them"
    if tensor.layout != torch.strided:
        return f"it is {tensor.layout}: give to_dense() of it, or its indices and values"
    if tensor.is_quantized:
        return "it is quantized: give int_repr() of it, and its scale and zero point"
    if tensor.is_meta:
        return "it is on the meta device, without data: give it some first"
    if str(tensor.dtype) in _SUB_BYTE_DTYPES:
        return f"it is {tensor.dtype}, which torch cannot copy: give view(torch.uint8) of it"
    return None


def _identity(tensor: torch.Tensor) -> object:
    """What is equal for tensors that show the same memory in the same way."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), tensor.dtype, shape, strides, bits


def _version(tensor: torch.Tensor) -> int:
    # Inference tensors have none.
    return 0 if tensor.is_inference() else tensor._version  # pyright: ignore[reportPrivateUsage]


def _dense_strides(tensor: torch.Tensor) -> list[int]:
    """The strides of a copy: those of dense tensors are kept (channels_last), of views not."""
    if tensor.is_contiguous():
        return list(tensor.stride())
    return list(torch.empty_like(tensor, device="meta").stride())


def _describe_scalar(value: object, path: str) -> Node:
    match value:
        case None | bool() | str():
            return value
        case int():
            # Python limits the digits of decimal numbers.
            return int(value) if value.bit_length() <= _JSON_INT_BITS else ["int", hex(value)]
        case float():
            return ["float", float(value).hex()]
        case complex():
            return ["complex", value.real.hex(), value.imag.hex()]
        case bytes():
            return ["bytes", base64.b64encode(value).decode()]
        case _:
            advice = "use tensors, numbers, str, bool, bytes or None"
            instead = "torch.from_numpy() of an array, get_state() of a generator"
            raise _unsupported(value, path, f"{advice} ({instead})")


def typed(
    payload: memoryview, offset: int, dtype: torch.dtype, shape: Iterable[int]
) -> torch.Tensor | None:
    """The place of a tensor in the payload as a tensor; None when it has no elements."""
    shape = tuple(shape)
    count = torch.Size(shape).numel()
    if count == 0:
        return None
    return torch.frombuffer(payload, dtype=dtype, count=count, offset=offset).view(shape)


def _path_of(name: str) -> str:
    """Where a part of the state stands, as paths are written here: `a.b` is state['a']['b']."""
    return "state" + "".join(f"[{key!r}]" for key in name.split("."))


def _unsupported(value: object, path: str, advice: str) -> TypeError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return TypeError(f"{path}: cannot checkpoint a {kind}; {advice}")
