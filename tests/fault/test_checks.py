"""Stop-time checks by real programs on machines of two ranks, some of them broken on purpose."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.fault.machines import Rig, config_of, lives, until

from everstep.core.errors import PermanentError, StaleAttempt
from everstep.core.model import MachineInfo
from everstep.core.orders import CheckOrder, CheckResult, StopOrder
from everstep.core.vocabulary import Check, Verdict
from everstep.selfcheck.faults import InjectedFault, write_fault

TRAIN = ("python", "train.py")
LONG_S = 60.0


def order(check: Check, number: int, *peers: MachineInfo, **changes: Any) -> CheckOrder:
    fields: dict[str, Any] = {"deadline_s": LONG_S, "device": "cpu", **changes}
    return CheckOrder(1, check, peers=peers, number=number, **fields)


def without_torch(root: Path) -> dict[str, str]:
    (root / "no-torch").mkdir(exist_ok=True)
    paths = [str(root / "no-torch"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Machines:
    """Two machines that stay warm for all tests of this module."""

    def __init__(self, root: Path) -> None:
        self.a, self.b = (self._rig(root, name) for name in "ab")

    def _rig(self, root: Path, name: str) -> Rig:
        own = {"machine": name, "directory": root / name}
        faults = root / name / "faults"
        return Rig(config_of(root, TRAIN, torch=True, faults_directory=faults, **own))

    def break_(self, rig: Rig, **fields: Any) -> None:
        assert rig.config.faults_directory is not None
        write_fault(rig.config.faults_directory, InjectedFault("broken", **fields))

    def mend(self) -> None:
        for rig in (self.a, self.b):
            for file in (rig.config.directory / "faults").glob("*"):
                file.unlink()

    async def both(self, check: Check, number: int, **changes: Any) -> list[CheckResult]:
        wanted = order(check, number, self.a.info, self.b.info, **changes)
        return await asyncio.gather(*(rig.machine.check(wanted) for rig in (self.a, self.b)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machines]:
    machines = Machines(tmp_path_factory.mktemp("checks"))
    async with machines.a, machines.b:
        yield machines


@pytest.fixture(autouse=True)
def _mended(request: pytest.FixtureRequest) -> None:
    if "machines" in request.fixturenames:
        request.getfixturevalue("machines").mend()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_sound_machine_passes_and_leaves_nothing(machines: Machines) -> None:
    checker = machines.a.machine
    gpu = await checker.check(order(Check.GPU, 0))
    assert (gpu.verdict, gpu.device) == (Verdict.HEALTHY, "cpu"), gpu.detail
    assert dict(gpu.figures).keys() == {"memory_gb_per_s", "product_tflops"}
    assert gpu.took_s > 0
    inside = await checker.check(order(Check.MACHINE, 0))
    assert inside.verdict is Verdict.HEALTHY, inside.detail
    assert dict(inside.figures)["exchange_gb_per_s"] > 0
    # A second call is answered, and checks nothing.
    assert await checker.check(order(Check.MACHINE, 0)) is inside
    assert [line["test"] for line in machines.a.effects("tested")] == ["gpu", "machine"]


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("model", ["dense", "moe"])
async def test_a_flipped_bit_shows_in_the_digest_alone(machines: Machines, model: str) -> None:
    a, b = await machines.both(Check.BITWISE, 0, model=model)
    assert (a.verdict, b.verdict) == (Verdict.HEALTHY,) * 2, (a, b)
    assert a.digest == b.digest != ""
    # The lowest bit of one number in a matrix.
    machines.break_(machines.b, kind="sdc", bit=0, seen_by=("bitwise",))
    again, broken = await machines.both(Check.BITWISE, 1, model=model)
    assert again.digest == a.digest != broken.digest != ""
    assert broken.verdict is Verdict.HEALTHY
    if model == "dense":
        gpu = await machines.b.machine.check(order(Check.GPU, 1))
        assert gpu.verdict is Verdict.HEALTHY
        machines.break_(machines.b, kind="sdc", bit=0, seen_by=("gpu",))
        gpu = await machines.b.machine.check(order(Check.GPU, 2))
        assert gpu.verdict is Verdict.FAULTY
        assert "product" in gpu.detail


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_links_name_who_is_not_reached_or_not_understood(machines: Machines) -> None:
    a, b = await machines.both(Check.LINKS, 0)
    assert (a.verdict, b.verdict) == (Verdict.HEALTHY,) * 2, (a, b)
    machines.break_(machines.a, kind="link_bad", peer="b")
    a, b = await machines.both(Check.LINKS, 1)
    assert (a.verdict, a.peers) == (Verdict.FAULTY, ("b",))
    assert "arrived with other content: 8 messages from b" in a.detail
    assert (b.verdict, b.peers) == (Verdict.HEALTHY, ())

    # A machine that takes part in nothing; whoever hosts the store waits, whoever does not knocks.
    gone = MachineInfo("gone", "127.0.0.1", 1, 1, 1, 0.0)
    last, first = await asyncio.gather(
        machines.a.machine.check(order(Check.LINKS, 2, machines.a.info, gone, deadline_s=8.0)),
        machines.b.machine.check(order(Check.LINKS, 2, gone, machines.b.info, deadline_s=8.0)),
    )
    for result in (last, first):
        assert (result.verdict, result.peers) == (Verdict.FAULTY, ("gone",)), result
    assert "did not come" in last.detail
    assert "is not reached" in first.detail


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_check_that_is_cancelled_or_late_leaves_nothing(machines: Machines) -> None:
    # It waits for a machine that never comes.
    def lonely(number: int, deadline_s: float) -> CheckOrder:
        gone = MachineInfo("gone", "127.0.0.1", 1, 1, 1, 0.0)
        return order(Check.LINKS, number, machines.a.info, gone, deadline_s=deadline_s)

    def programs() -> list[int]:
        mark = f"EVERSTEP_OWNER={machines.a.config.owner}"
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if lives(int(path.parent.name)) and mark in _read(path)
        ]

    before = programs()
    task = asyncio.ensure_future(machines.a.machine.check(lonely(10, LONG_S)))
    log = machines.a.config.directory / "check-1-links-10" / "rank-1.log"
    await until(log.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert programs() == before
    began_s = time.monotonic()
    late = await machines.a.machine.check(lonely(11, 0.05))
    assert time.monotonic() - began_s < 5
    # Whether a program gave up first or was killed; the other machine may have been missed.
    assert late.verdict is not Verdict.HEALTHY
    assert "a" not in late.peers
    assert programs() == before


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


async def test_without_torch_nothing_is_told(tmp_path: Path) -> None:
    environment = without_torch(tmp_path)
    async with Rig(config_of(tmp_path, TRAIN, environment=environment)) as rig:
        for check in (Check.GPU, Check.BITWISE):
            result = await rig.machine.check(order(check, 0))
            assert result.verdict is Verdict.UNOBSERVABLE
            assert "torch cannot be loaded: no torch here" in result.detail


TOOLKIT = """#!/bin/sh
echo "$@" > {arguments}
{body}
"""


def report(status: str) -> str:
    tests = [{"name": "PCIe", "results": [{"entity_id": 1, "status": status}]}]
    categories = [{"category": "Hardware", "tests": tests}]
    return f"echo '{json.dumps({'DCGM Diagnostic': {'test_categories': categories}})}'"


@pytest.mark.parametrize(
    ("body", "deadline_s", "verdict", "told"),
    [
        (report("Pass"), 200, Verdict.HEALTHY, "none failed"),
        (report("Fail") + "; exit 226", 200, Verdict.FAULTY, "GPU 1"),
        # The short level cannot say that arithmetic is right, and there is no torch here.
        (report("Pass"), 60, Verdict.UNOBSERVABLE, "torch"),
        ("echo 'no host engine' >&2; exit 255", 200, Verdict.UNOBSERVABLE, "torch"),
        ("sleep 1000", 2.0, Verdict.FAULTY, "dcgmi did not return in time"),
    ],
)
async def test_the_vendors_tool_is_asked_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    deadline_s: float,
    verdict: Verdict,
    told: str,
) -> None:
    tool = tmp_path / "bin" / "dcgmi"
    tool.parent.mkdir()
    tool.write_text(TOOLKIT.format(arguments=tmp_path / "arguments", body=body))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    async with Rig(config_of(tmp_path, TRAIN, environment=without_torch(tmp_path))) as rig:
        result = await rig.machine.check(order(Check.GPU, 0, deadline_s=deadline_s, device=""))
    assert result.verdict is verdict, result
    assert told in result.detail
    level = 2 if deadline_s == 200 else 1
    assert (tmp_path / "arguments").read_text() == f"diag --run {level} --json\n"


async def test_a_machine_that_trains_is_not_checked(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN, environment=without_torch(tmp_path))) as rig:
        rig.write("import time\ntime.sleep(1000)\n")
        await rig.machine.start(rig.order(attempt=1))
        with pytest.raises(PermanentError, match="ranks of attempt 1 run here"):
            await rig.machine.check(order(Check.GPU, 0))
        await rig.machine.stop(StopOrder(2))
        with pytest.raises(StaleAttempt):
            await rig.machine.check(order(Check.GPU, 0))


async def test_a_claim_ends_the_check_of_a_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "dcgmi"
    tool.parent.mkdir()
    begun = tmp_path / "begun"
    tool.write_text(f"#!/bin/sh\ntouch {begun}\nsleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    async with Rig(config_of(tmp_path, TRAIN, environment=without_torch(tmp_path))) as rig:
        rig.write("import time\ntime.sleep(1000)\n")
        long = order(Check.GPU, 0, deadline_s=200, device="", yields=True)
        check = asyncio.ensure_future(rig.machine.check(long))
        await until(begun.exists)
        began_s = time.monotonic()
        await rig.machine.start(rig.order(attempt=1))
        assert time.monotonic() - began_s < 10
        with pytest.raises(PermanentError, match="gave way to another order"):
            await check
        assert len(rig.effects("tested")) == 0
        # And it may go on as if nothing had been.
        await rig.machine.stop(StopOrder(1))


def test_the_command_never_takes_a_missing_torch_for_health(tmp_path: Path) -> None:
    environment = without_torch(tmp_path)
    (tmp_path / "no-torch" / "torch.py").write_text("raise ImportError('no torch here')\n")
    paths = os.pathsep.join([environment["PYTHONPATH"], *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "everstep.cli.main", "check", "--json", "--deep", "--gpus", "0"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    said = json.loads(done.stdout)
    deep = {i["item"]: i for i in said["inspections"] if i["item"].startswith("deep.")}
    assert deep.keys() == {"deep.gpu", "deep.machine", "deep.bitwise"}
    assert {i["verdict"] for i in deep.values()} == {"unobservable"}, deep
    assert "no torch here" in deep["deep.gpu"]["detail"]
    assert "checking: products, memory, bandwidth" in done.stderr
