"""Inside a rank: lets the agent read its stack where nobody may attach to it, and its recorder.

The interpreter's fault handler writes all threads' stacks to a file at a signal, from within the
signal handler, so also while a thread waits in C or holds the GIL. It is the fallback where py-spy
is missing or the kernel refuses it. torch's flight recorder can only be read from inside: a thread
waits for a word on a pipe, and writes it as JSON. It needs the GIL, which waits in C give away.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.agent.config import MachineConfig
from everstep.core import names

SIGNAL = signal.SIGRTMAX - 3
"""Scripts handle SIGUSR1 and SIGUSR2 themselves; nobody is known to use this one."""


PIPE = ".ask"


def stacks_file(config: MachineConfig, attempt: int, rank: int) -> Path:
    """Where a rank writes its stacks."""
    return config.directory / f"attempt-{attempt}" / f"rank-{rank:05d}.stacks"


def recorder_pipe(stacks: Path) -> Path:
    """Where a rank that writes its stacks there is asked for its flight recorder."""
    return stacks.with_suffix(PIPE)


def recorder_file(stacks: Path) -> Path:
    """Where it writes the recorder, anew each time."""
    return stacks.with_suffix(".recorder.json")


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
        os.mkfifo(recorder_pipe(Path(path)), 0o600)
        waiter = threading.Thread(target=_serve, args=(Path(path),), daemon=True)
        waiter.start()


def _serve(stacks: Path) -> None:
    # A folder that is gone, or a disk that is full, is no business of the training's.
    with contextlib.suppress(OSError):
        while True:
            with recorder_pipe(stacks).open("rb") as asked:
                asked.read()
            partial = recorder_file(stacks).with_suffix(".partial")
            partial.write_bytes(_recorded())
            partial.replace(recorder_file(stacks))


def _recorded() -> bytes:
    """The recorder with most to say; empty where torch offers none, or was not imported."""
    torch: Any = sys.modules.get("torch._C._distributed_c10d")
    texts: list[bytes] = [b""]
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(torch, name, None)
        # Torch raises whatever it likes when there is no process group.
        with contextlib.suppress(Exception):
            text = dump() if dump is not None else b""
            texts.append(text.encode() if isinstance(text, str) else bytes(text))
    return max(texts, key=len)


_open_files: list[object] = []
