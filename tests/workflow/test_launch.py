"""A job put into a cluster and started: once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from everstep.activities.kube.connection import NotThereError
from everstep.activities.kube.objects import Objects, path_of
from everstep.core import names
from everstep.core.errors import EverstepError, InputError
from everstep.workers.cluster.launch import job_objects_with, launch
from everstep.workers.cluster.pod import Submission
from everstep.workers.cluster.submit import Target, submission
from everstep.workers.payloads import DATA_CONVERTER
from tests.fakes.kube.faults import Call, Fault, Kind
from tests.fakes.kube.where import Where, anywhere
from tests.unit.test_submit import write


class Desk:
    """One person before one cluster and one Temporal server."""

    def __init__(self, where: Where, client: Client, folder: Path, job: str) -> None:
        self.where, self.client, self.job = where, client, job
        self._folder = folder
        self.heard: list[str] = []

    def given(self, namespace: str | None = None, **changes: Any) -> Submission:
        target = Target(namespace or self.where.namespace, "controller:1")
        pods = {"image": "train:1", "kind": "statefulset"}
        return submission(write(self._folder, name=self.job, pods=pods, **changes), target)

    async def submit(self, given: Submission) -> None:
        await launch(self.where.api, self.client, given, False, self.heard.append)

    async def secret(self) -> dict[str, Any]:
        wanted = job_objects_with(self.given(), b"-")[0]
        return await self.where.api.get(path_of(wanted))

    async def status(self) -> WorkflowExecutionStatus | None:
        handle = self.client.get_workflow_handle(names.job_workflow_id(self.job))
        return (await handle.describe()).status

    async def end(self) -> None:
        await self.client.get_workflow_handle(names.job_workflow_id(self.job)).terminate()


@pytest.fixture
async def desk(tmp_path: Path, temporal_address: str) -> AsyncIterator[Desk]:
    client = await Client.connect(temporal_address, data_converter=DATA_CONVERTER)
    async with anywhere(tmp_path) as where:
        yield Desk(where, client, tmp_path, where.namespace[:30])


async def test_makes_everything_and_starts_the_job(desk: Desk) -> None:
    given = desk.given()
    await desk.submit(given)
    assert await desk.status() is WorkflowExecutionStatus.RUNNING
    secret = await desk.secret()
    objects = Objects(desk.where.api)
    for wanted in job_objects_with(given, b"-")[1:]:
        found = await objects.find(wanted)
        assert found is not None, wanted["kind"]
        (owner,) = found["metadata"]["ownerReferences"]
        assert owner["uid"] == secret["metadata"]["uid"], "deleting the Secret deletes all"
    await desk.end()


async def test_a_second_time_changes_nothing_and_says_so(desk: Desk) -> None:
    await desk.submit(desk.given())
    before = (await desk.secret())["data"]["secret"]
    await desk.submit(desk.given())
    assert desk.heard[-1] == f"job {desk.job} runs already, as it was submitted"
    assert (await desk.secret())["data"]["secret"] == before
    sets = f"/apis/apps/v1/namespaces/{desk.where.namespace}/statefulsets"
    scale = f"{sets}/everstep-{desk.job}-standby/scale"
    await desk.where.api.patch(scale, {"spec": {"replicas": 5}})
    await desk.submit(desk.given())
    assert (await desk.where.api.get(scale))["spec"]["replicas"] == 5, "one of them may train"
    await desk.end()


@pytest.mark.parametrize("kind", [Kind.CUT_BEFORE, Kind.CUT_AFTER])
async def test_cut_off_anywhere_it_goes_on(desk: Desk, kind: Kind) -> None:
    if desk.where.server is None:
        pytest.skip("nothing is cut off on a real server")
    secrets: set[str] = set()
    for resource in ("secrets", "networkpolicies", "deployments", "statefulsets"):

        def concerned(call: Any, resource: str = resource) -> bool:
            return bool(call.verb == "create" and call.resource == resource and not call.dry)

        desk.where.server.faults.order(Fault(kind, concerned))
        with pytest.raises(EverstepError, match="no answer"):
            await desk.submit(desk.given())
        if resource != "secrets":
            secrets.add((await desk.secret())["data"]["secret"])
    await desk.submit(desk.given())
    assert await desk.status() is WorkflowExecutionStatus.RUNNING
    assert secrets == {(await desk.secret())["data"]["secret"]}, "pods may have read it already"
    await desk.end()


async def test_another_spec_of_a_running_job_is_refused(desk: Desk) -> None:
    await desk.submit(desk.given())
    with pytest.raises(InputError, match="submitted with another spec or code"):
        await desk.submit(desk.given(gpus_per_machine=4, parallelism={"dp": 16}))
    await desk.end()


async def test_a_job_that_runs_elsewhere_is_refused(desk: Desk) -> None:
    await desk.submit(desk.given())
    await desk.where.api.post("/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    try:
        with pytest.raises(InputError, match="not in namespace elsewhere"):
            await desk.submit(desk.given("elsewhere"))
    finally:
        await desk.where.api.delete("/api/v1/namespaces/elsewhere", {})
    await desk.end()


async def test_what_an_ended_job_left_is_removed_by_a_person(desk: Desk) -> None:
    await desk.submit(desk.given())
    await desk.end()
    command = f"kubectl -n {desk.where.namespace} delete secret everstep-{desk.job}"
    with pytest.raises(InputError, match=command):
        await desk.submit(desk.given())
    await desk.where.api.delete(path_of(job_objects_with(desk.given(), b"-")[0]), {})
    await desk.submit(desk.given())
    assert await desk.status() is WorkflowExecutionStatus.RUNNING
    await desk.end()


async def test_what_somebody_else_made_is_left_alone(desk: Desk) -> None:
    given = desk.given()
    service = next(one for one in job_objects_with(given, b"-") if one["kind"] == "Service")
    foreign = {**service, "metadata": {**service["metadata"], "labels": {"app": "theirs"}}}
    await desk.where.api.post(path_of(service).rpartition("/")[0], foreign)
    with pytest.raises(InputError, match="is not this job's"):
        await desk.submit(given)
    assert (await desk.where.api.get(path_of(service)))["metadata"]["labels"] == {"app": "theirs"}
    await nothing_is_made(desk)


async def nothing_is_made(desk: Desk) -> None:
    assert desk.heard == []
    with pytest.raises(NotThereError):
        await desk.secret()
    with pytest.raises(RPCError):
        await desk.status()


@pytest.mark.parametrize("code", [403, 404, 422])
@pytest.mark.parametrize("resource", ["secrets", "statefulsets"])
async def test_what_the_server_refuses_is_told_before_anything_is_made(
    desk: Desk, resource: str, code: int
) -> None:
    """A right, a CRD or a field that is wrong, at the first object or at the last."""
    if desk.where.server is None:
        pytest.skip("needs a server that refuses")

    def concerned(call: Call) -> bool:
        return (call.verb, call.resource) == ("create", resource)

    desk.where.server.faults.order(Fault(Kind.ANSWER, concerned, code=code))
    with pytest.raises(InputError, match=r"ordered by a test.*everstep doctor SPEC"):
        await desk.submit(desk.given())
    await nothing_is_made(desk)


async def test_a_namespace_that_is_not_there_is_named(desk: Desk) -> None:
    with pytest.raises(InputError, match="nowhere"):
        await desk.submit(desk.given("nowhere"))
    await nothing_is_made(desk)
