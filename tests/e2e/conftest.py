"""What the end-to-end tests compare with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.local import SMALL, run, write_spec

STEPS = 60


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests by rank of a run without faults."""
    return _digests(tmp_path_factory.mktemp("undisturbed"), 8)


@pytest.fixture(scope="session")
def small_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The same of a small one."""
    return _digests(tmp_path_factory.mktemp("small-undisturbed"), 4, **SMALL)


def _digests(folder: Path, num_ranks: int, **changes: object) -> dict[int, str]:
    done = run(write_spec(folder, STEPS, 0, **changes), folder / "run")
    assert done.code == 0, done.explain()
    assert done.incidents == []
    assert sorted(done.digests()) == list(range(num_ranks))
    return done.digests()
