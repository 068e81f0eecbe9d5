"""Incidents that were open when newer code came must go on under it: their histories replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from everstep.workers import runtime
from everstep.workers.payloads import DATA_CONVERTER
from everstep.workflows.job import RunJob
from everstep.workflows.messages import IncidentInput

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def replayer(workflows: list[type]) -> Replayer:
    return Replayer(
        workflows=workflows,
        workflow_runner=runtime.workflow_runner(),
        data_converter=DATA_CONVERTER,
        workflow_failure_exception_types=list(runtime.WORKFLOW_FAILURE_TYPES),
    )


def load(path: Path) -> WorkflowHistory:
    """A history under the id of its workflow, which the ids of its children begin with."""
    history = WorkflowHistory.from_json(path.stem, path.read_text())
    started = history.events[0].workflow_execution_started_event_attributes
    return WorkflowHistory(started.workflow_id, history.events)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_stored_history_replays(path: Path) -> None:
    await replayer(runtime.WORKFLOWS).replay_workflow(load(path))


def test_histories_cover_workflows_and_every_activity() -> None:
    seen: set[str] = set()
    for path in HISTORIES:
        for event in load(path).events:
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                seen.add(event.workflow_execution_started_event_attributes.workflow_type.name)
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                seen.add(event.activity_task_scheduled_event_attributes.activity_type.name)
    assert seen == {
        "RunJob",
        "ResolveIncident",
        "OrderMachines",
        "analysis.await_step",
        "archive.save_incident",
        "cluster.claim",
        "cluster.evict",
        "cluster.give_slots",
        "cluster.list_machines",
        "cluster.quarantine",
        "cluster.release",
        "cluster.request_machines",
        "machine.check",
        "machine.prepare",
        "machine.replay",
        "machine.restore",
        "machine.start",
        "machine.stop",
        "machine.trace",
        "notify.page",
        "stacks.judge",
    }


@workflow.defn(name="ResolveIncident")
class ForgetsToStop:
    """What a careless change would be: other commands in another order."""

    @workflow.run
    async def run(self, given: IncidentInput) -> str:
        await workflow.sleep(3600)
        return given.job.code_version


async def test_replay_notices_a_change_of_commands() -> None:
    """The test above could not fail if this one did not."""
    path = next(p for p in HISTORIES if "incident-1" in p.stem)
    with pytest.raises(workflow.NondeterminismError):
        await replayer([RunJob, ForgetsToStop]).replay_workflow(load(path))
