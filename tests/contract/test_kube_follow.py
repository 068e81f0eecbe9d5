"""What there is of a kind stays right through whatever happens between us and the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.fakes.kube.faults import Call, Fault, Kind
from tests.fakes.kube.server import KubeServer, serving
from tests.fakes.kube.where import write_kubeconfig

from everstep.activities.kube import follow
from everstep.activities.kube.connection import Connection, Json, connected
from everstep.activities.kube.follow import Follower

PODS = "/api/v1/namespaces/training/pods"
PATIENCE_S = 20.0


@pytest.fixture
async def server() -> AsyncIterator[KubeServer]:
    async with serving() as server:
        yield server


@pytest.fixture
async def api(server: KubeServer, tmp_path: Path) -> AsyncIterator[Connection]:
    async with connected(str(write_kubeconfig(tmp_path, server.url))) as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": "training"}})
        yield api


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "WINDOW_S", 1)
    monkeypatch.setattr(follow, "MARGIN_S", 0.3)
    monkeypatch.setattr(follow, "LONGEST_PAUSE_S", 0.4)


@pytest.fixture
async def pods(api: Connection) -> AsyncIterator[Follower[str]]:
    def read(item: Json) -> tuple[str, str]:
        labels = item["metadata"].get("labels", {})
        return item["metadata"]["name"], labels.get("slot", "")

    follower = Follower(api, PODS, {"labelSelector": "job=gpt"}, read, lambda: None)
    task = asyncio.create_task(follower.run())
    yield follower
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def make(api: Connection, name: str, job: str = "gpt") -> None:
    await api.post(PODS, {"metadata": {"name": name, "labels": {"job": job}}, "spec": {}})


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        await asyncio.sleep(0.01)


def watches(call: Call) -> bool:
    return call.verb == "watch"


def lists(call: Call) -> bool:
    return call.verb == "list"


async def test_changes_are_seen_as_they_come(api: Connection, pods: Follower[str]) -> None:
    await make(api, "a")
    await make(api, "other", job="moe")
    await until(lambda: set(pods.items) == {"a"}, "the first one")
    await api.patch(f"{PODS}/a", {"metadata": {"labels": {"slot": "3"}}})
    await until(lambda: pods.items == {"a": "3"}, "a changed label")
    await api.patch(f"{PODS}/other", {"metadata": {"labels": {"job": "gpt"}}})
    await until(lambda: set(pods.items) == {"a", "other"}, "one that matches by now")
    await api.patch(f"{PODS}/other", {"metadata": {"labels": {"job": "moe"}}})
    await until(lambda: set(pods.items) == {"a"}, "one that matches no longer")
    await api.delete(f"{PODS}/a", {})
    await until(lambda: not pods.items, "a deletion")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(Kind.ANSWER, watches, 3, 503), id="503 three times"),
        pytest.param(Fault(Kind.ANSWER, watches, 2, 500), id="500 twice"),
        pytest.param(Fault(Kind.ANSWER, watches, 1, 429, retry_after_s=1), id="429"),
        pytest.param(Fault(Kind.ANSWER, lists, 2, 503), id="no listing"),
        pytest.param(Fault(Kind.CUT_BEFORE, watches, 3), id="dropped"),
        pytest.param(Fault(Kind.SILENT, watches, 1), id="half open"),
        pytest.param(Fault(Kind.SILENT_STREAM, watches, 1), id="half open in the middle"),
    ],
)
async def test_what_goes_wrong_in_between_hides_nothing(
    server: KubeServer, api: Connection, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(item: Json) -> tuple[str, str]:
        return item["metadata"]["name"], ""

    await make(api, "a")
    server.faults.order(fault)
    follower = Follower(api, PODS, {}, read, lambda: None)
    task = asyncio.create_task(follower.run())
    await until(lambda: fault.count == 0, "the fault")
    await make(api, "b")
    await api.delete(f"{PODS}/a", {})
    await until(lambda: set(follower.items) == {"b"}, "both changes")
    task.cancel()
    await asyncio.wait([task])


async def test_deletions_that_nobody_was_told_of_are_missed(
    server: KubeServer, api: Connection, pods: Follower[str]
) -> None:
    await make(api, "a")
    await make(api, "b")
    await until(lambda: len(pods.items) == 2, "both")
    away = Fault(Kind.ANSWER, lambda call: call.verb in ("watch", "list"), 10_000)
    server.faults.order(away)
    # The watch under way ends by its own window.
    await until(lambda: away.count < 10_000, "the server is away")
    await api.delete(f"{PODS}/a", {})
    server.store.compact()
    away.count = 0
    await until(lambda: set(pods.items) == {"b"}, "410, and a new listing")


async def test_it_stops_at_once(api: Connection) -> None:
    follower = Follower(api, PODS, {}, lambda item: (item["metadata"]["name"], ""), lambda: None)
    task = asyncio.create_task(follower.run())
    await until(lambda: follower.synced, "a listing")
    began_s = time.monotonic()
    task.cancel()
    await asyncio.wait([task])
    assert time.monotonic() - began_s < 0.5
