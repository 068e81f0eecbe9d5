"""An agent's heartbeats alone, for `benchmarks.detection` to kill and to freeze."""

from __future__ import annotations

import asyncio
import os
import sys

from everstep.agent import link
from everstep.agent.telemetry import TelemetryClient
from everstep.spec.detection import Detection


async def main(port: int, job: str, machine: str) -> None:
    """Heartbeat for ever."""
    client = TelemetryClient(
        lambda: asyncio.ensure_future(link.open_link("127.0.0.1", port, b"of this benchmark", job)),
        machine,
        os.getpid(),
        Detection().heartbeat_interval_s,
    )
    await client.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
