"""What an agent did on its machine, one JSON line per effect, for people and audits.

Nothing in Everstep reads it to decide anything.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """An append-only file of effects. Safe to use from several threads and processes.

    Args:
        path: The file; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, effect: str, **fields: Any) -> None:
        """Add one line, in one write: lines of several writers never mix.

        Args:
            effect: What was done, in one word.
            fields: What belongs to it, as JSON can tell it.
        """
        line = json.dumps({"at_s": time.time(), "effect": effect, **fields})
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """Nothing is written afterwards."""
        os.close(self._fd)


def read(path: Path) -> list[dict[str, Any]]:
    """All effects in a journal, oldest first; a last line that was cut short is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
