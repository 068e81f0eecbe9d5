"""What controllers are told, and where variables come from that specs only name."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.core.errors import InputError
from everstep.workers.settings import ControllerSettings, read, secrets


def test_a_controller_of_a_run_keeps_all_in_its_folder() -> None:
    given = read(ControllerSettings, {"EVERSTEP_RUN_DIRECTORY": "/runs/gpt"})
    assert given.run_of("gpt") == Path("/runs/gpt")
    assert given.evidence_url() == "/runs/gpt/evidence"


def test_a_controller_of_a_cluster_keeps_each_jobs_in_its_own() -> None:
    given = read(ControllerSettings, {"EVERSTEP_RUNS_DIRECTORY": "/jobs"})
    assert given.run_of("gpt") == Path("/jobs/gpt")
    assert given.evidence_url() == "/jobs/evidence"


@pytest.mark.parametrize(
    "environ", [{}, {"EVERSTEP_RUN_DIRECTORY": "/a", "EVERSTEP_RUNS_DIRECTORY": "/b"}]
)
def test_a_controller_is_told_one_place(environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"EVERSTEP_RUN_DIRECTORY.*EVERSTEP_RUNS_DIRECTORY"):
        read(ControllerSettings, environ)


def test_mounted_files_stand_for_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ON_CALL", "https://old")
    monkeypatch.setenv("OTHER", "variable")
    (tmp_path / "ON_CALL").write_text("https://hooks.example.com/1\n")
    found = secrets(tmp_path)
    assert (found["ON_CALL"], found["OTHER"]) == ("https://hooks.example.com/1", "variable")
    assert {"ON_CALL", "OTHER"} <= set(found)
    (tmp_path / "ON_CALL").write_text("https://hooks.example.com/2\n")
    assert found["ON_CALL"] == "https://hooks.example.com/2", "a mounted file changes"
    for name in ("MISSING", "../OTHER", "."):
        with pytest.raises(KeyError):
            found[name]
