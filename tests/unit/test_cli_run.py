"""What `everstep run` says while a job runs."""

from __future__ import annotations

import pytest

from everstep.cli.run import Voice
from everstep.workers.telemetry import Snapshot


def test_steps_are_told_after_the_start_which_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    voice = Voice()
    voice.progress(Snapshot(0, {}, None, ("m0",)))
    assert capsys.readouterr().err == ""
    voice.progress(Snapshot(1, {0: 1}, 1, ("m0",)))
    voice.started()
    voice.progress(Snapshot(2, {0: 4}, 4, ("m0",)))
    voice.started()
    told = [line.split(" s ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "all ranks are started; the first step takes longest",
        "step 1 finished by all ranks (attempt 1)",
        "step 4 finished by all ranks (attempt 2)",
    ]
