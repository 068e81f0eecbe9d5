"""The demonstration behind `make demo`: train, lose a machine, lose nothing.

Runs the job of `job.yaml` twice on this machine: undisturbed, and with one machine killed by
SIGKILL in the middle. Ends with exit code 0 only if both end with the same weights and optimizer
state, bit by bit, and at most one step was done twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
FAULT = "machine_lost@30:m1"
MAX_STEPS_LOST = 1

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run both, compare, and show what happened."""
    began_s = time.monotonic()
    runs = Path("runs")
    undisturbed = train(runs / "demo-undisturbed", "1 of 2: an undisturbed run, to compare with")
    disturbed = train(
        runs / "demo", "2 of 2: the same, and machine m1 is killed after step 30", "--fault", FAULT
    )
    if undisturbed is None or disturbed is None:
        return 1
    console.rule("Result")
    same = compare(undisturbed, disturbed)
    figures = json.loads((disturbed / "run.json").read_text())["summary"]
    few = figures["steps_lost"] <= MAX_STEPS_LOST
    recovered = figures["incidents"] == 1 and figures["attempts"] == 2
    console.print(
        f"steps lost: {figures['steps_lost']} (allowed: {MAX_STEPS_LOST}); "
        f"incidents: {figures['incidents']}; ETTR of this short run: {figures['ettr']:.1%}"
    )
    console.print(
        f"Look closer: .venv/bin/everstep incident show 1 {disturbed}; "
        f"the ranks' logs by attempt: {disturbed}/machines"
    )
    verdict = same and few and recovered
    console.print(
        "[bold green]The weights are bit-equal: the job lost a machine and nothing else.[/]"
        if verdict
        else "[bold red]The demonstration failed.[/]"
    )
    console.print(f"Took {time.monotonic() - began_s:.0f} s.")
    return 0 if verdict else 1


def train(folder: Path, title: str, *options: str) -> Path | None:
    """One run by the `everstep` command; None when it did not finish."""
    console.rule(title)
    command = [
        sys.executable, "-m", "everstep.cli.main", "run", str(HERE / "job.yaml"),
        "--run-dir", str(folder), "--fresh", *options,
    ]  # fmt: skip
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        console.print(f"[bold red]The run in {folder} ended with exit code {done.returncode}.[/]")
        return None
    return folder


def compare(one: Path, other: Path) -> bool:
    """Compare every rank's digest over weights and optimizer state; false when any is missing."""
    table = Table("rank", "undisturbed", "with the fault", "equal", title="SHA-256 by rank")
    left, right = digests(one), digests(other)
    for rank in sorted(left | right):
        pair = left.get(rank, "missing"), right.get(rank, "missing")
        table.add_row(str(rank), pair[0][:16], pair[1][:16], "yes" if pair[0] == pair[1] else "NO")
    console.print(table)
    return bool(left) and left == right


def digests(folder: Path) -> dict[int, str]:
    """Each rank's digest after its last step."""
    found: dict[int, str] = {}
    for file in (folder / "output").glob("digest-rank-*.json"):
        content = json.loads(file.read_text())
        found[int(content["rank"])] = str(content["sha256"])
    return found


if __name__ == "__main__":
    sys.exit(main())
