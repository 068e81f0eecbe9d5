"""What the reference trainer does when its machine, or its code, was broken on purpose."""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import hanging
import injected
import pytest
import torch
import torch.distributed as dist
import with_everstep
from injected import Faults
from torch._C._distributed_c10d import HashStore

from everstep.core.vocabulary import Check
from everstep.selfcheck.faults import InjectedFault, read_faults, write_fault
from everstep.selfcheck.flips import products_of_this_machine


def ranks_of(root: Path, local_rank: int = 0, peers: str = "m1 m2", code: str = "good") -> Faults:
    store = HashStore()
    for rank, name in enumerate(peers.split()):
        store.set(f"machine/{rank}", name)
    environ = {"LOCAL_RANK": str(local_rank), "RANK": "0", "EVERSTEP_MACHINE": "m1"}
    groups = [list(range(len(peers.split()))), [0]]
    faults = Faults(str(root), groups, store, environ, root / code)
    faults.announce()
    return faults


def break_(root: Path, **fields: Any) -> None:
    write_fault(root, InjectedFault("broken", **fields))


def test_crashes_hit_the_first_rank_at_every_step_or_once(tmp_path: Path) -> None:
    first, second = ranks_of(tmp_path), ranks_of(tmp_path, local_rank=1)
    with first.during(1):
        pass
    break_(tmp_path, kind="cuda_error")
    for step in (2, 3):
        with pytest.raises(RuntimeError, match="CUDA error"), first.during(step):
            pass
        with second.during(step):
            pass
    break_(tmp_path, kind="transient", once=True)
    with pytest.raises(RuntimeError, match="NCCL error"), first.during(4):
        pass
    with first.during(4):
        pass
    assert read_faults(tmp_path) == []


def test_nan_is_in_the_gradient_of_its_step(tmp_path: Path) -> None:
    faults, gradient = ranks_of(tmp_path), torch.ones(3)
    break_(tmp_path, kind="nan", once=True)
    with faults.during(1):
        faults.poison(gradient)
    assert gradient.isnan().tolist() == [True, False, False]
    gradient = torch.ones(3)
    with faults.during(1):
        faults.poison(gradient)
    assert not gradient.isnan().any()


def test_a_flipped_bit_is_in_every_product(tmp_path: Path) -> None:
    def products() -> list[torch.Tensor]:
        a, b = torch.arange(6.0).view(2, 3) + 1, torch.arange(6.0).view(3, 2) + 1
        return [a @ b, torch.nn.functional.linear(a[None], b.T), torch.bmm(a[None], b[None])]

    faults, sound = ranks_of(tmp_path), products()
    break_(tmp_path, kind="sdc", bit=22)
    with faults.during(1):
        broken = products()
    for good, bad in zip(sound, broken, strict=True):
        assert (good != bad).flatten().tolist() == [True, *[False] * (good.numel() - 1)]
    with ranks_of(tmp_path, local_rank=1).during(1):
        assert all(torch.equal(x, y) for x, y in zip(products(), sound, strict=True))
    break_(tmp_path, kind="sdc", bit=22, probability=1e-9)
    with faults.during(1):
        assert all(torch.equal(x, y) for x, y in zip(products(), sound, strict=True))


def test_a_slow_step_takes_its_time(tmp_path: Path) -> None:
    faults = ranks_of(tmp_path)
    break_(tmp_path, kind="slow", slow_s=0.05)
    began_s = time.monotonic()
    with faults.during(1):
        pass
    assert time.monotonic() - began_s >= 0.05


def state_of(pid: int) -> str:
    state = re.search(r"State:\s+(\w)", Path(f"/proc/{pid}/status").read_text())
    assert state is not None
    return state[1]


@pytest.mark.parametrize(("how", "state"), [("python", "S"), ("native", "S"), ("stop", "T")])
def test_a_hang_ends_by_nothing_but_a_kill(how: str, state: str) -> None:
    process = multiprocessing.get_context("fork").Process(target=hanging.STUCK[how])
    process.start()
    try:
        deadline_s = time.monotonic() + 30
        while state_of(process.pid or 0) != state:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        if how == "stop":
            os.kill(process.pid or 0, signal.SIGCONT)
        process.join(0.2)
        assert process.is_alive()
    finally:
        process.kill()
        process.join()


def test_who_leaves_reductions_leaves_those_of_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[str] = []

    def all_reduce(name: str, group: list[int] | None = None) -> None:
        reduced.append(name)

    def ranks_of_group(group: list[int]) -> list[int]:
        return group

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "get_process_group_ranks", ranks_of_group)
    hanging.leave_reductions([0, 1])
    trainers: Any = dist
    trainers.all_reduce("tp", group=[0, 1])
    trainers.all_reduce("dp", group=[0, 2])
    trainers.all_reduce("all")
    assert reduced == ["dp", "all"]


def test_a_slowed_rank_computes_several_times_as_long(tmp_path: Path) -> None:
    break_(tmp_path, kind="slow", slow_s=0.0, slow_times=3.0)
    began_s = time.thread_time()
    with ranks_of(tmp_path).during(1):
        injected.compute_for(0.02)
    assert 0.06 <= time.thread_time() - began_s < 0.1
    began_s = time.thread_time()
    with ranks_of(tmp_path, local_rank=1).during(1):
        injected.compute_for(0.02)
    assert time.thread_time() - began_s < 0.05


def test_a_bad_link_ends_what_crosses_it(tmp_path: Path) -> None:
    break_(tmp_path, kind="link_bad", peer="m2")
    faults = ranks_of(tmp_path, local_rank=1)
    with pytest.raises(RuntimeError, match="rank 0 on m1, peer 1"), faults.during(1):
        pass
    with ranks_of(tmp_path, peers="m1 m3").during(1):
        pass


def test_bad_code_fails_at_its_step_and_after(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "code_error.json").write_text(json.dumps({"step": 3}))
    faults = ranks_of(tmp_path, local_rank=1, code="bad")
    with ranks_of(tmp_path, code="good").during(4):
        pass
    with faults.during(2):
        pass
    for step in (3, 4):
        with pytest.raises(TypeError, match="unsupported operand"), faults.during(step):
            pass


def test_no_run_that_did_not_ask_can_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERSTEP_FAULTS", raising=False)
    monkeypatch.delitem(sys.modules, "injected")
    assert with_everstep.open_faults([[0]], HashStore()) is None
    assert "injected" not in sys.modules
    for check in Check:
        assert isinstance(products_of_this_machine(check, 0), contextlib.nullcontext)
