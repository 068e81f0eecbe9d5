"""A code version as one small file, which travels to every pod of a job in a ConfigMap.

`python -m everstep.workers.cluster.parcel FILE FOLDER VERSION` unpacks it in a pod before its agent
starts: on the machine's own disk, since thousands of ranks import from there.
"""

from __future__ import annotations

import gzip
import io
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.code import digest
from everstep.core.errors import EverstepError, InputError, PermanentError

MAX_BYTES = 900_000
"""A ConfigMap holds 1 MiB, encoded and with all that is beside the code in it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A code version that is sent.

    Attributes:
        version: Its identifier.
        data: It, packed.
    """

    version: str
    data: bytes


def pack(directory: Path) -> bytes:
    """Pack a version; the same content gives the same bytes.

    Raises:
        InputError: It is too large.
    """
    written = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=written, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(directory.rglob("*")):
            if "__pycache__" not in path.parts:
                name = str(path.relative_to(directory))
                archive.add(path, name, recursive=False, filter=_plain)
    data = written.getvalue()
    if len(data) > MAX_BYTES:
        raise InputError(
            "code",
            f"packed it has {len(data):,} bytes, and a ConfigMap holds {MAX_BYTES:,}",
            "Leave out what is no code; or put it into the image or on the volume, and say where:"
            " --code-at FOLDER.",
        )
    return data


def unpack(data: bytes, directory: Path, version: str) -> None:
    """Unpack a version into a folder, which is made; one that is there already stays.

    Raises:
        PermanentError: The file is damaged, or holds another version.
    """
    if directory.is_dir() and digest(directory) == version:
        return
    shutil.rmtree(directory, ignore_errors=True)
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            archive.extractall(partial, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise PermanentError(f"the code cannot be unpacked: {error}") from error
    found = digest(partial)
    if found != version:
        raise PermanentError(f"the code that was sent is {found}, not {version}")
    partial.rename(directory)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and times, which are no part of a version."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), sys.argv[3])
    except EverstepError as error:
        sys.exit(str(error))
