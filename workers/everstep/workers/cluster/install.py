"""What a namespace needs once, as `deploy/base` says it and every wheel brings it along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

import yaml

from everstep.core.errors import InputError
from everstep.core.kubernetes_names import is_image, is_namespace
from everstep.workers.cluster import places

Object = dict[str, Any]

BASE_NAMESPACE = "everstep"
"""The namespace in which `deploy/base` puts everything."""

_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")

OF_THE_CLUSTER = ("Namespace", "ClusterRole", "ClusterRoleBinding")


@dataclass(frozen=True, slots=True)
class Installation:
    """What may be other than in `deploy/base`; None as it is there.

    Attributes:
        namespace: Where everything goes.
        image: Image of controllers.
        temporal_address: Where Temporal is, `host:port`.
        temporal_namespace: Namespace there.

    Raises:
        InputError: One of them cannot be what it is given for.
    """

    namespace: str = BASE_NAMESPACE
    image: str | None = None
    temporal_address: str | None = None
    temporal_namespace: str | None = None

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        if self.image is not None:
            check_image("--image", self.image)
        address = self.temporal_address
        if address is not None and not _ADDRESS.fullmatch(address):
            fix = "Give host:port as pods see it, without http://."
            raise InputError("--temporal-address", f"{address!r} is no address", fix)
        if self.temporal_namespace == "":
            fix = "Give it, or leave the option out."
            raise InputError("--temporal-namespace", "it is empty", fix)


def check_namespace(namespace: str) -> None:
    """Refuse what cannot be a namespace.

    Raises:
        InputError: It cannot.
    """
    if not is_namespace(namespace):
        fix = "Use up to 63 lower-case letters, digits and hyphens, no hyphen at either end."
        raise InputError("--namespace", f"{namespace!r} is no name of a namespace", fix)


def check_image(option: str, image: str) -> None:
    """Refuse what cannot be an image.

    Raises:
        InputError: It cannot.
    """
    if not is_image(image):
        fix = "Write it as its registry does: registry/name:tag."
        raise InputError(option, f"{image!r} is no image", fix)


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
