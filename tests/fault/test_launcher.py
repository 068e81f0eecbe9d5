"""How ranks are started: warm where it is safe, as fresh programs where it is not."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.fault.machines import SECRET, Rig, children, config_of, until

from everstep.agent import journal
from everstep.agent.launcher import LAST_LINES, last_lines
from everstep.agent.process import num_threads, strays
from everstep.core.model import RankExit, RanksFinished
from everstep.core.orders import StopOrder

TRAIN = ("python", "train.py")

SHOW = """
import json, os, sys
descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
shown = {
    "environment": dict(os.environ), "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(),
    "file": __file__, "name": __name__, "main": sys.modules["__main__"].__dict__ is globals(),
    # Without the one by which the list itself was read, and that of the fault handler.
    "descriptors": [
        fd for fd in descriptors
        if os.path.exists(f"/proc/self/fd/{fd}")
        and os.readlink(f"/proc/self/fd/{fd}") != os.environ["EVERSTEP_STACKS_FILE"]
    ],
    "session": os.getsid(0), "pid": os.getpid(),
}
path = os.path.join(os.environ["EVERSTEP_OUTPUT_DIR"], os.environ["RANK"])
with open(path + "~", "w") as file:
    json.dump(shown, file)
os.rename(path + "~", path)
"""


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (("python", "sub/train.py", "--lr", "1"), ["sub/train.py", "--lr", "1"]),
        (("python", "-O", "sub/train.py", "--lr", "1"), ["sub/train.py", "--lr", "1"]),
    ],
)
async def test_a_script_finds_itself_started_as_always(
    tmp_path: Path, command: tuple[str, ...], argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_SECRET", SECRET.decode())
    async with Rig(config_of(tmp_path, command)) as rig:
        rig.write(SHOW, "sub/train.py")
        started = await rig.machine.start(rig.order(attempt=2))
        assert started.prewarmed == ("-O" not in command)
        shown: list[dict[str, Any]] = [await rig.output(name) for name in ("0", "1")]
        await until(lambda: rig.seen(RanksFinished))
    code = tmp_path / "code"
    for rank, seen in enumerate(shown):
        environment = seen["environment"]
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["MASTER_PORT"] == str(rig.info.rendezvous_port)
        assert environment["EVERSTEP_ATTEMPT"] == environment["TORCHELASTIC_RESTART_COUNT"] == "2"
        assert SECRET.decode() not in str(environment)
        assert seen["argv"] == argv
        assert seen["path"] == str(code / "sub")
        assert seen["cwd"] == str(code)
        assert seen["file"] == str(code / "sub/train.py")
        assert seen["name"] == "__main__"
        assert seen["main"]
        assert set(seen["descriptors"]) - {int(environment["EVERSTEP_CHANNEL_FD"])} == {0, 1, 2}
        assert seen["session"] == seen["pid"] == started.pids[rank]
    assert shown[0]["environment"].keys() == shown[1]["environment"].keys()


def shown_of(pid: int) -> bytes:
    """What the system shows of a process to everybody of its user."""
    process = Path(f"/proc/{pid}")
    return (process / "environ").read_bytes() + (process / "cmdline").read_bytes()


async def test_the_secret_is_in_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_SECRET", SECRET.decode())
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write("import time\ntime.sleep(1000)\n")
        started = await rig.machine.start(rig.order(attempt=1))
        [zygote] = [pid for pid in children(os.getpid()) if started.pids[0] in children(pid)]
        for pid in (zygote, *started.pids):
            assert SECRET not in shown_of(pid)


async def test_modules_run_too(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, ("python", "-m", "pkg.train", "-x"))) as rig:
        rig.write("", "pkg/__init__.py")
        rig.write("from pkg import other\n" + SHOW, "pkg/train.py")
        rig.write("", "pkg/other.py")
        assert (await rig.machine.start(rig.order(1))).prewarmed
        shown = await rig.output("0")
        await until(lambda: rig.seen(RanksFinished))
    assert shown["argv"] == [str(tmp_path / "code/pkg/train.py"), "-x"]
    assert shown["path"] == str(tmp_path / "code")
    assert shown["name"] == "__main__"


async def test_threads_exit_functions_and_spawned_processes_work(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write("""
            import atexit, multiprocessing, threading, time
            def double(x):
                return 2 * x
            def late():
                time.sleep(0.1)
                print("thread sees", double(1))
            if __name__ == "__main__":
                atexit.register(print, "at exit")
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print("spawned", pool.map(double, [21]))
                with multiprocessing.get_context("fork").Pool(1) as pool:
                    print("forked", pool.map(double, [22]))
                threading.Thread(target=late).start()
            """)
        await rig.machine.start(rig.order(1, num_ranks=1))
        await until(lambda: rig.seen(RanksFinished))
        assert rig.log(1, 0).splitlines() == [
            "spawned [42]",
            "forked [44]",
            "thread sees 2",
            "at exit",
        ]


async def test_outside_imports_are_made_ahead_and_the_codes_own_are_not(tmp_path: Path) -> None:
    config = config_of(tmp_path, TRAIN)
    for name in ("outside", "listed", "unknown"):
        (tmp_path / "no-torch" / f"{name}.py").write_text("import os\npid = os.getpid()\n")
    config = config_of(tmp_path, TRAIN, prewarm=("listed", "not_there"))
    rig = Rig(config)
    rig.write("""
        import os, outside, inside
        def later():
            import unknown, listed
            return unknown.pid, listed.pid
        ahead = [pid != os.getpid() for pid in (outside.pid, inside.pid, *later())]
        print(ahead)
        """)
    rig.write("import os\npid = os.getpid()\n", "inside.py")
    async with rig:
        assert (await rig.machine.start(rig.order(1, num_ranks=1))).prewarmed
        await until(lambda: rig.seen(RanksFinished))
        assert rig.log(1, 0) == "[True, False, False, True]\n"
        # A new version of the code is simply the code.
        rig.write("print('new')\n", "inside.py")
        await rig.machine.stop(StopOrder(1))
        await rig.machine.start(rig.order(2, num_ranks=1))
        await until(lambda: "AttributeError: module 'inside' has no" in rig.log(2, 0))
        [effect] = rig.effects("prewarmed")[:1]
    assert "import of not_there failed" in " ".join(effect["notes"])
    assert "no torch here" in " ".join(effect["notes"])


@pytest.mark.parametrize(
    ("source", "note", "timeout_s"),
    [
        (
            "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()\n",
            "2 threads run after the imports",
            30.0,
        ),
        ("import os\nos._exit(5)\n", "died while it warmed", 30.0),
        ("import time\ntime.sleep(1000)\n", "took longer than 1.0 s", 1.0),
    ],
)
async def test_imports_that_spoil_a_fork_cost_only_the_speed(
    tmp_path: Path, source: str, note: str, timeout_s: float
) -> None:
    config = config_of(tmp_path, TRAIN, prewarm=("spoiler",), prewarm_timeout_s=timeout_s)
    (tmp_path / "no-torch" / "spoiler.py").write_text(source)
    async with Rig(config) as rig:
        rig.write("import time\nprint('runs', flush=True)\ntime.sleep(1000)\n")
        started = await rig.machine.start(rig.order(attempt=1))
        assert not started.prewarmed
        await until(lambda: "runs" in rig.log(1, 1))
        os.kill(started.pids[0], signal.SIGKILL)
        await until(lambda: rig.seen(RankExit))
        assert (await rig.machine.stop(StopOrder(1))).stopped == (1,)
        assert not (await rig.machine.start(rig.order(attempt=2))).prewarmed
        assert note in " ".join(rig.effects("prewarmed")[0]["notes"])


async def test_a_program_that_is_not_there_ends_with_127(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, ("no-such-program", "x"))) as rig:
        await rig.machine.start(rig.order(1, num_ranks=1))
        await until(lambda: rig.seen(RankExit))
    [exit_] = rig.seen(RankExit)
    assert exit_.exit_code == 127
    assert "cannot run no-such-program" in exit_.last_lines[-1]


async def test_closing_leaves_nothing(tmp_path: Path) -> None:
    before = num_threads()
    rig = Rig(config_of(tmp_path, TRAIN))
    async with rig:
        rig.write("import time\ntime.sleep(1000)\n")
        await rig.machine.start(rig.order(attempt=1))
        assert len(strays(rig.config.owner, None)) >= 3
    assert strays(rig.config.owner, None) == []
    # What is left are the loop's own threads.
    await asyncio.get_running_loop().shutdown_default_executor()
    await until(lambda: num_threads() <= before)
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("zygote", "spawner"))]


def test_last_lines_are_few_and_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ()
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(100)) + b"\xff cut")
    assert last_lines(log) == (*(f"line {n}" for n in range(81, 100)), "� cut")
    assert len(last_lines(log)) == LAST_LINES
    log.write_bytes(b"x" * 1_000_000)
    assert last_lines(log) == ("x" * 16384,)


def test_lines_of_several_journals_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def write(number: int) -> None:
        log = journal.Journal(path)
        for _ in range(50):
            log.write("effect", number=number, text="x" * 5000)
        log.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with path.open("a") as file:
        file.write('{"effect": "cut sho')
    lines = journal.read(path)
    assert sorted(line["number"] for line in lines) == sorted(50 * [0, 1, 2, 3])
