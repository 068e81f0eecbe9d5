"""The training process of `benchmarks.checkpoint`: one loop, and ways of saving its state in turns.

Run by it, with the channel of a machine's agent. Prints what it measured as a line of JSON.

What a step computes fits into the caches, as a GPU does not share the host's memory either. Where
the two cores share one memory or one cache, whatever runs on the second slows the first, and that
shows here; a bare copy, which takes turns with the others, tells how much of it no saving can
avoid.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from benchmarks import checkpoint_rivals, medians
from benchmarks.checkpoint_methods import (
    Everstep,
    Method,
    Nothing,
    PlainCopy,
    State,
    dcp_methods,
)
from everstep import checkpoint

STATE_BYTES = 256 * 2**20
NUM_TENSORS = 64
STEP_COPIES = 3.0
STEP_TIME_GOAL = 1.02
WIDTH = 256
"""Of the matrices that a step multiplies: they stay in a core's own cache, as a GPU's stay off the
host's memory; larger ones are slowed by whatever the other core does."""

NUM_STEPS = 8
NUM_RIVAL_STEPS = 5
NUM_RIVAL_ROUNDS = 3
MAX_RIVALS_S = 120.0
MIN_PAIRS = 16
MAX_PAIRS_S = 150.0


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one way of saving.

    Attributes:
        name: Its name.
        note: What has to be known of it.
        is_rival: Whether it is somebody else's.
        step_s: Median of its steps.
        blocked_s: Median of what training stood still for saving, a step.
        kept: Whether what it gave back is what was saved, although the tensors changed since; None
            if another process has it.
    """

    name: str
    note: str
    is_rival: bool
    step_s: float
    blocked_s: float
    kept: bool | None


@dataclass(slots=True)
class Measured:
    """All that the process found; see `Row`, and `medians` for the intervals.

    Attributes:
        copy_s: One copy of the state by the training thread, in the quietest moment.
        rows: The ways of saving.
        absent: Those that could not be tried, with the reason.
        wall: Step time with saving over that without, by the clock.
        own: Likewise, less what each thread waited for a core.
        floor: As `own`, of a bare copy in place of ours.
        others_busy: Part of all cores that other programs used meanwhile.
        grown_bytes: Memory of its own that the process took to save, beside the agent's.
    """

    copy_s: float
    rows: list[Row] = field(default_factory=list[Row])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    wall: medians.Median | None = None
    own: medians.Median | None = None
    floor: medians.Median | None = None
    others_busy: float = 0.0
    grown_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step: all of it, those that saving made it wait, those without a core."""

    step_s: float
    blocked_s: float
    queued_s: float


class Loop:
    """A step that lasts about as long as `STEP_COPIES` copies of its state.

    After n updates all numbers of the state are n, so that a mixture of two steps shows.
    """

    def __init__(self) -> None:
        count = STATE_BYTES // NUM_TENSORS // 4
        self.tensors = [torch.zeros(count) for _ in range(NUM_TENSORS)]
        self.state: State = {"weights": {str(i): t for i, t in enumerate(self.tensors)}, "step": 0}
        self.num_updates = 0
        self.copy_s = self._time_copy()
        self._left, self._right, self._product = torch.randn(3, WIDTH, WIDTH)
        self._num_products = 1
        product_s = min(_worked(self._compute) for _ in range(20))
        update_s = min(_worked(self.update) for _ in range(10))
        rest_s = max(0.0, STEP_COPIES * self.copy_s - update_s)
        self._num_products = max(1, round(rest_s / product_s))

    def step(self, number: int, method: Method) -> Times:
        """Do one."""
        queued_s, began_s = _queued_s(), time.perf_counter()
        self._compute()
        blocked_s = _timed(method.before_update)
        self.update()
        self.state["step"] = number
        blocked_s += _timed(lambda: method.save(number, self.state))
        return Times(time.perf_counter() - began_s, blocked_s, _queued_s() - queued_s)

    def update(self) -> None:
        """Change every tensor."""
        self.num_updates += 1
        for tensor in self.tensors:
            tensor.add_(1.0)

    def _compute(self) -> None:
        for _ in range(self._num_products):
            torch.mm(self._left, self._right, out=self._product)

    def _time_copy(self) -> float:
        copies = [torch.empty_like(tensor) for tensor in self.tensors]

        def copy() -> None:
            for copied, tensor in zip(copies, self.tensors, strict=True):
                copied.copy_(tensor)

        return min(_worked(copy) for _ in range(10))


def _timed(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def _worked(action: Callable[[], object]) -> float:
    """Seconds that this thread had a core for it."""
    began_s = time.thread_time()
    action()
    return time.thread_time() - began_s


def _queued_s() -> float:
    """Seconds that this thread was ready to run and had no core, since it began."""
    stat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
    return int(stat.split()[1]) / 1e9


class Bench:
    """Takes the ways of saving in turns, so that a noisy machine treats all alike.

    Args:
        loop: The training.
        methods: What may take a turn.
    """

    def __init__(self, loop: Loop, methods: Sequence[Method]) -> None:
        self._loop = loop
        self._methods = methods
        self._number = 0
        self._num_rounds = 0
        self._times: dict[str, list[Times]] = {method.name: [] for method in methods}

    def round(self, taking_part: Sequence[Method], num_steps: int) -> dict[str, list[Times]]:
        """A turn for each; the first two steps of a turn, which make memory ready, do not count."""
        # Whoever comes second must not always be the same.
        self._num_rounds += 1
        order = taking_part if self._num_rounds % 2 else tuple(reversed(taking_part))
        turns: dict[str, list[Times]] = {}
        for method in order:
            times = [self._step(method) for _ in range(num_steps + 2)][2:]
            method.finish()
            turns[method.name] = times
            self._times[method.name] += times
        return turns

    def row(self, method: Method) -> Row:
        """What was measured of it."""
        times = self._times[method.name]
        return Row(
            method.name,
            method.note,
            method.is_rival,
            statistics.median(each.step_s for each in times),
            statistics.median(each.blocked_s for each in times),
            None if method.name == Nothing.name else self._kept(method),
        )

    def _kept(self, method: Method) -> bool | None:
        self._step(method)
        saved = float(self._loop.num_updates)
        method.before_update()
        self._loop.update()
        method.finish()
        state = method.load()
        if state is None:
            return None
        return all(bool((tensor == saved).all()) for tensor in state["weights"].values())

    def _step(self, method: Method) -> Times:
        self._number += 1
        return self._loop.step(self._number, method)


def compare(bench: Bench, none: Method, ours: Method, bare: Method, found: Measured) -> None:
    """Measure step times beside each other until it is clear on which side of the goal they are."""
    ratios: dict[str, list[float]] = {"wall": [], "own": [], "floor": []}
    began_s, busy_s = time.perf_counter(), _busy_s()
    while True:
        turns = bench.round((none, ours, bare), NUM_STEPS)
        ratios["wall"].append(_wall_s(turns[ours.name]) / _wall_s(turns[none.name]))
        ratios["own"].append(_own_s(turns[ours.name]) / _own_s(turns[none.name]))
        ratios["floor"].append(_own_s(turns[bare.name]) / _own_s(turns[none.name]))
        own = medians.median(ratios["own"])
        passed_s = time.perf_counter() - began_s
        enough = len(ratios["own"]) >= MIN_PAIRS and own.decided(STEP_TIME_GOAL)
        if enough or passed_s > MAX_PAIRS_S:
            break
    found.wall, found.own, found.floor = map(medians.median, ratios.values())
    found.others_busy = (_busy_s() - busy_s) / passed_s / (os.cpu_count() or 1)


def _wall_s(times: Sequence[Times]) -> float:
    return sum(each.step_s for each in times)


def _own_s(times: Sequence[Times]) -> float:
    return sum(each.step_s - each.queued_s for each in times)


def _busy_s() -> float:
    """Seconds that cores worked for others than this process and its parent."""
    every = psutil.cpu_times()
    idle_s = every.idle + every.iowait
    own_s = sum(sum(process.cpu_times()[:2]) for process in (psutil.Process(), _parent()))
    # Time of guests is in that of users already.
    return sum(every) - every.guest - every.guest_nice - idle_s - own_s


def _parent() -> psutil.Process:
    return psutil.Process(os.getppid())


def own_bytes() -> int:
    """Memory that only this process uses, and that no file lies behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


def main() -> None:
    """Measure; `alone` leaves out all but ours."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    with_rivals, folder = sys.argv[1] == "rivals", Path(sys.argv[2])
    # Steps as short as these leave a backup no time; what is measured is this rank's own copy.
    session = checkpoint.connect(redone_steps=2)
    loop = Loop()
    found = Measured(loop.copy_s)
    none, ours = Nothing(), Everstep(session)
    methods: list[Method] = [none, ours]
    if with_rivals:
        dist.init_process_group("gloo", init_method=f"file://{folder}/join", rank=0, world_size=1)
        others, found.absent = checkpoint_rivals.installed(folder)
        bare = PlainCopy(loop.tensors)
        methods += [bare, *dcp_methods(folder), *others]
        bench = Bench(loop, methods)
        began_s = time.perf_counter()
        for _ in range(NUM_RIVAL_ROUNDS):
            if time.perf_counter() - began_s < MAX_RIVALS_S:
                bench.round(methods, NUM_RIVAL_STEPS)
        compare(bench, none, ours, bare, found)
    else:
        bench = Bench(loop, methods)
        before_bytes = own_bytes()
        for _ in range(NUM_RIVAL_ROUNDS):
            bench.round(methods, NUM_STEPS)
        found.grown_bytes = own_bytes() - before_bytes
    # Ours comes last: its copy is looked at when this process is gone.
    found.rows = [bench.row(method) for method in (*methods[:1], *methods[2:], ours)]
    for method in methods:
        method.close()
    print(json.dumps({**asdict(found), "num_updates": loop.num_updates}), flush=True)
    if with_rivals:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
