"""What the end-to-end tests compare with."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.local import SMALL, run, write_spec

STEPS = 60


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests by rank of a run without faults."""
    return _digests(_shared(tmp_path_factory) / "undisturbed", 8)


@pytest.fixture(scope="session")
def small_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The same of a small one."""
    return _digests(_shared(tmp_path_factory) / "small-undisturbed", 4, **SMALL)


def _shared(factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests, whichever of its processes asks."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def _digests(folder: Path, num_ranks: int, **changes: object) -> dict[int, str]:
    """Train once for all processes of the tests: whoever comes second waits for the first."""
    folder.mkdir(exist_ok=True)
    kept = folder / "digests.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(_train(folder, num_ranks, **changes)))
    known: dict[str, Any] = json.loads(kept.read_text())
    return {int(rank): str(digest) for rank, digest in known.items()}


def _train(folder: Path, num_ranks: int, **changes: object) -> dict[int, str]:
    done = run(write_spec(folder, STEPS, 0, **changes), folder / "run")
    assert done.code == 0, done.explain()
    assert done.incidents == []
    assert sorted(done.digests()) == list(range(num_ranks))
    return done.digests()
