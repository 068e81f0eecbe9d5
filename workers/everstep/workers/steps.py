"""The run's log of steps: the analyzer writes it, reports at any later time read it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from everstep.core.model import StepSeen


class StepLog:
    """Appends the moment of every step to a file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, seen: StepSeen) -> None:
        """Append one line."""
        os.write(self._descriptor, json.dumps(asdict(seen)).encode() + b"\n")


def load_steps(path: Path) -> list[StepSeen]:
    """When all ranks had finished which step, in order; a line cut off in mid-write is left out."""
    if not path.exists():
        return []
    steps: list[StepSeen] = []
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        stalled_s = float(entry.get("stalled_s", 0.0))
        steps.append(
            StepSeen(int(entry["attempt"]), int(entry["step"]), float(entry["at_s"]), stalled_s)
        )
    return steps
