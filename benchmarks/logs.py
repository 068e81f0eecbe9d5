"""How fast `everstep classify` reads a large log, and in how much memory.

    python -m benchmarks.logs [--mebibytes 1024]

Makes logs of three sorts, each with one telling line near its end, and reads each with the command
in a process of its own: step lines, as a healthy run prints them for weeks; NCCL's INFO lines of a
start on many ranks; and tracebacks over and over, hardly two alike, the worst that a log can be,
which has no goal. The rate is over the processor time of the whole command, its start included.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from benchmarks.results import Result, conclude

MEBIBYTE = 1 << 20
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=python, GPU has fallen off the bus.\n"
GOAL_MB_PER_S = 50.0
GOAL_MIB = 150.0
_REPEATED_LINES = 40_000
_FRESH_LINES = 2_000


def steps() -> Iterator[str]:
    """Megatron's step lines."""
    number = 0
    while True:
        number += 1
        yield (
            f" iteration {number:8d}/ 500000 | consumed samples: {number * 1024:12d} | elapsed time"
            f" per iteration (ms): {5100 + number % 97}.{number % 10} | lm loss: 2.{number:06d}E+00"
            " | loss scale: 1.0 | grad norm: 0.150 | number of skipped iterations:   0 | number of"
            " nan iterations:   0 |\n"
        )


def starts() -> Iterator[str]:
    """NCCL's INFO lines."""
    made = random.Random(1)  # noqa: S311 - the same log every time
    while True:
        node, rank = made.randrange(2048), made.randrange(8)
        yield (
            f"node-{node}:{made.randrange(9999)}:{made.randrange(9999)} [{rank}] NCCL INFO Channel"
            f" {made.randrange(32):02d}/0 : {node}[{rank}] -> {node + 1}[{rank}] [send] via"
            f" NET/IB/{rank}/GDRDMA comm 0x{made.getrandbits(48):x} nRanks 16384\n"
        )


def tracebacks() -> Iterator[str]:
    """Exceptions in functions whose names are hardly ever the same."""
    made = random.Random(2)  # noqa: S311 - the same log every time
    while True:
        name = "".join(made.choices("abcdefghijklmnopqrstuvwxyz_", k=12))
        yield (
            "Traceback (most recent call last):\n"
            f'  File "/opt/code/{name}.py", line {made.randrange(999)}, in {name[::-1]}\n'
            f"    return self.{name}(batch, 0x{made.getrandbits(40):x})\n"
            f"RuntimeError: the {name} of rank {made.randrange(999)} was skipped, going on\n"
        )


SORTS: dict[str, Callable[[], Iterator[str]]] = {
    "steps": steps,
    "starts": starts,
    "tracebacks": tracebacks,
}


def write(path: Path, lines: Iterator[str], num_bytes: int) -> None:
    """Write a log of this size with a telling line near its end."""
    some = "".join(islice(lines, _REPEATED_LINES)).encode()
    written = 0
    with path.open("wb") as file:
        while written < num_bytes:
            written += file.write(some)
            written += file.write("".join(islice(lines, _FRESH_LINES)).encode())
        file.write(XID.encode() + some[: MEBIBYTE // 4])


def measure(name: str, size_bytes: int) -> tuple[float, float]:
    """Megabytes a second of processor time, and the highest resident memory so far in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.log"
        write(path, SORTS[name](), size_bytes)
        megabytes = path.stat().st_size / 1e6
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-m", "everstep.cli.main", "classify", "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took_s = time.monotonic() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    action = json.loads(done.stdout)["first_action"]
    print(f"{name}: {megabytes:.0f} MB in {took_s:.1f} s, {cpu_s:.1f} s of a core: {action}")
    if action != "evict_machine":
        raise SystemExit(f"the telling line of {name} was missed")
    return megabytes / cpu_s, after.ru_maxrss / 1024


def main() -> int:
    """Make the logs, read them, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024)
    size_bytes = parser.parse_args().mebibytes * MEBIBYTE
    results: list[Result] = []
    for name in SORTS:
        rate, peak_mib = measure(name, size_bytes)
        goal = 0.0 if name == "tracebacks" else GOAL_MB_PER_S
        results.append(Result(f"log_{name}_rate", rate, "MB/s", ">=", goal))
        results.append(Result(f"log_{name}_memory", peak_mib, "MiB", "<=", GOAL_MIB))
    return conclude(results)


if __name__ == "__main__":
    sys.exit(main())
