"""GPUs by the real NVML bindings, on a library that is scripted call by call."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import psutil
import pytest
from tests.fakes.nvml.stub import FakeGpus, build
from tests.fault.sensing import sensing

from everstep.agent.probes.gpu import GpuProbe
from everstep.agent.probes.monitor import MonitorConfig
from everstep.core.senses.inspection import Inspection
from everstep.core.senses.xid import Xid
from everstep.core.vocabulary import Symptom, Verdict

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

NOBODY = 4_194_305
"""No process can have this number."""
GPU3 = "GPU 0000:1d:00"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(library: Path, tmp_path: Path) -> FakeGpus:
    return FakeGpus(library, tmp_path / "state")


@pytest.fixture
async def probe(gpus: FakeGpus) -> AsyncGenerator[GpuProbe]:
    made = GpuProbe(
        lambda xid: None,
        time.monotonic,
        deadline_s=1.0,
        environment={**os.environ, **gpus.environment},
    )
    yield made
    await made.close()


def probing() -> list[psutil.Process]:
    """Processes of ours that probe; a server of other tests may be there, too."""
    ours = psutil.Process().children()
    return [child for child in ours if "everstep.agent.probes.nvml" in child.cmdline()]


def faults(found: list[Inspection]) -> list[tuple[str, str]]:
    return [(i.item, i.subject) for i in found if i.verdict is Verdict.FAULTY]


async def test_eight_good_gpus_are_healthy_and_each_change_is_seen_at_run_time(
    gpus: FakeGpus, probe: GpuProbe
) -> None:
    found = await probe.look(own_pids=())
    assert {i.verdict for i in found} == {Verdict.HEALTHY}
    assert len({i.subject for i in found}) == 8
    gpus.say(
        gpu0_temperature=93,
        gpu1_throttle=0x40,
        gpu2_remap_failed=1,
        gpu3_ecc=2,
        gpu4_width=8,
        gpu5_links_down=2,
        gpu6_pid=os.getpid(),
        gpu7_clock=300,
    )
    assert faults(await probe.look(own_pids=())) == [
        ("gpu.temperature", "GPU 0000:1a:00"),
        ("gpu.throttle", "GPU 0000:1b:00"),
        ("gpu.remap", "GPU 0000:1c:00"),
        ("gpu.ecc", "GPU 0000:1d:00"),
        ("gpu.pcie", "GPU 0000:1e:00"),
        ("gpu.nvlink", "GPU 0000:1f:00"),
        ("gpu.processes", "GPU 0000:20:00"),
        ("gpu.clock", "GPU 0000:21:00"),
    ]


async def test_processes_that_cannot_be_seen_are_could_not_tell(
    gpus: FakeGpus, probe: GpuProbe
) -> None:
    gpus.say(gpu0_pid=NOBODY, gpu1_pid=os.getpid())
    found = {i.subject: i for i in await probe.look([os.getpid()]) if i.item == "gpu.processes"}
    assert found["GPU 0000:1a:00"].verdict is Verdict.UNOBSERVABLE
    assert found["GPU 0000:1b:00"].verdict is Verdict.HEALTHY


async def test_recoveries_of_links_are_counted_where_only_field_values_tell(
    gpus: FakeGpus, probe: GpuProbe
) -> None:
    gpus.say(nvmlDeviceGetNvLinkErrorCounter=3, gpu0_field215=4)
    await probe.look(own_pids=())
    gpus.say(nvmlDeviceGetNvLinkErrorCounter=3, gpu0_field215=6)
    (fault,) = [i for i in await probe.look(own_pids=()) if i.verdict is Verdict.FAULTY]
    assert (fault.item, fault.subject) == ("gpu.nvlink", "GPU 0000:1a:00")
    assert "2 new recoveries" in fault.detail


async def test_a_lost_gpu_is_named_by_its_place(gpus: FakeGpus, probe: GpuProbe) -> None:
    await probe.look()
    gpus.say(gpu3_error=15)
    found = [i for i in await probe.look() if i.verdict is Verdict.FAULTY]
    assert [(i.subject, i.symptom, i.confident) for i in found] == [
        (GPU3, Symptom.GPU_UNAVAILABLE, True)
    ]


async def test_a_gpu_that_is_not_listed_any_more_is_named_by_its_place(
    gpus: FakeGpus, probe: GpuProbe
) -> None:
    await probe.look()
    gpus.say(count=7)
    assert faults(await probe.look()) == [("gpu.present", "GPU 0000:21:00")]


async def test_a_hung_call_is_a_fault_of_its_gpu_and_the_others_are_still_asked(
    gpus: FakeGpus, probe: GpuProbe
) -> None:
    await probe.look()
    gpus.say(gpu3_hang=600)
    began_s = time.monotonic()
    found = await probe.look(own_pids=())
    took_s = time.monotonic() - began_s
    assert faults(found) == [("gpu.present", GPU3)]
    assert len({i.subject for i in found if i.verdict is Verdict.HEALTHY}) == 7
    assert took_s < 5.0
    # Nobody waits for it again, and its process is gone.
    assert faults(await probe.look(own_pids=())) == []
    assert len(probing()) == 1


async def test_questions_that_a_driver_does_not_answer_are_could_not_tell(
    gpus: FakeGpus, probe: GpuProbe
) -> None:
    gpus.say(nvmlDeviceGetTotalEccErrors=3, gpu2_nvmlDeviceGetTemperature=999)
    found = await probe.look(own_pids=())
    unsure = [i for i in found if i.verdict is Verdict.UNOBSERVABLE]
    assert {i.item for i in unsure} == {"gpu.ecc"}
    assert len(unsure) == 7
    assert faults(found) == [("gpu.present", "GPU 0000:1c:00")]


@pytest.mark.parametrize("code", [4, 9, 12])
async def test_a_driver_that_cannot_be_opened_is_could_not_tell(
    gpus: FakeGpus, probe: GpuProbe, code: int
) -> None:
    gpus.say(nvmlInitWithFlags=code)
    (found,) = await probe.look()
    assert found.verdict is Verdict.UNOBSERVABLE
    assert (await probe.look())[0].verdict is Verdict.UNOBSERVABLE


async def test_a_machine_without_nvml_is_could_not_tell(tmp_path: Path) -> None:
    bare = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    probe = GpuProbe(lambda xid: None, time.monotonic, environment=bare)
    found = await probe.look()
    await probe.close()
    if found[0].item != "gpu.driver":
        pytest.skip("this machine has NVML")
    assert [i.verdict for i in found] == [Verdict.UNOBSERVABLE]


async def test_fewer_gpus_than_expected_are_a_fault(gpus: FakeGpus) -> None:
    gpus.say(count=7)
    environment = {**os.environ, **gpus.environment}
    probe = GpuProbe(lambda xid: None, time.monotonic, expected=8, environment=environment)
    found = await probe.look(own_pids=())
    await probe.close()
    assert ("gpu.count", "GPU driver") in faults(found)


async def test_a_probing_process_that_is_killed_is_started_again(
    gpus: FakeGpus, probe: GpuProbe
) -> None:
    await probe.look()
    probing()[0].send_signal(signal.SIGKILL)
    (found,) = [i for i in await probe.look() if i.item == "gpu.driver"]
    assert found.verdict is Verdict.UNOBSERVABLE


async def test_an_xid_comes_as_an_event_and_not_by_a_look(gpus: FakeGpus) -> None:
    heard: list[Xid] = []
    environment = {**os.environ, **gpus.environment}
    probe = GpuProbe(heard.append, time.monotonic, environment=environment)
    await probe.look()
    began_s = time.monotonic()
    gpus.xid(3, 79)
    while not heard:
        assert time.monotonic() - began_s < 10.0
        await asyncio.sleep(0.002)
    took_s = time.monotonic() - began_s
    await probe.close()
    assert heard == [Xid("0000:1d:00", 79)]
    assert took_s < 1.0


async def test_one_lost_gpu_seen_by_two_senses_is_one_alert(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in gpus.environment.items():
        monkeypatch.setenv(name, value)
    config = MonitorConfig(machine="m1", kernel_log=tmp_path / "none")
    async with sensing(config) as seen:
        await seen.until(lambda: seen.verdict("gpu.present", "GPU 0000:21:00") is Verdict.HEALTHY)
        gpus.xid(3, 79)
        took_s = await seen.until(lambda: bool(seen.alerts))
        gpus.say(gpu3_error=15)
        await seen.until(lambda: seen.verdict("gpu.present", GPU3) is Verdict.FAULTY)
        alerts = [(a.symptom, a.subject, a.confident) for a in seen.alerts]
    assert took_s < 1.0
    assert alerts == [(Symptom.GPU_UNAVAILABLE, GPU3, True)]


async def test_what_slows_a_machine_is_told_while_it_stands(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in gpus.environment.items():
        monkeypatch.setenv(name, value)
    config = MonitorConfig(machine="m1", kernel_log=tmp_path / "none", intervals_s=(60, 0.05, 60))
    async with sensing(config) as seen:
        await seen.until(lambda: seen.verdict("gpu.present", "GPU 0000:21:00") is Verdict.HEALTHY)
        assert seen.monitor.slowed() == ()
        # A lost GPU is more than slow, and is told otherwise.
        gpus.say(gpu1_throttle=0x40, gpu3_error=15)
        await seen.until(lambda: seen.monitor.slowed() != ())
        assert seen.monitor.slowed() == ("GPU 0000:1b:00: hardware thermal slowdown",)
        gpus.say(gpu1_throttle=0)
        await seen.until(lambda: seen.monitor.slowed() == ())


async def test_a_gpu_that_is_lost_without_an_xid_is_looked_for_at_once(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in gpus.environment.items():
        monkeypatch.setenv(name, value)
    config = MonitorConfig(machine="m1", kernel_log=tmp_path / "none", intervals_s=(60, 600, 60))
    async with sensing(config) as seen:
        await seen.until(lambda: seen.verdict("gpu.present", "GPU 0000:21:00") is Verdict.HEALTHY)
        gpus.say(gpu3_error=15)
        took_s = await seen.until(lambda: bool(seen.alerts))
    assert took_s < 1.0
    assert [alert.subject for alert in seen.alerts] == [GPU3]
