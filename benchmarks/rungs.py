"""What each rung of the ladder costs beside its own work: Everstep's round trips alone.

Real workflows, worker and server (that of a local run, its database on disk); machines that answer
every order at once. One job of 4 machines meets NaN again and again, each time one that no check
sees and that a reattempt and a rollback do not help, until a replay names a machine: so every
incident climbs all rungs. Measured, by the incidents' own records, is

- checks, replay: from the moment that the ladder chose the rung to its verdict;
- evict, reattempt, rollback: from there to the first new step of all ranks, the orders to evict,
  restore and start, and the wait for the step, included.

Run as `python -m benchmarks.rungs`; takes about a minute.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.fakes.servers import dev_server

from benchmarks.results import Result, conclude
from everstep.core.memory import CodeVersion
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome, Rung, Verdict
from everstep.spec.job import JobSpec

MACHINES = 4
INCIDENTS = 20
GOAL_S = 0.3
TESTS = (Rung.CHECKS, Rung.REPLAY)
WALK = (Rung.CHECKS, Rung.REATTEMPT, Rung.ROLLBACK, Rung.REPLAY, Rung.EVICT)

SPEC = JobSpec.model_validate(
    {
        "name": "rungs",
        "command": ["python", "train.py"],
        "code": {"directory": "."},
        "machines": MACHINES,
        "gpus_per_machine": 2,
        "parallelism": {"tp": 2, "pp": 1, "dp": 4, "order": "tp-pp-dp"},
        "standby": {"count": 1},
        "ladder": {"evidence_window_s": 0.01, "probation_s": 0.05, "probation_steps": 3},
        "replay": {"steps": 1, "shows_ratio": 1.0},
        "safety": {"max_evicted_ratio": 1.0, "window_s": 0.01},
    }
)


async def incident(control: Control, number: int, attempt: int) -> IncidentRecord:
    """One incident from its first rung to its last; its record."""
    status = await control.status()
    assert status.assignment is not None  # noqa: S101 - it trains
    culprit = status.assignment.machine_names()[number % MACHINES]
    control.world.machines[culprit].replays = Verdict.FAULTY
    for restart in range(3):
        await control.nan(attempt + restart)
        await control.until_archived(trains(attempt + restart + 1), number)
    await control.world.advance(attempt + 3, number * 100)
    await control.until_archived(closed, number)
    return control.archive.records[number]


def closed(record: IncidentRecord) -> bool:
    """Whether an incident is over."""
    return record.outcome is Outcome.RECOVERED


def trains(attempt: int) -> Callable[[IncidentRecord], bool]:
    """Whether an incident has seen the first new step of an attempt."""
    return lambda r: r.attempt_after == attempt and r.first_step_at_s is not None


async def archived(control: Control, number: int, holds: Callable[[IncidentRecord], bool]) -> None:
    """Wait until the record says so, without a question that would be work for the workflow."""
    await control.until_archived(holds, number)


def durations(record: IncidentRecord) -> Iterator[tuple[Rung, float]]:
    """What each rung of an incident took, in seconds."""
    for climb in record.climbs:
        if climb.rung in TESTS:
            begun = next(e for e in record.timeline if f"rung {climb.rung} begins" in e.text)
            yield climb.rung, climb.at_s - begun.at_s
        else:
            later = [entry for entry in record.timeline if entry.at_s >= climb.at_s]
            step = next(entry for entry in later if "training again" in entry.text)
            yield climb.rung, step.at_s - climb.at_s


async def measure(address: str) -> dict[Rung, list[float]]:
    """All incidents, one after the other; seconds by rung."""
    earlier = tuple(CodeVersion(f"v-{n}", f"/code/{n}", proven=True) for n in range(INCIDENTS + 1))
    found: dict[Rung, list[float]] = {rung: [] for rung in WALK}
    async with controlled(
        address, SPEC, FakeWorld(2 * MACHINES), earlier, most_incidents=INCIDENTS
    ) as control:
        for number in range(MACHINES + 1):
            await control.join(f"m{number}")
        await control.training(1)
        for number in range(1, INCIDENTS + 1):
            record = await incident(control, number, attempt=3 * number - 2)
            assert tuple(climb.rung for climb in record.climbs) == WALK, record  # noqa: S101
            for rung, took_s in durations(record):
                found[rung].append(took_s)
            await control.join(f"m{MACHINES + number}")
            await control.until_phase("training")
        await control.finish()
    return found


def main() -> int:
    """Measure, print the spread of each rung, and the results."""
    logging.basicConfig(level=logging.WARNING)
    # That a wait for a step is cancelled is part of every incident.
    for name in ("temporalio.activity", "temporalio.worker._activity"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="everstep-benchmark-") as folder,
        dev_server(Path(folder)) as address,
    ):
        found = asyncio.run(measure(address))
    results: list[Result] = []
    for rung, values in found.items():
        median_s, p90_s = statistics.median(values), statistics.quantiles(values, n=10)[-1]
        print(f"{rung}: median {median_s:.3f} s, p90 {p90_s:.3f} s, of {len(values)}")
        results.append(Result(f"rung_overhead_{rung}", median_s, "s", "<=", GOAL_S))
    return conclude(results)


if __name__ == "__main__":
    sys.exit(main())
