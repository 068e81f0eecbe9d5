"""Which cluster the machines are in: processes of a run, or pods.

The Kubernetes adapter is loaded by those who need it alone: its client comes with an extra, and
takes seconds and 70 MiB.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec

from everstep.activities.local_cluster import LocalCluster
from everstep.core.errors import EverstepError, InputError
from everstep.core.model import Alert
from everstep.workers import settings
from everstep.workers.local.folder import RunFolder
from everstep.workflows.ports import ClusterPort

logger = logging.getLogger(__name__)

AGAIN_S = 30.0
"""After a watch could not begin: a token that is not there yet, say."""


def share_files(given: settings.ProcessSettings) -> None:
    """Let the group write what this process makes: pods of several users share a volume by it."""
    if given.cluster == "kubernetes":
        os.umask(0o002)


@asynccontextmanager
async def port(given: settings.ProcessSettings, folder: RunFolder) -> AsyncGenerator[ClusterPort]:
    """The cluster that the settings name.

    Args:
        given: Settings of the process.
        folder: The run's folder, where machines are its processes.

    Raises:
        InputError: There is no such cluster from here.
    """
    if given.cluster == "local":
        yield LocalCluster(folder.evictions, folder.requests)
        return
    _require_client()
    from everstep.activities.kube.cluster import KubernetesCluster  # noqa: PLC0415 - see above
    from everstep.activities.kube.connection import connected  # noqa: PLC0415

    async with connected(settings.kubeconfig()) as api:
        yield KubernetesCluster(api, given.namespace)


async def watch(
    given: settings.ProcessSettings,
    job: str,
    hears: Callable[[str], bool],
    on_alert: Callable[[Alert], None],
) -> None:
    """Watch a job's pods and nodes for ever; without that, agents that fall silent are still told.

    Args:
        given: Settings of the process.
        job: Name of the job.
        hears: Whether an agent is heard at this moment.
        on_alert: Called with each alert.
    """
    while True:
        try:
            await _watch(given, job, hears, on_alert)
        except EverstepError as error:
            logger.error("pods and nodes are not watched: %s", error)
        await asyncio.sleep(AGAIN_S)


async def _watch(
    given: settings.ProcessSettings,
    job: str,
    hears: Callable[[str], bool],
    on_alert: Callable[[Alert], None],
) -> None:
    _require_client()
    from everstep.activities.kube.connection import connected  # noqa: PLC0415 - see above
    from everstep.activities.kube.watch import ClusterWatch  # noqa: PLC0415

    async with connected(settings.kubeconfig()) as api:
        await ClusterWatch(api, given.namespace, job, hears, on_alert).run()


def _require_client() -> None:
    if find_spec("kubernetes") is None:
        raise InputError(
            "EVERSTEP_CLUSTER",
            "the client for Kubernetes is not installed here",
            "Install the extra: pip install 'everstep[control,kubernetes]'.",
        )
