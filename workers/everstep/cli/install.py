"""`everstep install --print`: what a namespace of a Kubernetes cluster needs once."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
import yaml

from everstep.core.errors import InputError
from everstep.workers.cluster.install import BASE_NAMESPACE, Installation, manifests


def install_command(
    print_: Annotated[
        bool, typer.Option("--print", help="Print the manifests, for `kubectl apply -f -`.")
    ] = False,
    namespace: Annotated[str, typer.Option(help="Where everything goes.")] = BASE_NAMESPACE,
    image: Annotated[str | None, typer.Option(help="Image of controllers and analyzers.")] = None,
    temporal_address: Annotated[
        str | None, typer.Option(help="Where Temporal is, host:port, as pods see it.")
    ] = None,
    temporal_namespace: Annotated[str | None, typer.Option(help="Namespace there.")] = None,
) -> None:
    """Print what a namespace needs once: controllers, their rights, network rules, a volume."""
    if not print_:
        raise InputError(
            "--print",
            "is missing: nothing is applied that nobody has read",
            "Run: everstep install --print | kubectl apply -f -",
        )
    print_objects(manifests(Installation(namespace, image, temporal_address, temporal_namespace)))


def print_objects(found: Iterable[dict[str, Any]]) -> None:
    """Print manifests as kubectl reads them."""
    text: str = yaml.safe_dump_all(found, sort_keys=False)  # pyright: ignore[reportUnknownMemberType]
    sys.stdout.write(text)
