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


class StepReader:
    """Reads a log of steps bit by bit.

    Args:
        path: The file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0

    def read(self) -> list[StepSeen]:
        """The steps since the last time, in order; a line that is still being written is not."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset_bytes)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset_bytes += len(whole)
        return [seen for line in whole.splitlines() if (seen := _seen(line)) is not None]


def load_steps(path: Path) -> list[StepSeen]:
    """When all ranks had finished which step, in order; a line cut off in mid-write is left out."""
    return StepReader(path).read()


def _seen(line: bytes) -> StepSeen | None:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        # An analyzer that was killed cut it off, and the next one wrote on.
        return None
    stalled_s = float(entry.get("stalled_s", 0.0))
    return StepSeen(int(entry["attempt"]), int(entry["step"]), float(entry["at_s"]), stalled_s)
