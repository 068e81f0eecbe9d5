"""Typed handles of a job's workflow and its incidents', by what people know of them."""

from __future__ import annotations

from temporalio.client import Client, WorkflowHandle

from everstep.core import names
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.messages import IncidentResult, JobResult


def of_job(client: Client, job: str) -> WorkflowHandle[RunJob, JobResult]:
    """The newest run of a job's workflow; whether there is one, a call will tell."""
    return client.get_workflow_handle(names.job_workflow_id(job), result_type=JobResult)


def of_incident(
    client: Client, job: str, number: int
) -> WorkflowHandle[ResolveIncident, IncidentResult]:
    """The workflow of a job's incident; whether there is one, a call will tell."""
    workflow_id = names.incident_workflow_id(job, number)
    return client.get_workflow_handle(workflow_id, result_type=IncidentResult)
