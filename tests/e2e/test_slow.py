"""A rank whose steps cost more is found and its machine evicted; other work beside names nobody."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from everstep.core.vocabulary import Outcome, Rung, Symptom
from tests.e2e.local import Finished, run, start, write_spec

pytestmark = [pytest.mark.slow, pytest.mark.server]

SLOW_AT, STEPS = 150, 20_000

# Speaks as the library does, without its need for torch. What it computes is time on a core, and so
# does not depend on what else the machine has to do.
TRAIN = f"""
import json, os, pathlib, socket, time
from everstep.core import channel

rank, attempt = int(os.environ["RANK"]), int(os.environ["EVERSTEP_ATTEMPT"])
sock = socket.socket(fileno=int(os.environ["EVERSTEP_CHANNEL_FD"]))

def say(message):
    sock.sendall(channel.encode(message))

def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

say(channel.Hello())
for step in range(1, {STEPS} if attempt == 1 else 30):
    ill = (attempt, rank) == (1, 1) and step >= {SLOW_AT}
    if ill and step == {SLOW_AT}:
        path = pathlib.Path(os.environ["EVERSTEP_OUTPUT_DIR"]) / "slow.json"
        path.write_text(json.dumps(time.time()))
    compute(0.04 if ill else 0.02)
    time.sleep(0.06 if ill else 0.08)
    say(channel.Report(step))
"""


@pytest.mark.timeout(300)
def test_a_machine_that_computes_twice_as_long_is_evicted(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    # With `bash` ranks are started as fresh programs: nobody waits for torch.
    spec = write_spec(
        tmp_path,
        0,
        1,
        command=["bash", "-c", "exec python train.py"],
        code={"directory": "code"},
        machines=3,
        gpus_per_machine=1,
        parallelism={"dp": 3},
        detection={"slow_round_s": 1.0},
    )
    done = run(spec, tmp_path / "run")
    assert done.code == 0, done.explain()
    (incident,) = done.incidents
    assert (incident.finding.symptom, incident.outcome) == (Symptom.MFU_DECLINE, Outcome.RECOVERED)
    assert [climb.rung for climb in incident.climbs] == [Rung.EVICT]
    assert (incident.evicted, incident.replacements) == (("m1",), ("m3",))
    slow_at_s: Any = json.loads((done.folder / "output" / "slow.json").read_text())
    # Four rounds; the rest is for a machine under load, on which some do not count.
    assert 3.0 < incident.opened_at_s - float(slow_at_s) < 30.0
    found = next(entry.text for entry in incident.timeline if "rank 1 on m1 computes" in entry.text)
    assert "last round, cpu time a step" in found


# --- The reference trainer, in the time that it takes ---------------------------------------------


REAL: dict[str, object] = {
    "command": ["python", "train.py", "--steps", "1000000", "--width", "128", "--layers", "4"],
    "machines": 4,
    "gpus_per_machine": 1,
    "parallelism": {"tp": 2, "pp": 1, "dp": 2, "order": "tp-pp-dp"},
}


def train_for(tmp_path: Path, seconds: float, *options: str) -> Finished:
    """Train until there was an incident, but for no longer than this."""
    folder = tmp_path / "run"
    process = start(write_spec(tmp_path, 0, 1, **REAL), folder, *options)
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s and process.poll() is None:
        if any((folder / "incidents").glob("*.json")):
            break
        time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    return Finished(folder, process.returncode, stdout, stderr)


@pytest.mark.soak
@pytest.mark.timeout(700)
@pytest.mark.parametrize("times", [1.3, 1.1])
def test_a_rank_that_is_slowed_is_named_within_a_minute(tmp_path: Path, times: float) -> None:
    """Ten percent want a machine without much other work; see docs/detection-and-ladder.md."""
    done = train_for(tmp_path, 600.0, "--fault", f"slow@400:m2,times={times}")
    (incident,) = done.incidents
    assert incident.evicted == ("m2",), done.explain()
    (fault,) = done.state["faults"]
    assert 0.0 < incident.opened_at_s - fault["at_s"] < 65.0


# Up to four processes that compute, or fill memory, for 3 to 25 s, and pauses between.
OTHER_WORK = """
import multiprocessing, random, sys, time

def work(seconds):
    until, memory = time.monotonic() + seconds, bytearray(8_000_000)
    while time.monotonic() < until:
        if random.random() < 0.5:
            sum(i * i for i in range(10_000))
        else:
            memory[:] = bytes(memory)

if __name__ == "__main__":
    luck = random.Random(1)
    while True:
        several = [
            multiprocessing.Process(target=work, args=(luck.uniform(3, 25),), daemon=True)
            for _ in range(luck.randint(0, 4))
        ]
        for process in several:
            process.start()
        time.sleep(luck.uniform(2, 20))
        for process in several:
            process.join()
"""


@contextlib.contextmanager
def other_work(folder: Path) -> Generator[None]:
    program = folder / "other_work.py"
    program.write_text(OTHER_WORK)
    process = subprocess.Popen([sys.executable, program])
    try:
        yield
    finally:
        # It ends its own children when it ends, and only by this signal.
        process.send_signal(signal.SIGINT)
        process.wait(30)


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_half_an_hour_beside_other_work_names_nobody(tmp_path: Path) -> None:
    with other_work(tmp_path):
        done = train_for(tmp_path, 1800.0)
    assert done.incidents == [], done.explain()
    assert len((done.folder / "steps.jsonl").read_text().splitlines()) > 500
