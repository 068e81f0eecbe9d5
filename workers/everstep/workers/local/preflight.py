"""What is checked before anything starts: a message now beats a failure in the middle of a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from everstep.core.errors import InputError

SHM = "/dev/shm"  # noqa: S108 - the shared memory file system itself

MIN_SHM_BYTES_PER_RANK = 4 * 1024 * 1024
"""Our own checkpoint memory does not live there, but NCCL's transport and data loaders need about
this much for each rank, and fail in ways that do not name the cause."""

MIN_MEMORY_BYTES_PER_MACHINE = 400 * 1024 * 1024
"""An agent and a pre-warmed process with torch loaded were measured at 75 and 150 to 250 MB."""

MIN_DISK_BYTES = 256 * 1024 * 1024


def check_host(num_ranks: int, num_machines: int, directory: Path) -> None:
    """Check that this host can carry the run.

    Args:
        num_ranks: Ranks of the job.
        num_machines: Machines, standbys included.
        directory: The run's folder, which need not be there yet.

    Raises:
        InputError: Shared memory, memory or disk will not do; says how much is there and needed.
    """
    if os.path.isdir(SHM):  # noqa: PTH112 - a mount point, not one of our paths
        _enough(
            f"{SHM} (shared memory)",
            shutil.disk_usage(SHM).free,
            num_ranks * MIN_SHM_BYTES_PER_RANK,
            f"Delete what fills it (ls -lS {SHM}), or mount it larger.",
        )
    _enough(
        "memory",
        _available_memory_bytes(),
        num_machines * MIN_MEMORY_BYTES_PER_MACHINE,
        "Stop something, or run fewer machines.",
    )
    there = next((d for d in (directory, *directory.absolute().parents) if d.exists()), directory)
    _enough(
        f"disk ({directory})",
        shutil.disk_usage(there).free,
        MIN_DISK_BYTES,
        "Free some space, or choose another folder with --run-dir.",
    )


def _enough(where: str, free_bytes: int, needed_bytes: int, fix: str) -> None:
    if free_bytes < needed_bytes:
        free, needed = free_bytes / 2**20, needed_bytes / 2**20
        raise InputError(where, f"{free:.0f} MiB free, the run needs {needed:.0f} MiB", fix)


def _available_memory_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise InputError("/proc/meminfo", "has no MemAvailable line", "Run on Linux.")
