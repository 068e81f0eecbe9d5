"""The two measures of what steps cost: what the kernel counts, and time outside collectives."""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.fault.machines import Rig, config_of, until

from everstep.agent.process import main_thread_ran_s
from everstep.checkpoint.waiting import WaitClock
from everstep.core.model import RankProgress
from everstep.core.orders import StopOrder
from everstep.core.vocabulary import Phase

BURNS = """
import os, socket, time
from everstep.core import channel
sock = socket.socket(fileno=int(os.environ["EVERSTEP_CHANNEL_FD"]))
sock.sendall(channel.encode(channel.Hello()))
for step in (1, 2, 3):
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    sock.sendall(channel.encode(channel.Report(step, waited_s=step * 0.5)))
    # The agent hears of it first.
    time.sleep(0.3)
time.sleep(1000)
"""


async def test_each_step_comes_with_the_time_that_its_rank_was_on_a_core(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, ("bash", "-c", "exec python train.py"))) as rig:
        rig.write(BURNS)
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await until(lambda: [p for p in rig.seen(RankProgress) if p.step == 3])
        await rig.machine.stop(StopOrder(1))
    said = {p.step: p for p in rig.seen(RankProgress) if p.phase is Phase.STEP}
    ran_s = [said[step].ran_s or 0.0 for step in (1, 2, 3)]
    for earlier_s, later_s in itertools.pairwise(ran_s):
        assert 0.09 < later_s - earlier_s < 0.15
    assert [said[step].waited_s for step in (1, 2, 3)] == [0.5, 1.0, 1.5]


def test_a_process_that_sleeps_or_is_gone_was_not_on_a_core() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(100)"])
    try:
        until_s = time.monotonic() + 30
        while (ran_s := main_thread_ran_s(process.pid) or 0.0) == 0.0:
            assert time.monotonic() < until_s
        assert ran_s < 5.0
    finally:
        process.kill()
        process.wait()
    assert main_thread_ran_s(process.pid) is None
    before_s = main_thread_ran_s(os.getpid())
    assert before_s is not None
    assert before_s == pytest.approx(time.thread_time(), abs=0.5)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_without_a_group_nothing_is_counted_or_touched() -> None:
    original = dist.all_reduce
    clock = WaitClock()
    assert clock.waited_s() is None
    assert dist.all_reduce is original


@pytest.mark.usefixtures("group")
def test_collectives_are_counted_until_the_clock_is_closed() -> None:
    original = dist.all_reduce
    clock = WaitClock()
    assert clock.waited_s() == 0.0
    assert dist.all_reduce is not original
    tensor = torch.ones(8)
    dist.all_reduce(tensor)
    dist.barrier()
    first_s = clock.waited_s() or 0.0
    assert 0.0 < first_s < 5.0
    time.sleep(0.05)
    assert clock.waited_s() == first_s
    with clock.waiting(), clock.waiting():
        time.sleep(0.05)
    second_s = clock.waited_s() or 0.0
    assert 0.05 <= second_s - first_s < 0.09
    clock.close()
    assert dist.all_reduce is original
    assert clock.waited_s() is None
    assert dist.all_reduce is original


@pytest.mark.usefixtures("group")
def test_what_somebody_else_put_there_since_stays() -> None:
    original = dist.all_reduce
    clock = WaitClock()
    clock.waited_s()

    def mine(*_: object, **__: object) -> None:
        pass

    dist.all_reduce = mine
    try:
        clock.close()
        assert dist.all_reduce is mine
    finally:
        dist.all_reduce = original


@pytest.mark.usefixtures("group")
def test_a_collective_that_fails_is_counted_and_fails() -> None:
    clock = WaitClock()
    clock.waited_s()
    try:
        with pytest.raises(TypeError):
            dist.all_reduce("no tensor")
        assert (clock.waited_s() or 0.0) > 0.0
    finally:
        clock.close()
