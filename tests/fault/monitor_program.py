"""A monitor in a process of its own: tells on standard output what it sees, a line each.

Run as `python -m tests.fault.monitor_program SECONDS [OPTION...] [INTERFACE...]`, also inside a
network namespace. The first line is `ready`, the last one what it costs. Options: `--gpus`
looks at GPUs, too; `--events-only` never looks at links by itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict

import psutil

from everstep.agent.probes.links import Relevance
from everstep.agent.probes.monitor import Monitor, MonitorConfig
from everstep.core.model import Alert

SETTLING_S = 3.0


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def used() -> tuple[float, float]:
    """Processor seconds and MiB of memory of this process and its children."""
    here = psutil.Process()
    every = [here, *here.children(recursive=True)]
    seconds = sum(sum(process.cpu_times()[:2]) for process in every)
    return seconds, sum(process.memory_info().rss for process in every) / (1 << 20)


async def main(seconds: float, interfaces: tuple[str, ...], options: set[str]) -> None:
    def on_alert(alert: Alert) -> None:
        say(type="alert", **asdict(alert))

    config = MonitorConfig(
        machine="m1",
        paths=("/",),
        relevance=Relevance(given=interfaces, addresses=("10.9.0.1",)),
        gpus=None if "--gpus" in options else 0,
        intervals_s=(2.0, 10.0, 600.0 if "--events-only" in options else 1.0),
    )
    monitor = Monitor(config, on_alert)
    task = asyncio.create_task(monitor.run())
    while not any(found.item == "host.memory" for found in monitor.inspections()):
        await asyncio.sleep(0.01)
    say(type="ready")
    settling_s = min(SETTLING_S, seconds / 2)
    await asyncio.sleep(settling_s)
    before_s, began_s = used()[0], time.monotonic()
    await asyncio.sleep(seconds - settling_s)
    now_s, memory_mib = used()
    core_ratio = (now_s - before_s) / (time.monotonic() - began_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    say(type="end", core_ratio=core_ratio, memory_mib=memory_mib)


if __name__ == "__main__":
    options = {word for word in sys.argv[2:] if word.startswith("--")}
    names = tuple(word for word in sys.argv[2:] if word not in options)
    asyncio.run(main(float(sys.argv[1]), names, options))
