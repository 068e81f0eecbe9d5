"""The controller worker, any number of them, stateless: `python -m everstep.workers.controller`."""

from __future__ import annotations

from everstep.activities.archive import FileArchive
from everstep.activities.evidence import EvidenceStore
from everstep.activities.stacks import StackJudge
from everstep.activities.webhook import Webhook
from everstep.workers import (
    clusters,
    controller_metrics,
    registry,
    runtime,
    settings,
    stopping,
)
from everstep.workers.health import Health, polling
from everstep.workers.local.folder import RunFolder


async def main() -> int:
    """Poll until told to stop."""
    stop = stopping.stop_requested()
    given = settings.read(settings.ControllerSettings)
    clusters.share_files(given)
    health = Health()
    await health.listen(given.host, given.health_port)
    folder = RunFolder(given.folder())
    async with clusters.port(given, folder) as cluster:
        counts = controller_metrics.counted(given)
        native, told_at = (None, None) if counts is None else counts
        client = await stopping.unless_stopped(stop, runtime.connect(native=native))
        variables = settings.secrets(given.secrets_directory)
        if told_at is not None:
            controller_metrics.serve(told_at, given, variables)
        worker = registry.controller(
            client,
            cluster,
            FileArchive(lambda job: RunFolder(given.run_of(job)).incidents),
            Webhook(variables),
            StackJudge(EvidenceStore(given.evidence_url())),
        )
        async with worker:
            health.ready = polling(client, worker)
            await stop.wait()
    return 0


if __name__ == "__main__":
    stopping.die_with_parent()
    runtime.run_process(main())
