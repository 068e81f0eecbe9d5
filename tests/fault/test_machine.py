"""A machine's orders and events, with real ranks that die in many ways."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from tests.fault.machines import HOST, SECRET, Rig, children, config_of, lives, until

from everstep.core.errors import StaleAttempt
from everstep.core.model import CopyDamaged, MachineInfo, RankExit, RankProgress, RanksFinished
from everstep.core.orders import MachineReport, Pull, RankStart, RestoreOrder, StartOrder, StopOrder
from everstep.core.vocabulary import Phase

TRAIN = ("python", "train.py")
WAIT_FOR_EVER = "import time\nprint('training', flush=True)\ntime.sleep(1000)\n"

# What a rank that uses the library does, without the library's need for torch.
REPORT = """
import os, socket
from everstep.core import channel
sock = socket.socket(fileno=int(os.environ["EVERSTEP_CHANNEL_FD"]))
def report(step):
    sock.sendall(channel.encode(channel.Report(step)))
"""


@pytest.mark.parametrize("command", [TRAIN, ("bash", "-c", "exec python train.py")])
async def test_a_killed_rank_is_told_at_once(tmp_path: Path, command: tuple[str, ...]) -> None:
    async with Rig(config_of(tmp_path, command)) as rig:
        rig.write(REPORT + "report(6)\nreport(7)\n" + WAIT_FOR_EVER)
        started = await rig.machine.start(rig.order(attempt=3))
        await until(lambda: {e.step for e in rig.seen(RankProgress) if e.rank == 1} == {6, 7})
        await until(lambda: "training" in rig.log(3, 1))
        killed_at_s = time.time()
        os.kill(started.pids[1], signal.SIGKILL)
        await until(lambda: rig.seen(RankExit))
    told_at_s, exit_ = next(
        (at_s, event) for at_s, event in rig.events if isinstance(event, RankExit)
    )
    assert (exit_.rank, exit_.attempt, exit_.machine) == (1, 3, "m0")
    assert (exit_.exit_code, exit_.signal, exit_.step) == (None, signal.SIGKILL, 7)
    assert exit_.last_lines == ("training",)
    assert killed_at_s <= exit_.at_s <= told_at_s < killed_at_s + 2.0


async def test_a_step_reported_with_the_last_breath_is_known(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(REPORT + "for step in range(1, 101): report(step)\nos.kill(os.getpid(), 9)\n")
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await until(lambda: rig.seen(RankExit))
    assert rig.seen(RankExit)[0].step == 100
    assert [event.step for event in rig.seen(RankProgress)] == [*range(1, 101), 100]
    assert rig.seen(RankProgress)[-1].phase is Phase.ENDED


ENDS = [
    ("raise SystemExit", 0, None, ""),
    ("import sys; sys.exit(3)", 3, None, ""),
    ("import sys; sys.exit('out of data')", 1, None, "out of data"),
    ("def f():\n    raise ValueError('wrong loss')\nf()", 1, None, "ValueError: wrong loss"),
    ("x = (", 1, None, "SyntaxError: '(' was never closed"),
    ("import os; os.abort()", None, signal.SIGABRT, ""),
    ("import nothing_such", 1, None, "ModuleNotFoundError: No module named 'nothing_such'"),
    ("import os; os._exit(77)", 77, None, ""),
    ("import atexit; atexit.register(print, 'last words')\n1 / 0", 1, None, "last words"),
]


@pytest.mark.parametrize("command", [TRAIN, ("bash", "-c", "exec python train.py")])
async def test_ends_are_told_as_the_interpreter_ends(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    async with Rig(config_of(tmp_path, command)) as rig:
        for attempt, (source, code, number, last_line) in enumerate(ENDS):
            rig.write(source)
            await rig.machine.start(rig.order(attempt, num_ranks=1))
            await until(
                lambda: rig.events[-1][1] in [*rig.seen(RankExit), *rig.seen(RanksFinished)]
            )
            [exit_] = (await rig.machine.stop(StopOrder(attempt))).exits
            assert (exit_.exit_code, exit_.signal) == (code, number), source
            assert [e for e in rig.seen(RankExit) if e.attempt == attempt] == [exit_] * (code != 0)
            assert last_line in (exit_.last_lines or ("",))[-1], source
            text = rig.log(attempt, 0)
            assert "zygote" not in text
            assert "runpy" not in text
            rig.events.append((0.0, rig.info))


async def test_ranks_that_all_finish_are_told_once(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write("print('done')\n")
        await rig.machine.start(rig.order(attempt=1))
        await until(lambda: rig.seen(RanksFinished))
        report = await rig.machine.stop(StopOrder(1))
        assert [exit_.exit_code for exit_ in report.exits] == [0, 0]
    assert rig.seen(RankExit) == []
    assert [(e.machine, e.attempt) for e in rig.seen(RanksFinished)] == [("m0", 1)]


HIDE = """
import json, os, subprocess, sys, time
plain = subprocess.Popen(["sleep", "1000"])
session = subprocess.Popen(["sleep", "1000"], start_new_session=True)
unmarked = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, env={})
# Its parent ends at once.
orphan = int(subprocess.check_output(
    ["setsid", "bash", "-c", "env -i sleep 1000 >/dev/null 2>&1 & echo $!"]))
path = os.path.join(os.environ["EVERSTEP_OUTPUT_DIR"], "hidden.json")
with open(path + "~", "w") as file:
    json.dump([os.getpid(), plain.pid, session.pid, unmarked.pid, orphan], file)
os.rename(path + "~", path)
time.sleep(1000)
"""


@pytest.mark.parametrize("end", ["running", "killed"])
async def test_stop_finds_what_ranks_started(tmp_path: Path, end: str) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(HIDE)
        started = await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        hidden: list[int] = await rig.output("hidden.json")
        assert all(map(lives, hidden))
        if end == "killed":
            os.kill(started.pids[0], signal.SIGKILL)
            await until(lambda: rig.seen(RankExit))
            assert all(map(lives, hidden[1:]))
        report = await rig.machine.stop(StopOrder(1))
        assert not [pid for pid in hidden if lives(pid)]
    assert report.stopped == ((0,) if end == "running" else ())
    assert [exit_.signal for exit_ in report.exits] == ([] if end == "running" else [9])


async def test_orders_are_done_once(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(WAIT_FOR_EVER)
        order = rig.order(attempt=4)
        first, again = await asyncio.gather(rig.machine.start(order), rig.machine.start(order))
        assert first == again == await rig.machine.start(order)
        assert first.prewarmed
        assert all(map(lives, first.pids))

        stopped, again_stopped = await asyncio.gather(
            rig.machine.stop(StopOrder(4)), rig.machine.stop(StopOrder(4))
        )
        assert stopped == again_stopped == await rig.machine.stop(StopOrder(4))
        assert stopped == MachineReport("m0", (), (0, 1), ())
        assert not any(map(lives, first.pids))
        assert len(rig.effects("started")) == len(rig.effects("stopped")) == 1
    assert rig.seen(RankExit) == []
    assert len(rig.seen(MachineInfo)) == 1


async def test_older_orders_touch_nothing(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(WAIT_FOR_EVER)
        await rig.machine.stop(StopOrder(4))
        with pytest.raises(StaleAttempt, match="attempt 4 owns"):
            await rig.machine.start(rig.order(attempt=4))
        with pytest.raises(StaleAttempt):
            await rig.machine.restore(RestoreOrder(4, 1, ()))
        started = await rig.machine.start(rig.order(attempt=5))
        for stale in (
            rig.machine.stop(StopOrder(4)),
            rig.machine.start(rig.order(attempt=3)),
            rig.machine.restore(RestoreOrder(5, 1, ())),
        ):
            with pytest.raises(StaleAttempt, match="attempt 5 owns"):
                await stale
        assert all(map(lives, started.pids))


async def test_a_newer_start_ends_the_older_attempt(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(WAIT_FOR_EVER)
        old = await rig.machine.start(rig.order(attempt=1))
        new = await rig.machine.start(rig.order(attempt=2))
        assert not any(map(lives, old.pids))
        assert all(map(lives, new.pids))
        report = await rig.machine.stop(StopOrder(7))
        assert report.stopped == (0, 1)
        assert not any(map(lives, new.pids))
    assert rig.seen(RankExit) == []


async def test_an_order_is_finished_without_its_caller(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(WAIT_FOR_EVER)
        await rig.machine.start(rig.order(attempt=1))
        caller = asyncio.ensure_future(rig.machine.start(rig.order(attempt=2)))
        await until(lambda: not any(map(lives, rig.effects("started")[0]["pids"])))
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await until(lambda: len(rig.effects("started")) == 2)
        again = await rig.machine.start(rig.order(attempt=2))
        assert all(map(lives, again.pids))
        assert [effect["attempt"] for effect in rig.effects("started")] == [1, 2]


async def test_a_dead_zygote_is_reported_and_replaced(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(WAIT_FOR_EVER)
        first = await rig.machine.start(rig.order(attempt=1))
        [zygote] = [pid for pid in children(os.getpid()) if first.pids[0] in children(pid)]
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: len(rig.seen(RankExit)) == 2)
        assert {exit_.rank for exit_ in rig.seen(RankExit)} == {0, 1}
        for exit_ in rig.seen(RankExit):
            assert exit_.signal == signal.SIGKILL
            assert "the pre-warmed process died" in exit_.last_lines[-1]
        await until(lambda: not any(map(lives, first.pids)))
        second = await rig.machine.start(rig.order(attempt=2))
        assert second.prewarmed
        assert all(map(lives, second.pids))


async def test_a_frozen_zygote_does_not_hinder_a_stop(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(WAIT_FOR_EVER)
        first = await rig.machine.start(rig.order(attempt=1))
        [zygote] = [pid for pid in children(os.getpid()) if first.pids[0] in children(pid)]
        os.kill(zygote, signal.SIGSTOP)
        report = await rig.machine.stop(StopOrder(1))
        assert report.stopped == (0, 1)
        # One that is on its way out, and has given up its memory, may still be seen for a moment.
        await until(lambda: not any(map(lives, first.pids)))
        second = await rig.machine.start(rig.order(attempt=2))
        assert all(map(lives, second.pids))


AGENT = """
import asyncio, pathlib, sys
from tests.fault.machines import Rig, config_of
async def main():
    async with Rig(config_of(pathlib.Path(sys.argv[1]), ("python", "train.py"), torch=True)) as rig:
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await asyncio.sleep(1000)
asyncio.run(main())
"""


def start_agent(root: Path) -> subprocess.Popen[bytes]:
    repository = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", AGENT, str(root)], cwd=repository)


async def test_nothing_outlives_a_killed_agent(tmp_path: Path) -> None:
    config = config_of(tmp_path, TRAIN)
    Rig(config).write(HIDE)
    with start_agent(tmp_path) as agent:
        hidden_path = tmp_path / "out" / "hidden.json"
        await until(hidden_path.exists, patience_s=60)
        hidden: list[int] = json.loads(hidden_path.read_text())
        [zygote] = children(agent.pid)
        # The rank and the store.
        await until(lambda: len(children(zygote)) >= 2)
        below = [zygote, *children(zygote)]
        agent.kill()
    assert hidden[0] in below
    # What left the rank's session has no tie to it that the kernel knows ...
    left = {pid for pid in hidden[1:] if lives(pid)}
    await until(lambda: not [pid for pid in below if lives(pid) and pid not in left], 1.0)
    # ... so the next agent finds it, by the mark that only an emptied environment lacks.
    async with Rig(config):
        assert not [pid for pid in hidden[:3] if lives(pid)]
    for pid in hidden[3:]:
        os.kill(pid, signal.SIGKILL)


RENDEZVOUS = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("total", int(total), flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
async def test_every_attempt_meets_at_a_fresh_store(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN, torch=True)) as rig:
        rig.write(RENDEZVOUS)
        for attempt in range(1, 4):
            started = await rig.machine.start(rig.order(attempt))
            assert started.prewarmed
            for rank in (0, 1):
                await until(partial(rig.has_logged, attempt, rank, "total 3"))
            await rig.machine.stop(StopOrder(attempt))
    assert rig.seen(RankExit) == []


SAVE = """
import time
import torch
from everstep import checkpoint
session = checkpoint.connect()
restored = session.restore()
first = 1 if restored is None else restored.step + 1
print("from", first, None if restored is None else restored.state["w"].tolist(), flush=True)
for step in range(first, 5):
    session.save(step, {"w": torch.full((4,), float(step))})
print("saved", flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
async def test_a_rank_moves_to_another_machine_with_its_state(tmp_path: Path) -> None:
    def machine(name: str) -> Rig:
        return Rig(config_of(tmp_path, TRAIN, torch=True, machine=name, directory=tmp_path / name))

    def order(rig: Rig, attempt: int, step: int, backup: MachineInfo | None) -> StartOrder:
        ranks = (RankStart(0, 0, backup),)
        port = rig.info.rendezvous_port
        code = str(tmp_path / "code")
        return StartOrder(attempt, 0, ranks, (), 1, 2, HOST, port, step, code)

    def holding(rig: Rig, attempt: int, step: int) -> StartOrder:
        code = str(tmp_path / "code")
        return StartOrder(attempt, 1, (), (0,), 1, 2, HOST, 1, step, code)

    async with machine("a") as a, machine("b") as b:
        a.write(SAVE)
        await b.machine.start(holding(b, 1, 0))
        await a.machine.start(order(a, 1, 0, b.info))
        await until(lambda: "saved" in a.log(1, 0), 30)
        [own] = (await a.machine.stop(StopOrder(1))).copies
        [held] = (await b.machine.stop(StopOrder(1))).copies
        assert own == held
        assert own.steps == (3, 4)

        # A bit of the rank's own copy flips while nobody runs.
        region = a.machine._store.region(0)  # pyright: ignore[reportPrivateUsage]
        assert region is not None
        newest = region.view.newest()
        assert newest is not None
        region.view.body(newest[0])[newest[1].body_bytes - 1] ^= 1
        await a.machine.start(order(a, 2, 4, b.info))
        await until(lambda: "saved" in a.log(2, 0), 30)
        assert "from 5 [4.0, 4.0, 4.0, 4.0]" in a.log(2, 0)
        [damaged] = a.seen(CopyDamaged)
        assert (damaged.machine, damaged.attempt, damaged.rank, damaged.step) == ("a", 2, 0, 4)
        assert damaged.detail == "machine a's step 4 of rank 0 is damaged: fetched from machine b"

        # A machine that holds nothing takes the rank over at the older of the steps.
        async with machine("c") as c:
            gone = Pull(7, "b", HOST, b.info.transfer_port)
            good = Pull(0, "b", HOST, b.info.transfer_port)
            report = await c.machine.restore(RestoreOrder(2, 3, (good, gone)))
            assert report.pulled == (0,)
            [(rank, reason)] = report.failed
            assert rank == 7
            assert "no step 3 of rank 7" in reason
            await c.machine.start(order(c, 2, 3, None))
            await until(lambda: "saved" in c.log(2, 0), 30)
            assert "from 4 [3.0, 3.0, 3.0, 3.0]" in c.log(2, 0)


def test_the_secret_is_in_no_text_about_a_machine(tmp_path: Path) -> None:
    assert SECRET.decode() not in repr(config_of(tmp_path, TRAIN))
