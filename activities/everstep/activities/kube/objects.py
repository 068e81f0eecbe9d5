"""Manifests of any kind, made in a cluster and kept as they say. For `everstep submit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.activities.kube.connection import ChangedError, Connection, NotThereError
from everstep.core.errors import InputError, PermanentError
from everstep.core.kubernetes_names import LABEL_JOB

Json = dict[str, Any]

RESOURCES: Mapping[str, str] = {
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "JobSet": "jobsets",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodMonitor": "podmonitors",
    "Secret": "secrets",
    "Service": "services",
    "StatefulSet": "statefulsets",
}
"""What each kind is called in a path."""

DRY_RUN = {"dryRun": "All"}


class Objects:
    """Objects of one cluster.

    Args:
        connection: To its API server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def find(self, wanted: Json) -> Json | None:
        """The object of this kind, namespace and name, or None.

        Raises:
            TransientError, PermanentError: As `Connection.get`.
        """
        try:
            return await self._connection.get(path_of(wanted))
        except NotThereError:
            return None

    async def try_out(self, wanted: Json) -> None:
        """Have the server say whether it would keep an object; nothing is changed.

        Raises:
            InputError: It would not, or what is there under this name is not this job's.
            TransientError: It does not answer.
        """
        path = path_of(wanted)
        try:
            try:
                await self._connection.post(path.rpartition("/")[0], wanted, DRY_RUN)
            except ChangedError:
                found = await self._connection.get(path)
                _refuse_others(wanted, found)
                await self._connection.patch(path, _changes(wanted), query=DRY_RUN)
        except PermanentError as error:
            raise InputError(
                _where(wanted),
                f"is refused, so that nothing was made: {error}",
                "See what is missing: everstep doctor SPEC.",
            ) from error

    async def keep(self, wanted: Json) -> Json:
        """Make an object, or change the one that is there; a second time changes nothing.

        Returns:
            The object as it is now.

        Raises:
            InputError: What is there under this name belongs to nobody or another job.
            TransientError, PermanentError: As `Connection.post` and `patch`.
        """
        path = path_of(wanted)
        try:
            return await self._connection.post(path.rpartition("/")[0], wanted)
        except ChangedError:
            found = await self._connection.get(path)
        _refuse_others(wanted, found)
        return await self._connection.patch(path, _changes(wanted))


def path_of(wanted: Json) -> str:
    """Where an API server keeps an object."""
    version, metadata = str(wanted["apiVersion"]), wanted["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    resource = RESOURCES[wanted["kind"]]
    return f"{root}/namespaces/{metadata['namespace']}/{resource}/{metadata['name']}"


def _changes(wanted: Json) -> Json:
    """What is asked of an object that is there already.

    A set keeps its size, which was made larger where a pod hangs: made smaller, it would lose a
    machine that may train.
    """
    if wanted["kind"] != "StatefulSet":
        return wanted
    spec = {name: value for name, value in wanted["spec"].items() if name != "replicas"}
    return {**wanted, "spec": spec}


def _refuse_others(wanted: Json, found: Json) -> None:
    if _job(found) != _job(wanted):
        raise InputError(
            _where(wanted),
            f"is there already in {wanted['metadata']['namespace']}, and is not this job's",
            "Rename or delete it, or give the job another name.",
        )


def _where(wanted: Json) -> str:
    return f"{wanted['kind']} {wanted['metadata']['name']}"


def _job(found: Json) -> str | None:
    labels: dict[str, str] = found["metadata"].get("labels") or dict[str, str]()
    return labels.get(LABEL_JOB)
