"""The program that talks to the GPU driver. Run as `python -m everstep.agent.probes.nvml`.

A process of its own, because a call into a sick driver may never return: `gpu.GpuProbe` kills it
then. Reads one line a look from its standard input, the indices to leave out; writes one JSON
object a line: `opened {count}` or `failed {why}` first, then, a look, `begin {index}` and
`gpu {index, gpu, values, errors}` for each GPU and `looked {count}` at the end; `xid {gpu, code}`
whenever one happens, `trouble {why}` when it is time for a look, `deaf {gpu, why}` for a GPU that
does not tell of its Xids.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml  # pyright: ignore[reportMissingTypeStubs]

from everstep.core.senses.xid import bus_id

nvml: Any = pynvml

PR_SET_PDEATHSIG = 1
EVENT_WAIT_MS = 1000
NVLINK_RECOVERIES = 1
UNCORRECTED, SINCE_LOAD = 1, 0
SLOWDOWN = 1
CORE_SENSOR = 0
SM_CLOCK = 1
MAX_LINKS = 18


def links(handle: Any) -> list[int]:
    """The state of each NVLink, 1 for active.

    Raises:
        NVMLError: The first link cannot be told.
    """
    states: list[int] = []
    for link in range(MAX_LINKS):
        try:
            states.append(int(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except nvml.NVMLError as error:
            if link == 0 or error_name(error) in ("GPU_IS_LOST", "UNKNOWN"):
                raise
            break
    return states


def link_errors(handle: Any) -> int:
    """How often the links had to be recovered, all together.

    Raises:
        NVMLError: Neither the counters nor, on newer GPUs, the field values tell.
    """
    active = [link for link, state in enumerate(links(handle)) if state]
    try:
        return sum(
            int(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, NVLINK_RECOVERIES))
            for link in active
        )
    except nvml.NVMLError as error:
        if error_name(error) not in ("NOT_SUPPORTED", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND"):
            raise
    field = nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS
    answers = nvml.nvmlDeviceGetFieldValues(handle, [(field, link) for link in active])
    return sum(_number(answer) for answer in answers)


def _number(answer: Any) -> int:
    """The number in a field value.

    Raises:
        NVMLError: The field has none.
    """
    if answer.nvmlReturn != 0:
        raise nvml.NVMLError(answer.nvmlReturn)
    kinds = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    }
    return int(getattr(answer.value, kinds.get(answer.valueType, "ullVal")))


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "temperature_c": lambda h: nvml.nvmlDeviceGetTemperature(h, CORE_SENSOR),
    "slowdown_c": lambda h: nvml.nvmlDeviceGetTemperatureThreshold(h, SLOWDOWN),
    "throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
    "sm_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, SM_CLOCK),
    "sm_clock_max_mhz": lambda h: nvml.nvmlDeviceGetMaxClockInfo(h, SM_CLOCK),
    "ecc_uncorrected": lambda h: nvml.nvmlDeviceGetTotalEccErrors(h, UNCORRECTED, SINCE_LOAD),
    "remapped": lambda h: list(nvml.nvmlDeviceGetRemappedRows(h)),
    "pcie_replays": nvml.nvmlDeviceGetPcieReplayCounter,
    "pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth,
    "pcie_width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth,
    "nvlinks": links,
    "nvlink_errors": link_errors,
    "pids": lambda h: [int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(h)],
}


def error_name(error: Exception) -> str:
    """NVML's own name of an error, without its prefix: `GPU_IS_LOST`."""
    code = getattr(error, "value", None)
    for name in dir(nvml):
        if name.startswith("NVML_ERROR_") and getattr(nvml, name) == code:
            return name.removeprefix("NVML_ERROR_")
    return f"error {code}"


class Speaker:
    """Writes messages from two threads, each whole."""

    def __init__(self) -> None:
        self._one = threading.Lock()

    def say(self, kind: str, **fields: Any) -> None:
        """Write one message."""
        with self._one:
            sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
            sys.stdout.flush()


def look(speaker: Speaker, skip: set[int]) -> None:
    """Ask every GPU everything."""
    count = int(nvml.nvmlDeviceGetCount())
    for index in range(count):
        if index in skip:
            continue
        speaker.say("begin", index=index)
        values: dict[str, Any] = {}
        errors: dict[str, str] = {}
        gpu = ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = place(handle)
        except nvml.NVMLError as error:
            errors["handle"] = error_name(error)
        else:
            for name, ask in QUESTIONS.items():
                try:
                    values[name] = ask(handle)
                except nvml.NVMLError as error:
                    errors[name] = error_name(error)
        speaker.say("gpu", index=index, gpu=gpu, values=values, errors=errors)
    speaker.say("looked", count=count)


def place(handle: Any) -> str:
    """A GPU's place on the bus, `0000:1a:00`."""
    raw = nvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_id(raw.decode() if isinstance(raw, bytes) else str(raw))


def listen(speaker: Speaker, count: int) -> None:
    """Tell of every Xid, for ever."""
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError as error:
        speaker.say("deaf", gpu="", why=error_name(error))
        return
    heard = 0
    for index in range(count):
        gpu = f"index {index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = place(handle)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            heard += 1
        except nvml.NVMLError as error:
            speaker.say("deaf", gpu=gpu, why=error_name(error))
    troubled = False
    while heard:
        try:
            event = nvml.nvmlEventSetWait(events, EVENT_WAIT_MS)
            speaker.say("xid", gpu=place(event.device), code=int(event.eventData))
            troubled = False
        except nvml.NVMLError as error:
            if error_name(error) == "TIMEOUT":
                troubled = False
                continue
            # A lost GPU ends every wait at once; which one it is, a look tells.
            if not troubled:
                speaker.say("trouble", why=error_name(error))
            troubled = True
            time.sleep(EVENT_WAIT_MS / 1000)


def main() -> None:
    """Serve until standard input ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    speaker = Speaker()
    try:
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        speaker.say("failed", why=error_name(error))
        return
    speaker.say("opened", count=count)
    threading.Thread(target=listen, args=(speaker, count), daemon=True).start()
    for line in sys.stdin:
        try:
            look(speaker, {int(index) for index in line.split()})
        except nvml.NVMLError as error:
            speaker.say("failed", why=error_name(error))
            return


if __name__ == "__main__":
    main()
