"""Logs of real ranks: timed by their agent, merged, followed, and searched for what went wrong."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from tests.fault.machines import Rig, config_of, until

from everstep.agent.logtimes import EVERY_S
from everstep.cli import logs
from everstep.core.errors import InputError
from everstep.core.logtimes import Note
from everstep.core.model import RankExit
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.ranklogs import Followers, RankLog, find

SPEAK = """
import os, struct, sys, time
rank = int(os.environ["RANK"])
log = os.readlink("/proc/self/fd/1")

def noted():
    if not os.path.exists(log + ".times"):
        return False
    with open(log + ".times", "rb") as times:
        return struct.unpack("<dQ", times.read()[-16:])[1] >= os.path.getsize(log)

for n in range(3):
    time.sleep(0.2 if rank == n % 2 else 0.0)
    print(f"rank {rank} says {n} at {time.time()}", flush=True)
    # Nobody goes on before the agent has seen this.
    while not noted():
        time.sleep(0.01)
    while not all(os.path.exists(f"{os.environ['EVERSTEP_OUTPUT_DIR']}/{n}-{r}") for r in (0, 1)):
        open(f"{os.environ['EVERSTEP_OUTPUT_DIR']}/{n}-{rank}", "w").close()
        time.sleep(0.01)
time.sleep(1000)
"""
LATE_S = 5.0
"""How late an agent may see a line on a machine that has other things to do."""


def a_run(root: Path, phase: str = "finished") -> RunFolder:
    """The folder of a run whose machines' folders are made by the test."""
    folder = RunFolder(root)
    folder.write_state(pid=os.getpid(), phase=phase, started_at_s=time.time() + 1, job="toy")
    return folder


def write_log(
    folder: RunFolder,
    rank: int,
    *lines: tuple[float, str],
    machine: str = "m0",
    attempt: int = 1,
) -> None:
    """A log whose lines were seen at these times."""
    directory = folder.machines / machine / f"attempt-{attempt}"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"rank-{rank:05d}.log"
    with path.open("a") as log, path.with_name(path.name + ".times").open("ab") as times:
        for at_s, line in lines:
            log.write(line + "\n")
            log.flush()
            times.write(Note(at_s, log.tell()).encode())


async def test_the_agent_times_what_ranks_print(tmp_path: Path) -> None:
    config = config_of(tmp_path, ("python", "train.py"), directory=tmp_path / "machines" / "m0")
    (tmp_path / "machines").mkdir()
    async with Rig(config) as rig:
        rig.write(SPEAK)
        await rig.machine.start(rig.order(attempt=1))
        # The last that a rank does, once its last line was noted.
        await until(lambda: all((config.output_dir / f"2-{rank}").exists() for rank in (0, 1)))
    found = find(a_run(tmp_path), 1, None)
    lines = sorted((line for log in found for line in log.lines()), key=lambda line: line.at_s)
    assert len(lines) == 6
    for line in lines:
        said_at_s = float(line.text.split()[-1])
        assert said_at_s <= line.at_s + 0.01 < said_at_s + LATE_S
    rounds = [line.text.split()[3] for line in lines]
    assert rounds == sorted(rounds)


def test_ranks_of_several_machines_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path)
    write_log(folder, 0, (100.0, "zero first"), (103.0, "zero last"))
    write_log(folder, 9, (101.0, "nine"), machine="m1")
    write_log(folder, 4, (102.0, "  0%|\r 50%|\r100%|"), machine="m1")
    logs.logs_command(tmp_path)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 1)[1] for line in shown] == [
        "rank 0 m0 | zero first",
        "rank 9 m1 | nine",
        "rank 4 m1 | 100%|",
        "rank 0 m0 | zero last",
    ]
    logs.logs_command(tmp_path, attempt="1", rank="4,7-9")
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["9", "4"]
    logs.logs_command(tmp_path, rank="9", as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "at_s": pytest.approx(101.0, abs=0.01),
        "attempt": 1,
        "rank": 9,
        "machine": "m1",
        "text": "nine",
    }


def test_the_line_that_leads_is_on_top_of_the_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path)
    peer = "RuntimeError: Connection closed by peer [10.0.0.2]:5"
    write_log(folder, 0, (100.0, "step 4"), (109.0, peer))
    write_log(folder, 1, (108.0, peer))
    write_log(folder, 2, (107.0, "KeyError: 'labels'"), (107.5, "KeyError: again"))
    write_log(folder, 3, (106.9, "all is well"))
    logs.logs_command(tmp_path, errors=True)
    head, *shown = capsys.readouterr().out.splitlines()
    assert head.startswith("rollback_code (code_error")
    assert [line.split(" ", 1)[1] for line in shown] == [
        "rank 2 m0 | KeyError: 'labels'",
        f"rank 1 m0 | {peer}",
        f"rank 0 m0 | {peer}",
    ]


def test_of_an_exception_the_errors_show_its_own_line_and_each_rank_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path)
    for rank, at_s in ((0, 30.0), (1, 31.0)):
        write_log(
            folder,
            rank,
            (at_s, "Traceback (most recent call last):"),
            (at_s, '  File "train.py", line 3, in <module>'),
            (at_s, f"ValueError: rank {rank} cannot"),
        )
    logs.logs_command(tmp_path, errors=True)
    _, *told = capsys.readouterr().out.splitlines()
    assert [line.partition(" | ")[2] for line in told] == [
        "ValueError: rank 0 cannot", "ValueError: rank 1 cannot",
    ]  # fmt: skip


def test_a_rank_that_wrote_nothing_is_said_to_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path)
    write_log(folder, 0, (30.0, "step 1"))
    write_log(folder, 5)
    logs.logs_command(tmp_path, rank="5")
    assert capsys.readouterr().out == "No line in attempt 1.\n"


def test_errors_say_which_attempt_they_are_of_and_that_earlier_ones_have_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path)
    write_log(folder, 0, (100.0, "KeyError: 'labels'"))
    write_log(folder, 0, attempt=2)
    write_log(folder, 0, (300.0, "all is well"), machine="m1", attempt=3)
    logs.logs_command(tmp_path, errors=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        "Attempt 3, the newest. Earlier ones have lines, too: 1 (--attempt N, or all)."
    )
    assert second.startswith("No rank said anything telling")
    logs.logs_command(tmp_path, attempt="1", errors=True)
    head, line = capsys.readouterr().out.splitlines()
    assert head.startswith("rollback_code")
    assert line.endswith("rank 0 m0 | KeyError: 'labels'")
    logs.logs_command(tmp_path, attempt="all", errors=True)
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("Attempt")] == [
        "Attempt 1:",
        "Attempt 2:",
        "Attempt 3:",
    ]
    assert shown[2].endswith("rank 0 m0 | KeyError: 'labels'")


def test_programs_are_told_of_which_attempt_a_line_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path)
    write_log(folder, 0, (100.0, "KeyError: 'labels'"))
    write_log(folder, 0, (300.0, "all is well"), machine="m1", attempt=2)
    logs.logs_command(tmp_path, errors=True, as_json=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert "Earlier ones have lines, too: 1" in said.err
    logs.logs_command(tmp_path, attempt="all", as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["attempt"], one["machine"]) for one in lines] == [(1, "m0"), (2, "m1")]


def test_logs_are_followed_as_they_grow_and_new_ranks_are_found(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    followers = Followers(folder, None, None)
    assert followers.new_lines() == []
    write_log(folder, 0, (100.0, "one"), (101.0, "two"))
    assert [line.text for _, line in followers.new_lines()] == [b"one", b"two"]
    write_log(folder, 1, (101.5, "other"))
    write_log(folder, 0, (102.0, "three"))
    with (folder.machines / "m0/attempt-1/rank-00000.log").open("a") as log:
        log.write("begun, ")
    fresh = followers.new_lines()
    assert [(log.rank, line.number, line.text) for log, line in fresh] == [
        (1, 0, b"other"),
        (0, 2, b"three"),
    ]
    write_log(folder, 0, (103.0, "and ended"))
    (ended,) = followers.new_lines()
    assert (ended[1].at_s, ended[1].text) == (103.0, b"begun, and ended")
    assert followers.new_lines() == []


def test_following_ends_with_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(a_run(tmp_path), 0, (100.0, "one"))
    logs.logs_command(tmp_path, follow=True)
    assert "rank 0 m0 | one" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "x", "3-", "7-5", "3,,4", "-1"])
def test_ranks_that_are_none_are_wrong_input(text: str) -> None:
    with pytest.raises(InputError, match="Write them as 3,5-7"):
        logs.parse_ranks(text)


def test_what_is_not_there_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rank has been started"):
        logs.logs_command(RunFolder(a_run(tmp_path).path).path)
    write_log(RunFolder(tmp_path), 0, (100.0, "one"))
    with pytest.raises(InputError, match="There are: 1"):
        logs.logs_command(tmp_path, attempt="2")
    with pytest.raises(InputError, match=r"'-1' is no attempt\. Give a number"):
        logs.logs_command(tmp_path, attempt="-1")
    with pytest.raises(InputError, match="follows one attempt"):
        logs.logs_command(tmp_path, attempt="all", follow=True)
    with pytest.raises(InputError, match="none of these ranks"):
        logs.logs_command(tmp_path, rank="5")


def test_a_line_without_end_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.log"
    path.write_bytes(b"x" * 3_000_000 + b"\nlast\n")
    lines = list(RankLog(0, "m0", path).lines())
    assert max(len(line.text) for line in lines) < 100_000
    assert (lines[-1].number, lines[-1].text) == (1, b"last")


async def test_a_full_disk_for_times_stops_no_rank(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, ("python", "train.py"))) as rig:
        times = tmp_path / "m0" / "attempt-1" / "rank-00000.log.times"
        times.mkdir(parents=True)  # so that it cannot be written
        rig.write("print('hello')")
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await until(lambda: rig.has_logged(1, 0, "hello"))
        await asyncio.sleep(2 * EVERY_S)
    assert rig.seen(RankExit) == []
