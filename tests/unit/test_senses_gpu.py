from __future__ import annotations

from typing import Any

import pytest

from everstep.core.senses.gpu import GpuReading, GpuWatch
from everstep.core.senses.inspection import Inspection
from everstep.core.vocabulary import Symptom, Verdict

GOOD: dict[str, Any] = {
    "temperature_c": 60,
    "slowdown_c": 90,
    "throttle": 0,
    "sm_clock_mhz": 1900,
    "sm_clock_max_mhz": 1980,
    "ecc_uncorrected": 0,
    "remapped": [0, 0, 0, 0],
    "pcie_replays": 3,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "nvlinks": [1, 1, 1, 1],
    "nvlink_errors": 0,
    "pids": [],
}


def reading(errors: dict[str, str] | None = None, **changed: Any) -> GpuReading:
    values = {k: v for k, v in {**GOOD, **changed}.items() if k not in (errors or {})}
    return GpuReading("0000:1a:00", values, errors or {})


def looked(
    watch: GpuWatch, given: GpuReading, at_s: float = 0.0, **kw: Any
) -> dict[str, Inspection]:
    return {i.item: i for i in watch.look(given, at_s, **kw)}


def test_a_good_gpu_is_healthy_in_every_item() -> None:
    found = looked(GpuWatch(), reading())
    assert {i.verdict for i in found.values()} == {Verdict.HEALTHY}
    assert len(found) == 9


@pytest.mark.parametrize(
    ("changed", "item", "symptom", "confident"),
    [
        ({"ecc_uncorrected": 1}, "gpu.ecc", Symptom.GPU_MEMORY_ERROR, True),
        ({"remapped": [0, 1, 0, 1]}, "gpu.remap", Symptom.GPU_MEMORY_ERROR, True),
        ({"remapped": [1, 0, 1, 0]}, "gpu.remap", Symptom.GPU_MEMORY_ERROR, False),
        ({"temperature_c": 88}, "gpu.temperature", Symptom.MFU_DECLINE, False),
        ({"throttle": 0x40}, "gpu.throttle", Symptom.MFU_DECLINE, False),
        ({"sm_clock_mhz": 300}, "gpu.clock", Symptom.MFU_DECLINE, False),
        ({"pcie_width": 8}, "gpu.pcie", Symptom.MFU_DECLINE, False),
    ],
)
def test_each_item_finds_its_fault_and_no_other(
    changed: dict[str, Any], item: str, symptom: Symptom, confident: bool
) -> None:
    found = looked(GpuWatch(), reading(**changed))
    bad = [i for i in found.values() if i.verdict is not Verdict.HEALTHY]
    assert [(i.item, i.symptom, i.confident) for i in bad] == [(item, symptom, confident)]


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN"])
def test_a_gpu_that_is_gone_is_a_certain_fault_however_it_shows(error: str) -> None:
    for where in ("handle", "temperature_c"):
        (found,) = GpuWatch().look(reading({where: error}), 0.0)
        assert (found.symptom, found.confident) == (Symptom.GPU_UNAVAILABLE, True)


def test_what_nvml_does_not_tell_is_never_healthy() -> None:
    found = looked(GpuWatch(), reading({"ecc_uncorrected": "NOT_SUPPORTED"}))
    assert found["gpu.ecc"].verdict is Verdict.UNOBSERVABLE
    (denied,) = GpuWatch().look(reading({"handle": "NO_PERMISSION"}), 0.0)
    assert denied.verdict is Verdict.UNOBSERVABLE


def test_a_card_without_nvlink_has_no_such_item() -> None:
    assert "gpu.nvlink" not in looked(GpuWatch(), reading({"nvlinks": "NOT_SUPPORTED"}))


def test_an_idle_gpu_may_run_slowly_and_a_power_cap_is_a_persons_choice() -> None:
    assert looked(GpuWatch(), reading(sm_clock_mhz=210, throttle=1))["gpu.clock"].verdict is (
        Verdict.HEALTHY
    )
    assert looked(GpuWatch(), reading(throttle=4))["gpu.throttle"].verdict is Verdict.HEALTHY


def test_links_that_go_down_are_a_fault_and_that_never_were_up_a_doubt() -> None:
    watch = GpuWatch()
    looked(watch, reading())
    found = looked(watch, reading(nvlinks=[1, 0, 1, 1]), 10.0)["gpu.nvlink"]
    assert (found.verdict, found.symptom) == (Verdict.FAULTY, Symptom.GPU_UNAVAILABLE)
    fresh = looked(GpuWatch(), reading(nvlinks=[1, 0, 1, 1]))["gpu.nvlink"]
    assert fresh.verdict is Verdict.UNOBSERVABLE


def test_replays_and_link_recoveries_count_by_their_growth() -> None:
    watch = GpuWatch()
    assert looked(watch, reading(pcie_replays=500, nvlink_errors=7))["gpu.pcie"].verdict is (
        Verdict.HEALTHY
    )
    found = looked(watch, reading(pcie_replays=600, nvlink_errors=8), 10.0)
    assert found["gpu.pcie"].verdict is Verdict.FAULTY
    assert found["gpu.nvlink"].verdict is Verdict.FAULTY


def test_somebody_elses_process_is_told_only_where_our_own_are_known() -> None:
    watch = GpuWatch()
    assert looked(watch, reading(pids=[7]))["gpu.processes"].verdict is Verdict.UNOBSERVABLE
    ours = looked(watch, reading(pids=[7]), own_pids={7, 8})["gpu.processes"]
    assert ours.verdict is Verdict.HEALTHY
    other = looked(watch, reading(pids=[7, 9]), own_pids={7, 8})["gpu.processes"]
    assert (other.verdict, other.detail) == (Verdict.FAULTY, "used by other processes: 9")
