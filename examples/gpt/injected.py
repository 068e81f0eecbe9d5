"""Faults that a run asked for (`everstep run --fault`), as this rank's machine has them.

Loaded by the trainer in no other run: without `EVERSTEP_FAULTS` nothing of this is reachable. A
fault lies in its machine's folder, so that it is gone when the machine is, or in the code version.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Generator, Mapping
from pathlib import Path

from hanging import STUCK, leave_reductions
from torch import Tensor
from torch._C._distributed_c10d import Store

from everstep.selfcheck.faults import InjectedFault, claim, of_kind, read_faults
from everstep.selfcheck.flips import broken_by

CODE_ERROR = "code_error.json"
"""In a code version's folder: the step at which this version fails, `{"step": 20}`."""

WORDS = {
    "cuda_error": (
        "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously"
        " reported at some other API call, so the stacktrace below might be incorrect."
    ),
    "transient": (
        "NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error (run with"
        " NCCL_DEBUG=INFO for details)\nncclSystemError: System call or external library call"
        " failed or device error."
    ),
}


class Faults:
    """This machine's faults, looked for at every step.

    Args:
        directory: Where they lie.
        groups: Global ranks of each of this rank's groups.
        store: Where ranks tell each other on which machine they are.
        environ: This rank's environment.
        code: Where the code version lies.
    """

    def __init__(
        self,
        directory: str,
        groups: list[list[int]],
        store: Store,
        environ: Mapping[str, str] = os.environ,
        code: Path = Path(__file__).parent,
    ) -> None:
        self._directory = directory
        # One GPU of a machine is broken, and not all of them.
        self._is_first = int(environ["LOCAL_RANK"]) == 0
        self._rank = int(environ["RANK"])
        self._machine = environ["EVERSTEP_MACHINE"]
        self._groups = groups
        self._poisoned = False
        self._left = False
        code_error = code / CODE_ERROR
        step = json.loads(code_error.read_text())["step"] if code_error.exists() else None
        self._code_fails_at: int | None = step
        self._store = store

    @contextlib.contextmanager
    def during(self, step: int) -> Generator[None]:
        """Around one step: let what is due happen.

        Raises:
            RuntimeError: A crash that was asked for.
            TypeError: This code version fails at this step.
        """
        if self._code_fails_at is not None and step >= self._code_fails_at:
            raise TypeError("unsupported operand type(s) for +: 'NoneType' and 'Tensor'")
        faults = read_faults(self._directory)
        self._break_links(of_kind(faults, "link_bad"))
        due = [fault for fault in faults if self._is_first and self._is_due(fault)]
        for fault in of_kind(due, "hang"):
            if claim(self._directory, fault):
                self._hang(fault.how)
        for fault in of_kind(due, "cuda_error", "transient"):
            if claim(self._directory, fault):
                raise RuntimeError(WORDS[fault.kind])
        self._poisoned = any(claim(self._directory, fault) for fault in of_kind(due, "nan"))
        began_s = time.thread_time()
        with broken_by(due):
            yield
        slow = [fault for fault in of_kind(due, "slow") if claim(self._directory, fault)]
        computed_s = time.thread_time() - began_s
        compute_for(sum(fault.slow_times - 1 for fault in slow) * computed_s)
        time.sleep(sum(fault.slow_s for fault in slow))

    def poison(self, gradient: Tensor) -> None:
        """Spoil this rank's gradient, if that is due, before it is reduced."""
        if self._poisoned:
            gradient[0] = float("nan")

    def _hang(self, how: str) -> None:
        if how in STUCK:
            STUCK[how]()
        elif not self._left:
            self._left = True
            leave_reductions(next(ranks for ranks in self._groups if len(ranks) > 1))

    def _is_due(self, fault: InjectedFault) -> bool:
        # That of `sdc` is thrown at each product.
        return fault.kind == "sdc" or random.random() < fault.probability  # noqa: S311

    def _break_links(self, bad: list[InjectedFault]) -> None:
        if not bad:
            return
        peers = {fault.peer for fault in bad}
        for rank in sorted({rank for group in self._groups for rank in group}):
            if self._store.get(f"machine/{rank}").decode() in peers:
                raise RuntimeError(
                    f"{WORDS['transient']}\nrank {self._rank} on {self._machine}, peer {rank}"
                )

    def announce(self) -> None:
        """Tell the other ranks on which machine this one is."""
        self._store.set(f"machine/{self._rank}", self._machine)


def compute_for(seconds: float) -> None:
    """Be on a core for so long, as one is whose clock is low."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass
