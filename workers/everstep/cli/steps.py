"""The run's log of steps, as the analyzer wrote it."""

from __future__ import annotations

import json
from pathlib import Path

from everstep.core.model import StepSeen


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
        steps.append(StepSeen(int(entry["attempt"]), int(entry["step"]), float(entry["at_s"])))
    return steps
