"""Incident records as files in the run's folder, for reading when no server is up."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter
from temporalio import activity

from everstep.core.record import IncidentRecord
from everstep.workflows.ports import ArchivePort

_RECORD = TypeAdapter(IncidentRecord)


class FileArchive(ArchivePort):
    """Keeps one JSON file an incident.

    Args:
        folder_of: Where the files of a job go, by its name; made when missing.
    """

    def __init__(self, folder_of: Callable[[str], Path]) -> None:
        self._folder_of = folder_of

    @activity.defn(name="archive.save_incident")
    async def save_incident(self, record: IncidentRecord) -> None:
        """Write the record's file.

        Effect: `<folder>/<incident>.json` holds the record; replaced as a whole.
        Idempotent by: the incident's number; the newest call wins.
        Heartbeats: no, a small file.
        Gives up when: the disk does; the workflow goes on without.
        """
        await asyncio.to_thread(self._write, record)

    def _write(self, record: IncidentRecord) -> None:
        folder = self._folder_of(record.job)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{record.incident}.json"
        partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        partial.write_bytes(_RECORD.dump_json(record, indent=2))
        partial.replace(path)


def load_incidents(directory: Path) -> list[IncidentRecord]:
    """All records of a folder, by number; none where the folder does not exist."""
    records = [_RECORD.validate_json(path.read_bytes()) for path in directory.glob("*.json")]
    return sorted(records, key=lambda record: record.incident)
