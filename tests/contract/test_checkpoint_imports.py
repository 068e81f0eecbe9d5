"""What a training process loads with the library: torch, and nothing of the control plane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import everstep.checkpoint

# pynvml is missing here because torch itself imports it when it is installed.
FORBIDDEN = {"temporalio", "pydantic", "yaml", "psutil", "kubernetes"}
FORBIDDEN_PARTS = {"agent", "workers", "workflows", "activities", "spec", "cli"}


def test_the_training_process_never_loads_the_control_plane() -> None:
    roots = [str(root) for root in Path(__file__).parents[2].glob("*/everstep")]
    assert len(roots) >= 5
    code = "import sys, everstep.checkpoint; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": ":".join(str(Path(root).parent) for root in roots)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env=environment,
        text=True,
        timeout=60,
    )
    modules = set(done.stdout.split())
    assert "torch" in modules
    assert "everstep.core.shard" in modules
    assert not modules & FORBIDDEN
    assert not modules & {f"everstep.{part}" for part in FORBIDDEN_PARTS}


def test_what_the_library_offers_exists() -> None:
    assert sorted(everstep.checkpoint.__all__) == [
        "Replay", "Restored", "Session", "connect", "replay",
    ]  # fmt: skip
    for name in everstep.checkpoint.__all__:
        assert getattr(everstep.checkpoint, name)
