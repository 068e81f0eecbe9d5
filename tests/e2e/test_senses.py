"""A loss that stops being a number, and a rank that stops: each is seen, and the job goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.core.vocabulary import Outcome, Rung, Symptom
from tests.e2e.local import run, write_spec

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(200)]

STEPS, NAN_AT, HANG_AT = 40, 12, 30
HANG_AFTER_S = 5.0
"""Longer than steps of this job take on a machine under load, shorter than the default."""

# Speaks as the library does, without its need for torch: each rank by itself.
TRAIN = f"""
import json, math, os, pathlib, signal, socket, time
from everstep.core import channel

rank, attempt = int(os.environ["RANK"]), int(os.environ["EVERSTEP_ATTEMPT"])
sock = socket.socket(fileno=int(os.environ["EVERSTEP_CHANNEL_FD"]))

def say(message):
    sock.sendall(channel.encode(message))

def note(what):
    path = pathlib.Path(os.environ["EVERSTEP_OUTPUT_DIR"]) / (what + ".json")
    path.write_text(json.dumps(time.time()))

say(channel.Hello())
for step in range(1, {STEPS} + 1):
    time.sleep(0.1)
    if step == 6 and attempt == 1:
        say(channel.Entered("evaluation"))
        time.sleep({HANG_AFTER_S} + 1.0)
        say(channel.Entered("step"))
    if (attempt, rank, step) == (2, 1, {HANG_AT}):
        note("hang")
        os.kill(os.getpid(), signal.SIGSTOP)
    bad = (attempt, rank, step) == (1, 1, {NAN_AT})
    if bad:
        note("nan")
    say(channel.Report(step, math.nan if bad else 2.0, 1.0))
"""


def test_a_nan_and_a_hang_open_incidents_within_their_time(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    # With `bash` ranks are started as fresh programs: nobody waits for torch.
    spec = write_spec(
        tmp_path,
        0,
        0,
        command=["bash", "-c", "exec python train.py"],
        code={"directory": "code"},
        machines=2,
        gpus_per_machine=1,
        parallelism={"dp": 2},
        detection={"hang_after_at_least_s": HANG_AFTER_S},
        # Checks would load torch just for this.
        safety={"modes": {"checks": "observe"}},
    )
    # The analyzer dies just before the hang: the next one learns from what agents remember.
    done = run(spec, tmp_path / "run", f"analyzer_killed@{HANG_AT - 1}")
    assert done.code == 0, done.explain()
    nan, hang = done.incidents
    assert [i.finding.symptom for i in (nan, hang)] == [Symptom.NAN_VALUE, Symptom.JOB_HANG]
    assert {i.outcome for i in (nan, hang)} == {Outcome.RECOVERED}
    for incident in (nan, hang):
        assert [climb.rung for climb in incident.climbs] == [Rung.CHECKS, Rung.REATTEMPT]
    assert nan.opened_at_s - injected(done.folder, "nan") < LOADED_S
    silent_s = hang.opened_at_s - injected(done.folder, "hang")
    assert HANG_AFTER_S - 0.2 < silent_s < HANG_AFTER_S + LOADED_S
    assert "rank 1 on m1" in hang.finding.reason


LOADED_S = 20.0
"""What a busy machine may add, most of all to the start of another analyzer; how soon it is
otherwise, `benchmarks.detection` measures."""


def injected(folder: Path, what: str) -> float:
    moment: Any = json.loads((folder / "output" / f"{what}.json").read_text())
    return float(moment)
