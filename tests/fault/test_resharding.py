"""FSDP2's state from four ranks into two, through storage; and what cannot go there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fault.stored import save

from everstep.checkpoint import resharding
from everstep.core.errors import PermanentError

ROOT = Path(__file__).resolve().parents[2]

TRAINER = """
import json, os, sys, traceback
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from everstep.checkpoint import resharding
from everstep.checkpoint.storing import Save
from everstep.core.errors import PermanentError
from tests.fault.stored import held, order_of

folder = sys.argv[1]


def main(rank, size):
    store = dist.FileStore(f"{folder}/store-{size}", size)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=store)
    torch.manual_seed(size)
    layers = torch.nn.Linear(5, 10), torch.nn.BatchNorm1d(10), torch.nn.Linear(10, 3)
    model = torch.nn.Sequential(*layers)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.arange(20.0).view(4, 5)).square().sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    order = order_of(f"{folder}/storage", 1, "dp=4;order=dp", rank, 4, 1)
    if size == 4:
        shard = held(rank, {**state, "rng": torch.tensor([rank])})
        Save(order, [shard], lambda _: None).run()
    else:
        restored = resharding.load(order.url, state, rank)
        assert restored["model"]["0.weight"] is state["model"]["0.weight"]
        model.load_state_dict(restored["model"])
        optimizer.load_state_dict(restored["optimizer"])
        if rank == 0:
            try:
                resharding.load(order.url, {"rng": torch.tensor([0]), "new": 1}, rank)
            except PermanentError as error:
                print(json.dumps({"refused": str(error)}), flush=True)
    tensors = {**model.state_dict(), **{
        f"{i}.{n}": t for i, s in optimizer.state_dict()["state"].items() for n, t in s.items()}}
    full = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in tensors.items()}
    if rank == 0:
        values = {n: [x.hex() for x in t.double().flatten().tolist()] for n, t in full.items()}
        print(json.dumps({"values": values}), flush=True)
    dist.destroy_process_group()


torch.set_num_threads(1)
for size in (4, 2):
    # Forks, as loading torch takes longer than all of this.
    pids = []
    for rank in range(size):
        pids.append(os.fork())
        if pids[-1] == 0:
            try:
                main(rank, size)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        sys.exit(1)
"""


@pytest.mark.slow
def test_a_sharded_state_goes_into_fewer_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'core'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path)],
        env=environment, check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    saved, refused, restored = map(json.loads, done.stdout.splitlines())
    assert restored["values"] == saved["values"]
    assert "rng differs between the ranks of its dp groups" in refused["refused"]
    assert "new is not in the checkpoint" in refused["refused"]
    assert "dp=4;order=dp" in refused["refused"]


def test_replicated_state_goes_anywhere_and_the_rest_is_named(tmp_path: Path) -> None:
    def state(rank: int) -> dict[str, Any]:
        return {
            "w": torch.arange(6.0).view(2, 3),
            "part": torch.tensor([float(rank)]),
            "config": {"betas": (0.9, 0.95), "name": "adam"},
        }

    checkpoint = save(tmp_path, 3, "tp=2;order=tp", {rank: state(rank) for rank in (0, 1)})
    into: dict[str, Any] = {"w": torch.zeros(2, 3), "config": {"betas": (0.0, 0.0), "name": ""}}
    weights = into["w"]
    restored = resharding.load(checkpoint.url, into, 0)
    assert restored["w"] is weights
    assert torch.equal(weights, torch.arange(6.0).view(2, 3))
    assert restored["config"] == {"betas": (0.9, 0.95), "name": "adam"}
    for wrong, words in (
        ({"part": torch.zeros(1)}, "part differs between the ranks of its tp groups"),
        ({"w": torch.zeros(3, 3)}, r"w has shape \(2, 3\) in the checkpoint and \(3, 3\) here"),
        ({"w": torch.zeros(2, 3, dtype=torch.float64)}, "w is float32 in the checkpoint"),
        ({"w": 3}, "w is a tensor in the checkpoint and a value here"),
    ):
        with pytest.raises(PermanentError, match=words):
            resharding.load(checkpoint.url, wrong, 0)
