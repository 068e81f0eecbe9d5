"""How long this process is inside collectives: what it does outside of them is its own time.

A rank that is slow by a fault of its machine is the last one to come to each collective, so it
waits least there, and the steps of all ranks take equally long. Whatever makes it slow shows in the
time between its collectives: a low clock, a GPU that it waits for, a slow disk.

Counted are calls of torch.distributed that return when the collective is done, which those of gloo
do. With NCCL they return at once, and so nothing is touched or told there. What runs asynchronously
beside (`async_op=True`, the reducer of DDP, which is C++) is not counted: it then looks as if all
ranks computed all the time, and so nobody stands out; never somebody wrong.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "mpi")
"""Whose calls return when the collective is done."""

BLOCKING = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
"""Functions of `torch.distributed`; which of them there are depends on how torch was built."""


class WaitClock:
    """Adds up the time that the thread which makes it spends in collectives."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._depth = 0
        self._waited_s = 0.0
        self._closed = False
        self._originals: dict[str, Callable[..., Any]] = {}
        self._replaced: dict[str, Callable[..., Any]] = {}

    def waited_s(self) -> float | None:
        """Seconds so far, or None where calls do not wait; counting begins with the first call."""
        may_attach = not (self._originals or self._closed)
        if may_attach and dist.is_initialized() and dist.get_backend() in BACKENDS:
            self._attach()
        return self._waited_s if self._originals else None

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Count what happens inside as time that others need; one inside another counts once."""
        if threading.get_ident() != self._thread or self._depth:
            yield
            return
        began_s = time.monotonic()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._waited_s += time.monotonic() - began_s

    def _attach(self) -> None:
        """From now on, count calls of `torch.distributed`'s functions by that name.

        A script that imported a function itself goes on to call it uncounted.
        """
        for name in BLOCKING:
            original = getattr(dist, name, None)
            if original is not None:
                self._originals[name] = original
                self._replaced[name] = self._counted(original)
                setattr(dist, name, self._replaced[name])

    def close(self) -> None:
        """Put back what was replaced, unless somebody else has replaced it since."""
        for name, original in self._originals.items():
            if getattr(dist, name, None) is self._replaced[name]:
                setattr(dist, name, original)
        self._originals, self._replaced, self._closed = {}, {}, True

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            # The compiler knows collectives by the functions that they are.
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            with self.waiting():
                return function(*args, **kwargs)

        return counted
