"""A process that forks training ranks which only save, as fast as they can, until they are killed.

Run with CONTROL_FD: a stream socket. Each message is a letter that says what the rank does, with
the rank's channel beside it; the answers are the rank's pid and, once it has ended, how.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import traceback
from typing import cast

import torch

from everstep import checkpoint
from everstep.core import names

NUM_ELEMENTS = 250_000


def state_of(step: int) -> dict[str, object]:
    """The state after a step: every byte depends on the step, so a mixture shows."""
    return {
        "weights": torch.full((NUM_ELEMENTS,), float(step)),
        "moments": {0: torch.full((NUM_ELEMENTS // 2,), step, dtype=torch.int64)},
        "step": step,
    }


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    first, second = one["weights"], other["weights"]
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    moments = cast("dict[int, torch.Tensor]", one["moments"])
    others = cast("dict[int, torch.Tensor]", other["moments"])
    return (
        torch.equal(first, second)
        and torch.equal(moments[0], others[0])
        and one["step"] == other["step"]
    )


def run(num_steps: int | None) -> None:
    session = checkpoint.connect()
    restored = session.restore()
    first = 1
    if restored is not None:
        assert same(state_of(restored.step), restored.state), f"step {restored.step} is mixed up"
        first = restored.step + 1
    for step in itertools.count(first):
        session.save(step, state_of(step))
        if num_steps is not None and step == first + num_steps - 1:
            # Lives on, as a rank in the middle of its next step does.
            os.read(0, 1)


def main() -> None:
    torch.set_num_threads(1)
    control = socket.socket(fileno=int(os.environ["CONTROL_FD"]))
    while True:
        order, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            os.environ[names.ENV_CHANNEL_FD] = str(fds[0])
            try:
                run(None if order == b"r" else 3)
            except BaseException:  # noqa: BLE001 - a forked child must not go on in main()
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os.close(fds[0])
        control.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        control.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
