"""Where tests of the adapter run: a fake, or the server that KUBECONFIG names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from everstep.activities.kube.connection import Connection, connected
from everstep.core.errors import EverstepError
from tests.fakes.kube.faults import Right
from tests.fakes.kube.patches import Json
from tests.fakes.kube.server import KubeServer, kubeconfig, serving

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_EVERY_S = 5.0
"""Half as often as a kubelet does; a cluster's controllers give up on a node after 40 s."""
RBAC = Path(__file__).resolve().parents[3] / "deploy" / "base" / "rbac.yaml"
CONTROLLER = "everstep-controller"
ANALYZER = "everstep-analyzer"


@dataclass
class Where:
    """An API server, and a namespace of one's own on it.

    Attributes:
        api: Connection to it.
        kubeconfig: File that names it.
        namespace: Name.
        server: The fake; None where it is a real one.
        nodes: Names of nodes that were made here.
        silent: Those of them whose kubelet says nothing any more.
    """

    api: Connection
    kubeconfig: Path
    namespace: str
    server: KubeServer | None
    nodes: list[str] = field(default_factory=list[str])
    silent: set[str] = field(default_factory=set[str])

    def of_user(self, user: str) -> Path:
        """A kubeconfig of somebody whose rights are those that the manifests give.

        On a real server it is our own: rights there are whoever's KUBECONFIG is given.
        """
        if self.server is None:
            return self.kubeconfig
        self.server.rights[user] = rights_of(user)
        return write_kubeconfig(self.kubeconfig.parent, self.server.url, user)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"

    async def make_node(self, name: str, **labels: str) -> str:
        """A node that is ready; its name, which is nobody else's."""
        name = f"{self.namespace}-{name}"
        made = await self.api.post(NODES, {"metadata": {"name": name, "labels": labels}})
        self.nodes.append(name)
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"]}
        lease = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": _held_by(name)}
        await self.api.post(LEASES, lease)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        await self.api.patch(f"{NODES}/{name}/status", {"status": {"conditions": [ready]}})
        # A real server taints new nodes until their kubelet is heard.
        await self.api.patch(f"{NODES}/{name}", {"spec": {"taints": None}})
        return name

    async def renew_leases(self) -> None:
        """Be heard for all nodes, for ever: a cluster takes those for dead that are not."""
        while True:
            for name in [name for name in self.nodes if name not in self.silent]:
                with contextlib.suppress(EverstepError):
                    await self.api.patch(f"{LEASES}/{name}", {"spec": _held_by(name)})
            await asyncio.sleep(RENEW_EVERY_S)

    async def make_pod(
        self, name: str, node: str = "", running: bool = False, **labels: str
    ) -> Json:
        spec: Json = {"containers": [{"name": "agent", "image": "none"}]}
        if node:
            spec["nodeName"] = node
        keys = label_names(labels)
        pod = await self.api.post(
            self.pods, {"metadata": {"name": name, "labels": keys}, "spec": spec}
        )
        if running:
            ready = {"type": "Ready", "status": "True"}
            status = {"phase": "Running", "conditions": [ready]}
            pod = await self.api.patch(f"{self.pods}/{name}/status", {"status": status})
        return pod


def _held_by(node: str) -> Json:
    # The server wants the fraction of a second, also where it is nought.
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now}


def rights_of(account: str) -> frozenset[Right]:
    """What `deploy/base/rbac.yaml` gives an account; its roles bear its name."""
    return frozenset(
        Right(group, resource, verb, found["kind"] == "Role")
        for found in yaml.safe_load_all(RBAC.read_text())
        if found["kind"] in ("Role", "ClusterRole") and found["metadata"]["name"] == account
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def label_names(keywords: dict[str, str]) -> dict[str, str]:
    """A keyword cannot hold what a label's name does: `everstep_dev__job` is everstep.dev/job."""
    return {
        key.replace("__", "/").replace("everstep_", "everstep."): value
        for key, value in keywords.items()
    }


def write_kubeconfig(folder: Path, url: str, user: str = "tests") -> Path:
    file = folder / f"kubeconfig-{user}"
    file.write_text(json.dumps(kubeconfig(url, user)))
    return file


@asynccontextmanager
async def anywhere(folder: Path) -> AsyncGenerator[Where]:
    """A place for one test; what is made there is gone afterwards."""
    async with contextlib.AsyncExitStack() as stack:
        given, server = os.environ.get("KUBECONFIG"), None
        if not given:
            server = await stack.enter_async_context(serving())
            given = str(write_kubeconfig(folder, server.url))
        api = await stack.enter_async_context(connected(given))
        where = Where(api, Path(given), f"everstep-{uuid.uuid4().hex[:8]}", server)
        await api.post("/api/v1/namespaces", {"metadata": {"name": where.namespace}})
        # Where no controller makes it, pods are refused without it.
        accounts = f"/api/v1/namespaces/{where.namespace}/serviceaccounts"
        with contextlib.suppress(EverstepError):
            await api.post(accounts, {"metadata": {"name": "default"}})
        heard = asyncio.create_task(where.renew_leases())
        try:
            yield where
        finally:
            heard.cancel()
            await asyncio.wait([heard])
            await _clean(where)


async def _clean(where: Where) -> None:
    now = {"gracePeriodSeconds": 0}
    for path in (where.pods, where.budgets):
        for item in (await where.api.get(path))["items"]:
            with contextlib.suppress(EverstepError):
                await where.api.delete(f"{path}/{item['metadata']['name']}", now)
    for name in where.nodes:
        with contextlib.suppress(EverstepError):
            await where.api.delete(f"{NODES}/{name}", {})
        with contextlib.suppress(EverstepError):
            await where.api.delete(f"{LEASES}/{name}", {})
    with contextlib.suppress(EverstepError):
        await where.api.delete(f"/api/v1/namespaces/{where.namespace}", {})
