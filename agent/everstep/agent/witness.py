"""Inside a rank: lets the agent read its stack where nobody may attach to it.

The interpreter's fault handler writes all threads' stacks to a file at a signal, from within the
signal handler, so also while a thread waits in C or holds the GIL. It is the fallback where py-spy
is missing or the kernel refuses it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
from collections.abc import Mapping
from pathlib import Path

from everstep.agent.config import MachineConfig
from everstep.core import names

SIGNAL = signal.SIGRTMAX - 3
"""Scripts handle SIGUSR1 and SIGUSR2 themselves; nobody is known to use this one."""


def stacks_file(config: MachineConfig, attempt: int, rank: int) -> Path:
    """Where a rank writes its stacks."""
    return config.directory / f"attempt-{attempt}" / f"rank-{rank:05d}.stacks"


def register(environment: Mapping[str, str]) -> None:
    """Have this process write its stacks at the signal, if its environment says where."""
    path = environment.get(names.ENV_STACKS_FILE)
    if path is None:
        return
    # A rank trains as well without.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        file = Path(path).open("ab")  # noqa: SIM115 - open for as long as the process lives
        faulthandler.register(SIGNAL, file=file, all_threads=True)
        _open_files.append(file)


_open_files: list[object] = []
