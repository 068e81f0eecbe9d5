"""One GPU over time, from what NVML says of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.core.senses import thresholds
from everstep.core.senses.inspection import Inspection, faulty, healthy, unobservable
from everstep.core.vocabulary import Symptom

GONE_ERRORS = ("GPU_IS_LOST", "RESET_REQUIRED", "IRQ_ISSUE", "UNKNOWN", "GPU_NOT_FOUND")
"""NVML errors that speak of the GPU and not of the asker. UNKNOWN is what a GPU that fell off the
bus answers on some drivers."""

ABSENT = "NOT_SUPPORTED"

_IDLE = 0x1
_SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_SLOW_CLOCK_RATIO = 0.5

Value = int | list[int]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at one GPU.

    Attributes:
        gpu: Its place on the bus, `0000:1a:00`, or `index 3` when it could not say.
        values: What it answered, by the name of the question.
        errors: NVML's error for each question that it did not answer; `handle` stands for all.
    """

    gpu: str
    values: Mapping[str, Value] = field(default_factory=dict[str, Value])
    errors: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def subject(self) -> str:
        """How inspections name it."""
        return f"GPU {self.gpu}"

    def whole(self, name: str) -> int | None:
        """A single number, or None when the GPU did not tell it."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    def several(self, name: str) -> list[int]:
        """A list of numbers; empty when the GPU did not tell it."""
        value = self.values.get(name)
        return value if isinstance(value, list) else []

    def untold(self, item: str, *names: str) -> Inspection | None:
        """Could-not-tell for an item one of whose questions has no answer; else None."""
        for name in names:
            if name not in self.values:
                why = self.errors.get(name, "not asked")
                return unobservable(item, self.subject, f"NVML does not tell {name}: {why}")
        return None


def read_reading(message: Mapping[str, Any]) -> GpuReading:
    """A reading from the probe's message."""
    return GpuReading(str(message["gpu"]), message["values"], message["errors"])


def lost(gpu: str, why: str) -> Inspection:
    """A GPU that is not there any more, or does not answer."""
    symptom = Symptom.GPU_UNAVAILABLE
    return faulty("gpu.present", f"GPU {gpu}", symptom, why, confident=True)


class GpuWatch:
    """One GPU over time."""

    def __init__(self) -> None:
        self._replays: deque[tuple[float, int]] = deque()
        self._most_links = 0
        self._link_errors: int | None = None

    def look(
        self,
        reading: GpuReading,
        at_s: float,
        own_pids: Collection[int] | None = None,
        strangers: Collection[int] = (),
    ) -> list[Inspection]:
        """Take in a look at `at_s` of the monotonic clock.

        Args:
            reading: What it said.
            at_s: When.
            own_pids: Processes that may use it; None when nobody knows.
            strangers: Processes that cannot be seen from here, whose numbers mean nothing.
        """
        gone = next((n for n, why in reading.errors.items() if why in GONE_ERRORS), None)
        if gone is not None:
            return [lost(reading.gpu, f"NVML says {reading.errors[gone]} when asked for {gone}")]
        if "handle" in reading.errors:
            why = f"NVML does not show it: {reading.errors['handle']}"
            return [unobservable("gpu.present", reading.subject, why)]
        found = [
            healthy("gpu.present", reading.subject, "answers"),
            judge_ecc(reading),
            judge_remap(reading),
            judge_temperature(reading),
            judge_throttle(reading),
            judge_clock(reading),
            self._pcie(reading, at_s),
            judge_processes(reading, own_pids, strangers),
        ]
        if reading.errors.get("nvlinks") != ABSENT:
            found.append(self._nvlink(reading))
        return found

    def _pcie(self, reading: GpuReading, at_s: float) -> Inspection:
        item = "gpu.pcie"
        untold = reading.untold(item, "pcie_width", "pcie_width_max", "pcie_replays")
        if untold is not None:
            return untold
        width, widest = reading.whole("pcie_width") or 0, reading.whole("pcie_width_max") or 0
        self._replays.append((at_s, reading.whole("pcie_replays") or 0))
        while at_s - self._replays[0][0] > thresholds.PCIE_WINDOW_S:
            self._replays.popleft()
        replays = self._replays[-1][1] - self._replays[0][1]
        detail = f"width {width} of {widest}, {replays} replays in a minute"
        if width < widest or replays > thresholds.PCIE_REPLAYS_PER_S * thresholds.PCIE_WINDOW_S:
            return faulty(item, reading.subject, Symptom.MFU_DECLINE, detail)
        return healthy(item, reading.subject, detail)

    def _nvlink(self, reading: GpuReading) -> Inspection:
        item = "gpu.nvlink"
        untold = reading.untold(item, "nvlinks")
        if untold is not None:
            return untold
        links = reading.several("nvlinks")
        active = sum(1 for state in links if state)
        before, self._most_links = self._most_links, max(active, self._most_links)
        detail = f"{active} of {len(links)} links active"
        if active < before:
            gone = Symptom.GPU_UNAVAILABLE
            return faulty(item, reading.subject, gone, f"{detail}, {before} before")
        errors = reading.whole("nvlink_errors")
        seen, self._link_errors = self._link_errors, errors
        if errors is not None and seen is not None and errors > seen:
            detail = f"{detail}, {errors - seen} new recoveries"
            return faulty(item, reading.subject, Symptom.MFU_DECLINE, detail)
        if 0 < active < len(links):
            return unobservable(item, reading.subject, f"{detail}: nobody says how many should be")
        return healthy(item, reading.subject, detail)


def judge_ecc(reading: GpuReading) -> Inspection:
    """Uncorrectable memory errors since the driver was loaded."""
    if (untold := reading.untold("gpu.ecc", "ecc_uncorrected")) is not None:
        return untold
    count = reading.whole("ecc_uncorrected") or 0
    detail = f"{count} uncorrectable memory errors since the driver was loaded"
    if count:
        symptom = Symptom.GPU_MEMORY_ERROR
        return faulty("gpu.ecc", reading.subject, symptom, detail, confident=True)
    return healthy("gpu.ecc", reading.subject, detail)


def judge_remap(reading: GpuReading) -> Inspection:
    """Whether memory rows could be replaced; one that waits for a reset is no reason to leave."""
    if (untold := reading.untold("gpu.remap", "remapped")) is not None:
        return untold
    _, uncorrectable, pending, failed = reading.several("remapped")
    symptom = Symptom.GPU_MEMORY_ERROR
    if failed:
        detail = "a memory row could not be replaced"
        return faulty("gpu.remap", reading.subject, symptom, detail, confident=True)
    if pending:
        detail = f"a replaced memory row waits for a reset ({uncorrectable} for uncorrectable)"
        return faulty("gpu.remap", reading.subject, symptom, detail)
    return healthy("gpu.remap", reading.subject, "no row waits or failed")


def judge_temperature(reading: GpuReading) -> Inspection:
    """Whether it is about to slow itself down."""
    if (untold := reading.untold("gpu.temperature", "temperature_c")) is not None:
        return untold
    now_c = reading.whole("temperature_c") or 0
    slowdown_c = reading.whole("slowdown_c")
    limit_c = (
        thresholds.TEMPERATURE_LIMIT_C
        if slowdown_c is None
        else slowdown_c - thresholds.TEMPERATURE_MARGIN_C
    )
    detail = f"{now_c} C, limit {limit_c} C"
    if now_c >= limit_c:
        return faulty("gpu.temperature", reading.subject, Symptom.MFU_DECLINE, detail)
    return healthy("gpu.temperature", reading.subject, detail)


def judge_throttle(reading: GpuReading) -> Inspection:
    """Whether something forces it to run slower; a power cap that a person set does not count."""
    if (untold := reading.untold("gpu.throttle", "throttle")) is not None:
        return untold
    bits = reading.whole("throttle") or 0
    reasons = [text for bit, text in _SLOWED.items() if bits & bit]
    if reasons:
        detail = ", ".join(reasons)
        return faulty("gpu.throttle", reading.subject, Symptom.MFU_DECLINE, detail)
    return healthy("gpu.throttle", reading.subject, "nothing slows it")


def judge_clock(reading: GpuReading) -> Inspection:
    """Whether it runs far below its clock although it works."""
    untold = reading.untold("gpu.clock", "sm_clock_mhz", "sm_clock_max_mhz", "throttle")
    if untold is not None:
        return untold
    now, most = reading.whole("sm_clock_mhz") or 0, reading.whole("sm_clock_max_mhz") or 0
    detail = f"{now} of {most} MHz"
    if (reading.whole("throttle") or 0) & _IDLE:
        return healthy("gpu.clock", reading.subject, f"{detail}, idle")
    if now < most * _SLOW_CLOCK_RATIO:
        return faulty("gpu.clock", reading.subject, Symptom.MFU_DECLINE, detail)
    return healthy("gpu.clock", reading.subject, detail)


def judge_processes(
    reading: GpuReading, own_pids: Collection[int] | None, strangers: Collection[int] = ()
) -> Inspection:
    """Whether somebody else uses it.

    Args:
        reading: What it said.
        own_pids: Processes that may use it; None when nobody knows.
        strangers: Processes that cannot be seen from here: in a container NVML tells the host's
            numbers, under which the job's own are not known.
    """
    if (untold := reading.untold("gpu.processes", "pids")) is not None:
        return untold
    pids = reading.several("pids")
    if own_pids is None and pids:
        detail = f"{len(pids)} processes use it, and nobody says whose they should be"
        return unobservable("gpu.processes", reading.subject, detail)
    others = sorted(set(pids) - set(own_pids or ()) - set(strangers))
    if others:
        detail = f"used by other processes: {', '.join(str(pid) for pid in others)}"
        return faulty("gpu.processes", reading.subject, Symptom.MFU_DECLINE, detail)
    if strangers:
        detail = f"{len(strangers)} processes use it that cannot be seen from here"
        return unobservable("gpu.processes", reading.subject, detail)
    return healthy("gpu.processes", reading.subject, f"{len(pids)} processes, all of the job")
