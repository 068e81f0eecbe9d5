"""Real processes in all sorts of trouble, asked where they stand."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.fault.machines import Rig, config_of, until

from everstep.activities.evidence import EvidenceStore
from everstep.agent import witness
from everstep.agent.probes.stacks import Asking, executable_beside_us, state_of
from everstep.agent.tracer import Target, trace
from everstep.core.errors import PermanentError, StaleAttempt, UnobservableError
from everstep.core.orders import StopOrder, TraceOrder
from everstep.core.stacks.dump import Answer, RankDump, RankTrace
from everstep.core.stacks.pyspy import Reader
from everstep.core.stacks.roles import Places, Role

COMMAND = ("python", "train.py")
SPY = (executable_beside_us("py-spy"),)
DEADLINE_S = 20.0
"""Only those who are not meant to answer take so long, and no test asks them with it."""

STOPPED, SLEEPS, SPINS, READS, LOCKS, LOADS = range(6)
TROUBLES = """
    import multiprocessing, os, threading, time
    from pathlib import Path

    OUT = Path(os.environ["EVERSTEP_OUTPUT_DIR"])
    RANK = os.environ["RANK"]

    def stopped():
        (OUT / RANK).touch()
        time.sleep(600)
    def sleeps():
        (OUT / RANK).touch()
        time.sleep(600)
    def spins():
        (OUT / RANK).touch()
        while True:
            pass
    def reads():
        (OUT / RANK).touch()
        os.read(os.pipe()[0], 1)
    def locks():
        (OUT / RANK).touch()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    def fetch():
        (OUT / "loader.partial").write_text(str(os.getpid()))
        (OUT / "loader.partial").rename(OUT / "loader")
        time.sleep(600)
    def _worker_loop():
        fetch()
    def loads():
        worker = multiprocessing.get_context("fork").Process(target=_worker_loop, daemon=True)
        worker.start()
        (OUT / RANK).touch()
        worker.join()

    (stopped, sleeps, spins, reads, locks, loads)[int(RANK)]()
"""


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    async with Rig(config_of(tmp_path, COMMAND)) as rig:
        rig.write(TROUBLES)
        await rig.machine.start(rig.order(1, num_ranks=6))
        out = rig.config.output_dir
        await until(lambda: all((out / name).exists() for name in (*"012345", "loader")))
        os.kill(pids(rig)[STOPPED], signal.SIGSTOP)
        await until(lambda: state_of(pids(rig)[STOPPED]) == "T")
        yield rig


def pids(rig: Rig) -> list[int]:
    found: list[int] = rig.effects("started")[-1]["pids"]
    return found


def targets(rig: Rig) -> dict[int, Target]:
    return {
        rank: Target(pid, witness.stacks_file(rig.config, 1, rank))
        for rank, pid in enumerate(pids(rig))
    }


def read(traces: dict[int, RankTrace]) -> dict[int, RankDump]:
    reader = Reader()
    return {rank: reader.read(item.dump) for rank, item in traces.items()}


def stands(dump: RankDump) -> str:
    place = Places().of_rank(dump)
    assert place is not None, dump
    return place.at


async def test_each_trouble_is_told_as_what_it_is(rig: Rig) -> None:
    attempt, traces = await rig.machine.trace(TraceOrder(1, DEADLINE_S))
    dumps = read(traces)
    assert attempt == 1
    assert dumps[STOPPED].answer is Answer.STOPPED
    assert "state T" in dumps[STOPPED].detail
    for rank, name in ((STOPPED, "stopped"), (SLEEPS, "sleeps"), (SPINS, "spins")):
        assert stands(dumps[rank]) == f"{name} (train.py)"
    for rank, name in ((READS, "reads"), (LOCKS, "locks"), (LOADS, "loads")):
        assert stands(dumps[rank]) == f"{name} (train.py)"
        assert dumps[rank].answer is Answer.ANSWERED
    (loader,) = Places().of_children(dumps[LOADS])
    assert (loader.role, loader.place.at) == (Role.LOADER, "fetch (train.py)")
    assert loader.pid == int((rig.config.output_dir / "loader").read_text())


async def test_a_stopped_child_is_told_with_its_rank(rig: Rig) -> None:
    loader = int((rig.config.output_dir / "loader").read_text())
    os.kill(loader, signal.SIGSTOP)
    await until(lambda: state_of(loader) == "T")
    found = await trace({LOADS: targets(rig)[LOADS]}, Asking(SPY, DEADLINE_S))
    dump = read(found)[LOADS]
    assert dump.answer is Answer.ANSWERED
    assert [f"{loader}: process {loader} is in state T" in text for text in dump.silent_children]


async def test_ranks_write_their_stacks_themselves_where_py_spy_is_missing(rig: Rig) -> None:
    traces = await trace(targets(rig), Asking(("/no/such/py-spy",), 2.0))
    dumps = read(traces)
    assert dumps[STOPPED].answer is Answer.STOPPED
    for rank, name in ((SLEEPS, "sleeps"), (SPINS, "spins"), (READS, "reads"), (LOCKS, "locks")):
        assert dumps[rank].answer is Answer.ANSWERED, dumps[rank]
        assert stands(dumps[rank]) == f"{name} (train.py)"
        assert "by its fault handler" in dumps[rank].detail
    again = await trace({SLEEPS: targets(rig)[SLEEPS]}, Asking(("/no/such/py-spy",), 2.0))
    assert stands(read(again)[SLEEPS]) == "sleeps (train.py)"


async def test_who_refuses_or_hangs_is_reported_as_exactly_that(rig: Rig, tmp_path: Path) -> None:
    refuses, hangs = tmp_path / "refuses", tmp_path / "hangs"
    refuses.write_text("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2\nexit 1\n")
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    for program in (refuses, hangs):
        program.chmod(0o755)
    # Without a fault handler nobody else can be asked.
    only = {rank: Target(pid) for rank, pid in enumerate(pids(rig))}
    traces = await trace(only, Asking((str(refuses),), 5.0))
    assert traces[STOPPED].answer is Answer.STOPPED
    assert traces[SLEEPS].answer is Answer.REFUSED
    assert "Permission denied" in traces[SLEEPS].detail
    began_s = time.monotonic()
    traces = await trace(only, Asking((str(hangs),), 0.5))
    assert time.monotonic() - began_s < 10
    assert traces[STOPPED].answer is Answer.STOPPED
    assert traces[SLEEPS].answer is Answer.NO_ANSWER
    assert "no answer to py-spy in 0.5 s" in traces[SLEEPS].detail
    # One that hangs keeps nobody else's answer back.
    assert all(trace.answer is not Answer.ANSWERED for trace in traces.values())


async def test_a_rank_that_is_gone_is_told_so_and_others_are_asked(rig: Rig) -> None:
    os.kill(pids(rig)[SLEEPS], signal.SIGKILL)
    await until(lambda: rig.effects("exited"))
    _, traces = await rig.machine.trace(TraceOrder(None, DEADLINE_S))
    assert traces[SLEEPS].answer is Answer.GONE
    assert traces[READS].answer is Answer.ANSWERED
    with pytest.raises(StaleAttempt):
        await rig.machine.trace(TraceOrder(2))


async def test_a_program_inside_a_shell_script_is_the_rank(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, ("sh", "train.sh"))) as rig:
        rig.write("python inner.py\nexit $?\n", "train.sh")
        rig.write(
            """
            import os, time
            def inner():
                open(os.environ["EVERSTEP_OUTPUT_DIR"] + "/inner", "w").close()
                time.sleep(600)
            inner()
            """,
            "inner.py",
        )
        await rig.machine.start(rig.order(1, num_ranks=1))
        await until((rig.config.output_dir / "inner").exists)
        _, traces = await rig.machine.trace(TraceOrder(1, DEADLINE_S))
        assert stands(read(traces)[0]) == "inner (inner.py)"


async def test_the_flight_recorder_is_read_from_inside(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, COMMAND)) as rig:
        rig.write(
            """
            import os, sys, time, types
            recorder = types.ModuleType("torch._C._distributed_c10d")
            recorder._dump_fr_trace_json = lambda: '{"pg_status": {}, "asked": %d}' % time.time_ns()
            if os.environ["RANK"] == "0":
                sys.modules[recorder.__name__] = recorder
            open(os.environ["EVERSTEP_OUTPUT_DIR"] + "/" + os.environ["RANK"], "w").close()
            time.sleep(600)
            """
        )
        await rig.machine.start(rig.order(1))
        await until(lambda: all((rig.config.output_dir / name).exists() for name in "01"))
        found = [(await rig.machine.trace(TraceOrder(1, DEADLINE_S)))[1] for _ in range(2)]
        first, second = (json.loads(traces[0].recorder or b"null") for traces in found)
        assert first["asked"] < second["asked"]
        assert found[0][1].recorder is None
        os.kill(pids(rig)[0], signal.SIGSTOP)
        await until(lambda: state_of(pids(rig)[0]) == "T")
        assert (await rig.machine.trace(TraceOrder(1, DEADLINE_S)))[1][0].recorder is None
        # A pipe that stays would hold up for ever who reads the folder, a file after the other.
        assert len(pipes(rig.config.directory)) == 2
        os.kill(pids(rig)[1], signal.SIGKILL)
        await until(lambda: len(pipes(rig.config.directory)) == 1)
        await rig.machine.stop(StopOrder(1))
        assert pipes(rig.config.directory) == []


def pipes(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_fifo()]


async def test_a_signal_is_only_sent_to_who_catches_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        found = await trace(
            {0: Target(process.pid, tmp_path / "none")}, Asking(("/no/such/py-spy",), 1.0)
        )
        assert found[0].answer is Answer.REFUSED
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()


async def test_a_machine_without_ranks_cannot_tell(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, COMMAND)) as rig:
        with pytest.raises(UnobservableError, match="no rank was started on m0"):
            await rig.machine.trace(TraceOrder())


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_evidence_is_kept_once_and_checked_when_read(kind: str, tmp_path: Path) -> None:
    url = str(tmp_path / "evidence") if kind == "folder" else f"memory://{tmp_path.name}"
    store = EvidenceStore(url)
    digest = store.put(b"stacks")
    assert store.put(b"stacks") == digest
    assert EvidenceStore(url).get(digest) == b"stacks"
    if kind == "folder":
        (kept,) = [path for path in (tmp_path / "evidence").rglob("*") if path.is_file()]
        kept.write_bytes(b"others")
        with pytest.raises(PermanentError, match="was changed"):
            store.get(digest)
    with pytest.raises(PermanentError, match="is not in"):
        store.get("0" * 64)
    with pytest.raises(PermanentError, match="is no digest"):
        store.get("../../secret")
