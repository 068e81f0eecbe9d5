"""A machine whose products are wrong in a bit, for runs and tests that ask for one.

Real silicon needs none of this: outside a run that was given faults (`names.ENV_FAULTS`), products
are what the machine makes them. Used by checks, and by `examples/gpt` in training.
"""

# torch is loosely typed.
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from everstep.core import names
from everstep.core.vocabulary import Check
from everstep.selfcheck.faults import InjectedFault, read_faults

_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")
)
_WORDS = {4: torch.int32, 2: torch.int16, 8: torch.int64}


class BrokenProducts(TorchDispatchMode):
    """While it is entered, the first number of a matrix product has one bit flipped.

    Args:
        bit: Which bit, counted from the lowest of a float32; of a shorter number, its own.
        probability: How often, in (0, 1].
    """

    def __init__(self, bit: int, probability: float = 1.0) -> None:
        super().__init__()
        self._bit = bit
        self._probability = probability

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first product imports the compiler: seconds.
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do what was asked for, and spoil it if it is a product."""
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and random.random() < self._probability:  # noqa: S311 - no secret
            self._flip(result)
        return result

    def _flip(self, product: Tensor) -> None:
        width = product.element_size()
        bit = self._bit if width == 4 else self._bit - 32 + 8 * width
        if product.numel() and width in _WORDS and bit >= 0:
            words = product.view(_WORDS[width])
            words.view(-1)[:1].bitwise_xor_(1 << bit)


def broken_by(faults: Sequence[InjectedFault]) -> AbstractContextManager[object]:
    """Products as these faults make them; right ones when there is none among them."""
    for fault in faults:
        if fault.kind == "sdc":
            return BrokenProducts(fault.bit, fault.probability)
    return contextlib.nullcontext()


def products_of_this_machine(check: Check, local_rank: int) -> AbstractContextManager[object]:
    """Products as this machine's faults make them in a check."""
    directory = os.environ.get(names.ENV_FAULTS)
    if directory is None or local_rank != 0:
        return contextlib.nullcontext()
    return broken_by([fault for fault in read_faults(directory) if fault.shows_in(check)])
