"""A job that loses every copy of its state in memory, and goes on from storage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from torch.distributed.checkpoint.format_utils import (
    dcp_to_torch_save,  # pyright: ignore[reportUnknownVariableType]
)

from everstep.storage.folder import JobFolder
from everstep.workers.local import faults
from tests.e2e.local import Finished, assert_nothing_left, everstep, processes_of, start, until

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(400)]

STEPS, PAUSE_AT = 60, 35

TRAINER = f"""
import hashlib, json, os, pathlib, time
import torch
from everstep import checkpoint
rank, out = int(os.environ["RANK"]), pathlib.Path(os.environ["EVERSTEP_OUTPUT_DIR"])
torch.manual_seed(rank)
w, first = torch.zeros(100_000), 1
session = checkpoint.connect()
restored = session.restore()
if restored is not None:
    w, first = restored.state["w"], restored.step + 1
    torch.set_rng_state(restored.state["rng"])
for step in range(first, {STEPS} + 1):
    w = w * 0.9 + torch.randn(100_000)
    rng, same = torch.get_rng_state(), torch.ones(9)
    session.save(step, {{"w": w, "rng": rng, "same": same, "step": step}})
    if step == {PAUSE_AT}:
        with session.phase("paused"):
            while not (out / "go").exists():
                time.sleep(0.05)
digest = hashlib.sha256(w.numpy().tobytes()).hexdigest()
(out / f"digest-{{rank}}.json").write_text(json.dumps({{"rank": rank, "sha256": digest}}))
"""


def undisturbed(rank: int, steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    w = torch.zeros(100_000)
    for _ in range(steps):
        w = w * 0.9 + torch.randn(100_000, generator=generator)
    return w


def kill_machines(folder: Path, names: list[str]) -> None:
    agents: list[int] = []
    for process in processes_of(folder):
        try:
            line = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "everstep.workers.agent" in line and line[-1] in names:
            agents.append(process.pid)
    assert len(agents) == len(names)
    for pid in agents:
        faults.kill_machine(pid)


def test_a_job_without_any_copy_in_memory_goes_on_from_storage(tmp_path: Path) -> None:
    code, folder = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    (code / "train.py").write_text(TRAINER)
    spec = {
        "name": "toy",
        "command": ["python", "train.py"],
        "code": {"directory": "code"},
        "machines": 2,
        "gpus_per_machine": 1,
        "parallelism": {"dp": 2},
        "standby": {"count": 2, "self_check": False, "refill": False},
        "ladder": {"probation_steps": 1, "probation_s": 0.1},
        "safety": {"max_evicted_ratio": 1.0},
        "checkpoint": {"storage": {"path": "storage", "every_steps": 10}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))  # pyright: ignore[reportUnknownMemberType]
    storage = JobFolder(str(tmp_path / "storage"), "toy")
    process = start(tmp_path / "job.yaml", folder)
    try:
        until(lambda: storage.look("").checkpoints, "a checkpoint in storage", 120)
        look_at(folder, tmp_path / "exported")
        kill_machines(folder, ["m0", "m1"])
        (folder / "output" / "go").touch()
        stdout, stderr = process.communicate(timeout=240)
    finally:
        process.terminate()
    done = Finished(folder, process.returncode, stdout, stderr)
    assert done.code == 0, done.explain()
    for rank in range(2):
        expected = undisturbed(rank, STEPS)
        digest = json.loads((folder / "output" / f"digest-{rank}.json").read_text())["sha256"]
        assert digest == hashlib.sha256(expected.numpy().tobytes()).hexdigest()
    [record] = done.incidents
    saved = record.restored_step
    assert saved in (10, 20, 30)
    assert record.lost_steps == PAUSE_AT - saved
    story = [entry.text for entry in record.timeline]
    assert "no machine's memory holds any step" in story
    assert any(text.startswith(f"step {saved} comes from storage") for text in story), story
    look_at_what_is_left(folder, tmp_path / "exported later", saved)
    assert_nothing_left(folder)


def look_at(folder: Path, dest: Path) -> None:
    """While it runs, and waits."""
    until(lambda: newest_in_memory(folder) == PAUSE_AT, f"step {PAUSE_AT} in memory")
    verified = everstep("ckpt", "verify", folder, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    results = json.loads(verified.stdout)
    assert {one["result"] for one in results} == {"whole"}
    assert {one["where"] for one in results} == {"m0", "m1", "storage"}
    exported = everstep("ckpt", "export", folder, dest)
    assert exported.returncode == 0, exported.stderr
    assert f"Step {PAUSE_AT} was written" in exported.stdout
    dcp_to_torch_save(str(dest), str(dest / "whole.pt"))
    whole = torch.load(dest / "whole.pt")
    assert torch.equal(whole["@dp1"]["w"], undisturbed(1, PAUSE_AT))
    assert (whole["step"], whole["same"].tolist()) == (PAUSE_AT, [1.0] * 9)
    again = everstep("ckpt", "export", folder, dest)
    assert again.returncode == 2
    assert "is not empty" in again.stderr


def newest_in_memory(folder: Path) -> int:
    listed = everstep("ckpt", "ls", folder, "--json")
    assert listed.returncode == 0, listed.stderr
    machines = json.loads(listed.stdout)["memory"]["machines"]
    assert [m["machine"] for m in machines] == ["m0", "m1"]
    kinds = {(s["rank"], s["kind"]) for m in machines for s in m["shards"]}
    assert kinds <= {(0, "own"), (1, "own"), (0, "backup"), (1, "backup")}
    return max((s["step"] for m in machines for s in m["shards"]), default=0)


def look_at_what_is_left(folder: Path, dest: Path, saved: int) -> None:
    """When it is over."""
    assert "the run is over" in everstep("ckpt", "ls", folder).stdout
    listed = json.loads(everstep("ckpt", "ls", folder, "--json").stdout)
    # Saves that come faster than they are written leave some out; which, depends on the machine.
    newest = max(one["step"] for one in listed["storage"]["checkpoints"])
    assert newest >= saved
    exported = everstep("ckpt", "export", folder, dest)
    assert exported.returncode == 0, exported.stderr
    assert "from storage" in exported.stdout
    dcp_to_torch_save(str(dest), str(dest / "whole.pt"))
    assert torch.load(dest / "whole.pt")["step"] == newest
    missing = everstep("ckpt", "export", folder, dest / "more", "--step", "7")
    assert missing.returncode == 1
    assert "holds no complete step 7" in missing.stderr
