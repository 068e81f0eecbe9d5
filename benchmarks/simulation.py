"""Ninety days of the example job through both engines: how long each takes, and whether they agree.

The counted engine runs twice, which has to come to the same figures to the digit. Then the real
workflows run on Temporal's time-skipping server with the same faults; an incident agrees when its
rungs, their outcomes, the machines evicted, returned and taken instead, and the code are the same.

Run as `python -m benchmarks.simulation [DAYS]`; takes some four minutes for the 90 days of the
goals, which are for 1,200 machines on two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.progress import Progress

from benchmarks.results import Result, conclude
from everstep.cli.simulate import faults_of
from everstep.core.record import IncidentRecord
from everstep.core.simulation.engine import Run, simulate
from everstep.core.simulation.figures import figures
from everstep.core.simulation.setting import Choices
from everstep.spec.load import read_spec
from everstep.spec.load_simulation import load_durations, load_stream
from everstep.spec.simulation import setting, spec_for_workflows
from everstep.workers.simulation.controller import OBJECTS_BETWEEN_COLLECTIONS
from everstep.workers.simulation.parts import Given
from everstep.workers.simulation.run import simulate as simulate_with_workflows

JOB = Path(__file__).parents[1] / "examples" / "simulation" / "job.yaml"
DAYS = 90.0
SEED = 1

COUNTED_GOAL_S = 10.0
WORKFLOWS_GOAL_S = 300.0
MEMORY_GOAL_MIB = 2048.0
ETTR_GOAL_POINTS = 0.1
"""A server's clock runs on while workflows work."""

LOOKS_EVERY_S = 2.0


@dataclass
class Usage:
    """What a process and its children have used.

    Attributes:
        memory_mib: Of all together, at most.
        cpu_s: Of each kind of process.
    """

    memory_mib: float
    cpu_s: dict[str, float]


@contextlib.asynccontextmanager
async def watched() -> AsyncGenerator[Usage]:
    """Watch this process and its children until the end."""
    usage, seen = Usage(0.0, {}), dict[int, tuple[str, float]]()

    def look() -> None:
        this = psutil.Process()
        memory_bytes = 0
        for process in [this, *this.children(recursive=True)]:
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                memory_bytes += process.memory_info().rss
                kind = "cluster" if process.pid == this.pid else _kind(process.cmdline())
                if kind is not None:
                    seen[process.pid] = kind, times.user + times.system
        usage.memory_mib = max(usage.memory_mib, memory_bytes / 2**20)

    async def keep_looking() -> None:
        while True:
            look()
            await asyncio.sleep(LOOKS_EVERY_S)

    looking = asyncio.create_task(keep_looking())
    try:
        yield usage
    finally:
        looking.cancel()
        for kind, cpu_s in seen.values():
            usage.cpu_s[kind] = usage.cpu_s.get(kind, 0.0) + cpu_s


def _kind(command: list[str]) -> str | None:
    text = " ".join(command)
    if "simulation.controller" in text:
        return "controllers"
    return "servers" if "temporal-test-server" in text else None


def _done(record: IncidentRecord) -> object:
    rungs = [(climb.rung, climb.outcome, climb.machines) for climb in record.climbs]
    return rungs, record.evicted, record.replacements, record.returned, record.code_version


def differing(counted: Run, real: Run) -> int:
    """Incidents that the two did otherwise, and by how many one has more than the other."""
    pairs = zip(counted.met, real.met, strict=False)
    otherwise = sum(
        _done(one.record) != _done(other.record) or one.fault != other.fault for one, other in pairs
    )
    return otherwise + abs(len(counted.met) - len(real.met))


async def main(days: float) -> int:
    """Run all and print the figures."""
    spec, times, stream = read_spec(JOB), load_durations("paper"), load_stream("paper")
    given = setting(spec, times, Choices(), SEED, days)
    faults = faults_of(stream, spec.machines, days, SEED)
    began_s = time.monotonic()
    counted = simulate(given, faults)
    counted_s = time.monotonic() - began_s
    again = figures(simulate(given, faults)) == figures(counted)
    print(f"counted: {len(counted.met)} incidents of {days:g} days in {counted_s:.2f} s")
    print(f"once more with the same seed: {'the same' if again else 'OTHER'} figures")
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    with Progress(transient=True) as progress:
        bar = progress.add_task("through the workflows", total=1.0)
        how = Given(
            spec_for_workflows(spec),
            progress=lambda so_far: progress.update(bar, completed=so_far.ratio),
        )
        async with watched() as usage:
            began_s = time.monotonic()
            real = await simulate_with_workflows(given, faults, how)
            real_s = time.monotonic() - began_s
    mine, theirs = figures(counted), figures(real)
    apart = 100 * abs(mine.ettr - theirs.ettr)
    cpu = ", ".join(f"{kind} {cpu_s:.0f} s" for kind, cpu_s in usage.cpu_s.items())
    print(f"through the workflows: {real_s:.0f} s; processor time of {cpu}")
    print(f"ETTR {100 * mine.ettr:.4f} % counted, {100 * theirs.ettr:.4f} % through the workflows")
    print(f"shares of the ladder: {'the same' if mine.shares == theirs.shares else 'OTHERS'}")
    return conclude(
        [
            Result("counted_s", counted_s, "s", "<=", COUNTED_GOAL_S),
            Result("figures_of_one_seed_that_differ", float(not again), "runs", "<=", 0),
            Result("workflows_s", real_s, "s", "<=", WORKFLOWS_GOAL_S),
            Result("incidents_that_differ", differing(counted, real), "incidents", "<=", 0),
            Result("ettr_apart", apart, "points", "<=", ETTR_GOAL_POINTS),
            Result("memory", usage.memory_mib, "MiB", "<=", MEMORY_GOAL_MIB),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else DAYS)))
