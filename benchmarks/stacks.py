"""Time and memory to judge the dumps of 9,600 ranks, against the paper's figure of 9,600 GPUs.

The dumps are real ones (`tests/data/stacks`), perturbed: thread and process ids, three helper
threads each, lines inside loops. One pipeline group is stuck as in the paper's Fig. 7, 1 % of the
other ranks did not answer, and each rank has a flight recorder's status. The whole command is
measured, in a process of its own: start, reading of all files, judgement, JSON.

Run as `python -m benchmarks.stacks`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Result, conclude

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "stacks"
SPEC = """\
name: large
command: [python, train.py]
code: {directory: .}
machines: 1200
gpus_per_machine: 8
parallelism: {tp: 8, pp: 8, dp: 150, order: tp-pp-dp}
"""
WORLD_SIZE = 9600
STUCK_DP = 77
SILENT_EVERY = 100
STUCK_MACHINES = list(range(STUCK_DP * 8, STUCK_DP * 8 + 8))
REPEATS = 3


def main() -> int:
    """Make the dumps, judge them, print the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(SPEC)
        total_bytes = make_dumps(folder / "dumps")
        print(f"{WORLD_SIZE} ranks, {total_bytes / 1e6:.0f} MB of dumps")
        runs = [judge(folder) for _ in range(REPEATS)]
    wall_s, cpu_s, peak_bytes = (min(run[i] for run in runs) for i in range(3))
    print(f"CPU time of the fastest run: {cpu_s:.2f} s")
    return conclude(
        [
            Result("judge_9600_ranks", wall_s, "s", "<=", 2.0),
            Result("judge_9600_ranks_memory", peak_bytes / 2**20, "MiB", "<=", 500.0),
        ]
    )


def make_dumps(folder: Path) -> int:
    """Write one dump a rank; returns their size together."""
    folder.mkdir()
    chance = random.Random(7)  # noqa: S311 - a benchmark's noise
    waiting = (DATA / "stopped" / "rank-0.json").read_text()
    stuck = [(DATA / "stopped" / f"rank-{rank}.json").read_text() for rank in (4, 6, 7)]
    helper = json.dumps(json.loads(waiting)[0] | {"thread_name": "Thread-1"}, indent=2)
    written = 0
    for rank in range(WORLD_SIZE):
        is_stuck = rank // 64 == STUCK_DP
        if rank % SILENT_EVERY == 0 and not is_stuck:
            continue
        text = stuck[rank // 8 % len(stuck)] if is_stuck else waiting
        pid = chance.randrange(1000, 4_000_000)
        parsed = json.loads(text)
        parsed += [json.loads(helper) | {"os_thread_id": pid + index} for index in (1, 2, 3)]
        for thread in parsed:
            thread["pid"] = pid
            thread["thread_id"] = chance.randrange(2**47)
            thread["frames"][0]["line"] += chance.randrange(20)
        parsed[0]["os_thread_id"] = pid
        written += (folder / f"rank-{rank}.json").write_text(json.dumps(parsed, indent=2))
        status = {"last_enqueued_collective": "41", "last_completed_collective": "40"}
        recorder = {"pg_config": {}, "pg_status": {"0": status}}
        written += (folder / f"recorder-{rank}.json").write_text(json.dumps(recorder))
    return written


def judge(folder: Path) -> tuple[float, float, int]:
    """Wall and CPU seconds and peak bytes of the command, whose verdict is checked."""
    command = [sys.executable, "-m", "everstep.cli.main", "analyze-stacks", "--json"]
    began_s = time.monotonic()
    with subprocess.Popen(
        [*command, "--spec", str(folder / "job.yaml"), str(folder / "dumps")],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - asked for
        found = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - began_s
    if found["evict_machines"] != STUCK_MACHINES:
        raise SystemExit(f"wrong verdict: {found}")
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
