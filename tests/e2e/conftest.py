"""What the end-to-end tests compare with."""

from __future__ import annotations

import pytest

from tests.e2e.local import run, write_spec

STEPS = 60


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests by rank of a run without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(write_spec(folder, STEPS, 0), folder / "run")
    assert done.code == 0, done.explain()
    assert done.incidents == []
    assert sorted(done.digests()) == list(range(8))
    return done.digests()
