"""The training process of `benchmarks.checkpoint`: one loop, and ways of saving its state in turns.

Run by it, with the channel of a machine's agent. Prints a line of JSON: for each way of saving the
seconds a step and those of them that training stood still for saving, in the quietest round; and
how much longer our steps are than those of the same round without saving, in the median round.

What a step computes fits into the caches, as a GPU does not share the host's memory either. Where
the two cores are threads of one, whatever runs on the second slows the first by a tenth or more,
and that shows here.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import importlib
import json
import os
import shutil
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from everstep import checkpoint

STATE_BYTES = 256 * 2**20
NUM_TENSORS = 64
STEP_COPIES = 3.0
NUM_STEPS = 8
NUM_ROUNDS = 16
NUM_RIVAL_ROUNDS = 2
WIDTH = 512

State = dict[str, Any]


class Method(ABC):
    """A way of saving at every step."""

    name: str

    @abstractmethod
    def save(self, step: int, state: State) -> None:
        """Save; returns when training may go on."""

    def before_update(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait until the tensors may be changed."""

    def finish(self) -> None:  # noqa: B027
        """Wait for all that still goes on."""


class Nothing(Method):
    """What the others are compared with."""

    name = "none"

    def save(self, step: int, state: State) -> None:
        """Do not."""


class Everstep(Method):
    """Ours."""

    name = "everstep"

    def __init__(self, session: checkpoint.Session) -> None:
        self._session = session
        self._last: tuple[int, State] = 0, {}

    def save(self, step: int, state: State) -> None:
        """Leave it to the background."""
        self._session.save(2 * step, state)
        self._last = step, state

    def before_update(self) -> None:
        """Wait for this rank's own copy."""
        self._session.wait_before_update()

    def finish(self) -> None:
        """Let the last step become whole, so that what is measured next is alone."""
        step, state = self._last
        self._session.save(2 * step + 1, state, blocking=True)


class Files(Method):
    """`torch.distributed.checkpoint`, to files in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _new(self, step: int) -> Path:
        for old in self._folder.glob("*"):
            shutil.rmtree(old)
        return self._folder / str(step)


class DcpSave(Files):
    """Synchronous."""

    name = "dcp.save"

    def save(self, step: int, state: State) -> None:
        """Write the files."""
        _dcp().save(state, checkpoint_id=self._new(step))


class DcpAsync(Files):
    """In the background; waits for its last save, as a step is of no use until it is whole."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.name = f"dcp.async_save, {kind}"
        self._kind = kind
        self._future: Any = None

    def save(self, step: int, state: State) -> None:
        """Stage the state, once the last step's files are written."""
        self.finish()
        kind = _dcp().state_dict_saver.AsyncCheckpointerType[self._kind.upper()]
        self._future = _dcp().async_save(
            state, checkpoint_id=self._new(step), async_checkpointer_type=kind
        )

    def finish(self) -> None:
        """Wait for the files."""
        if self._future is not None:
            self._future.result()


def _dcp() -> Any:
    """Loaded only once it is its turn."""
    return importlib.import_module("torch.distributed.checkpoint")


class Loop:
    """A step that lasts about as long as `STEP_COPIES` copies of its state."""

    def __init__(self) -> None:
        count = STATE_BYTES // NUM_TENSORS // 4
        self.tensors = [torch.ones(count) for _ in range(NUM_TENSORS)]
        self.state = {"weights": {str(i): t for i, t in enumerate(self.tensors)}, "step": 0}
        self.copy_s = self._time_copy()
        self._left, self._right, self._product = torch.randn(3, WIDTH, WIDTH)
        self._num_products = 1
        product_s = min(_timed(self._compute) for _ in range(20))
        update_s = min(_timed(self._update) for _ in range(5))
        rest_s = max(0.0, STEP_COPIES * self.copy_s - update_s)
        self._num_products = max(1, round(rest_s / product_s))

    def step(self, number: int, method: Method) -> tuple[float, float]:
        """Do one; seconds of all of it, and of what saving made it wait."""
        began_s = time.perf_counter()
        self._compute()
        waited_s = _timed(method.before_update)
        self._update()
        self.state["step"] = number
        waited_s += _timed(lambda: method.save(number, self.state))
        return time.perf_counter() - began_s, waited_s

    def _compute(self) -> None:
        for _ in range(self._num_products):
            torch.mm(self._left, self._right, out=self._product)

    def _update(self) -> None:
        for tensor in self.tensors:
            tensor.mul_(1.0)

    def _time_copy(self) -> float:
        copies = [torch.empty_like(tensor) for tensor in self.tensors]

        def copy() -> None:
            for copied, tensor in zip(copies, self.tensors, strict=True):
                copied.copy_(tensor)

        return min(_timed(copy) for _ in range(6))


def _timed(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def run(loop: Loop, method: Method, first: int) -> tuple[float, float]:
    """Medians over some steps; the first two, which make memory ready, are left out."""
    times = [loop.step(first + index, method) for index in range(NUM_STEPS + 2)][2:]
    method.finish()
    step_s, waited_s = (statistics.median(column) for column in zip(*times, strict=True))
    return step_s, waited_s


def main() -> None:
    """Take the ways in turns, so that a noisy machine treats all alike."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    rivals, folder = sys.argv[1] == "rivals", Path(sys.argv[2])
    # Steps as short as these leave a backup no time; what is measured is this rank's own copy.
    session = checkpoint.connect(redone_steps=2)
    loop = Loop()
    methods: list[Method] = [Nothing(), Everstep(session)]
    if rivals:
        dist.init_process_group("gloo", init_method=f"file://{folder}/join", rank=0, world_size=1)
        files = folder / "files"
        methods += [DcpSave(files), DcpAsync(files, "thread"), DcpAsync(files, "process")]
    rounds: dict[str, list[tuple[float, float]]] = {method.name: [] for method in methods}
    step = 1
    for number in range(NUM_ROUNDS):
        taking_part = methods[: 2 if number >= NUM_RIVAL_ROUNDS else None]
        # Whoever comes second must not always be the same.
        for method in reversed(taking_part) if number % 2 else taking_part:
            rounds[method.name].append(run(loop, method, step))
            step += NUM_STEPS + 2
    session.close()
    quietest = {name: min(times) for name, times in rounds.items()}
    pairs = zip(rounds["everstep"], rounds["none"], strict=True)
    ratio = statistics.median(ours[0] / without[0] for ours, without in pairs)
    measured = {"copy_s": loop.copy_s, "methods": quietest, "step_ratio": ratio}
    print(json.dumps(measured), flush=True)
    if rivals:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
