"""All inspections once, for a person who asks how a machine is."""

from __future__ import annotations

import asyncio
import time

from everstep.agent.probes import boot, kmsg
from everstep.agent.probes.gpu import GpuProbe
from everstep.agent.probes.host import HostProbe
from everstep.agent.probes.links import LinkProbe
from everstep.agent.probes.monitor import MonitorConfig
from everstep.core.errors import UnobservableError
from everstep.core.senses.inspection import Inspection, healthy, unobservable
from everstep.core.senses.kernel_judge import KernelJudge
from everstep.core.senses.network import NetworkJudge
from everstep.core.senses.xid import Xid
from everstep.core.vocabulary import Verdict

COUNTING_S = 1.0
"""Between two looks at counters."""


async def inspect(config: MonitorConfig) -> list[Inspection]:
    """Look at everything once; takes some seconds when a GPU hangs.

    Args:
        config: What to look at.

    Returns:
        Every inspection, by sense.
    """
    found = [*await _kernel_log(config), await boot.look()]
    # A single look at the clock sees no step.
    found += [i for i in HostProbe(config.paths).look() if i.item != "host.clock"]
    found += await _network(config)
    if config.gpus != 0:
        found += await _gpus(config)
    return found


async def _kernel_log(config: MonitorConfig) -> list[Inspection]:
    try:
        records = await kmsg.since_boot(config.kernel_log)
    except UnobservableError as error:
        return [unobservable("host.kernel_log", "kernel", str(error))]
    judge = KernelJudge(config.own_cgroup, config.accept_programs)
    worst: dict[tuple[str, str], Inspection] = {}
    for record in records:
        inspection = judge.judge(record)
        if inspection is not None and inspection.verdict is not Verdict.HEALTHY:
            worst.setdefault((inspection.item, inspection.subject), inspection)
    read = healthy("host.kernel_log", "kernel", f"{len(records)} records since boot were read")
    return [read, *worst.values()]


async def _network(config: MonitorConfig) -> list[Inspection]:
    links = LinkProbe(config.relevance)
    judge = NetworkJudge()
    judge.look(links.look(), time.monotonic())
    await asyncio.sleep(COUNTING_S)
    found = judge.look(links.look(), time.monotonic())
    for port in links.unclear:
        why = "is not in use, and nobody says whether it should be"
        found.append(unobservable("network.port", port, why))
    if not found:
        why = "no interface is known to matter to a job; name one"
        found.append(unobservable("network.port", "network", why))
    return found


async def _gpus(config: MonitorConfig) -> list[Inspection]:
    def on_xid(xid: Xid) -> None:
        """Xids since boot are in the kernel log."""

    probe = GpuProbe(on_xid, time.monotonic, config.gpus)
    try:
        return await probe.look(None if config.own_pids is None else config.own_pids())
    finally:
        await probe.close()
