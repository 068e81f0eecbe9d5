"""Replays of the reference trainer: two groups of one machine each, one of them broken."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.e2e.local import EXAMPLE
from tests.fault.machines import HOST, Rig, config_of, lives, until

from everstep.agent.replaying import judge
from everstep.core.errors import PermanentError
from everstep.core.model import MachineInfo, RankExit
from everstep.core.orders import StopOrder
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import Verdict
from everstep.selfcheck.faults import InjectedFault, write_fault

TRAIN = ("python", "train.py", "--width", "32", "--context", "32", "--layers", "4")
FAR = 10**6


def exit_of(rank: int, code: int, *lines: str) -> RankExit:
    return RankExit(rank, "m0", 1, code, None, 0.0, None, lines)


def test_a_trial_fails_by_a_crash_or_by_not_repeating_itself() -> None:
    well = [exit_of(0, 0), exit_of(1, 0)]
    assert judge(well, [("a", "a"), ("b", "b")], 2)[0] is Verdict.HEALTHY
    crashed = judge([well[0], exit_of(1, 1, "FloatingPointError: found NaN")], [(), ()], 2)
    assert crashed[0] is Verdict.FAULTY
    assert "found NaN" in crashed[1]
    assert judge(well, [("a", "a"), ("b", "c")], 2)[0] is Verdict.FAULTY
    # Another order of ranks, or another state, is another digest.
    digests = {judge(well, told, 1)[2] for told in ([("a",), ("b",)], [("b",), ("a",)])}
    assert len(digests) == 2
    assert judge(well, [(), ()], 2)[::2] == (Verdict.HEALTHY, "")
    assert judge(well, [("a", "a"), ("b",)], 2)[0] is Verdict.UNOBSERVABLE


class Pair:
    """Two machines with the trainer's code, that stay warm for all tests of this module."""

    def __init__(self, root: Path) -> None:
        self.a, self.b = (self._rig(root, name) for name in "ab")

    def _rig(self, root: Path, name: str) -> Rig:
        own = {"machine": name, "directory": root / name, "code_directory": EXAMPLE}
        faults = root / name / "faults"
        return Rig(config_of(root, TRAIN, torch=True, faults_directory=faults, **own))

    def break_(self, **fields: Any) -> None:
        assert self.b.config.faults_directory is not None
        write_fault(self.b.config.faults_directory, InjectedFault("broken", **fields))

    async def replay(self, number: int, **changes: Any) -> tuple[ReplayReport, ReplayReport]:
        """Both in groups of their own, side by side."""
        one, other = await asyncio.gather(
            *(rig.machine.replay(trial(number, rig.info, **changes)) for rig in (self.a, self.b))
        )
        return one, other


def trial(number: int, *machines: MachineInfo, **changes: Any) -> ReplayOrder:
    sizes = "tp=2,pp=1,dp=1;order=tp-pp-dp"
    wanted = ReplayOrder(1, number, machines, sizes, 3, 2, 2, 7, 60.0, str(EXAMPLE))
    return replace(wanted, **changes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("replays"))
    async with pair.a, pair.b:
        yield pair


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_groups_that_differ_have_a_broken_machine(pair: Pair) -> None:
    a, b = await pair.replay(0)
    assert (a.verdict, b.verdict) == (Verdict.HEALTHY,) * 2, (a, b)
    assert a.digest == b.digest != ""
    assert await pair.a.machine.replay(trial(0, pair.a.info)) is a
    log = pair.a.config.directory / "replay-1-0" / "rank-00000.log"
    assert log.read_text().count("step 3 loss") == 2

    # A lowest bit: no step fails, and no loss tells.
    pair.break_(kind="sdc", bit=3)
    again, broken = await pair.replay(1)
    assert again.digest == a.digest != broken.digest != ""
    assert broken.verdict is Verdict.HEALTHY
    # Now and then: the same steps come to different ends.
    pair.break_(kind="sdc", bit=3, probability=0.05)
    _, broken = await pair.replay(2, repeats=4)
    assert broken.verdict is Verdict.FAULTY, broken
    assert "different states" in broken.detail
    pair.break_(kind="nan")
    sound, broken = await pair.replay(3)
    assert sound.digest == a.digest
    assert broken.verdict is Verdict.FAULTY
    assert "found NaN" in broken.detail

    # Nothing of all this is the job's.
    for rig in (pair.a, pair.b):
        assert rig.events[1:] == []
        assert (await rig.machine.stop(StopOrder(1))).copies == ()
        assert list(rig.config.output_dir.iterdir()) == []


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_trial_that_is_late_or_cancelled_leaves_nothing(pair: Pair) -> None:
    late, _ = await pair.replay(10, steps=FAR, deadline_s=0.5)
    assert (late.verdict, late.detail) == (Verdict.UNOBSERVABLE, "was not done in time")
    task = asyncio.ensure_future(pair.a.machine.replay(trial(11, pair.a.info, steps=FAR)))
    await until(lambda: pair.a.effects("replay-1-11"))
    pids: list[int] = pair.a.effects("replay-1-11")[0]["pids"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(lives, pids))
    began_s = time.monotonic()
    with pytest.raises(PermanentError, match="not of them"):
        await pair.a.machine.replay(trial(12, MachineInfo("c", HOST, 1, 1, 1, 0.0)))
    assert time.monotonic() - began_s < 5
    assert json.loads(json.dumps(pair.a.effects("tested")))[-1]["test"] == "replay"
