"""Real kills for memory, in a cgroup with a real limit, told from kills by a person."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fault.machines import Rig, config_of, until

from everstep.agent.memory import CGROUPS, OomKills, counters
from everstep.core.model import RankExit

LIMIT_BYTES = 48 << 20

EAT = """
import os, sys
with open(os.environ["CGROUP"] + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
print("eating", flush=True)
if os.environ["RANK"] == "0":
    kept = [bytearray(1 << 20) for _ in range(500)]
import time
time.sleep(1000)
"""


@pytest.fixture
def limited() -> Generator[tuple[str, Path]]:
    """A cgroup with little memory: its path, and its folder."""
    name = f"everstep-test-{uuid.uuid4().hex[:8]}"
    version_1 = (CGROUPS / "memory").is_dir()
    folder = CGROUPS / ("memory" if version_1 else "") / name
    limit = folder / ("memory.limit_in_bytes" if version_1 else "memory.max")
    try:
        folder.mkdir()
        limit.write_text(str(LIMIT_BYTES))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no cgroup with a limit can be made here: {error}")
    yield f"/{name}", folder
    folder.rmdir()


async def test_a_rank_that_the_kernel_killed_for_memory_is_told_from_one_that_a_person_killed(
    tmp_path: Path, limited: tuple[str, Path]
) -> None:
    cgroup, folder = limited
    config = config_of(tmp_path, ("python", "train.py"), cgroup=cgroup)
    config = replace(config, environment={**config.environment, "CGROUP": str(folder)})
    async with Rig(config) as rig:
        rig.write(EAT)
        started = await rig.machine.start(rig.order(attempt=1))
        await until(lambda: rig.seen(RankExit))
        await until(lambda: rig.has_logged(1, 1, "eating"))
        os.kill(started.pids[1], signal.SIGKILL)
        await until(lambda: len(rig.seen(RankExit)) == 2)
        exits = {e.rank: e for e in rig.seen(RankExit)}
    assert (exits[0].signal, exits[0].oom_killed) == (signal.SIGKILL, True)
    assert (exits[1].signal, exits[1].oom_killed) == (signal.SIGKILL, False)


def test_each_kill_is_handed_out_once(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 4\noom_kill 4\noom_group_kill 0\n")
    kills = OomKills([tmp_path / "none", events])
    assert not kills.claim()
    events.write_text("low 0\noom 6\noom_kill 6\noom_group_kill 0\n")
    assert [kills.claim() for _ in range(3)] == [True, True, False]


def test_without_a_counter_nothing_is_claimed(tmp_path: Path) -> None:
    assert not OomKills(counters("/nowhere", tmp_path)).claim()


def test_counters_of_both_versions_and_of_containers_are_looked_for(tmp_path: Path) -> None:
    names = [str(path.relative_to(tmp_path)) for path in counters("/kube/pod1", tmp_path)]
    assert names == [
        "memory/kube/pod1/memory.oom_control",
        "memory/memory.oom_control",
        "kube/pod1/memory.events",
        "memory.events",
    ]
