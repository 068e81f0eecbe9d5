"""Who may do what in a cluster, asked of its API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everstep.core.errors import EverstepError, PermanentError
from everstep.workers.cluster.finding import Finding, missing, ok, unclear
from everstep.workers.cluster.install import base

if TYPE_CHECKING:
    from everstep.activities.kube.connection import Connection

REVIEWS = "/apis/authorization.k8s.io/v1"
INSTALL = "everstep install --print | kubectl apply -f -"

SUBMITTING = (
    ("", "secrets"),
    ("", "configmaps"),
    ("", "services"),
    ("apps", "deployments"),
    ("policy", "poddisruptionbudgets"),
    ("networking.k8s.io", "networkpolicies"),
)
"""What `everstep submit` makes for every job, by API group."""


@dataclass(frozen=True, slots=True)
class Right:
    """To do something to a kind of object.

    Attributes:
        group: API group; empty for the core's.
        resource: With its subresource: `pods/eviction`.
        verb: Of the API.
        namespace: In which; None for objects of the whole cluster.
    """

    group: str
    resource: str
    verb: str
    namespace: str | None

    def attributes(self) -> dict[str, str]:
        """As a review asks."""
        resource, _, subresource = self.resource.partition("/")
        asked = {"group": self.group, "resource": resource, "verb": self.verb}
        if subresource:
            asked["subresource"] = subresource
        if self.namespace is not None:
            asked["namespace"] = self.namespace
        return asked

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def of_account(account: str, namespace: str) -> Iterator[Right]:
    """What an account is given by `deploy/base`, each by itself; its roles bear its name."""
    for found in base():
        if found["kind"] not in ("Role", "ClusterRole") or found["metadata"]["name"] != account:
            continue
        where = namespace if found["kind"] == "Role" else None
        for rule in found["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    yield from (Right(group, resource, verb, where) for verb in rule["verbs"])


def of_submitting(namespace: str, job_sets: bool) -> Iterator[Right]:
    """What a person needs who submits jobs."""
    sets = ("jobset.x-k8s.io", "jobsets") if job_sets else ("apps", "statefulsets")
    for group, resource in (*SUBMITTING, sets):
        for verb in ("get", "create", "patch"):
            yield Right(group, resource, verb, namespace)


async def look(connection: Connection, namespace: str, job_sets: bool) -> list[Finding]:
    """Ask for the rights of controllers and analyzers, and of whoever asks."""
    return [
        *[
            await _look(
                connection,
                f"rights of {account.removeprefix('everstep-')}s",
                list(of_account(account, namespace)),
                f"system:serviceaccount:{namespace}:{account}",
                f"Run: {INSTALL}",
            )
            for account in ("everstep-controller", "everstep-analyzer", "everstep-node")
        ],
        await _look(
            connection,
            "your rights to submit",
            list(of_submitting(namespace, job_sets)),
            None,
            f"Have somebody bind the ClusterRole `edit`, and one for JobSets, in {namespace}.",
        ),
    ]


async def _look(
    connection: Connection, item: str, rights: list[Right], account: str | None, fix: str
) -> Finding:
    lacking: list[str] = []
    try:
        for right in rights:
            if not await _may(connection, right, account):
                lacking.append(str(right))
    except PermanentError as error:
        ask = f"kubectl auth can-i --list{f' --as {account}' if account else ''}"
        return unclear(item, f"you may not ask: {error}", f"Have somebody run: {ask}")
    except EverstepError as error:
        return unclear(item, str(error), "Try again.")
    if lacking:
        return missing(item, f"{len(lacking)} are refused: {', '.join(lacking)}", fix)
    return ok(item, f"all {len(rights)} are granted")


async def _may(connection: Connection, right: Right, account: str | None) -> bool:
    """Ask for oneself, or for an account.

    Raises:
        EverstepError: The server does not answer, or whoever asks may not.
    """
    kind = "SelfSubjectAccessReview" if account is None else "SubjectAccessReview"
    spec: dict[str, Any] = {"resourceAttributes": right.attributes()}
    if account is not None:
        spec["user"] = account
        namespace = account.split(":")[2]
        spec["groups"] = [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ]
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = await connection.post(f"{REVIEWS}/{kind.lower()}s", body)
    return answer.get("status", {}).get("allowed") is True
