"""Starts a job's workflow on the Temporal server that a client is connected to."""

from __future__ import annotations

import asyncio
import time

from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from everstep.core import names
from everstep.core.errors import InputError
from everstep.workflows import options, story
from everstep.workflows.job import RunJob
from everstep.workflows.messages import JobInput, JobResult

REGISTRATION_PATIENCE_S = 20.0
"""Every part of a server has heard of a new search attribute after about 10 s."""

LOOK_EVERY_S = 0.5


async def start_job(client: Client, job: JobInput) -> WorkflowHandle[RunJob, JobResult]:
    """Start a job's workflow.

    Raises:
        InputError: A job of this name runs there already, or the server refuses it.
    """
    name = job.spec.name
    deadline_s = time.monotonic() + REGISTRATION_PATIENCE_S
    while True:
        try:
            return await client.start_workflow(
                RunJob.run,
                args=[job, None],
                id=names.job_workflow_id(name),
                task_queue=names.CONTROLLER_QUEUE,
                task_timeout=options.workflow_task_timeout(job.spec.machines),
                search_attributes=story.job_attributes(name),
                static_summary=f"Training job {name}",
            )
        except WorkflowAlreadyStartedError as error:
            raise InputError(
                f"name ({name})",
                "a job of this name already runs on this Temporal server",
                "Give the job another name, or end the other one: temporal workflow "
                f'terminate --query "{still_open(name)}"',
            ) from error
        except RPCError as error:
            if time.monotonic() > deadline_s or "search attribute" not in str(error).lower():
                raise InputError(
                    f"Temporal namespace {client.namespace}",
                    f"the job cannot be started there: {error.message}",
                    "Correct TEMPORAL_NAMESPACE, or what the server says.",
                ) from error
            await asyncio.sleep(LOOK_EVERY_S)


def still_open(job: str) -> str:
    """Query for all of a job's workflows that are open."""
    return f"{story.JOB.name} = '{job}' AND ExecutionStatus = 'Running'"
