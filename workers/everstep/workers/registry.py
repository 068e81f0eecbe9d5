"""Which process runs which workflows and activities, from which task queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from temporalio.client import Client
from temporalio.worker import Worker

from everstep.activities.analysis import AnalysisActivities, Progress
from everstep.activities.archive import FileArchive
from everstep.activities.checks import CheckActivities, Checked
from everstep.activities.machine import Machine, MachineActivities
from everstep.activities.stacks import StackJudge
from everstep.activities.trace import TraceActivities
from everstep.activities.webhook import Webhook
from everstep.core import names
from everstep.workers import runtime
from everstep.workflows.ports import ClusterPort

GRACE = timedelta(seconds=3)
"""How long a stopping worker lets its running activities go on."""


def controller(
    client: Client,
    cluster: ClusterPort,
    archive: FileArchive,
    webhook: Webhook,
    stacks: StackJudge,
) -> Worker:
    """Workflows, and activities that any controller may run."""
    return Worker(
        client,
        task_queue=names.CONTROLLER_QUEUE,
        workflows=runtime.WORKFLOWS,
        activities=[
            *cluster_activities(cluster),
            archive.save_incident,
            webhook.page,
            stacks.judge,
        ],
        workflow_runner=runtime.workflow_runner(),
        workflow_failure_exception_types=list(runtime.WORKFLOW_FAILURE_TYPES),
        sticky_queue_schedule_to_start_timeout=runtime.STICKY_TIMEOUT,
        graceful_shutdown_timeout=GRACE,
    )


def cluster_activities(cluster: ClusterPort) -> list[Callable[..., Any]]:
    """All that a cluster does."""
    return [
        cluster.list_machines,
        cluster.claim,
        cluster.give_slots,
        cluster.quarantine,
        cluster.release,
        cluster.evict,
        cluster.request_machines,
    ]


class Agent(Machine, Checked, Protocol):
    """All that a machine offers."""


def agent(
    client: Client,
    job: str,
    name: str,
    machine: Agent,
    traces: TraceActivities | None = None,
) -> Worker:
    """Orders to one machine, and questions where its ranks stand if it can tell."""
    activities = MachineActivities(machine)
    checks = CheckActivities(machine)
    return Worker(
        client,
        task_queue=names.machine_queue(job, name),
        activities=[
            activities.stop,
            activities.restore,
            activities.look_at_storage,
            activities.start,
            activities.prepare,
            checks.check,
            checks.replay,
            *([traces.trace] if traces is not None else []),
        ],
        # Orders to a machine come one at a time; two poll calls are enough to never miss one.
        max_concurrent_activity_task_polls=2,
        max_concurrent_activities=8,
        graceful_shutdown_timeout=GRACE,
    )


def analyzer(client: Client, job: str, progress: Progress) -> Worker:
    """Questions about one job's progress."""
    return Worker(
        client,
        task_queue=names.analyzer_queue(job),
        activities=[AnalysisActivities(progress).await_step],
        graceful_shutdown_timeout=timedelta(0),
    )
