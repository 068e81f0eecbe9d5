"""The token of an installation's controllers, which start at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep.core.errors import InputError
from everstep.workers import controller_metrics
from everstep.workers.controller_metrics import counted, serve, shared_token
from everstep.workers.settings import ControllerSettings


def test_all_who_share_a_folder_have_one_token(tmp_path: Path) -> None:
    file = tmp_path / "jobs" / ".metrics-token"
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(shared_token, [file] * 32))
    assert len(tokens) == 1
    assert len(tokens.pop()) == 2 * controller_metrics.TOKEN_BYTES
    assert file.stat().st_mode & 0o007 == 0, "nobody's business"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_controller_of_one_run_counts_nothing(tmp_path: Path) -> None:
    assert counted(ControllerSettings(run_directory=tmp_path, metrics_port=0)) is None
    assert counted(ControllerSettings(runs_directory=tmp_path)) is None


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    given = ControllerSettings(runs_directory=tmp_path / "file" / "jobs", metrics_port=0)
    with pytest.raises(InputError, match="EVERSTEP_METRICS_TOKEN"):
        serve(1, given, {})
    serve(1, given, {"EVERSTEP_METRICS_TOKEN": "given"}).close()
