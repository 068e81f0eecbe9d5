"""All GPUs of this machine, through a process that can be killed when the driver hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from everstep.core.senses import thresholds
from everstep.core.senses.gpu import GONE_ERRORS, GpuWatch, lost, read_reading
from everstep.core.senses.inspection import Inspection, faulty, unobservable
from everstep.core.senses.xid import Xid
from everstep.core.vocabulary import Symptom

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 60.0
"""A driver that could not be opened, or a GPU that hung, is asked again this much later."""

MAX_UNDEAD = 2
"""Processes stuck in the driver that not even SIGKILL ends; more of them would help nobody."""

DIES_WITHIN_S = 1.0

DRIVER = "GPU driver"
PROC = Path("/proc")


class _HungError(Exception):
    """The probing process did not answer in time."""


class GpuProbe:
    """Looks at all GPUs of this machine.

    Args:
        on_xid: Called in the event loop with each Xid that NVML tells of.
        clock: The monotonic clock, in seconds.
        expected: How many GPUs there should be; None learns it from the first look.
        deadline_s: For one GPU's answer, > 0.
        environment: Variables of the probing process; None for this one's own.
    """

    def __init__(
        self,
        on_xid: Callable[[Xid], None],
        clock: Callable[[], float],
        expected: int | None = None,
        deadline_s: float = thresholds.GPU_DEADLINE_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._on_xid = on_xid
        self._clock = clock
        self._expected = expected
        self._deadline_s = deadline_s
        self._environment = None if environment is None else dict(environment)
        self.trouble = asyncio.Event()
        """Set when NVML says that something is wrong and not with what: time for a look."""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._undead: list[asyncio.subprocess.Process] = []
        self._watches: dict[str, GpuWatch] = {}
        self._seen: set[str] = set()
        self._places: dict[int, str] = {}
        self._deaf: dict[str, str] = {}
        self._hung: dict[int, float] = {}
        self._closed_until_s = 0.0
        self._why_closed = ""

    async def look(self, own_pids: Collection[int] | None = None) -> list[Inspection]:
        """Ask every GPU; a GPU that does not answer in time is a fault of that GPU.

        Args:
            own_pids: Processes that may use the GPUs; None when nobody knows.
        """
        now_s = self._clock()
        if self._process is None and now_s < self._closed_until_s:
            return [unobservable("gpu.driver", DRIVER, self._why_closed)]
        self._hung = {i: at for i, at in self._hung.items() if now_s - at < RETRY_AFTER_S}
        self._seen = {self._places[i] for i in self._hung if i in self._places}
        found: list[Inspection] = []
        # A GPU that hangs takes the process with it; the others are asked by the next one.
        while True:
            index: int | None = None
            try:
                if self._process is None and (refused := await self._open()) is not None:
                    return [*found, refused]
                await self._send(" ".join(str(i) for i in self._hung))
                while (message := await self._next(self._deadline_s))["type"] != "looked":
                    if message["type"] == "failed":
                        await self._kill()
                        return [*found, self._refuse(str(message["why"]))]
                    index = int(message["index"])
                    if message["type"] == "gpu":
                        found += self._judge(index, message, own_pids)
                return found + self._missing(int(message["count"])) + self._unheard()
            except _HungError:
                await self._kill()
                if index is None:
                    return [*found, self._stuck("the driver does not answer")]
                self._hung[index] = self._clock()
                gpu = self._places.get(index, f"index {index}")
                self._seen.add(gpu)
                found.append(lost(gpu, f"did not answer within {self._deadline_s:g} s"))

    async def close(self) -> None:
        """End the probing process."""
        await self._kill()

    def _judge(
        self, index: int, message: dict[str, Any], own_pids: Collection[int] | None
    ) -> list[Inspection]:
        gpu = str(message["gpu"]) or self._places.get(index, f"index {index}")
        if message["gpu"]:
            self._places[index] = gpu
        self._seen.add(gpu)
        reading = read_reading({**message, "gpu": gpu})
        watch = self._watches.setdefault(gpu, GpuWatch())
        pids = reading.several("pids")
        strangers = [pid for pid in pids if not (PROC / str(pid)).exists()]
        return watch.look(reading, self._clock(), own_pids, strangers)

    def _missing(self, count: int) -> list[Inspection]:
        """GPUs that the driver does not list any more; by their places where those are known."""
        if self._expected is None:
            self._expected = count
        if count >= self._expected:
            return []
        detail = f"{count} of {self._expected} GPUs are there"
        known = set(self._watches) - self._seen
        if known:
            return [lost(gpu, f"not listed any more, {detail}") for gpu in sorted(known)]
        symptom = Symptom.GPU_UNAVAILABLE
        return [faulty("gpu.count", DRIVER, symptom, detail, confident=True)]

    def _unheard(self) -> list[Inspection]:
        return [
            unobservable("gpu.xid", f"GPU {gpu}" if gpu else DRIVER, f"no Xid events: {why}")
            for gpu, why in sorted(self._deaf.items())
        ]

    # --- The probing process ---------------------------------------------------------------------

    async def _open(self) -> Inspection | None:
        """Start the process; an inspection when it cannot be used."""
        self._undead = [process for process in self._undead if process.returncode is None]
        if len(self._undead) >= MAX_UNDEAD:
            return self._stuck(f"{len(self._undead)} processes are stuck in it for good")
        self._messages = asyncio.Queue()
        self._deaf = {}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "everstep.agent.probes.nvml",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        self._reading = asyncio.create_task(self._read(self._process, self._messages))
        message = await self._next(thresholds.GPU_START_DEADLINE_S)
        if message["type"] == "opened":
            return None
        await self._kill()
        return self._refuse(str(message.get("why")))

    async def _read(
        self,
        process: asyncio.subprocess.Process,
        messages: asyncio.Queue[dict[str, Any] | None],
    ) -> None:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        while line := await process.stdout.readline():
            message = json.loads(line)
            if message["type"] == "xid":
                self._on_xid(Xid(message["gpu"], int(message["code"])))
            elif message["type"] == "trouble":
                self.trouble.set()
            elif message["type"] == "deaf":
                self._deaf[message["gpu"]] = message["why"]
            else:
                messages.put_nowait(message)
        messages.put_nowait(None)

    async def _send(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None  # noqa: S101, PT018 - opened
        with contextlib.suppress(ConnectionError):  # its end is seen by reading
            self._process.stdin.write(f"{line}\n".encode())
            await self._process.stdin.drain()

    async def _next(self, within_s: float) -> dict[str, Any]:
        try:
            message = await asyncio.wait_for(self._messages.get(), within_s)
        except TimeoutError as error:
            raise _HungError from error
        return message or {"type": "failed", "why": "the probing process ended by itself"}

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        try:
            await asyncio.wait_for(process.wait(), DIES_WITHIN_S)
        except TimeoutError:
            logger.warning("process %d is stuck in the GPU driver", process.pid)
            self._undead.append(process)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _refuse(self, why: str) -> Inspection:
        self._closed_until_s = self._clock() + RETRY_AFTER_S
        self._why_closed = f"NVML cannot be used: {why}"
        if why in GONE_ERRORS:
            return self._stuck(self._why_closed)
        return unobservable("gpu.driver", DRIVER, self._why_closed)

    def _stuck(self, why: str) -> Inspection:
        return faulty("gpu.driver", DRIVER, Symptom.GPU_UNAVAILABLE, why, confident=True)
