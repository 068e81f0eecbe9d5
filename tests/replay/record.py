"""Adds histories to replay: `python -m tests.replay.record NAME`.

Runs one job with fake machines through a killed rank, a lost machine, and a hold for want of a
standby, on a server of its own, and stores the histories of the job and of every incident as
`histories/NAME-*.json`. Histories already there are never replaced: they stand for incidents that
were open when newer code came.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from everstep.core.model import Outcome
from everstep.spec.job import JobSpec
from everstep.workers.local import ports, server
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld

HISTORIES = Path(__file__).parent / "histories"
HOST = "127.0.0.1"

SPEC = JobSpec.model_validate(
    {
        "name": "recorded",
        "command": ["python", "train.py"],
        "code": {"directory": "."},
        "machines": 4,
        "gpus_per_machine": 2,
        "parallelism": {"tp": 2, "pp": 2, "dp": 2, "order": "tp-pp-dp"},
        "standby": {"count": 1},
        "ladder": {"evidence_window_s": 0.05, "probation_s": 0.3, "probation_steps": 1},
    }
)


async def live(control: Control) -> None:
    """A life with three incidents."""
    for number in range(5):
        await control.join(f"m{number}")
    await control.training(1)
    await control.world.advance(1, 7)
    await control.crash("m2", 5)
    await recovered(control, incident=1, attempt=2)
    await control.lose("m1")
    await recovered(control, incident=2, attempt=3)
    await control.lose("m3")
    await control.until(lambda record: record.outcome is Outcome.HELD, incident=3)
    await control.join("m9")
    await recovered(control, incident=3, attempt=4)
    await control.finish()


async def recovered(control: Control, incident: int, attempt: int) -> None:
    await control.until(lambda record: record.first_step_at_s is not None, incident)
    await control.world.advance(attempt, attempt * 20)
    await control.until(lambda record: record.outcome is Outcome.RECOVERED, incident)


async def record(name: str, address: str) -> None:
    async with controlled(address, SPEC, FakeWorld(8)) as control:
        await live(control)
        handles = {"job": control.handle}
        histories = {key: await handle.fetch_history() for key, handle in handles.items()}
        for incident in (1, 2, 3):
            history = await control.incident(incident).fetch_history()
            histories[f"incident-{incident}"] = history
    for key, history in histories.items():
        path = HISTORIES / f"{name}-{key}.json"
        if path.exists():
            raise SystemExit(f"{path} exists: choose another name, old histories are kept")
        path.write_text(history.to_json())


def main() -> None:
    HISTORIES.mkdir(exist_ok=True)
    port = ports.free_port(HOST)
    with tempfile.TemporaryDirectory() as folder:
        command = server.command(
            server.find_binary(), Path(folder) / "temporal.db", HOST, port, None
        )
        process = subprocess.Popen(command)
        try:
            while not asyncio.run(server.is_reachable(f"{HOST}:{port}")):
                pass
            asyncio.run(record(sys.argv[1], f"{HOST}:{port}"))
        finally:
            process.terminate()
            process.wait(10)


if __name__ == "__main__":
    main()
