"""A machine that saves to storage: training never waits, failures are told, states come back."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fault.machines import SECRET, Rig, config_of, until
from tests.fault.stored import held, order_of

from everstep.agent import storage
from everstep.agent.storage_child import Child
from everstep.checkpoint.storing import Save
from everstep.cli.ckpt_verify import verify_shard
from everstep.core.errors import PermanentError
from everstep.core.evidence import calls_for_action
from everstep.core.model import Alert, RankProgress
from everstep.core.orders import RestoreOrder, StopOrder, StoredShare
from everstep.core.stored import StoragePolicy
from everstep.core.vocabulary import Symptom, Verdict
from everstep.storage.folder import JobFolder
from everstep.workers.local.memory import Memory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 150.0
"""Loading torch takes seconds, or much longer where everybody does at once."""

SAVE = """
import os, pathlib, time
import torch
from everstep import checkpoint
rank, out = int(os.environ["RANK"]), pathlib.Path(os.environ["EVERSTEP_OUTPUT_DIR"])
session = checkpoint.connect()
restored = session.restore()
step = 0 if restored is None else restored.step
if restored is not None:
    assert torch.equal(restored.state["w"], torch.full((50_000,), float(step)))
    assert restored.state["mine"].tolist() == [rank, step]
    (out / f"restored-{rank}").write_text(str(step))
while not (out / "end").exists():
    step += 1
    w = torch.full((50_000,), float(step))
    session.save(step, {"w": w, "mine": torch.tensor([rank, step]), "step": step})
    time.sleep(0.05)
"""


def policy(root: Path, **changes: Any) -> StoragePolicy:
    fields: dict[str, Any] = {
        "url": str(root / "storage"), "every_steps": 10, "every_s": None, "keep": 2,
        "slow_after_s": 80.0, "give_up_after_s": 90.0, **changes,
    }  # fmt: skip
    return StoragePolicy(**fields)


def rig_of(root: Path, wanted: StoragePolicy) -> Rig:
    rig = Rig(config_of(root, ("python", "train.py"), torch=True, storage=wanted))
    rig.write(SAVE)
    return rig


def complete(wanted: StoragePolicy) -> list[int]:
    return sorted(one.step for one in JobFolder(wanted.url, "toy").look("").checkpoints)


def alerts(rig: Rig) -> list[Alert]:
    return rig.seen(Alert)


def newest(rig: Rig) -> int:
    return max((event.step for event in rig.seen(RankProgress)), default=0)


async def goes_on(rig: Rig) -> None:
    """Training makes further steps."""
    step = newest(rig)
    await until(lambda: newest(rig) > step + 5)


async def test_saves_are_kept_and_brought_back(tmp_path: Path) -> None:
    wanted = policy(tmp_path)
    async with rig_of(tmp_path, wanted) as rig:
        await rig.machine.start(replace(rig.order(attempt=1), run="abc"))
        # More than are kept.
        await until(lambda: complete(wanted)[:1] > [10], PATIENCE_S)
        # Somebody outside gets one step of all ranks, while they go on and overwrite it.
        memory = Memory([rig.info], SECRET, "toy", rig.config.parallelism, 2)
        taken = await asyncio.to_thread(memory.fetch_all)
        assert [one.shard.rank for one in taken] == [0, 1]
        assert len({one.shard.step for one in taken}) == 1
        # Long overwritten: a newer step of the same rank is read instead.
        read = await asyncio.to_thread(verify_shard, memory, rig.info, 1, 1)
        assert (read.verdict, read.result) == (Verdict.HEALTHY, "whole")
        assert int(read.step) > 1
        await rig.machine.stop(StopOrder(1))
        report = await rig.machine.look_at_storage()
    assert len(report.checkpoints) in (1, 2)
    assert all(one.step % 10 == 0 and one.run == "abc" for one in report.checkpoints)
    assert not [a for a in alerts(rig) if "still being saved" not in a.detail]
    # A machine without memory of anything gets it from there, and saves by time.
    best = max(report.checkpoints, key=lambda one: one.step)
    by_time = replace(wanted, every_steps=None, every_s=0.3)
    async with Rig(replace(rig.config, directory=tmp_path / "m1", storage=by_time)) as rig:
        share = StoredShare(best.name, (0, 1), 0, 1)
        restored = await rig.machine.restore(RestoreOrder(2, best.step, (), share))
        assert restored.failed == ()
        assert restored.pulled == (0, 1)
        await rig.machine.start(replace(rig.order(2, restore_step=best.step), run="abc"))
        assert await rig.output("restored-0") == best.step
        assert await rig.output("restored-1") == best.step
        await until(lambda: complete(wanted)[0] > best.step, PATIENCE_S)
    assert not [a for a in alerts(rig) if "still being saved" not in a.detail]


def put_away(folder: Path, away: Path) -> None:
    """The storage is not what it was: nothing can be written there, nor read."""
    folder.rename(away)
    folder.write_text("no folder")


def put_back(folder: Path, away: Path) -> None:
    folder.unlink()
    away.rename(folder)


WITH_HOOK = """
import os, time
from pathlib import Path
from everstep.checkpoint import tier
from everstep.core import faultpoint
died, hung = Path({died!r}), Path({hung!r})
def hook(point):
    if point == "storage_after_write" and not died.exists():
        died.touch()
        os.kill(os.getpid(), 9)
    if point == "storage_before_write" and died.exists() and not hung.exists():
        hung.touch()
        time.sleep(1000)
faultpoint.hooks.append(hook)
tier.main()
"""


async def test_whatever_happens_to_saves_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "tier.py"
    script.write_text(WITH_HOOK.format(died=str(tmp_path / "died"), hung=str(tmp_path / "hung")))
    monkeypatch.setattr(storage, "TIER_COMMAND", (sys.executable, str(script)))
    wanted = policy(tmp_path, slow_after_s=1.0, give_up_after_s=4.0)

    def told(words: str) -> bool:
        return any(words in alert.detail for alert in alerts(rig))

    folder, away = Path(wanted.url), tmp_path / "away"
    async with rig_of(tmp_path, wanted) as rig:
        await rig.machine.start(rig.order(attempt=1))
        await until(lambda: told("killed by signal 9"), PATIENCE_S)
        assert complete(wanted) == []
        await until((tmp_path / "hung").exists, PATIENCE_S)
        await goes_on(rig)
        await until(lambda: told("takes more than 1 s"), PATIENCE_S)
        put_away(folder, away)
        await until(lambda: told("was given up after"), PATIENCE_S)
        await until(lambda: told("ENOTDIR") or told("EEXIST"), PATIENCE_S)
        await goes_on(rig)
        assert (await rig.machine.look_at_storage()).checkpoints == ()
        put_back(folder, away)
        await until(lambda: complete(wanted), PATIENCE_S)
        # What the dead ones left is swept up.
        await until(lambda: not JobFolder(wanted.url, "toy").look("").unusable, PATIENCE_S)
        await goes_on(rig)
    assert {alert.symptom for alert in alerts(rig)} == {Symptom.FILESYSTEM_MOUNT}
    assert not any(map(calls_for_action, alerts(rig)))


async def test_a_machine_that_is_behind_does_not_let_the_others_wait(tmp_path: Path) -> None:
    """It says that it is not there for the save that another one has begun."""
    child = Child(storage.TIER_COMMAND, tmp_path / "log")
    with ThreadPoolExecutor(1) as pool:
        order = order_of(tmp_path, 20, "dp=2;order=dp", 0, 2, 1, give_up_after_s=200.0)
        waiting = pool.submit(Save(order, [held(0, {"step": 20})], lambda _: None).run)
        try:
            child.begin()
            declined = {"url": order.url, "slot": 1, "reason": "it was still saving step 10"}
            child.send({"do": "decline", "declined": [declined]})
            assert child.result(PATIENCE_S) == {}
        finally:
            child.close()
        with pytest.raises(PermanentError, match="slot 1 gave up: it was still saving step 10"):
            waiting.result(PATIENCE_S)


async def test_what_saves_ends_with_its_agent(tmp_path: Path) -> None:
    child = Child(storage.LOOK_COMMAND, tmp_path / "log")
    child._sock.close()  # pyright: ignore[reportPrivateUsage]
    await until(lambda: not child.lives, PATIENCE_S)
    child.close()
