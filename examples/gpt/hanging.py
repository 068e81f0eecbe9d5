"""Ways in which a rank gets stuck for good, each in a function whose name tells on its stack.

Used by `injected` in runs that asked for a hang.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

FOR_EVER_S = 1e6


def wait_for_lock() -> None:
    """Wait for a lock that nobody gives back."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def call_native() -> None:
    """Wait in C without giving the interpreter's lock away, as a driver's call may."""
    pause = ctypes.PyDLL(None).pause
    # A signal ends one call.
    while True:
        pause()


def stop() -> None:
    """Be stopped by a signal, as by a debugger or a kernel out of its mind."""
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_loader() -> None:
    """Wait for a data loader's worker, which waits for its file system."""
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415 - no other run needs it

    class NeverLoads(Dataset[int]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            time.sleep(FOR_EVER_S)
            return index

    for _ in DataLoader(NeverLoads(), num_workers=1):
        pass


def leave_reductions(ranks: list[int]) -> None:
    """Take part in no reduction of the group of these ranks any more, as other code would."""
    all_reduce: Callable[..., Any] = dist.all_reduce

    def but_not_theirs(*args: Any, group: dist.ProcessGroup | None = None, **kwargs: Any) -> Any:
        if group is None or dist.get_process_group_ranks(group) != ranks:
            return all_reduce(*args, group=group, **kwargs)
        return None

    dist.all_reduce = but_not_theirs


STUCK: dict[str, Callable[[], None]] = {
    "python": wait_for_lock,
    "native": call_native,
    "loader": wait_for_loader,
    "stop": stop,
}
