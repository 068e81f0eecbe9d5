"""Who tells a person what happens in a local run."""

from __future__ import annotations

from typing import Protocol

from everstep.core.record import IncidentRecord
from everstep.workers.telemetry import Snapshot


class Narrator(Protocol):
    """Who tells a person what happens."""

    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def started(self) -> None:
        """All ranks are started for the first time; may be told again."""
        ...

    def progress(self, snapshot: Snapshot) -> None:
        """The ranks are further."""
        ...

    def incident(self, record: IncidentRecord) -> None:
        """An incident stands like this now; told again after every change."""
        ...
