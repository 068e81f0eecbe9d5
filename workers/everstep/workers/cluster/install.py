"""What a namespace needs once, as `deploy/base` says it and every wheel brings it along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

import yaml

from everstep.workers.cluster import places

Object = dict[str, Any]

BASE_NAMESPACE = "everstep"
"""The namespace in which `deploy/base` puts everything."""

OF_THE_CLUSTER = ("Namespace", "ClusterRole", "ClusterRoleBinding")


@dataclass(frozen=True, slots=True)
class Installation:
    """What may be other than in `deploy/base`; None as it is there.

    Attributes:
        namespace: Where everything goes.
        image: Image of controllers.
        temporal_address: Where Temporal is, `host:port`.
        temporal_namespace: Namespace there.
    """

    namespace: str = BASE_NAMESPACE
    image: str | None = None
    temporal_address: str | None = None
    temporal_namespace: str | None = None


def manifests(wanted: Installation) -> list[Object]:
    """All objects of an installation, in the order in which they are to be made."""
    return [_placed(_changed(found, wanted), wanted.namespace) for found in base()]


def base() -> Iterator[Object]:
    """The objects of `deploy/base`, without a namespace."""
    folder = resources.files("everstep.workers.cluster") / "manifests"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    for name in listed["resources"]:
        documents = yaml.safe_load_all((folder / name).read_text(encoding="utf-8"))
        yield from (cast(Object, document) for document in documents)


def controller_image(wanted: Installation) -> str:
    """The image of controllers and analyzers."""
    for found in manifests(wanted):
        if found["kind"] == "Deployment":
            return str(found["spec"]["template"]["spec"]["containers"][0]["image"])
    raise AssertionError("deploy/base has no Deployment")


def _changed(found: Object, wanted: Installation) -> Object:
    if found["kind"] in ("Deployment", "DaemonSet") and wanted.image is not None:
        for container in found["spec"]["template"]["spec"]["containers"]:
            container["image"] = wanted.image
    if found["kind"] == "ConfigMap" and found["metadata"]["name"] == places.TEMPORAL:
        given = {
            "TEMPORAL_ADDRESS": wanted.temporal_address,
            "TEMPORAL_NAMESPACE": wanted.temporal_namespace,
        }
        found["data"].update({name: value for name, value in given.items() if value is not None})
    return found


def _placed(found: Object, namespace: str) -> Object:
    metadata = found["metadata"]
    if found["kind"] == "Namespace":
        metadata["name"] = namespace
    if found["kind"] not in OF_THE_CLUSTER:
        metadata["namespace"] = namespace
    for subject in found.get("subjects", ()):
        subject["namespace"] = namespace
    if found["kind"] == "ClusterRoleBinding" and namespace != BASE_NAMESPACE:
        # Two installations in one cluster each have their own.
        metadata["name"] = f"{metadata['name']}-{namespace}"
    return found
