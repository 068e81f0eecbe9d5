"""What the adapter stands on, as a real API server (1.36) was seen to do it.

Runs on the fake, and with KUBECONFIG set on the server that it names, where no controllers are
needed: `KUBECONFIG=... pytest tests/contract/test_kube_api.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.kube.server import kubeconfig
from tests.fakes.kube.where import LEASES, NODES, Where, anywhere

from everstep.activities.kube.connection import (
    MERGE,
    STRATEGIC,
    BudgetError,
    BusyError,
    ChangedError,
    ExpiredError,
    InvalidError,
    Json,
    NotThereError,
    connected,
)
from everstep.core.errors import InputError, PermanentError, TransientError

JSON_PATCH = "application/json-patch+json"


@pytest.fixture
async def where(tmp_path: Path) -> AsyncIterator[Where]:
    async with anywhere(tmp_path) as where:
        yield where


def version(item: Json) -> str:
    return str(item["metadata"]["resourceVersion"])


def eviction(name: str, uid: str | None = None) -> Json:
    options: Json = {} if uid is None else {"preconditions": {"uid": uid}}
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name},
        "deleteOptions": options,
    }


async def budget(where: Where, name: str, allowed: int, observed: int = 1, **spec: Any) -> None:
    """A budget over pods labelled `app=x`, with what its controller would have made of it."""
    wanted = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}, **spec}
    await where.api.post(where.budgets, {"metadata": {"name": name}, "spec": wanted})
    status = {
        "disruptionsAllowed": allowed,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
        "observedGeneration": observed,
    }
    await where.api.patch(f"{where.budgets}/{name}/status", {"status": status})


# --- Objects and their versions -------------------------------------------------------------------


async def test_names_are_taken_once(where: Where) -> None:
    pod = await where.make_pod("p")
    assert pod["metadata"]["uid"]
    assert pod["metadata"]["creationTimestamp"]
    assert pod["status"]["phase"] == "Pending"
    with pytest.raises(ChangedError, match="AlreadyExists"):
        await where.make_pod("p")
    with pytest.raises(NotThereError):
        await where.api.get(f"{where.pods}/q")
    with pytest.raises(NotThereError):
        await where.api.post("/api/v1/namespaces/nowhere/pods", {"metadata": {"name": "p"}})


async def test_a_dry_run_says_what_would_be_and_changes_nothing(where: Where) -> None:
    dry = {"dryRun": "All"}
    wanted = {"metadata": {"name": "c"}, "data": {"a": "1"}}
    configs = f"/api/v1/namespaces/{where.namespace}/configmaps"
    assert (await where.api.post(configs, wanted, dry))["metadata"]["uid"]
    with pytest.raises(NotThereError):
        await where.api.get(f"{configs}/c")
    with pytest.raises(NotThereError):
        await where.api.post("/api/v1/namespaces/nowhere/configmaps", wanted, dry)
    made = await where.api.post(configs, wanted)
    with pytest.raises(ChangedError):
        await where.api.post(configs, wanted, dry)
    patched = await where.api.patch(f"{configs}/c", {"data": {"a": "2"}}, query=dry)
    assert patched["data"] == {"a": "2"}
    assert await where.api.get(f"{configs}/c") == made
    await where.api.delete(f"{configs}/c", {})


async def test_a_patch_from_an_older_version_is_refused(where: Where) -> None:
    before = await where.make_pod("p")
    stale = {"metadata": {"resourceVersion": version(before), "labels": {"a": "2"}}}
    await where.api.patch(f"{where.pods}/p", {"metadata": {"labels": {"a": "1"}}})
    for kind in (MERGE, STRATEGIC):
        with pytest.raises(ChangedError):
            await where.api.patch(f"{where.pods}/p", stale, kind)
    assert (await where.api.get(f"{where.pods}/p"))["metadata"]["labels"] == {"a": "1"}


async def test_a_patch_for_another_object_of_that_name_is_refused(where: Where) -> None:
    await where.make_pod("p")
    other = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000", "labels": {"a": "1"}}}
    with pytest.raises(InvalidError):
        await where.api.patch(f"{where.pods}/p", other)


async def test_a_patch_that_changes_nothing_makes_no_version(where: Where) -> None:
    before = await where.make_pod("p", a="1")
    after = await where.api.patch(f"{where.pods}/p", {"metadata": {"labels": {"a": "1"}}})
    assert version(after) == version(before)
    after = await where.api.patch(f"{where.pods}/p", {"metadata": {"labels": {"b": None}}})
    assert version(after) == version(before)


async def test_a_failing_test_of_a_json_patch_is_invalid_and_no_conflict(where: Where) -> None:
    await where.make_pod("p")
    patch: Any = [{"op": "test", "path": "/metadata/name", "value": "q"}]
    with pytest.raises(InvalidError):
        await where.api.patch(f"{where.pods}/p", patch, JSON_PATCH)


async def test_selections(where: Where) -> None:
    node = await where.make_node("n")
    await where.make_pod("a", node, everstep_dev__job="gpt", role="x")
    await where.make_pod("b", everstep_dev__job="gpt")
    await where.make_pod("c", everstep_dev__job="moe", role="y")

    async def names(labels: str = "", fields: str = "") -> list[str]:
        query = {"labelSelector": labels, "fieldSelector": fields}
        listed = await where.api.get(where.pods, query)
        return sorted(item["metadata"]["name"] for item in listed["items"])

    assert await names("everstep.dev/job=gpt") == ["a", "b"]
    assert await names("everstep.dev/job=gpt,role") == ["a"]
    assert await names("!role") == ["b"]
    assert await names("role in (x,y)") == ["a", "c"]
    assert await names("role!=x") == ["b", "c"]
    assert await names(fields=f"spec.nodeName={node}") == ["a"]
    with pytest.raises(PermanentError):
        await names(fields="spec.hostname=x")


# --- Nodes ----------------------------------------------------------------------------------------


async def test_taints_are_replaced_as_a_whole(where: Where) -> None:
    path = f"{NODES}/{await where.make_node('n')}"
    one, two = ({"key": f"t/{i}", "value": "x", "effect": "NoSchedule"} for i in (1, 2))
    await where.api.patch(path, {"spec": {"taints": [one]}}, STRATEGIC)
    after = await where.api.patch(path, {"spec": {"taints": [two]}}, STRATEGIC)
    assert after["spec"]["taints"] == [two]


async def test_conditions_are_merged_by_type_in_the_status_alone(where: Where) -> None:
    path = f"{NODES}/{await where.make_node('n')}"
    ours = {"type": "EverstepQuarantined", "status": "True", "reason": "Evicted", "message": "m"}
    after = await where.api.patch(f"{path}/status", {"status": {"conditions": [ours]}}, STRATEGIC)
    assert {c["type"] for c in after["status"]["conditions"]} == {"Ready", "EverstepQuarantined"}
    before = version(await where.api.get(path))
    gone = {**ours, "status": "False"}
    after = await where.api.patch(path, {"status": {"conditions": [gone]}}, STRATEGIC)
    assert version(after) == before
    stale = {"metadata": {"resourceVersion": "1"}, "status": {"conditions": [gone]}}
    with pytest.raises(ChangedError):
        await where.api.patch(f"{path}/status", stale, STRATEGIC)


async def test_cordon_and_back(where: Where) -> None:
    path = f"{NODES}/{await where.make_node('n')}"
    assert (await where.api.patch(path, {"spec": {"unschedulable": True}}))["spec"]["unschedulable"]
    after = await where.api.patch(path, {"spec": {"unschedulable": None}})
    assert not after["spec"].get("unschedulable")


async def test_a_nodes_lease_is_renewed_with_fractions_of_a_second(where: Where) -> None:
    path = f"{LEASES}/{await where.make_node('n')}"
    renewed = {"spec": {"renewTime": "2026-01-02T03:04:05.000000Z"}}
    assert (await where.api.patch(path, renewed))["spec"]["renewTime"].startswith("2026-01-02")
    with pytest.raises(PermanentError):
        await where.api.patch(path, {"spec": {"renewTime": "2026-01-02T03:04:05Z"}})


# --- Pods that go ---------------------------------------------------------------------------------


async def test_a_pod_without_a_node_goes_at_once(where: Where) -> None:
    await where.make_pod("p")
    await where.api.delete(f"{where.pods}/p", {})
    with pytest.raises(NotThereError):
        await where.api.get(f"{where.pods}/p")


async def test_a_pod_on_a_node_waits_for_its_kubelet(where: Where) -> None:
    await where.make_pod("p", await where.make_node("n"), running=True)
    await where.api.delete(f"{where.pods}/p", {"gracePeriodSeconds": 7})
    metadata = (await where.api.get(f"{where.pods}/p"))["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 7
    assert metadata["deletionTimestamp"]
    # A body counts, and what the query says does not.
    await where.api.delete(f"{where.pods}/p?gracePeriodSeconds=0", {"gracePeriodSeconds": 5})
    assert await where.api.get(f"{where.pods}/p")
    await where.api.delete(f"{where.pods}/p", {"gracePeriodSeconds": 0})
    with pytest.raises(NotThereError):
        await where.api.get(f"{where.pods}/p")


async def test_deleting_another_pod_of_that_name_is_refused(where: Where) -> None:
    await where.make_pod("p")
    other = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    with pytest.raises(ChangedError):
        await where.api.delete(f"{where.pods}/p", other)


async def test_binding(where: Where) -> None:
    node = await where.make_node("n")
    await where.make_pod("p")
    body = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}}
    answer = await where.api.post(f"{where.pods}/p/binding", body)
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert (await where.api.get(f"{where.pods}/p"))["spec"]["nodeName"] == node
    with pytest.raises(ChangedError):
        await where.api.post(f"{where.pods}/p/binding", body)


async def test_eviction(where: Where) -> None:
    pod = await where.make_pod("p", await where.make_node("n"), running=True)
    uid = pod["metadata"]["uid"]
    with pytest.raises(ChangedError):
        await where.api.post(f"{where.pods}/p/eviction", eviction("p", "somebody-else"))
    for _ in range(2):
        answer = await where.api.post(f"{where.pods}/p/eviction", eviction("p", uid))
        assert (answer["kind"], answer["status"]) == ("Status", "Success")
    after = await where.api.get(f"{where.pods}/p")
    assert after["metadata"]["deletionTimestamp"]
    told = {c["type"]: c["reason"] for c in after["status"]["conditions"] if "reason" in c}
    assert told["DisruptionTarget"] == "EvictionByEvictionAPI"
    with pytest.raises(NotThereError):
        await where.api.post(f"{where.pods}/q/eviction", eviction("q"))


async def test_a_budget_stands_against_an_eviction(where: Where) -> None:
    await where.make_pod("p", await where.make_node("n"), running=True, app="x")
    await budget(where, "b", allowed=0)
    with pytest.raises(BudgetError, match="needs 1 healthy pods and has 1"):
        await where.api.post(f"{where.pods}/p/eviction", eviction("p"))
    await where.api.patch(f"{where.budgets}/b/status", {"status": {"disruptionsAllowed": 1}})
    await where.api.post(f"{where.pods}/p/eviction", eviction("p"))
    assert (await where.api.get(f"{where.budgets}/b"))["status"]["disruptionsAllowed"] == 0


async def test_a_pod_that_leaves_its_budget_may_go(where: Where) -> None:
    await where.make_pod("p", await where.make_node("n"), running=True, app="x")
    await budget(where, "b", allowed=0)
    await where.api.patch(f"{where.pods}/p", {"metadata": {"labels": {"app": "y"}}})
    await where.api.post(f"{where.pods}/p/eviction", eviction("p"))


async def test_a_budget_that_is_not_counted_yet_says_when_to_come_again(where: Where) -> None:
    await where.make_pod("p", await where.make_node("n"), running=True, app="x")
    await budget(where, "b", allowed=1, observed=0)
    with pytest.raises(BusyError) as caught:
        await where.api.post(f"{where.pods}/p/eviction", eviction("p"))
    assert caught.value.retry_after_s == 10


async def test_two_budgets_are_an_error(where: Where) -> None:
    await where.make_pod("p", await where.make_node("n"), running=True, app="x")
    await budget(where, "one", allowed=1)
    await budget(where, "two", allowed=1)
    with pytest.raises(BudgetError, match="more than one"):
        await where.api.post(f"{where.pods}/p/eviction", eviction("p"))


async def test_a_pod_that_is_not_ready_may_go_where_the_budget_says_so(where: Where) -> None:
    await where.make_pod("p", await where.make_node("n"), app="x")
    await where.api.patch(f"{where.pods}/p/status", {"status": {"phase": "Running"}})
    await budget(where, "b", allowed=0, unhealthyPodEvictionPolicy="AlwaysAllow")
    await where.api.post(f"{where.pods}/p/eviction", eviction("p"))


# --- Watching -------------------------------------------------------------------------------------


async def collect(where: Where, labels: str, since: str, seconds: int) -> list[tuple[str, str]]:
    query = {
        "labelSelector": labels,
        "resourceVersion": since,
        "timeoutSeconds": str(seconds),
        "allowWatchBookmarks": "true",
    }
    return [
        (event["type"], event["object"]["metadata"].get("name", ""))
        async for event in where.api.watch(where.pods, query, seconds + 5)
    ]


async def test_a_watch_tells_what_came_after_a_version_and_ends(where: Where) -> None:
    await where.make_pod("old", app="x")
    since = version(await where.api.get(where.pods))
    seen = asyncio.create_task(collect(where, "app=x", since, 1))
    await where.make_pod("new", app="x")
    await where.make_pod("other", app="y")
    await where.api.patch(f"{where.pods}/new", {"metadata": {"labels": {"n": "1"}}})
    await where.api.patch(f"{where.pods}/new", {"metadata": {"labels": {"app": "y"}}})
    await where.api.patch(f"{where.pods}/other", {"metadata": {"labels": {"app": "x"}}})
    await where.api.delete(f"{where.pods}/old", {})
    told = [event for event in await seen if event[0] != "BOOKMARK"]
    assert told == [
        ("ADDED", "new"),
        ("MODIFIED", "new"),
        ("DELETED", "new"),
        ("ADDED", "other"),
        ("DELETED", "old"),
    ]


async def test_a_watch_tells_of_objects_as_large_as_they_get(where: Where) -> None:
    since = version(await where.api.get(where.pods))
    await where.make_pod("large", app="x")
    note = {"metadata": {"annotations": {"note": "x" * 250_000}}}
    await where.api.patch(f"{where.pods}/large", note)
    told = [event for event in await collect(where, "app=x", since, 1) if event[0] != "BOOKMARK"]
    assert told == [("ADDED", "large"), ("MODIFIED", "large")]


async def test_a_watch_from_a_forgotten_version_is_gone(where: Where) -> None:
    if where.server is None:
        pytest.skip("a real server forgets when it likes")
    since = version(await where.api.get(where.pods))
    where.server.store.compact()
    with pytest.raises(ExpiredError):
        await collect(where, "", since, 1)
    fresh = version(await where.api.get(where.pods))
    assert await collect(where, "", fresh, 1) == []


async def test_a_bookmark_comes_only_where_it_is_asked_for(where: Where) -> None:
    if where.server is None:
        pytest.skip("a real server sends them when it likes")
    where.server.bookmarks = True
    since = version(await where.api.get(where.pods))
    assert await collect(where, "", since, 1) == [("BOOKMARK", "")]


async def test_nobody_there_is_transient(where: Where) -> None:
    if where.server is None:
        pytest.skip("a real server stays")
    port = where.server.url.rpartition(":")[2]
    other = where.kubeconfig.with_name("nobody")
    other.write_text(where.kubeconfig.read_text().replace(port, "1"))
    async with connected(str(other)) as api:
        with pytest.raises(TransientError):
            await api.get(NODES)


CLUSTER = {"server": "https://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("", "not written as a kubeconfig is"),
        ("hello", "not written as a kubeconfig is"),
        ("{", "while parsing"),
        ("{}", "current-context"),
        ({}, "its server is no address: ''"),
        ({"server": "here:1"}, "its server is no address: 'here:1'"),
        ({"server": 5}, "not written as a kubeconfig is"),
        ({**CLUSTER, "certificate-authority-data": "Z2FyYmFnZQ=="}, "no certificate"),
    ],
)
async def test_a_kubeconfig_that_is_none_is_named(
    text: str | Json | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    if isinstance(text, str):
        file.write_text(text)
    elif text is not None:
        given = kubeconfig("")
        given["clusters"][0]["cluster"] = text
        file.write_text(json.dumps(given))
    with pytest.raises(InputError, match="KUBECONFIG") as refused:
        async with connected(str(file)):
            pass
    assert said in str(refused.value)
