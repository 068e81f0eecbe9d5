"""`everstep submit SPEC --cluster`: a job into a Kubernetes cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli.asking import connect
from everstep.cli.console import err, out
from everstep.cli.install import print_objects
from everstep.core.errors import InputError, TransientError
from everstep.workers.cluster.install import (
    BASE_NAMESPACE,
    Installation,
    check_image,
    check_namespace,
    controller_image,
)
from everstep.workers.cluster.launch import job_objects_with, launch, new_secret
from everstep.workers.cluster.pod import Submission
from everstep.workers.cluster.reaching import cluster
from everstep.workers.cluster.submit import Target, submission
from everstep.workers.local import server

PATIENCE_S = 5.0
"""One that is there already answers at once."""


def submit_command(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The job's spec (YAML).")],
    to_cluster: Annotated[
        bool, typer.Option("--cluster", help="To the cluster that KUBECONFIG names.")
    ] = False,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the manifests; apply and start nothing.")
    ] = False,
    namespace: Annotated[str, typer.Option(help="Where the job goes.")] = BASE_NAMESPACE,
    image: Annotated[
        str | None, typer.Option(help="Image of training pods, instead of the spec's.")
    ] = None,
    image_of_analyzer: Annotated[
        str | None, typer.Option(help="Image of the analyzer; the controllers' when left out.")
    ] = None,
    code_at: Annotated[
        str, typer.Option(help="Where the code lies in every training pod; else it is sent along.")
    ] = "",
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Ignore checkpoints of earlier runs in storage."),
    ] = False,
) -> None:
    """Put a job into a cluster and start it; what is done already is left as it is."""
    if not to_cluster:
        raise InputError("--cluster", "is missing", "Give it; on this machine: everstep run SPEC.")
    analyzer = image_of_analyzer or controller_image(Installation())
    check_namespace(namespace)
    check_image("--image-of-analyzer", analyzer)
    if image is not None:
        check_image("--image", image)
    given = submission(spec_file, Target(namespace, analyzer, code_at, image))
    if print_:
        print_objects(job_objects_with(given, new_secret()))
        err.print("Printed, the job's secret with it; nothing is applied, and nothing started.")
        return
    asyncio.run(_submit(given, from_scratch))


async def _submit(given: Submission, from_scratch: bool) -> None:
    try:
        client = await connect(PATIENCE_S)
    except TransientError as error:
        fix = "Name the server that the cluster's controllers use: TEMPORAL_ADDRESS."
        raise TransientError(f"{error}. {fix}") from error
    await server.register_search_attributes(client)
    async with cluster() as connection:
        await launch(connection, client, given, from_scratch, out.print)
