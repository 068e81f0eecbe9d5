"""Adds histories to replay: `python -m tests.replay.record NAME [whole|batches|denied]`.

`whole` runs one job with fake machines through a killed rank, a lost machine, a hold for want of a
standby (of which somebody is told in vain), a NaN that walks the whole ladder to a denied eviction,
and a hang that costs a group, which comes back, on a server of its own, and stores the histories of
the job and of every incident as `histories/NAME-*.json`. `batches` runs one of five machines that
are ordered two at a time through a lost machine, and stores those of its batches, too. `denied`
runs one through a lost machine whose eviction a person denies, is asked for again, and allows, and
through an update that is rolled back. Histories already there are never replaced: they stand for
incidents that were open when newer code came.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

from temporalio.client import WorkflowHistory

from everstep.core.memory import CodeVersion
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import Outcome, Symptom, Verdict
from everstep.spec.job import JobSpec
from everstep.spec.policies import Parallelism
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import Approval, UpdateRequest
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.fakes.servers import dev_server
from tests.unit import stack_texts as texts

HISTORIES = Path(__file__).parent / "histories"

SPEC = JobSpec.model_validate(
    {
        "name": "recorded",
        "command": ["python", "train.py"],
        "code": {"directory": "."},
        "machines": 4,
        "gpus_per_machine": 2,
        "parallelism": {"pp": 2, "dp": 4, "order": "dp-pp"},
        "standby": {"count": 1},
        "topology_label": "rack",
        "ladder": {"evidence_window_s": 0.05, "probation_s": 4, "probation_steps": 1},
        "replay": {"steps": 1, "shows_ratio": 1.0},
        "safety": {"webhook": "A_VARIABLE_THAT_IS_NOT_SET", "max_evicted_ratio": 0.5},
    }
)


WIDE = SPEC.model_copy(
    update={
        "machines": 5,
        "parallelism": Parallelism(tp=2, dp=5, order="tp-dp"),
        "standby": SPEC.standby.model_copy(update={"count": 2}),
    }
)


ASKS = JobSpec.model_validate({**SPEC.model_dump(), "safety": {"modes": {"evict": "approve"}}})


async def live(control: Control) -> None:
    """A life with five incidents."""
    for number in range(5):
        await control.join(f"m{number}")
    await control.training(1)
    await control.world.advance(1, 7)
    await control.crash("m2", 5)
    await recovered(control, incident=1, attempt=2)
    await control.lose("m1")
    await recovered(control, incident=2, attempt=3)
    await control.lose("m3")
    await control.until(lambda record: record.outcome is Outcome.HELD, incident=3)
    await control.until(lambda record: any("paged" in e.text for e in record.timeline), incident=3)
    await control.join("m9")
    await recovered(control, incident=3, attempt=4)
    await control.until_phase("training")
    await walk_the_ladder(control)
    await hang(control)
    await control.finish()


async def live_with_a_no(control: Control) -> None:
    """The job starts again with a machine that is gone; then with code that makes no step."""
    for number in range(5):
        await control.join(f"m{number}")
    await control.training(1)
    await control.world.advance(1, 7)
    await control.lose("m2")
    await control.until(lambda record: record.outcome is Outcome.HELD)
    await control.incident().signal(ResolveIncident.deny, Approval("recorder"))
    await control.until(lambda record: "denied before" in record.missing)
    await control.incident().signal(ResolveIncident.approve, Approval("recorder"))
    attempt = await trains_again(control, 1)
    await control.until_phase("training")
    control.world.training = False
    update = UpdateRequest("recorder", "/code/v2", (), "to be undone", urgent=True)
    await control.handle.execute_update(RunJob.hot_update, update)  # pyright: ignore[reportUnknownMemberType]
    await control.until_started(attempt + 1)
    control.world.training = True
    await control.crash("m1", 2, 11)
    await trains_again(control, 2)
    await control.finish()


async def trains_again(control: Control, incident: int) -> int:
    """The attempt that an incident has recovered with."""
    await control.until(lambda record: record.first_step_at_s is not None, incident)
    attempt = (await control.record(incident)).attempt_after
    await recovered(control, incident, attempt)
    return attempt


def trains(attempt: int, record: IncidentRecord) -> bool:
    return record.attempt_after == attempt and record.first_step_at_s is not None


async def walk_the_ladder(control: Control) -> None:
    """Checks pass, the reattempt and the rollback fail, replay names m0, a person denies that."""
    control.world.machines["m0"].replays = Verdict.FAULTY
    for attempt in (4, 5, 6):
        await control.until(partial(trains, attempt), incident=3 if attempt == 4 else 4)
        await control.nan(attempt)
    await control.until(lambda record: record.outcome is Outcome.HELD, incident=4)
    await control.incident(4).signal(ResolveIncident.deny, Approval("recorder"))
    await control.until(lambda record: "nothing left" in record.missing, incident=4)
    await control.incident(4).signal(ResolveIncident.approve, Approval("recorder"))
    await recovered(control, incident=4, attempt=7)
    await control.until_phase("training")


async def hang(control: Control) -> None:
    """Two stages stand apart: a person lets their machines go, and their tests bring them back."""
    control.world.stacks = {rank: texts.dump(texts.IRECV, rank) for rank in (0, 4)}
    await control.hang(7, 140)
    await control.until(lambda record: record.outcome is Outcome.HELD, incident=5)
    await control.incident(5).signal(ResolveIncident.approve, Approval("recorder"))
    await recovered(control, incident=5, attempt=8)
    await control.until_phase("training")


async def recovered(control: Control, incident: int, attempt: int) -> None:
    await control.until(lambda record: record.first_step_at_s is not None, incident)
    await control.world.advance(attempt, attempt * 20)
    await control.until(lambda record: record.outcome is Outcome.RECOVERED, incident)


async def live_in_batches(control: Control) -> None:
    """A machine is lost, and one more does not get to stop before it is lost as well."""
    for number in range(7):
        await control.join(f"m{number}")
    await control.training(1)
    await control.world.advance(1, 7)
    control.world.machines["m3"].may_stop.clear()
    await control.lose("m1")
    async with asyncio.timeout(control.patience_s):
        while len(control.world.done("stop")) < 3:
            await asyncio.sleep(0.01)
    await control.alert(Symptom.AGENT_LOST, "m3")
    await recovered(control, incident=1, attempt=2)
    await control.finish()


async def whole(address: str) -> dict[str, WorkflowHistory]:
    earlier = (CodeVersion("v0", "/code/v0", proven=True),)
    async with controlled(address, SPEC, FakeWorld(8), earlier) as control:
        await live(control)
        histories = {"job": await control.handle.fetch_history()}
        for incident in (1, 2, 3, 4, 5):
            history = await control.incident(incident).fetch_history()
            histories[f"incident-{incident}"] = history
    return histories


async def batches(address: str) -> dict[str, WorkflowHistory]:
    async with controlled(address, WIDE, FakeWorld(10), machines_per_batch=2) as control:
        await live_in_batches(control)
        histories = {"job": await control.handle.fetch_history()}
        histories["incident-1"] = await control.incident(1).fetch_history()
        for identifier in children(histories["incident-1"]):
            kind, number = identifier.split("/")[-2:]
            handle = control.client.get_workflow_handle(identifier)
            histories[f"{kind.partition('-')[0]}-{number}"] = await handle.fetch_history()
    return histories


async def denied(address: str) -> dict[str, WorkflowHistory]:
    async with controlled(address, ASKS, FakeWorld(8)) as control:
        await live_with_a_no(control)
        histories = {"job": await control.handle.fetch_history()}
        for incident in (1, 2):
            histories[f"incident-{incident}"] = await control.incident(incident).fetch_history()
    return histories


def children(history: WorkflowHistory) -> list[str]:
    """Ids of the child workflows that a workflow has started."""
    started = [event.child_workflow_execution_started_event_attributes for event in history.events]
    return [one.workflow_execution.workflow_id for one in started if one.workflow_type.name]


LIVES = {"whole": whole, "batches": batches, "denied": denied}


async def record(name: str, life: str, address: str) -> None:
    histories = await LIVES[life](address)
    for key, history in histories.items():
        path = HISTORIES / f"{name}-{key}.json"
        if path.exists():
            raise SystemExit(f"{path} exists: choose another name, old histories are kept")
        # Stack traces name folders of the machine that recorded them, and replay needs none.
        text = re.sub(r'("stackTrace": )"(?:[^"\\]|\\.)*"', r'\1""', history.to_json())
        path.write_text(text)


def main() -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, dev_server(Path(folder)) as address:
        asyncio.run(record(sys.argv[1], (sys.argv[2:] or ["whole"])[0], address))


if __name__ == "__main__":
    main()
