"""An urgent change of code at 32 ranks: Everstep beside stopping the job and submitting it anew.

Same trainer, same layout (TP2 x PP4 x DP4, 8 machines of 4 ranks), same machine, one after the
other. Everstep: from the moment in which all machines have accepted the update (training goes on
until then) to the first new step of all ranks; what the command takes before is printed beside
it. The rival: from a SIGTERM to torchrun's agent to the first new step of the same job, started
with the new code in the same instant in which the old one is gone, from its own checkpoint of the
step before; no queue and no scheduler stand between, which is more than a cluster offers. The
paper's factor (section 8.1.2, Table 7) is 11.04.

Steps last a second, as on devices that compute while cores are idle: 32 ranks that keep two cores
busy all the time would leave nothing to the one who gives a command.

Run as `python -m benchmarks.hot_update`; takes about five minutes.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.restart import EXAMPLE, PATIENCE_S, Torchrun, newest_step, start_torchrun
from benchmarks.results import Result, conclude
from everstep.workers.local.faults import kill_machine

SIZES = {"tp": 2, "pp": 4, "dp": 4}
RANKS = 32
MACHINES = 8
SHAPE = [
    "--layers", "4", "--width", "32", "--context", "32", "--batch", "16", "--step-time-s", "1.0",
]  # fmt: skip
STEPS = 100_000
TIMES = 3
RESUBMISSIONS = 2
"""Each takes a minute, and they differ little."""

AFTER_STEPS = 5


def code(folder: Path, number: int) -> Path:
    """The trainer, other than the one before by a comment."""
    target = folder / f"version-{number}"
    shutil.copytree(EXAMPLE, target, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    with (target / "train.py").open("a") as script:
        script.write(f"# version {number}\n")
    return target


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Steps that all ranks have finished so far."""
    file = run / "steps.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def wait_for_step(run: Path, attempt: int, step: int) -> dict[str, Any]:
    """The first step of an attempt that is at least this one."""
    deadline_s = time.time() + PATIENCE_S
    while time.time() < deadline_s:
        for seen in steps_of(run):
            if seen["attempt"] >= attempt and seen["step"] >= step:
                return seen
        time.sleep(0.02)
    raise RuntimeError(f"no step {step} of attempt {attempt}; see {run}")


def agents(run: Path) -> list[int]:
    """Process ids of the agents that have ever been ready, by machine."""
    journals = sorted(run.glob("machines/*/journal.jsonl"))
    lines = [json.loads(line) for file in journals for line in file.read_text().splitlines()]
    return [line["agent_pid"] for line in lines if line["effect"] == "ready"]


def everstep(folder: Path) -> tuple[list[float], int]:
    """Seconds from each acceptance to the first new step, and the most steps that were redone.

    Raises:
        RuntimeError: An agent's process is not the one that the run began with.
    """
    spec: dict[str, Any] = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    spec |= {
        "command": ["python", "train.py", "--steps", str(STEPS), *SHAPE],
        "code": {"directory": str(code(folder, 0))},
        "machines": MACHINES,
        "gpus_per_machine": RANKS // MACHINES,
        "parallelism": {**SIZES, "order": "tp-pp-dp"},
        "standby": {"count": 0, "refill": False},
        "ladder": {"probation_steps": 2, "probation_s": 0.5},
    }
    spec_file, run = folder / "job.yaml", folder / "run"
    text = yaml.safe_dump(spec)  # pyright: ignore[reportUnknownMemberType]
    spec_file.write_text(text)
    command = [sys.executable, "-m", "everstep.cli.main"]
    job = subprocess.Popen(
        [*command, "run", str(spec_file), "--run-dir", str(run)], stdout=subprocess.DEVNULL
    )
    times: list[float] = []
    try:
        for number in range(1, TIMES + 1):
            wait_for_step(run, number, AFTER_STEPS * number)
            version = code(folder, number)
            asked_s = time.time()
            subprocess.run(
                [*command, "hot-update", str(run), "--code", str(version), "--urgent"],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            wait_for_step(run, number + 1, 0)
            times.append(tell(run, number, asked_s))
            time.sleep(3.0)
    finally:
        job.terminate()
        job.wait(PATIENCE_S)
    if len(agents(run)) != MACHINES:
        raise RuntimeError(f"agents were started anew: {agents(run)}")
    found = [json.loads(file.read_text()) for file in sorted((run / "incidents").glob("*.json"))]
    return times, max(int(record["lost_steps"]) for record in found)


def tell(run: Path, number: int, asked_s: float) -> float:
    """Print where the time of one update went; seconds of it in which training stood still."""
    file, words = run / "incidents" / f"{number}.json", ("all ranks stopped", "started from step")
    deadline_s = time.time() + PATIENCE_S
    while not file.exists():
        if time.time() > deadline_s:
            raise RuntimeError(f"incident {number} left no record; see {run}")
        time.sleep(0.1)
    record = json.loads(file.read_text())
    at_s = [record["opened_at_s"]]
    at_s += [next(e["at_s"] for e in record["timeline"] if word in e["text"]) for word in words]
    at_s.append(record["first_step_at_s"])
    parts = [after - before for before, after in zip([asked_s, *at_s], at_s, strict=False)]
    named = zip(("accepted", "stopped", "started", "first step"), parts, strict=True)
    print(f"update {number}: {', '.join(f'{name} {s:.2f} s' for name, s in named)}", flush=True)
    return float(at_s[-1] - at_s[0])


def resubmitted(folder: Path) -> list[float]:
    """Seconds from each SIGTERM to the first new step."""
    layout = [part for kind, size in SIZES.items() for part in (f"--{kind}", str(size))]
    layout += ["--order", "tp-pp-dp", *SHAPE]
    options = ["--standalone", "--nproc-per-node", str(RANKS)]
    job = Torchrun(folder, [start_torchrun(folder, options, layout, STEPS)])
    times: list[float] = []
    try:
        for number in range(1, RESUBMISSIONS + 1):
            job.first_step(AFTER_STEPS * number, 0.0)
            stopped_s = time.time()
            job.agents[-1].terminate()
            job.agents[-1].wait(PATIENCE_S)
            reached = newest_step(job, time.time())
            job.agents.append(start_torchrun(folder, options, layout, STEPS))
            times.append(job.first_step(reached, stopped_s + 1.0) - stopped_s)
    finally:
        for agent in job.agents:
            kill_machine(agent.pid)
    return times


def main() -> int:
    """Measure both, print each time, and the ratio."""
    with tempfile.TemporaryDirectory(prefix="everstep-benchmark-") as top:
        ours, theirs = Path(top) / "ours", Path(top) / "theirs"
        ours.mkdir()
        theirs.mkdir()
        updated, redone = everstep(ours)
        stopped = resubmitted(theirs)
    for name, times in (("everstep hot-update", updated), ("stopped and resubmitted", stopped)):
        each = ", ".join(f"{value:.2f}" for value in times)
        median = statistics.median(times)
        print(f"{name}: median {median:.2f} s without training ({each})")
    ratio = statistics.median(stopped) / statistics.median(updated)
    return conclude(
        [
            Result("hot_update_vs_resubmission", ratio, "ratio", ">=", 10.0),
            Result("hot_update_redone_steps", redone, "steps", "<=", 1.0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
