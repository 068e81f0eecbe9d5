"""Puts a job into a cluster and starts it; whatever of that is done already is left as it is."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from everstep.core import names
from everstep.core.errors import InputError
from everstep.workers.cluster import job_objects, places
from everstep.workers.cluster.pod import Object, Submission
from everstep.workers.cluster.submit import job_input
from everstep.workers.local.folder import SECRET_BYTES
from everstep.workers.metrics import token_of
from everstep.workers.starting import start_job

if TYPE_CHECKING:
    from everstep.activities.kube.connection import Connection

GOING_ON = (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)


def new_secret() -> bytes:
    """A secret for a job."""
    return secrets.token_hex(SECRET_BYTES).encode()


def job_objects_with(given: Submission, secret: bytes) -> list[Object]:
    """The manifests of a job that has this secret."""
    return job_objects.objects(given, secret, token_of(secret, given.job))


async def launch(
    connection: Connection,
    client: Client,
    given: Submission,
    from_scratch: bool,
    say: Callable[[str], None],
) -> None:
    """Make the job's objects and start its workflow.

    Idempotent by the job's Secret, which holds the digest of what was submitted: cut off anywhere,
    it goes on when it is called again, with the same secret.

    Raises:
        InputError: Another job of this name runs, or what an ended one left is still there; or the
            API server refuses a part of it, which it is asked before anything is made.
        TransientError, PermanentError: It does not answer, or changes its mind.
    """
    from everstep.activities.kube.objects import Objects  # noqa: PLC0415

    objects = Objects(connection)
    runs = await _runs(client, given.job)
    placeholder = job_objects_with(given, b"-")[0]
    known = await objects.find(placeholder)
    _refuse_others(given, runs, known)
    secret = new_secret() if known is None else base64.b64decode(known["data"]["secret"])
    first, *rest = job_objects_with(given, secret)
    for one in (first, *rest):
        await objects.try_out(one)
    owner = await objects.keep(first)
    say(_told(first))
    for one in rest:
        # Whoever deletes the Secret deletes all of the job.
        one["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "name": first["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
        ]
        await objects.keep(one)
        say(_told(one))
    if runs:
        say(f"job {given.job} runs already, as it was submitted")
        return
    await start_job(client, job_input(given, from_scratch))
    say(f"job {given.job} is started; its machines join as their pods get ready")


async def _runs(client: Client, job: str) -> bool | None:
    """Whether a job of this name runs; None when there never was one."""
    try:
        found = await client.get_workflow_handle(names.job_workflow_id(job)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return found.status in GOING_ON


def _refuse_others(given: Submission, runs: bool | None, known: Object | None) -> None:
    where, remove = f"name ({given.job})", _removal(given)
    if known is None:
        if runs:
            raise InputError(
                where,
                f"a job of this name runs, and not in namespace {given.namespace}",
                "Give the job another name, or name its namespace: --namespace.",
            )
        return
    annotations: dict[str, str] = known["metadata"].get("annotations") or dict[str, str]()
    same = annotations.get(places.ANNOTATION_SUBMITTED) == job_objects.submitted(given)
    if runs and not same:
        raise InputError(
            where,
            "a job of this name runs, submitted with another spec or code",
            "Change its code by a hot update; or give this job another name.",
        )
    if runs is False or not same:
        ended = "has ended" if runs is False else "was submitted otherwise, and not started"
        raise InputError(
            where, f"a job of this name {ended}, and its objects are still there", remove
        )


def _removal(given: Submission) -> str:
    name = places.object_name(given.job)
    return f"Remove them all: kubectl -n {given.namespace} delete secret {name}"


def _told(one: Object) -> str:
    return f"{one['kind']} {one['metadata']['name']}"
