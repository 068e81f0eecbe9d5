"""What a whole agent costs that watches its machine and 8 ranks: processor and memory.

The agent of a local run, its senses on, beside 8 GPUs of a libnvidia-ml.so.1 of our own where there
is a compiler; the ranks do nothing but report a step a second. The pre-warmed process that ranks
are forked from is training's own, and not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from tests.fakes.nvml.stub import FakeGpus, build

RANKS = 8
PATIENCE_S = 90.0
MEASURE_S = 20.0

RANK = """
import os, socket, time
from everstep.core import channel
sock = socket.socket(fileno=int(os.environ["EVERSTEP_CHANNEL_FD"]))
sock.sendall(channel.encode(channel.Hello()))
for step in range(1, 1_000_000):
    time.sleep(1.0)
    sock.sendall(channel.encode(channel.Report(step, 2.0, 1.0)))
"""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What an agent and the processes of its senses cost."""

    ranks: int
    core_percent: float
    memory_mib: float


def measure_overhead(folder: Path) -> Overhead:
    """Run a job for a while and look at its agent."""
    code = folder / "overhead"
    code.mkdir()
    (code / "rank.py").write_text(RANK)
    spec = {
        "name": "overhead",
        "command": ["bash", "-c", "exec python rank.py"],
        "code": {"directory": str(code)},
        "machines": 1,
        "gpus_per_machine": RANKS,
        "parallelism": {"dp": RANKS},
        "standby": {"count": 0},
    }
    file = code / "job.yaml"
    file.write_text(yaml.safe_dump(spec))  # pyright: ignore[reportUnknownMemberType]
    run = folder / "run"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "everstep.cli.main", "run", str(file), "--run-dir", str(run)],
        env={**environment, **_gpus(code), "EVERSTEP_SENSES": "true"},
        stdout=subprocess.DEVNULL,
    )
    try:
        _until_steps(run / "steps.jsonl", 5)
        agent = next(
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "everstep.workers.agent" in child.cmdline()
        )
        parts = [agent, *_helpers(agent)]
        before_s, began_s = _used_s(parts), time.monotonic()
        time.sleep(MEASURE_S)
        share = (_used_s(parts) - before_s) / (time.monotonic() - began_s)
        memory_bytes = sum(part.memory_full_info().uss for part in parts)
        return Overhead(RANKS, 100 * share, memory_bytes / 2**20)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _gpus(folder: Path) -> dict[str, str]:
    """What lets a process find 8 healthy GPUs, if they can be made here."""
    if shutil.which("gcc") is None:
        return {}
    return FakeGpus(build(folder), folder / "gpus").environment


def _helpers(agent: psutil.Process) -> list[psutil.Process]:
    """The agent's own processes besides it: not the one that ranks come from."""
    return [
        child
        for child in agent.children()
        if any("everstep.agent.probes" in word for word in child.cmdline())
    ]


def _used_s(parts: list[psutil.Process]) -> float:
    return sum(sum(part.cpu_times()[:2]) for part in parts)


def _until_steps(file: Path, wanted: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if file.exists() and any(
            json.loads(line)["step"] >= wanted for line in file.read_text().splitlines()
        ):
            return
        time.sleep(0.2)
    raise RuntimeError(f"no step {wanted} within {PATIENCE_S:g} s; see {file.parent}")
