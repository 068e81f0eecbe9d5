"""Waking a standby beside starting a machine afresh, and what a standby costs while it sleeps.

One trainer, one layout (TP2 x PP2 x DP2, 4 machines of 2 ranks), one host; machines are killed, one
after the other, first in a run with a standby for each, then in one without any, whose job asks for
machines as it loses them. Measured is the time from the moment that a machine is wanted to the
first step that all ranks finish: with a standby from "takes slot", without one from the request.

What is in both: restoring shards from other machines, starting all ranks, the first step. What else
is in a fresh start: the run's look for requests, the start of the agent, imports, joining, and the
tests that a standby has behind it; what these take, the wait for imports included, is told apart.
What is in neither: evidence and stopping before. What a fresh start on a cluster has besides and
this one has not: scheduling, a boot or an image to pull, data to fetch.

Run as `python -m benchmarks.standby`; takes about two minutes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from benchmarks.restart import EXAMPLE, PATIENCE_S
from benchmarks.results import Result, conclude

KILLS = {100: "m1", 125: "m2", 150: "m0"}
STEPS = 175
ASLEEP_FOR_S = 8.0
ASKED = "asked the cluster for 1 machine"


class Run:
    """One run of the trainer.

    Args:
        folder: For everything that it writes.
        standby: That part of the spec.
    """

    def __init__(self, folder: Path, standby: dict[str, Any]) -> None:
        folder.mkdir()
        self.folder = folder / "run"
        spec: dict[str, Any] = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
        spec |= {
            "command": ["python", "train.py", "--steps", str(STEPS)],
            "code": {"directory": str(EXAMPLE)},
            "standby": standby,
            "ladder": {"probation_steps": 2, "probation_s": 0.5},
            "safety": {"max_evicted_ratio": 1.0},
        }
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(spec))  # pyright: ignore[reportUnknownMemberType]
        faults = [part for s, m in KILLS.items() for part in ("--fault", f"machine_lost@{s}:{m}")]
        command = [sys.executable, "-m", "everstep.cli.main", "run", str(file), *faults]
        self._process = subprocess.Popen(
            [*command, "--run-dir", str(self.folder)], stdout=subprocess.DEVNULL
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def wait_for_first_step(self) -> None:
        """Wait until it trains."""
        deadline_s = time.time() + PATIENCE_S
        steps = self.folder / "steps.jsonl"
        while not (steps.exists() and steps.read_text()):
            if time.time() > deadline_s or self._process.poll() is not None:
                raise RuntimeError(f"no step; see {self.folder}")
            time.sleep(0.05)

    def wait(self) -> None:
        """See it through to its end."""
        if self._process.wait(PATIENCE_S) != 0:
            raise RuntimeError(f"the run failed; see {self.folder}")

    def incidents(self) -> list[dict[str, Any]]:
        """Records, in order."""
        files = sorted(self.folder.glob("incidents/*.json"), key=lambda f: f.name)
        return [json.loads(file.read_text()) for file in files]

    def tests_s(self) -> list[float]:
        """How long the tests of each machine took that joined later, in order of their names."""
        journals = sorted(self.folder.glob("machines/*/journal.jsonl"))
        found: list[float] = []
        for journal in journals:
            lines = [json.loads(line) for line in journal.read_text().splitlines()]
            if took := [line["took_s"] for line in lines if line["effect"] == "tested"]:
                found.append(sum(took))
        return found

    def notes(self) -> list[tuple[float, str]]:
        """What the job noted, with times."""
        notes = json.loads((self.folder / "run.json").read_text())["notes"]
        return [(float(at_s), str(text)) for at_s, text in notes]


def told_at_s(record: dict[str, Any], words: str) -> float:
    """When an incident's story came to these words first."""
    return next(float(e["at_s"]) for e in record["timeline"] if words in e["text"])


def asleep(machine: str) -> tuple[float, float]:
    """Share of a core, and memory in MiB, that a standby's agent and pre-warmed process take."""
    agent = next(
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"][-2:] == ["everstep.workers.agent", machine]
    )
    family = [agent, *agent.children(recursive=True)]

    def used_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in family)

    began_s, before_s = time.monotonic(), used_s()
    time.sleep(ASLEEP_FOR_S)
    share = (used_s() - before_s) / (time.monotonic() - began_s)
    return share, sum(process.memory_full_info().pss for process in family) / 2**20


def main() -> int:
    """Measure both runs, print each time, and the results."""
    with tempfile.TemporaryDirectory(prefix="everstep-benchmark-") as top:
        top_folder = Path(top)
        with Run(top_folder / "warm", {"count": len(KILLS), "refill": False}) as warm:
            warm.wait_for_first_step()
            share, memory_mib = asleep("m6")
            warm.wait()
        with Run(top_folder / "cold", {"count": 0}) as cold:
            cold.wait()
        woken = [r["first_step_at_s"] - told_at_s(r, " takes slot ") for r in warm.incidents()]
        asked = [at_s for at_s, text in cold.notes() if text.startswith(ASKED)]
        late = list(zip(asked, cold.incidents(), strict=True))
        fresh = [record["first_step_at_s"] - at_s for at_s, record in late]
        testing = cold.tests_s()
        joining = [told_at_s(record, " takes slot ") - at_s for at_s, record in late]
    say("a standby is woken", woken)
    say("a machine starts afresh", fresh)
    say("  of that, until it may take the slot", joining)
    print(f"  of that, in tests: {', '.join(f'{took_s:.2f}' for took_s in testing)} s")
    print(f"asleep: {share:.1%} of a core, {memory_mib:.0f} MiB")
    ratio = statistics.median(fresh) / statistics.median(woken)
    return conclude(
        [
            Result("standby_vs_fresh_machine", ratio, "ratio", ">=", 10.0),
            Result("standby_asleep_core_share", share, "cores", "<=", 0.02),
        ]
    )


def say(what: str, times: Sequence[float]) -> None:
    """One line with the median and all times."""
    each = ", ".join(f"{value:.2f}" for value in times)
    print(f"{what}: median {statistics.median(times):.2f} s ({each})")


if __name__ == "__main__":
    sys.exit(main())
