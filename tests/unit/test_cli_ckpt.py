"""What `everstep ckpt verify` concludes from what it could read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstep.cli.ckpt_verify import MOVED_ON, Result, told
from everstep.cli.commands import app
from everstep.core.senses.inspection import exit_code
from everstep.core.vocabulary import Verdict
from everstep.workers.local.folder import RunFolder

WHOLE = Result("m0", "rank 0", 7, "whole", Verdict.HEALTHY)
MOVED = Result("m0", "rank 1", 7, MOVED_ON)
DAMAGED = Result("m1", "rank 0", 7, "damaged: its checksum is another", Verdict.FAULTY)

SPEC = """\
name: toy
command: [python, train.py]
code: {directory: .}
machines: 1
gpus_per_machine: 1
parallelism: {dp: 1}
checkpoint: {storage: {path: STORE, every_steps: 5}}
"""


@pytest.mark.parametrize(
    ("results", "code", "said"),
    [
        ([WHOLE, WHOLE], 0, "2 of 2 are whole."),
        ([], 3, "Nothing was there to be verified."),
        (
            [WHOLE, MOVED],
            3,
            "1 of 2 are whole, 1 could not be verified: training was faster than reading; try"
            " again.",
        ),
        (
            [Result("m2", "memory", "", "no answer")],
            3,
            "0 of 1 are whole, 1 could not be verified.",
        ),
        (
            [WHOLE, DAMAGED, MOVED],
            1,
            "1 of 3 are whole, 1 damaged, 1 could not be verified: training was faster than"
            " reading; try again.",
        ),
    ],
)
def test_only_what_was_read_is_healthy(results: list[Result], code: int, said: str) -> None:
    assert exit_code(results) == code
    assert told(results) == said


def ended_run(root: Path, store: str = "file:///nowhere") -> RunFolder:
    folder = RunFolder(root / "run")
    folder.logs.mkdir(parents=True)
    folder.write_state(job="toy", phase="finished", pid=1, started_at_s=0.0)
    (root / "run" / "train.py").touch()
    folder.spec.write_text(SPEC.replace("STORE", store))
    return folder


def verified(folder: RunFolder, *options: str) -> tuple[int, str, str]:
    shown = CliRunner().invoke(app, ["ckpt", "verify", str(folder.path), *options])
    return shown.exit_code, shown.stdout, shown.stderr


def test_a_run_of_which_nothing_is_left_is_not_verified(tmp_path: Path) -> None:
    folder = ended_run(tmp_path)
    code, said, _ = verified(folder)
    assert code == 3, said
    assert said.splitlines() == [
        "The run is over: nothing is in memory any more.",
        "Nothing was there to be verified.",
    ]
    code, said, also = verified(folder, "--json")
    assert (code, json.loads(said)) == (3, [])
    assert "Nothing was there to be verified." in also


def test_storage_that_cannot_be_looked_at_is_not_healthy(tmp_path: Path) -> None:
    folder = ended_run(tmp_path, "nosuch://bucket")
    code, said, _ = verified(folder)
    assert code == 3, said
    assert "nosuch://bucket cannot be read" in said
    assert "0 of 1 are whole, 1 could not be verified." in said
