"""The reference trainer under plain torchrun: equal to the bit, resumable, right in any layout."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

TRAINER = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"
SMALL = ("--width", "32", "--context", "32", "--batch", "8")
TWO_BY_TWO = ("--tp", "2", "--pp", "2", "--steps", "10")
PATIENCE_S = 90.0
STEP_LINE = re.compile(r"step (\d+) loss (\d+\.\d{4}) \d+\.\d{3} s\n")

pytestmark = [pytest.mark.slow]


@dataclass(frozen=True)
class Run:
    """What a finished run leaves behind."""

    steps_printed: list[int]
    digests: list[dict[str, Any]]

    def sha256s(self) -> list[str]:
        return [digest["sha256"] for digest in self.digests]

    def losses(self, num_steps: int) -> list[float]:
        """The last losses, as a rank of the last pipeline stage saw them."""
        last = max(self.digests, key=lambda digest: digest["coordinates"]["pp"])
        return list(last["losses"][-num_steps:])


@contextlib.contextmanager
def torchrun(
    num_ranks: int, *flags: str, layout: str = ""
) -> Generator[tuple[subprocess.Popen[str], IO[str]]]:
    """The trainer's ranks, which are gone afterwards whatever happened."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(num_ranks), str(TRAINER), *SMALL, *flags]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EVERSTEP_")}
    environment |= {"OMP_NUM_THREADS": "1", "EVERSTEP_PARALLELISM": layout}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        # torchrun ends its ranks when it is told to end itself.
        watchdog = threading.Timer(PATIENCE_S, process.terminate)
        watchdog.start()
        try:
            assert process.stdout is not None
            yield process, process.stdout
        finally:
            watchdog.cancel()
            process.terminate()


def train(num_ranks: int, out: Path, *flags: str, layout: str = "") -> Run:
    with torchrun(num_ranks, *flags, "--out", str(out), layout=layout) as (process, output):
        lines = list(output)
        assert process.wait() == 0, "".join(lines)
    steps = [int(match[1]) for line in lines if (match := STEP_LINE.fullmatch(line))]
    digests = [json.loads(path.read_text()) for path in sorted(out.glob("digest-rank-*.json"))]
    assert [digest["rank"] for digest in digests] == list(range(num_ranks))
    return Run(steps, digests)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(4, tmp_path_factory.mktemp("straight"), *TWO_BY_TWO)


def test_two_runs_are_equal_to_the_bit_and_learn(straight: Run, tmp_path: Path) -> None:
    again = train(4, tmp_path, *TWO_BY_TWO)
    assert again.digests == straight.digests
    assert len(set(straight.sha256s())) == 4
    assert straight.steps_printed == list(range(1, 11))
    losses = straight.losses(10)
    assert losses[-1] < losses[0] - 1.0


@pytest.mark.soak
def test_a_killed_run_resumes_to_the_same_end(straight: Run, tmp_path: Path) -> None:
    files = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-every", "2")
    slow = ("--step-time-s", "0.1", "--out", str(tmp_path))
    with torchrun(4, *TWO_BY_TWO, *files, *slow) as (process, output):
        for line in output:
            if line.startswith("step 5 "):
                ranks = psutil.Process(process.pid).children()
                ranks[0].send_signal(signal.SIGKILL)
        assert process.wait() != 0
    assert not list(tmp_path.glob("digest-*"))

    resumed = train(4, tmp_path, *TWO_BY_TWO, *files)
    assert resumed.steps_printed[0] in (5, 7, 9)
    assert resumed.digests == straight.digests


@pytest.mark.soak
def test_layouts_agree_on_the_losses(tmp_path: Path) -> None:
    short = ("--steps", "5", "--lr", "1e-3")
    alone = train(1, tmp_path / "alone", *short).losses(5)
    everything = train(8, tmp_path / "all", *short, layout="tp=2,pp=2,dp=2;order=dp-cp-pp-tp")
    assert everything.losses(5) == pytest.approx(alone, abs=1e-4)
    places = [
        tuple(digest["coordinates"][axis] for axis in ("dp", "pp", "tp"))
        for digest in everything.digests
    ]
    assert places == [(dp, pp, tp) for tp in (0, 1) for pp in (0, 1) for dp in (0, 1)]
    # Copies of one shard are the same; different shards are not.
    shas = everything.sha256s()
    assert shas[0::2] == shas[1::2]
    assert len(set(shas)) == 4
