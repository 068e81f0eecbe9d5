"""Other code and other arguments for a run under way, by the commands that a person types."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from everstep.core.vocabulary import Rung
from tests.e2e.conftest import STEPS
from tests.e2e.local import EXAMPLE, Finished, assert_nothing_left, everstep, write_spec
from tests.e2e.test_operator import Live, live

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(300)]


def version(folder: Path, name: str, first_line: str) -> Path:
    """The reference trainer with one more line at its beginning."""
    target = folder / name
    shutil.copytree(EXAMPLE, target, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    script = target / "train.py"
    script.write_text(
        script.read_text().replace("import argparse\n", f"import argparse\n{first_line}\n", 1)
    )
    assert first_line in script.read_text()
    return target


def outcomes(run: Live) -> list[str]:
    found: list[dict[str, Any]] = json.loads(everstep("updates", run.folder, "--json").stdout)
    return [str(one["outcome"]) for one in found]


def so_far(run: Live) -> Finished:
    return Finished(run.folder, 0, "", "")


def recovered(run: Live, incidents: int) -> bool:
    found = so_far(run).incidents
    return len(found) == incidents and found[-1].first_step_at_s is not None


def kill_a_rank(run: Live) -> None:
    newest = max(so_far(run).effects("started"), key=lambda effect: int(effect["attempt"]))
    os.kill(int(newest["pids"][0]), signal.SIGKILL)


def test_updates_of_a_run(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    """Refused, rolled back, joined to a failure: the weights are those of an undisturbed run."""
    # Steps are slow until an update says otherwise, so that the run lasts as long as it is needed.
    command = ["python", "train.py", "--steps", str(STEPS), "--step-time-s", "1.5"]
    build = "touch built; ! grep 'cannot be built' train.py"
    code = {"directory": str(EXAMPLE), "prepare": ["sh", "-c", build]}
    spec = write_spec(tmp_path, STEPS, 0, command=command, code=code)
    unbuilt = version(tmp_path, "unbuilt", "# cannot be built")
    unparsed = version(tmp_path, "unparsed", "def (:")
    crashing = version(tmp_path, "crashing", "raise SystemExit('broken version')")
    better = version(tmp_path, "better", "# better")
    with live(spec, tmp_path / "run") as run:
        run.wait_until(lambda: len(so_far(run).effects("started")) == 4, "ranks run")
        run.wait_until(lambda: "step" in (run.folder / "steps.jsonl").read_text(), "a step")
        refused = everstep("hot-update", run.folder, "--code", unparsed, "--urgent")
        assert (refused.returncode, so_far(run).incidents) == (2, []), refused.stderr
        assert "train.py, line" in refused.stderr
        assert "Nothing was stopped" in refused.stderr
        refused = everstep("hot-update", run.folder, "--code", unbuilt, "--urgent")
        assert (refused.returncode, so_far(run).incidents) == (2, []), refused.stderr
        assert "m3: `sh -c" in refused.stderr
        assert "ended with status 1: # cannot be built" in refused.stderr
        pushed = everstep("hot-update", run.folder, "--code", crashing, "--urgent")
        assert pushed.returncode == 0, pushed.stderr
        run.wait_until(lambda: recovered(run, 1), "the version is rolled back")
        pushed = everstep(
            "hot-update", run.folder, "--code", better, "--set", "step-time-s=0", "--reason", "fast"
        )
        assert pushed.returncode == 0, pushed.stderr
        assert "joins the next restart" in pushed.stdout
        told = outcomes(run)
        kill_a_rank(run)
        run.wait_until(lambda: recovered(run, 2), "the update joined the restart")
        done = run.end()
    assert done.code == 0, done.explain()
    assert done.digests() == undisturbed
    rolled_back, joined = done.incidents
    assert [climb.rung for climb in rolled_back.climbs] == [Rung.UPDATE, Rung.ROLLBACK]
    assert [climb.rung for climb in joined.climbs] == [Rung.REATTEMPT]
    assert all(record.lost_steps <= 1 for record in done.incidents), done.explain()
    assert done.evictions() == []
    # The first version, that of each update, and nothing in the copies that all machines share.
    assert len(list(done.folder.glob("machines/m0/code/*/built"))) == 4
    assert list(done.folder.glob("code/*/built")) == []
    story = [entry.text for entry in joined.timeline]
    assert any("(fast) joins this restart" in text for text in story), story
    assert told[0].startswith("rolled back: ")
    assert told[1].startswith("waits for a restart")
    assert_nothing_left(done.folder)


def test_what_a_person_may_get_wrong(tmp_path: Path) -> None:
    missing = everstep("hot-update", tmp_path / "nothing", "--set", "lr=1")
    assert (missing.returncode, "is not a run's folder" in missing.stderr) == (2, True)
