"""The controller worker, any number of them, stateless: `python -m everstep.workers.controller`."""

from __future__ import annotations

from everstep.activities.archive import FileArchive
from everstep.activities.evidence import EvidenceStore
from everstep.activities.stacks import StackJudge
from everstep.activities.webhook import Webhook
from everstep.workers import clusters, registry, runtime, settings, stopping
from everstep.workers.local.folder import RunFolder


async def main() -> int:
    """Poll until told to stop."""
    stop = stopping.stop_requested()
    given = settings.from_environment()
    folder = RunFolder(given.run_directory)
    async with clusters.port(given, folder) as cluster:
        worker = registry.controller(
            await runtime.connect(),
            cluster,
            FileArchive(folder.incidents),
            Webhook(settings.secrets()),
            StackJudge(EvidenceStore(given.evidence_url())),
        )
        async with worker:
            await stop.wait()
    return 0


if __name__ == "__main__":
    stopping.die_with_parent()
    runtime.run_process(main())
