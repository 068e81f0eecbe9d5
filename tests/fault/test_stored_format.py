"""What is saved to storage: torch's format, everything once, every byte back, nothing damaged."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.fault.stored import JOB, held, order_of, save
from torch.distributed.checkpoint.format_utils import (
    dcp_to_torch_save,  # pyright: ignore[reportUnknownVariableType]
)

from everstep.agent.borrowing import Borrowing
from everstep.agent.shards import ShardStore
from everstep.agent.storage import StorageConfig, StorageTier
from everstep.checkpoint import rebuilding
from everstep.checkpoint.checksums import checksum
from everstep.checkpoint.retrieving import Retrieval
from everstep.checkpoint.storing import Save, number_of, retain, text_of
from everstep.core.errors import PermanentError, TransientError
from everstep.core.faultpoint import STORAGE_POINTS, Point, StoragePoint, hooks
from everstep.core.orders import StoredShare
from everstep.core.parts import Replicated
from everstep.core.shard import Origin, aligned
from everstep.core.stored import StoragePolicy, newest_first, symptom_of
from everstep.core.vocabulary import Symptom
from everstep.storage.folder import Checkpoint, JobFolder, describe

LAYOUT = "tp=2,pp=1,dp=2;order=tp-pp-dp"


def state_of(rank: int) -> dict[str, Any]:
    """Of rank tp + 2 * dp: weights by tp, a norm of all, and a random state of each one."""
    tp = rank % 2
    weights = torch.arange(24.0).view(4, 6) + 100 * tp
    return {
        "model": {"layers.0.w": weights, "norm": torch.ones(5, dtype=torch.bfloat16)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(7.0), "m": weights.t() * 2, "tied": weights}},
            "groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.95), "name": None, "params": []}],
        },
        "rng": torch.tensor([rank, 3], dtype=torch.uint8),
        "empty": torch.empty(0, 3),
        "step": 7,
    }


def back(checkpoint: Checkpoint, rank: int) -> Any:
    fd = os.memfd_create("back")
    filled = Retrieval(describe(checkpoint)).fill(rank, fd)
    body = memoryview(mmap.mmap(fd, 0))
    os.close(fd)
    metadata = bytes(body[: filled.metadata_bytes])
    return rebuilding.rebuild(metadata, body[aligned(filled.metadata_bytes) :])


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        mapping: dict[Any, Any] = one  # pyright: ignore[reportUnknownVariableType] - one is Any
        assert list(mapping) == list(other)
        for key, value in mapping.items():
            assert_same(value, other[key])
    elif isinstance(one, list | tuple):
        items = cast("Sequence[Any]", one)
        assert len(items) == len(other)
        for left, right in zip(items, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    root = tmp_path_factory.mktemp("storage")
    return save(root, 7, LAYOUT, {rank: state_of(rank) for rank in range(4)}, ranks_per_slot=2)


def test_every_rank_gets_its_state_back(checkpoint: Checkpoint) -> None:
    for rank in range(4):
        assert_same(back(checkpoint, rank), state_of(rank))


def test_every_value_is_written_once_and_the_work_is_shared(checkpoint: Checkpoint) -> None:
    description = describe(checkpoint)
    by_slot = [set(description.wrote(slot)) for slot in range(2)]
    written = sorted(key for slot in by_slot for key, _ in slot)
    assert written == sorted(
        [
            "@tp0.model.layers.0.w", "@tp1.model.layers.0.w", "model.norm",
            "optimizer.state.0.step",
            "@tp0.optimizer.state.0.m", "@tp1.optimizer.state.0.m",
            "@tp0.optimizer.state.0.tied", "@tp1.optimizer.state.0.tied",
            "optimizer.groups.0.lr", "optimizer.groups.0.betas", "optimizer.groups.0.name",
            "optimizer.groups.0.params",
            "@tp0,dp0.rng", "@tp1,dp0.rng", "@tp0,dp1.rng", "@tp1,dp1.rng",
            "empty", "step",
        ]
    )  # fmt: skip
    # The two machines hold the same weights: each writes half of them.
    heavy = [sum("0.w" in key or ".0." in key for key, _ in slot) for slot in by_slot]
    assert min(heavy) >= 3


# --- Kept once in a DP group ----------------------------------------------------------------------


def test_what_ranks_keep_for_their_group_is_stored_and_brought_back(tmp_path: Path) -> None:
    """As one tensor each, which torch reads, and for a machine of one rank with its peer's part."""
    replicated = Replicated(("model", "optimizer"), 2, 2)
    states = {rank: state_of(rank) for rank in range(4)}
    checkpoint = save(tmp_path, 7, LAYOUT, states, replicated=replicated)
    config = StorageConfig(
        StoragePolicy(str(tmp_path), 1, None, 3, 60.0, 120.0),
        "m1",
        JOB,
        LAYOUT,
        1,
        tmp_path / "log",
    )
    origin = Origin(JOB, LAYOUT)
    store, tier = ShardStore("m1", origin=origin), StorageTier(config, lambda alert: None)
    borrowing = Borrowing(store, b"secret", JOB, replicated)
    try:
        share = StoredShare(checkpoint.url.rpartition("/")[2], (1,), 1, 4)
        assert tier.bring_back(share, 7, 2, store, borrowing) == [(1, "")]
    finally:
        tier.close()
    assert borrowing.ranks == (3,)
    region, place = store.region(1), borrowing.find(3, 7)
    assert region is not None
    slot, shard = region.view.find(7) or pytest.fail("nothing came")
    assert place.lent.whole == shard.part_whole != 0
    body = region.view.body(slot)[: shard.body_bytes]
    part = memoryview(mmap.mmap(place.fd, 0))
    assert checksum(part) == place.lent.checksum
    payload = body[aligned(shard.metadata_bytes) :]
    found = rebuilding.rebuild(
        bytes(body[: shard.metadata_bytes]), payload, [body[shard.part_start :], part]
    )
    assert_same(found, state_of(1))
    whole = tmp_path / "whole.pt"
    dcp_to_torch_save(checkpoint.url, whole)
    read = torch.load(whole, weights_only=False)
    assert torch.equal(read["@tp1"]["model"]["layers.0.w"], state_of(1)["model"]["layers.0.w"])
    assert torch.equal(read["model"]["norm"], state_of(0)["model"]["norm"])


READER = """
import sys, torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
assert not any(name.startswith("everstep") for name in sys.modules)
folder = sys.argv[1]
dcp_to_torch_save(folder, folder + "/whole.pt")
whole = torch.load(folder + "/whole.pt")
assert whole["step"] == 7 and whole["model"]["norm"].dtype is torch.bfloat16
assert whole["@tp1"]["model"]["layers.0.w"].sum() == sum(range(24)) + 2400
assert whole["optimizer"]["groups"][0]["lr"] == 0.1 + 0.2
into = {"model.norm": torch.zeros(5).bfloat16(), "@tp0.model.layers.0.w": torch.zeros(4, 6)}
dcp.load(into, checkpoint_id=folder)
assert torch.equal(into["@tp0.model.layers.0.w"], torch.arange(24.0).view(4, 6))
assert torch.equal(into["model.norm"], torch.ones(5, dtype=torch.bfloat16))
"""


def test_torch_alone_reads_it(checkpoint: Checkpoint, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", READER, checkpoint.path],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("point", STORAGE_POINTS)
def test_a_death_at_any_point_leaves_a_whole_checkpoint_or_none(
    tmp_path: Path, point: StoragePoint, victim: int
) -> None:
    """Two machines save; one of the processes is killed, and the other one does not wait long."""
    states = {rank: state_of(rank) for rank in range(4)}
    save(tmp_path, 6, LAYOUT, states, 2)
    children = [
        fork_save(tmp_path, 7, slot, point if slot == victim else None, states) for slot in (0, 1)
    ]
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    happens = victim == 0 or point not in ("storage_before_metadata", "storage_after_metadata")
    assert ends[victim] == (-9 if happens else 0)
    report = JobFolder(str(tmp_path), JOB).look("m0")
    [best, *older] = newest_first(report.checkpoints)
    is_whole = not happens or point == "storage_after_metadata"
    # A machine that dies when all is written may be missed by nobody.
    is_whole = is_whole or (victim == 1 and point == "storage_after_write" and best.step == 7)
    assert [best.step, *(one.step for one in older)] == ([7, 6] if is_whole else [6])
    Retrieval(describe(JobFolder(str(tmp_path), JOB).checkpoint(best.name))).check(0, 1)
    # The next save sweeps up what is left of it.
    last = save(tmp_path, 8, LAYOUT, states, 2)
    retain(str(tmp_path), JOB, last.url.rpartition("/")[2], 2)
    report = JobFolder(str(tmp_path), JOB).look("m0")
    assert [one.step for one in newest_first(report.checkpoints)] == [8, 7 if is_whole else 6]
    assert report.unusable == ()


def fork_save(
    root: Path, step: int, slot: int, point: StoragePoint | None, states: dict[int, dict[str, Any]]
) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:

        def die(reached: Point) -> None:
            if reached == point:
                os.kill(os.getpid(), 9)

        hooks.append(die)
        order = order_of(root, step, LAYOUT, slot, 2, 2, give_up_after_s=2.0)
        shards = [held(rank, states[rank]) for rank in (2 * slot, 2 * slot + 1)]
        Save(order, shards, lambda _: None).run()
    except TransientError:
        os._exit(1)
    finally:
        os._exit(0)


@pytest.mark.parametrize(
    ("url", "words", "symptom"),
    [
        ("/proc/everstep-no-such", "ENOENT", Symptom.FILESYSTEM_MOUNT),
        ("nosuch://bucket/x", "Protocol not known", Symptom.EXTERNAL_SERVICE_ERROR),
    ],
)
def test_a_storage_of_no_use_is_named(url: str, words: str, symptom: Symptom) -> None:
    with pytest.raises((PermanentError, OSError)) as refused:
        save(url, 7, "dp=1;order=dp", {0: state_of(0)})
    assert words in text_of(refused.value)
    assert symptom_of(number_of(refused.value), url) is symptom


def test_a_shard_that_was_damaged_in_memory_is_not_stored(tmp_path: Path) -> None:
    shard = held(0, state_of(0))
    shard.body[-1] ^= 1
    with pytest.raises(PermanentError, match="rank 0's state was damaged in memory"):
        Save(order_of(tmp_path, 7, "dp=1;order=dp", 0, 1, 1), [shard], lambda _: None).run()
    assert JobFolder(str(tmp_path), JOB).look("m0").checkpoints == ()


def test_one_machine_that_gives_up_does_not_let_the_others_wait(tmp_path: Path) -> None:
    def other() -> str:
        order = order_of(tmp_path, 7, "dp=2;order=dp", 0, 2, 1, give_up_after_s=60.0)
        with pytest.raises(PermanentError) as refused:
            Save(order, [held(0, state_of(0))], lambda _: None).run()
        return str(refused.value)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other)
        shard = held(1, state_of(1))
        shard.body[-1] ^= 1
        with pytest.raises(PermanentError):
            Save(order_of(tmp_path, 7, "dp=2;order=dp", 1, 2, 1), [shard], lambda _: None).run()
        assert "slot 1 gave up: rank 1's state was damaged in memory" in waiting.result(30)


def files_of(checkpoint: Checkpoint) -> list[Path]:
    return sorted(p for p in Path(checkpoint.path).rglob("*") if p.is_file())


@pytest.mark.parametrize("how", ["flipped", "cut short", "missing"])
def test_nothing_damaged_is_ever_loaded(tmp_path: Path, how: str) -> None:
    whole = save(tmp_path, 7, LAYOUT, {rank: state_of(rank) for rank in range(4)}, 2)
    Retrieval(describe(whole)).check(0, 1)
    for file in files_of(whole):
        if file.name in (".metadata", "whole.pt"):
            continue
        content = file.read_bytes()
        damage(file, content, how)
        refused = 0
        try:
            Retrieval(describe(whole)).check(0, 1)
        except (PermanentError, OSError):
            refused = 1
        for rank in range(4):
            try:
                found = back(whole, rank)
            except (PermanentError, OSError):
                refused += 1
            else:
                assert_same(found, state_of(rank))
        assert refused, file
        file.write_bytes(content)
    Retrieval(describe(whole)).check(0, 1)


def damage(file: Path, content: bytes, how: str) -> None:
    if how == "missing":
        file.unlink()
    elif how == "cut short":
        file.write_bytes(content[: len(content) // 2])
    else:
        # In a tensor's bytes, if there are any: archives have padding that nobody reads.
        at = content.find(torch.arange(24.0).numpy().tobytes())
        at = at + 9 if at >= 0 else len(content) // 3
        flipped = bytearray(content)
        flipped[at] ^= 4
        file.write_bytes(bytes(flipped))
