"""FSDP2's sharded model and optimizer, through a checkpoint and into processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TRAINER = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from everstep.checkpoint.rebuilding import rebuild
from everstep.checkpoint.tree import FlatTree

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Linear(10, 5))
columns = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
parallelize_module(model[0], mesh["tp"], columns)
model[0].register_forward_hook(lambda *a: a[-1].full_tensor())
fully_shard(model[0], mesh=mesh["dp"])
fully_shard(model[1], mesh=init_device_mesh("cpu", (4,), mesh_dim_names=("all",)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)


def step():
    model(torch.arange(12.0).view(2, 6)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


path = sys.argv[2] + os.environ["RANK"]
if sys.argv[1] == "save":
    step()
    flat = FlatTree({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    payload = bytearray(flat.payload_bytes)
    flat.write(memoryview(payload))
    torch.save((flat.metadata, payload), path)
else:
    metadata, payload = torch.load(path, weights_only=False)
    state = rebuild(metadata, memoryview(payload))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
step()
step()
sums = [p.full_tensor().sum().item().hex() for p in model.parameters()]
# One write a line: print() writes the end of a line by itself, and ranks share the pipe.
os.write(1, f"{os.environ['RANK']} {sums}\\n".encode())
dist.destroy_process_group()
"""


def run(folder: Path, what: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(TRAINER)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
        str(script), what, str(folder / "state-"),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "core")}
    done = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return sorted(done.stdout.splitlines())


@pytest.mark.slow
def test_a_sharded_state_is_restored_into_the_same_layout(tmp_path: Path) -> None:
    undisturbed = run(tmp_path, "save")
    assert len(undisturbed) == 4
    assert run(tmp_path, "restore") == undisturbed
