"""What the local cluster did, one JSON line each: an audit trail, and all that it remembers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Effects in order; whoever looks reads all of them, as they are few.

    Args:
        path: The file; made with the first effect.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, effect: str, **what: object) -> None:
        """Append one line."""
        line = json.dumps({"effect": effect, **what, "at_s": time.time()})
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)

    def write_once(self, effect: str, reason: str, **what: str | int) -> None:
        """Append one line, unless one that says the same is there."""
        wanted: dict[str, Any] = {"effect": effect, **what}
        if not any(wanted.items() <= entry.items() for entry in self._entries()):
            self.write(effect, **what, reason=reason)

    def quarantined(self) -> set[str]:
        """Machines that were taken out and not given back."""
        shut: set[str] = set()
        for entry in self._entries():
            if entry["effect"] in ("quarantine", "evict"):
                shut.add(entry["machine"])
            elif entry["effect"] == "release":
                shut.discard(entry["machine"])
        return shut

    def holders(self) -> dict[str, int]:
        """Slots by machine."""
        slot_of: dict[str, int] = {}
        for entry in self._entries():
            if entry["effect"] == "slots":
                slot_of = {machine: slot for slot, machine in enumerate(entry["machines"])}
            elif entry["effect"] == "slot":
                slot_of[entry["machine"]] = entry["slot"]
            elif entry["effect"] in ("quarantine", "evict"):
                slot_of.pop(entry["machine"], None)
        return slot_of

    def _entries(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]
