"""A simulated run through the real workflows, part by part, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everstep.core.errors import TransientError
from everstep.core.record import IncidentRecord
from everstep.core.simulation.engine import EARLIER, FIRST_VERSION, Met, Run
from everstep.core.simulation.faults import DAY_S, Fault
from everstep.core.simulation.setting import Setting
from everstep.core.simulation.world import World
from everstep.workers.simulation.ahead import Ahead
from everstep.workers.simulation.cluster import SimulatedCluster
from everstep.workers.simulation.fate import Fate
from everstep.workers.simulation.machines import CODE, info_of
from everstep.workers.simulation.parts import Carried, Given, SoFar, run_part
from everstep.workflows.messages import JobInput, JobState

MOST_LATE_S = 60.0
"""By how much anything may come later than it was due, on the server's clock: a killed controller's
task is given to the next one after 10 s at most, and the machine may be busy."""


async def simulate(setting: Setting, faults: Sequence[Fault], given: Given) -> Run:
    """Run a job to the end of its days, by the workflows that run in production.

    Raises:
        InputError: The time-skipping server is not installed.
        TransientError: It does not answer, or does not keep its time.
    """
    world = World(setting, faults)

    def tell(ratio: float) -> None:
        if given.progress is not None:
            given.progress(SoFar(ratio, len(cluster.records), cluster.kills))

    fate = Fate(setting.days * DAY_S, tell)
    cluster = SimulatedCluster(world, fate)
    cluster.disturb(given.kills, len(faults))
    carried: Carried | None = _first(world, given)
    ahead = Ahead(given.kills > 0)
    try:
        while carried is not None:
            carried = await run_part(cluster, fate, given, carried, ahead)
    finally:
        await ahead.close()
    if fate.latest_s > MOST_LATE_S:
        late = f"something came {fate.latest_s:.0f} s later than it was due"
        raise TransientError(f"time passed while workflows worked: {late}")
    return _run(cluster, fate.from_s, setting)


def _first(world: World, given: Given) -> Carried:
    # A model's machines join after their tests, and its standbys do not fail in their sleep.
    calm = {"self_check": False, "check_every_s": 0.0}
    standby = given.spec.standby.model_copy(update=calm)
    job = JobInput(
        given.spec.model_copy(update={"standby": standby}),
        FIRST_VERSION,
        f"{CODE}{FIRST_VERSION}",
        earlier_code=tuple(replace(code, directory=f"{CODE}{code.version}") for code in EARLIER),
        machines_per_batch=given.machines_per_batch or _machines_per_batch(given.spec.machines),
    )
    return Carried(job, JobState(pool=[info_of(machine) for machine in world.first_machines()]))


def _machines_per_batch(machines: int) -> int:
    """Two batches of all machines at least, which are one activity here.

    Where each machine's order was one, and more were due to be tried again in one moment than the
    cluster answers at once, the server was seen to stand still.
    """
    return max(1, machines // 2)


def _run(cluster: SimulatedCluster, from_s: float, setting: Setting) -> Run:
    world, end_s = cluster.world, setting.days * DAY_S
    world.stop()
    records = [since(cluster.records[n], from_s) for n in sorted(cluster.records)]
    return Run(
        setting=setting,
        met=tuple(Met(record, world.strike_at(record.fault_at_s)) for record in records),
        steps=tuple(seen for seen in world.steps if seen.at_s <= end_s),
        guilty=frozenset(world.guilty),
        missed=len(cluster.missed),
        to_s=end_s,
    )


def since(record: IncidentRecord, from_s: float) -> IncidentRecord:
    """The record with its times in seconds since the job's begin.

    Args:
        record: As the workflow made it.
        from_s: The job's begin, Unix seconds.
    """

    def then(at_s: float | None) -> float | None:
        return None if at_s is None else at_s - from_s

    return replace(
        record,
        opened_at_s=record.opened_at_s - from_s,
        fault_at_s=record.fault_at_s - from_s,
        first_step_at_s=then(record.first_step_at_s),
        closed_at_s=then(record.closed_at_s),
        climbs=tuple(replace(one, at_s=one.at_s - from_s) for one in record.climbs),
        marks=tuple(replace(one, at_s=one.at_s - from_s) for one in record.marks),
        timeline=tuple(replace(one, at_s=one.at_s - from_s) for one in record.timeline),
    )
