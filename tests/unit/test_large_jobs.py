"""Jobs of 1,200 machines: what time-outs give them, and what they leave in histories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from everstep.core.model import Alert, Assignment, MachineInfo, RankExit
from everstep.core.orders import MachineReport, RestoreOrder, ShardCopy, StopOrder
from everstep.core.restore import plan_restore
from everstep.core.vocabulary import Observer, Symptom
from everstep.spec.job import JobSpec
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows import options, restart
from everstep.workflows.batches import MACHINES_PER_BATCH, MachineOrders, MachineReports
from everstep.workflows.messages import IncidentInput, JobInput

MIB = 1 << 20

SPEC = JobSpec.model_validate(
    {
        "name": "large",
        "command": ["python", "train.py"],
        "code": {"directory": "."},
        "machines": 1_200,
        "gpus_per_machine": 8,
        "parallelism": {"tp": 8, "pp": 8, "dp": 150, "order": "tp-pp-dp"},
    }
)
LAYOUT, BACKUP = SPEC.layout(), SPEC.backup_plan()
SLOTS = tuple(
    MachineInfo(f"m{at}", f"10.0.{at // 250}.{at % 250}", 29_400, 29_500, 1_000 + at, 1.7e9 + at)
    for at in range(SPEC.machines)
)
NAMES = tuple(info.machine for info in SLOTS)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_a_batch_or_less_has_the_time_outs_of_the_table() -> None:
    assert options.STOP.amid(MACHINES_PER_BATCH) is options.STOP


def test_the_last_of_many_has_as_much_time_as_a_single_one() -> None:
    amid = options.STOP.amid(1_200)
    assert (amid.schedule_to_start, amid.heartbeat) == (seconds(5 + 24), seconds(2 + 24))
    assert (amid.start_to_close, amid.schedule_to_close) == (seconds(10 + 24), seconds(15 + 48))


def test_what_is_unlimited_stays_so() -> None:
    amid = options.await_step(None).amid(1_200)
    assert (amid.schedule_to_start, amid.schedule_to_close) == (None, None)


def test_a_large_job_s_workflow_has_longer_for_being_read_anew() -> None:
    assert options.workflow_task_timeout(16) == options.WORKFLOW_TASK_TIMEOUT == seconds(2)
    assert options.workflow_task_timeout(1_200) == seconds(9.6)


def ended(rank: int, slot: int) -> RankExit:
    """A rank that lost its peers, with a trace-back of 20 long lines."""
    lines = tuple(f"[rank{rank}]: line {n} of a trace-back " + "x" * 120 for n in range(20))
    return RankExit(rank, NAMES[slot], 1, 1, None, 1.7e9 + rank / 1000, 30, lines)


def reports() -> list[MachineReport]:
    """All ranks ended at once; each machine holds its ranks' parts and its peer's."""
    return [
        MachineReport(
            NAMES[slot],
            tuple(ended(rank, slot) for rank in LAYOUT.ranks_of(slot)),
            (),
            tuple(
                ShardCopy(rank, (29, 30), 10 << 30, in_parts=(29, 30))
                for rank in (*LAYOUT.ranks_of(slot), *BACKUP.held_by(LAYOUT, slot))
            ),
        )
        for slot in range(SPEC.machines)
    ]


def batches(names: Sequence[str]) -> list[slice]:
    return [slice(at, at + MACHINES_PER_BATCH) for at in range(0, len(names), MACHINES_PER_BATCH)]


async def size(value: object) -> int:
    (payload,) = await DATA_CONVERTER.encode([value])
    return payload.ByteSize()


async def test_a_restart_of_1200_machines_is_far_below_what_a_history_takes() -> None:
    """Orders and reports of stop, restore (in parts) and start, as the incident's history has them.

    Its goal is 5 MiB, and no payload may have 2: what is in a batch's own is a twelfth, plain.
    """
    given = JobInput(SPEC, "v1", "/code/v1")
    assignment = Assignment(1, SLOTS, "v1")
    told = reports()
    plan = plan_restore(told, SLOTS, LAYOUT, BACKUP)
    assert len(plan.loans) == SPEC.machines
    orders = restart.start_orders(given, assignment, BACKUP, 30)
    stops, sizes = StopOrder(1), list[int]()
    for part in batches(NAMES):
        of = tuple(NAMES[part])
        restores = tuple(RestoreOrder(2, 30, (), loans=plan.loans[name]) for name in of)
        starts = tuple(order for _, order in orders[part])
        sizes += [
            await size(MachineOrders("large", of, stop=(stops,) * len(of))),
            await size(MachineReports(stop=tuple(told[part]))),
            await size(MachineOrders("large", of, restore=restores)),
            await size(MachineOrders("large", of, start=starts)),
        ]
    alerts = tuple(
        Alert(
            Observer.AGENT, Symptom.PROCESS_CRASH, 1.7e9, f"rank {8 * slot} ended", 1, NAMES[slot],
            8 * slot, ended(8 * slot, slot),
        )
        for slot in range(SPEC.machines)
    )  # fmt: skip
    sizes.append(await size(IncidentInput(given, 1, alerts, assignment, (), ())))
    assert max(sizes) < MIB / 2
    assert sum(sizes) < 1.5 * MIB
