"""The store in which ranks of one attempt find each other: torch's TCPStore, in its own process.

A process of its own, as its threads would make a forking process unsafe and its load would disturb
an agent. A new one for every attempt, as torch's `env://` puts no attempt into the keys and would
read the last attempt's addresses. The agent made the listening socket and keeps it, so that the
port stays the same, and ranks that are early wait in its backlog.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from typing import Any


def serve(listen_fd: int) -> int:
    """Be the store on this listening socket, until killed.

    Raises:
        ImportError: There is no torch here.
    """
    # By name: the agent's code has to run where no torch is.
    distributed: Any = importlib.import_module("torch.distributed")
    with socket.socket(fileno=os.dup(listen_fd)) as listener:
        host, port = listener.getsockname()[:2]
    # Keeps serving for as long as somebody refers to it.
    store = distributed.TCPStore(
        host, port, None, True, wait_for_workers=False, master_listen_fd=listen_fd
    )
    while store:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
