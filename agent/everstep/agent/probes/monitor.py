"""All senses of one machine, each at its own pace, and one alert a fault."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from everstep.agent.probes import boot, kmsg
from everstep.agent.probes.gpu import GpuProbe
from everstep.agent.probes.host import HostProbe
from everstep.agent.probes.links import LinkNews, LinkProbe, Relevance
from everstep.core.errors import UnobservableError
from everstep.core.model import Alert
from everstep.core.senses import thresholds
from everstep.core.senses.faults import FaultBook
from everstep.core.senses.inspection import Inspection, healthy, unobservable
from everstep.core.senses.kernel_judge import KernelJudge
from everstep.core.senses.kmsg import KernelRecord
from everstep.core.senses.network import NetworkJudge
from everstep.core.senses.xid import Xid
from everstep.core.vocabulary import Observer, Symptom

logger = logging.getLogger(__name__)

RETRY_KERNEL_LOG_S = 60.0


class Part(StrEnum):
    """What the senses of a machine look at; in a cluster its pod and its node share it out."""

    KERNEL_LOG = "kernel log"
    HOST = "host"
    NETWORK = "network"
    GPUS = "GPUs"


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """What the senses of one machine look at.

    Attributes:
        machine: Name of the machine.
        paths: Where the job reads and writes.
        relevance: What decides which network ports matter.
        gpus: How many GPUs there should be; None learns it, 0 does not look.
        own_cgroup: Cgroup of the agent and its ranks, or empty.
        own_pids: Tells which processes may use the GPUs; None when nobody knows.
        accept_programs: Whether lines that programs wrote to the kernel log count; for tests.
        kernel_log: The kernel log's device.
        intervals_s: Seconds between two looks at the host, the GPUs and the network.
        parts: What is looked at here.
    """

    machine: str
    paths: Sequence[str] = ()
    relevance: Relevance = field(default_factory=Relevance)
    gpus: int | None = None
    own_cgroup: str = ""
    own_pids: Callable[[], Collection[int]] | None = None
    accept_programs: bool = False
    kernel_log: Path = kmsg.KMSG
    intervals_s: tuple[float, float, float] = (
        thresholds.HOST_EVERY_S,
        thresholds.GPU_EVERY_S,
        thresholds.NETWORK_EVERY_S,
    )
    parts: frozenset[Part] = frozenset(Part)


class Monitor:
    """Runs all senses of one machine.

    Args:
        config: What to look at.
        on_alert: Called in the event loop, once a fault, and once more when a fault that was
            suspected becomes certain.
        clock: The monotonic clock, in seconds.
        wall: The wall clock, in seconds.
    """

    def __init__(
        self,
        config: MonitorConfig,
        on_alert: Callable[[Alert], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._on_alert = on_alert
        self._clock, self._wall = clock, wall
        self._faults = FaultBook()
        self._kernel = KernelJudge(config.own_cgroup, config.accept_programs)
        self._network = NetworkJudge()

    async def run(self) -> None:
        """Watch until cancelled."""
        host_s, gpu_s, network_s = self._config.intervals_s
        parts = self._config.parts
        if Part.KERNEL_LOG in parts:
            self._note(await boot.look())
        host = HostProbe(self._config.paths, self._wall, self._clock)
        links = LinkProbe(self._config.relevance)
        gpus = GpuProbe(self._on_xid, self._clock, self._config.gpus)

        async def look_at_host() -> None:
            self._note(*host.look())
            self._faults.expire(self._clock())

        async def look_at_gpus() -> None:
            pids = None if self._config.own_pids is None else self._config.own_pids()
            self._note(*await gpus.look(pids))

        async def look_at_links() -> None:
            self._note(*self._network.look(links.look(), self._clock()))

        try:
            async with asyncio.TaskGroup() as senses:
                if Part.KERNEL_LOG in parts:
                    senses.create_task(self._watch_kernel_log())
                if Part.HOST in parts:
                    senses.create_task(self._every(host_s, "host", look_at_host))
                if Part.NETWORK in parts and (links.interfaces or links.ports):
                    senses.create_task(self._every(network_s, "network", look_at_links))
                    senses.create_task(self._watch_links(look_at_links))
                if Part.GPUS in parts and self._config.gpus != 0:
                    senses.create_task(self._every(gpu_s, "GPU", look_at_gpus, gpus.trouble))
        finally:
            await gpus.close()

    def inspections(self) -> list[Inspection]:
        """What the last look at everything said, sorted; senses that failed say so."""
        return self._faults.latest()

    def standing(self) -> list[tuple[Symptom, str]]:
        """The faults that stand, by symptom and subject, sorted."""
        return self._faults.standing()

    def slowed(self) -> tuple[str, ...]:
        """What stands that slows the machine, each with what the last look at it said, sorted."""
        standing = {s for symptom, s in self.standing() if symptom is Symptom.MFU_DECLINE}
        return tuple(
            f"{found.subject}: {found.detail}"
            for found in self.inspections()
            if found.symptom is Symptom.MFU_DECLINE and found.subject in standing
        )

    # --- The senses ------------------------------------------------------------------------------

    async def _every(
        self,
        interval_s: float,
        sense: str,
        look: Callable[[], Awaitable[None]],
        sooner: asyncio.Event | None = None,
    ) -> None:
        """Look for ever, at intervals, and when something says that it is time."""
        sooner = sooner or asyncio.Event()
        while True:
            await self._try(sense, look())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await sooner.wait()
            sooner.clear()

    async def _try(self, sense: str, look: Awaitable[None]) -> None:
        """Look once; a look that fails is could-not-tell, and never blinds the other senses."""
        try:
            await look
        except UnobservableError:
            raise
        except Exception as error:
            logger.warning("the %s sense failed", sense, exc_info=True)
            self._note(unobservable("agent.sense", sense, f"failed: {error!r}"))
        else:
            self._note(healthy("agent.sense", sense, "looks"))

    async def _watch_links(self, look: Callable[[], Awaitable[None]]) -> None:
        """Look at once whenever the kernel says that a link changed."""
        try:
            news = LinkNews()
        except UnobservableError as error:
            self._note(unobservable("network.events", "netlink", str(error)))
            return
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        loop.add_reader(news, changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                news.drain()
                await self._try("network", look())
        finally:
            loop.remove_reader(news)
            news.close()

    async def _watch_kernel_log(self) -> None:
        """Follow the kernel log by whatever way there is."""
        while True:
            try:
                await self._try("kernel log", self._follow_kernel_log())
            except UnobservableError as error:
                self._note(unobservable("host.kernel_log", "kernel", str(error)))
            await asyncio.sleep(RETRY_KERNEL_LOG_S)

    async def _follow_kernel_log(self) -> None:
        """Follow /dev/kmsg, else journald.

        Raises:
            UnobservableError: Neither can be read, or not any more.
        """
        try:
            reader = kmsg.KmsgReader(self._config.kernel_log)
        except UnobservableError as error:
            logger.info("%s; trying journald", error)
            try:
                await kmsg.follow_journal(self._on_records)
            except UnobservableError as other:
                raise UnobservableError(f"{error}; {other}") from other
            return
        lost = 0

        def on_records(records: list[KernelRecord]) -> None:
            nonlocal lost
            self._on_records(records)
            if reader.lost > lost:
                lost = reader.lost
                self._note(unobservable("host.kernel_log", "kernel", f"{lost} records were lost"))

        self._note(healthy("host.kernel_log", "kernel", "is read as it is written"))
        try:
            await kmsg.follow(reader, on_records)
        finally:
            reader.close()

    def _on_records(self, records: list[KernelRecord]) -> None:
        for record in records:
            inspection = self._kernel.judge(record)
            if inspection is not None:
                self._note(inspection)

    def _on_xid(self, xid: Xid) -> None:
        self._note(self._kernel.judge_xid(xid, self._clock()))

    def _note(self, *inspections: Inspection) -> None:
        now_s = self._clock()
        for inspection in inspections:
            if self._faults.note(inspection, now_s):
                self._raise(inspection)

    def _raise(self, inspection: Inspection) -> None:
        assert inspection.symptom is not None  # noqa: S101 - only faults with a symptom are new
        logger.warning("%s of %s: %s", inspection.item, inspection.subject, inspection.detail)
        self._on_alert(
            Alert(
                observer=Observer.AGENT,
                symptom=inspection.symptom,
                at_s=self._wall(),
                detail=f"{inspection.subject}: {inspection.detail}",
                machine=self._config.machine,
                subject=inspection.subject,
                confident=inspection.confident,
            )
        )
