"""What `everstep run` says while a job runs."""

from __future__ import annotations

import pytest

from everstep.cli.run import Voice
from everstep.core.record import Finding, IncidentRecord, TimelineEntry
from everstep.core.vocabulary import Outcome, Symptom
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
    voice.progress(Snapshot(2, {0: 5}, 5, ("m0",)))
    finding = Finding(Symptom.PROCESS_CRASH, (), (), False, "")
    timeline = (TimelineEntry(101.0, "attempt 2 started from step 3"),)
    voice.incident(IncidentRecord(1, "toy", 100.0, 100.0, Outcome.OPEN, finding, timeline=timeline))
    voice.started()
    told = [line.split(" s ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "all ranks are started; the first step takes longest",
        "step 1 finished by all ranks (attempt 1)",
        "  incident 1 +1.00 s: attempt 2 started from step 3",
        "step 4 finished by all ranks (attempt 2)",
    ]
