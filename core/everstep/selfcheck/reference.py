"""The reference model of the bitwise test: TP x PP x DP for dense jobs, EP x PP x DP for MoE."""

# torch is loosely typed.
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from everstep.core.checks import CUDA, reference_sizes
from everstep.selfcheck import weights

HEAD_WIDTH = 16
LAYERS = 2
SEQUENCES = 2
POSITIONS = 32
EXPERTS_A_RANK = 2


@dataclass(frozen=True)
class Axis:
    """One kind of parallelism as this rank sees it.

    Attributes:
        index: Its place in its group.
        ranks: The group's ranks.
        group: The group; None where this rank is alone.
    """

    index: int
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None

    @property
    def is_last(self) -> bool:
        """Whether this rank is the group's last."""
        return self.index == len(self.ranks) - 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over the group, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def swap(self, tensor: Tensor) -> Tensor:
        """Give part i along the first dimension to member i, and get one from each."""
        if self.group is None:
            return tensor.clone()
        received = torch.empty_like(tensor)
        dist.all_to_all_single(received, tensor.contiguous(), group=self.group)
        return received


class _Enter(torch.autograd.Function):
    """Into a tensor-parallel region: identity forward, sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.sum(grads[0].clone()), None


class _Leave(torch.autograd.Function):
    """Out of a tensor-parallel region: sum forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        return axis.sum(x.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Swap(torch.autograd.Function):
    """Tokens to their experts or back, and gradients the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return axis.swap(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.swap(grads[0]), None


class ReferenceModel:
    """This rank's part of the model.

    Args:
        kind: `dense` or `moe`.
        rank: This rank.
        num_ranks: Of how many.
        device: Where.
    """

    def __init__(self, kind: str, rank: int, num_ranks: int, device: torch.device) -> None:
        self._moe = kind == "moe"
        self._device = device
        # What a job of today computes in: bfloat16 on tensor cores.
        self._dtype = torch.bfloat16 if device.type == CUDA else torch.float32
        self._width = 1024 if device.type == CUDA else 64
        first, pp, dp = reference_sizes(num_ranks)
        self._split = _axis(rank, first, 1, "ep" if self._moe else "tp")
        self._pp = _axis(rank, pp, first, "pp")
        self._dp = _axis(rank, dp, first * pp, "dp")
        # Experts' tokens come from all of the axis; all else is the same on each of its ranks.
        self._tp = Axis(0, (rank,), None) if self._moe else self._split
        self._shared: list[Tensor] = []
        self._own: list[Tensor] = []
        share = LAYERS * self._pp.index, LAYERS * (self._pp.index + 1)
        self._layers = [self._make_layer(number) for number in range(*share)]

    def step(self) -> list[Tensor]:
        """One forward and backward pass: everything that a wrong bit would show in."""
        x = self._receive(self._input(), -1, first=self._pp.index == 0).requires_grad_()
        out = x
        for layer in self._layers:
            out = self._run(layer, out)
        if self._pp.is_last:
            target = self._fixed("target", 0, *out.shape)
            F.mse_loss(out.float(), target.float()).backward()
        else:
            self._send(out.detach(), +1)
            out.backward(self._receive(torch.empty_like(out), +1))
        grad = cast(Tensor, x.grad)
        if self._pp.index > 0:
            self._send(grad, -1)
        return [out, grad, *self._reduced()]

    def _reduced(self) -> list[Tensor]:
        """All gradients, summed over the ranks that have the same weights."""
        gradients = [self._dp.sum(_flat(self._own))]
        if self._shared:
            gradients.append(self._split.sum(self._dp.sum(_flat(self._shared))))
        return gradients

    def _make_layer(self, number: int) -> dict[str, Tensor]:
        width = self._width
        scale = 1 - int(math.log2(width)) // 2
        shapes: dict[str, tuple[tuple[int, ...], int | None]] = {
            "qkv": ((3, width, width), None if self._moe else 1),
            "out": ((width, width), None if self._moe else 1),
        }
        if self._moe:
            experts = EXPERTS_A_RANK * len(self._split.ranks)
            shapes |= {
                "router": ((experts, width), None),
                "up": ((experts, width, 2 * width), 0),
                "down": ((experts, 2 * width, width), 0),
            }
        else:
            shapes |= {"up": ((4 * width, width), 0), "down": ((width, 4 * width), 1)}
        layer: dict[str, Tensor] = {}
        for name, (shape, cut) in shapes.items():
            whole = self._fixed(f"{number}.{name}", scale, *shape)
            axis = self._split
            part = whole if cut is None else whole.chunk(len(axis.ranks), cut)[axis.index]
            layer[name] = part.contiguous().requires_grad_()
            kept = self._own if cut is not None else self._shared
            kept.append(layer[name])
        return layer

    def _run(self, layer: dict[str, Tensor], x: Tensor) -> Tensor:
        x = x + self._attention(layer, F.layer_norm(x, x.shape[-1:]))
        normed = F.layer_norm(x, x.shape[-1:])
        return x + (self._experts(layer, normed) if self._moe else self._mlp(layer, normed))

    def _attention(self, layer: dict[str, Tensor], x: Tensor) -> Tensor:
        x = cast(Tensor, _Enter.apply(x, self._tp))
        q, k, v = (
            F.linear(x, part).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)
            for part in layer["qkv"]
        )
        mixed = (q @ k.transpose(-1, -2) * HEAD_WIDTH**-0.5).softmax(-1) @ v
        out = F.linear(mixed.transpose(1, 2).flatten(2), layer["out"])
        return cast(Tensor, _Leave.apply(out, self._tp))

    def _mlp(self, layer: dict[str, Tensor], x: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(cast(Tensor, _Enter.apply(x, self._tp)), layer["up"]))
        return cast(Tensor, _Leave.apply(F.linear(hidden, layer["down"]), self._tp))

    def _experts(self, layer: dict[str, Tensor], x: Tensor) -> Tensor:
        """Each token to the expert that its router likes best; room for all at each of them."""
        tokens = x.flatten(0, 1)
        shares = F.linear(tokens, layer["router"]).softmax(-1)
        chosen = F.one_hot(shares.argmax(-1), shares.shape[-1]).to(shares.dtype)
        sent = chosen.T.unsqueeze(-1) * tokens
        members = len(self._split.ranks)
        by_member = sent.unflatten(0, (members, EXPERTS_A_RANK))
        received = cast(Tensor, _Swap.apply(by_member, self._split))
        mine = received.transpose(0, 1).flatten(1, 2)
        done = torch.bmm(F.gelu(torch.bmm(mine, layer["up"])), layer["down"])
        back = done.unflatten(1, (members, -1)).transpose(0, 1)
        returned = cast(Tensor, _Swap.apply(back, self._split)).flatten(0, 1)
        weighed = returned * (shares * chosen).T.unsqueeze(-1)
        return weighed.sum(0).view_as(x)

    def _input(self) -> Tensor:
        # Other tokens on every rank that has data of its own.
        place = self._dp.index * 64 + (self._split.index if self._moe else 0)
        return self._fixed(f"input {place}", 0, SEQUENCES, POSITIONS, self._width)

    def _fixed(self, name: str, exponent: int, *shape: int) -> Tensor:
        return weights.fractions(name, exponent, *shape).to(self._device, self._dtype)

    def _send(self, tensor: Tensor, offset: int) -> None:
        peer = self._pp.ranks[self._pp.index + offset]
        dist.send(tensor.contiguous(), dst=peer, group=self._pp.group)

    def _receive(self, buffer: Tensor, offset: int, first: bool = False) -> Tensor:
        if not first:
            dist.recv(buffer, src=self._pp.ranks[self._pp.index + offset], group=self._pp.group)
        return buffer


def _axis(rank: int, size: int, stride: int, name: str) -> Axis:
    index = rank // stride % size
    ranks = tuple(rank + (other - index) * stride for other in range(size))
    # Only members make a group.
    group = None if size == 1 else dist.new_group(list(ranks), None, None, None, True, name)
    return Axis(index, ranks, cast(dist.ProcessGroup | None, group))


def _flat(parameters: list[Tensor]) -> Tensor:
    return torch.cat([cast(Tensor, parameter.grad).flatten() for parameter in parameters])
