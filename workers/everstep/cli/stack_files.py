"""Stacks and flight recorders as files in a folder: which file is whose, and of which dump.

rank-7.json  recorder-7.json          the first dump
rank-7.2.json  recorder-7.2.json      the second one, some seconds later
NAME/rank-7.json ...                  or later dumps in folders of their own, by name
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from everstep.core.errors import InputError
from everstep.core.stacks.dump import Answer, RankDump, Snapshot
from everstep.core.stacks.pyspy import Reader
from everstep.core.stacks.recorder import Recorder, read_recorder

_NAME = re.compile(r"(rank|recorder)[-_]?(\d+)(?:\.(\d+))?\.json")
_CHUNK_BYTES = 1 << 20
_NUMBERS = re.compile(r"(\d+)")


@dataclass(slots=True)
class _Files:
    ranks: dict[int, str] = field(default_factory=dict[int, str])
    recorders: dict[int, str] = field(default_factory=dict[int, str])


def read_folder(folder: Path, world_size: int) -> list[Snapshot]:
    """Every dump in a folder, in order of time; what cannot be read did not answer.

    Args:
        folder: The folder.
        world_size: Number of ranks of the job; one without a file did not answer.

    Raises:
        InputError: It is no folder, holds no dump, or one of a rank that the job does not have.
    """
    try:
        dumps = [dump for dump in _find(folder) if dump.ranks or dump.recorders]
    except OSError as error:
        what = error.strerror or str(error)
        raise InputError(str(folder), what, "Give a folder of rank-N.json.") from None
    if not dumps:
        raise InputError(str(folder), "holds no rank-N.json", "Give a folder of stack dumps.")
    for dump in dumps:
        for rank, path in (*dump.ranks.items(), *dump.recorders.items()):
            if rank >= world_size:
                last = world_size - 1
                fix = "Give the spec of the job that hung."
                raise InputError(path, f"rank {rank} is not one of 0 to {last}", fix)
    reader = Reader()
    return [_read(dump, reader) for dump in dumps]


def _find(folder: Path) -> list[_Files]:
    numbered: dict[int, _Files] = {}
    later: list[_Files] = []
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if (found := _NAME.fullmatch(entry.name)) is not None:
                files = numbered.setdefault(int(found[3] or 1), _Files())
                by_rank = files.ranks if found[1] == "rank" else files.recorders
                by_rank[int(found[2])] = entry.path
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    for path in sorted(folders, key=_natural):
        later.extend(_find(Path(path)))
    return [*(numbered[number] for number in sorted(numbered)), *later]


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name count as numbers."""
    parts: Iterable[str] = _NUMBERS.split(name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _read(files: _Files, reader: Reader) -> Snapshot:
    ranks: dict[int, RankDump] = {}
    for rank, path in files.ranks.items():
        text = _content(path)
        ranks[rank] = (
            RankDump(Answer.NO_ANSWER, detail="its dump cannot be read")
            if text is None
            else reader.read(text)
        )
    recorders: dict[int, Recorder] = {}
    for rank, path in files.recorders.items():
        text = _content(path)
        recorder = None if text is None else read_recorder(text)
        if recorder is not None:
            recorders[rank] = recorder
    return Snapshot(ranks, recorders)


def _content(path: str) -> bytes | None:
    try:
        # Of ten thousand files, file objects would take longer than their contents.
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: list[bytes] = []
        while part := os.read(number, _CHUNK_BYTES):
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(number)
    return parts[0] if len(parts) == 1 else b"".join(parts)
