"""Time from a kill to the first new step: Everstep beside `torchrun --max-restarts`.

Same trainer, same layout (TP2 x PP2 x DP2, 8 ranks), same fault, same machine, one after the other.
torchrun's ranks restart from the trainer's own checkpoint files of the step before; its rendezvous
store is not shared with the trainer, without which no restart of gloo works at all (pytorch
#135712). For a lost machine torchrun gets four agents of two ranks; one agent and its ranks are
killed, and a replacement agent is started in the same instant, which is more than an operator could
do. Everstep's time includes detection.

Run as `python -m benchmarks.restart`; takes about four minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from benchmarks.results import Result, conclude
from everstep.workers.local.faults import kill_machine
from everstep.workers.local.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "gpt"
LAYOUT = ["--tp", "2", "--pp", "2", "--dp", "2", "--order", "tp-pp-dp"]
KILL_AT = (15, 40, 65)
STEPS = 90
PATIENCE_S = 300.0
STEP_LINE = re.compile(r"step (\d+) loss")


def everstep(folder: Path, faults: Sequence[str], standbys: int) -> list[float]:
    """Seconds from each fault to the next step that all ranks finished, in one run."""
    spec = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    spec["command"] = ["python", "train.py", "--steps", str(STEPS)]
    spec["code"] = {"directory": str(EXAMPLE)}
    spec["standby"] = {"count": standbys, "refill": False}
    spec["ladder"] = {"probation_steps": 2, "probation_s": 0.5}
    spec["safety"] = {"max_evicted_ratio": 1.0}
    spec_file = folder / "job.yaml"
    text = yaml.safe_dump(spec)  # pyright: ignore[reportUnknownMemberType]
    spec_file.write_text(text)
    run = folder / "run"
    options = [part for fault in faults for part in ("--fault", fault)]
    command = [
        sys.executable, "-m", "everstep.cli.main", "run", str(spec_file), "--run-dir", str(run),
        *options,
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)
    injected = json.loads((run / "run.json").read_text())["faults"]
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    times: list[float] = []
    for fault in injected:
        before = max(s["attempt"] for s in steps if s["at_s"] <= fault["at_s"])
        first = min(s["at_s"] for s in steps if s["attempt"] > before)
        times.append(first - fault["at_s"])
    return times


@dataclass
class Torchrun:
    """One job under torchrun, its output with the time of each line."""

    folder: Path
    agents: list[subprocess.Popen[str]]

    def lines(self) -> list[tuple[float, str]]:
        """All output so far, by time."""
        found: list[tuple[float, str]] = []
        for file in self.folder.glob("out-*.log"):
            for line in file.read_text().splitlines():
                stamp, _, text = line.partition(" ")
                found.append((float(stamp), text))
        return sorted(found)

    def first_step(self, at_least: int, after_s: float) -> float:
        """When a step of at least this number was printed after a moment."""
        deadline_s = time.time() + PATIENCE_S
        while time.time() < deadline_s:
            for at_s, text in self.lines():
                match = STEP_LINE.search(text)
                if match and at_s > after_s and int(match[1]) >= at_least:
                    return at_s
            if all(agent.poll() is not None for agent in self.agents):
                break
            time.sleep(0.02)
        raise RuntimeError(f"torchrun made no step {at_least}; see {self.folder}")

    def kill_all(self) -> None:
        """End every agent and every rank."""
        for agent in self.agents:
            kill_machine(agent.pid)


def start_torchrun(
    folder: Path, options: Sequence[str], layout: Sequence[str] = LAYOUT, steps: int = STEPS
) -> subprocess.Popen[str]:
    """One torchrun agent; every line of output gets the time at which it came."""
    number = len(list(folder.glob("out-*.log")))
    stamp = "import sys,time\nfor line in sys.stdin: print(time.time(), line, end='', flush=True)"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_GLOO_LAZY_INIT": "1",
        "RES_OPTIONS": "timeout:1 attempts:1",
        "PYTHONUNBUFFERED": "1",
    }
    log = (folder / f"out-{number}.log").open("w")
    agent = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", *options, "--max-restarts", "5",
            "--monitor-interval", "0.1", str(EXAMPLE / "train.py"), *layout, "--steps", str(steps),
            "--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-every", "1",
            "--out", str(folder),
        ],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    subprocess.Popen([sys.executable, "-c", stamp], stdin=agent.stdout, stdout=log)
    return agent


def rank_processes(agent: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks that an agent runs now, oldest first."""
    children = psutil.Process(agent.pid).children()
    return [c for c in children if "train.py" in " ".join(c.cmdline())]


def torchrun_rank_killed(folder: Path) -> list[float]:
    """Seconds from each kill of one rank to the next new step, in one run."""
    agent = start_torchrun(folder, ["--standalone", "--nproc-per-node", "8"])
    job = Torchrun(folder, [agent])
    times: list[float] = []
    try:
        for step in KILL_AT:
            job.first_step(step, 0.0)
            victim = rank_processes(agent)[5]
            killed_s = time.time()
            os.kill(victim.pid, signal.SIGKILL)
            reached = newest_step(job, killed_s)
            times.append(job.first_step(reached, killed_s + 0.5) - killed_s)
    finally:
        job.kill_all()
    return times


def torchrun_machine_lost(folder: Path) -> list[float]:
    """Seconds from the kill of an agent with its two ranks to the next new step."""
    port = free_port("127.0.0.1")
    options = [
        "--nnodes", "4", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "benchmark",
    ]  # fmt: skip
    # The first agent hosts the rendezvous; with it, torchrun's job would be lost for good.
    host, guest = (["--rdzv-conf", f"is_host={flag}"] for flag in (1, 0))
    agents = [start_torchrun(folder, [*options, *host])]
    agents += [start_torchrun(folder, [*options, *guest]) for _ in range(3)]
    job = Torchrun(folder, agents)
    try:
        job.first_step(KILL_AT[0], 0.0)
        victim = agents[2]
        killed_s = time.time()
        kill_machine(victim.pid)
        agents.append(start_torchrun(folder, [*options, *guest]))
        reached = newest_step(job, killed_s)
        return [job.first_step(reached, killed_s + 0.5) - killed_s]
    finally:
        job.kill_all()


def newest_step(job: Torchrun, until_s: float) -> int:
    """Newest step that was printed up to a moment."""
    steps = [
        int(match[1])
        for at_s, text in job.lines()
        if at_s <= until_s and (match := STEP_LINE.search(text))
    ]
    return max(steps)


def main() -> int:
    """Measure all four, print each, and the two ratios."""
    with tempfile.TemporaryDirectory(prefix="everstep-benchmark-") as top:
        folders = [Path(top) / name for name in "abcd"]
        for folder in folders:
            folder.mkdir()
        rank_faults = [f"rank_killed@{step}:5" for step in KILL_AT]
        machine_faults = [
            f"machine_lost@{step}:m{machine}"
            for step, machine in zip(KILL_AT, (1, 2, 0), strict=True)
        ]
        measured = {
            "everstep, rank killed": everstep(folders[0], rank_faults, 1),
            "torchrun, rank killed": torchrun_rank_killed(folders[1]),
            "everstep, machine lost": everstep(folders[2], machine_faults, 3),
            "torchrun, machine lost": torchrun_machine_lost(folders[3]),
        }
    medians: dict[str, float] = {}
    for name, times in measured.items():
        medians[name] = statistics.median(times)
        each = ", ".join(f"{value:.2f}" for value in times)
        print(f"{name}: median {medians[name]:.2f} s from kill to first new step ({each})")
    return conclude(
        [
            Result(
                "restart_rank_killed_vs_torchrun",
                medians["torchrun, rank killed"] / medians["everstep, rank killed"],
                "ratio", ">=", 5.0,
            ),
            Result(
                "restart_machine_lost_vs_torchrun",
                medians["torchrun, machine lost"] / medians["everstep, machine lost"],
                "ratio", ">=", 3.0,
            ),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
