"""What saving at every step costs a training loop: Everstep beside every other way there is.

One process trains, with 256 MiB of state and steps that last about three copies of it; the ways of
saving take turns on the same tensors. Everstep saves into the memory of an agent, which is another
process; torch.distributed.checkpoint into files in /dev/shm, synchronously and in the background,
each time waiting for the save before; other libraries as `benchmarks.checkpoint_rivals` says, where
they are installed. What does not give back what was saved, once the tensors have changed, is shown
and does not count. Then 1 GiB goes from one agent's memory into another's and back, beside a plain
socket copy (`benchmarks.checkpoint_transfer`).

Run as `python -m benchmarks.checkpoint`; takes two to five minutes on two cores. The other
libraries are no requirement of ours, and go into an environment of their own, which needs torch,
psutil and rich too, and Everstep itself:

    python -m venv DIR && DIR/bin/pip install -r benchmarks/rivals.txt torch psutil rich -e .

Step times are compared in turns, and for longer where they scatter, until the interval of their
median is clear of the goal. Everstep's own thread needs a core beside the training's. Where other
programs kept more than 5 % of the cores busy meanwhile, the clock tells more of them than of
saving: then what the training thread waited for a core is left out, and the last lines say so.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import checkpoint_transfer
from benchmarks.checkpoint_trainer import STATE_BYTES, STEP_TIME_GOAL, own_bytes
from benchmarks.results import Result, conclude
from everstep.agent.channel import RankChannel
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.sender import BackupSender
from everstep.agent.transfer.server import TransferServer
from everstep.checkpoint.checksums import checksum
from everstep.core import names
from everstep.core.model import MachineInfo
from everstep.core.shard import Region, aligned

PATIENCE_S = 1200.0
OURS = "everstep"
BUSY_RATIO = 0.05
"""Above it, the machine is too busy for the clock."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Host memory of one rank's checkpoints, in copies of its state.

    Attributes:
        own: What lies behind the rank's own memory file.
        peer: What lies behind that of the machine with its backup.
        processes: What the training process and the agent took beside that.
    """

    own: float
    peer: float
    processes: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.own + self.peer + self.processes


def train(with_backup: bool, rivals: bool) -> tuple[dict[str, Any], Memory]:
    """What the training process measured, and the memory that it took to save."""
    secret, job = b"a secret of the benchmark", "benchmark"
    before_bytes = own_bytes()
    store, peer = ShardStore("near"), ShardStore("far")
    sender, server = (
        BackupSender(store, secret, job),
        TransferServer("127.0.0.1", peer, secret, job),
    )
    holder = MachineInfo("far", "127.0.0.1", server.port, 0, os.getpid(), 0.0)
    ours, theirs = socket.socketpair()
    channel = RankChannel(
        0, 1, ours, store, sender, holder if with_backup else None, 0, lambda rank, step: None, 30.0
    )
    channel.start()
    with theirs, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        done = subprocess.run(
            [
                sys.executable, "-m", "benchmarks.checkpoint_trainer",
                "rivals" if rivals else "alone", folder,
            ],
            env={**os.environ, names.ENV_CHANNEL_FD: str(theirs.fileno()), "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the trainer failed: {done.stderr}")
    measured = json.loads(done.stdout.splitlines()[-1])
    grown_bytes = measured["grown_bytes"] + own_bytes() - before_bytes
    memory = Memory(_copies(store), _copies(peer), grown_bytes / STATE_BYTES)
    measured["kept"] = all(
        kept(where, measured["num_updates"])
        for where in ([store, peer] if with_backup else [store])
    )
    channel.close()
    sender.close()
    server.close()
    return measured, memory


def kept(store: ShardStore, num_updates: int) -> bool:
    """Whether a machine has the state after the last update, and that after the one before."""
    region = store.region(0)
    if region is None:
        return False
    committed = region.view.committed()
    numbers = range(num_updates - len(committed) + 1, num_updates + 1)
    return len(committed) == 2 and all(
        region.view.intact(slot, checksum) and _is_full_of(region.view, slot, number)
        for (slot, _), number in zip(committed, numbers, strict=True)
    )


def _is_full_of(view: Region, slot: int, number: int) -> bool:
    shard = view.read_slot(slot)
    if shard is None:
        return False
    payload = view.body(slot)[aligned(shard.metadata_bytes) : shard.body_bytes]
    return bool((torch.frombuffer(payload, dtype=torch.float32) == float(number)).all())


def _copies(store: ShardStore) -> float:
    """What the kernel holds for it, in copies of the state."""
    region = store.region(0)
    return 0.0 if region is None else os.fstat(region.fd).st_blocks * 512 / STATE_BYTES


def table(title: str, measured: dict[str, Any]) -> Table:
    """One row a way of saving."""
    shown = Table("saving at every step", title=title, title_justify="left")
    for name in ("step", "blocked", "a safe copy"):
        shown.add_column(name, justify="right")
    shown.add_column("note")
    rows = measured["rows"]
    for row in sorted(rows, key=lambda each: each["blocked_s"]):
        safe = measured["kept"] if row["name"] == OURS else row["kept"]
        words = {True: "yes", False: "NO", None: "elsewhere"}[safe]
        shown.add_row(
            row["name"],
            f"{1e3 * row['step_s']:.1f} ms",
            f"{1e3 * row['blocked_s']:.2f} ms",
            "" if row["name"] == "none" else words,
            row["note"],
        )
    for name, reason in measured["absent"].items():
        shown.add_row(name, "", "", "", reason)
    return shown


def best_rival(measured: dict[str, Any]) -> dict[str, Any]:
    """The one that blocks least, of those that keep a copy."""
    safe = [row for row in measured["rows"] if row["is_rival"] and row["kept"] is not False]
    return min(safe, key=lambda row: row["blocked_s"])


def step_time(measured: dict[str, Any]) -> tuple[float, str]:
    """Step time with saving over that without, and how it was come by."""
    ratios = {
        name: "{value:.3f} ({low:.3f} to {high:.3f})".format(**measured[name])
        for name in ("wall", "own", "floor")
    }
    busy = measured["others_busy"]
    text = (
        f"step time with saving over that without, median and its 99 % interval: {ratios['wall']}"
        f" by the clock, {ratios['own']} without waits for a core;\na bare copy in a thread in"
        f" place of ours: {ratios['floor']}. Other programs used {100 * busy:.0f} % of the cores:"
    )
    counts, words = ("own", "does not count") if busy > BUSY_RATIO else ("wall", "counts")
    text = f"{text} the clock {words}."
    if measured[counts]["low"] <= STEP_TIME_GOAL < measured[counts]["high"]:
        text += " The interval holds the goal: measure again when less goes on here."
    return measured[counts]["value"], text


def main() -> int:
    """Measure, print, compare."""
    console = Console(width=150)
    busy = psutil.cpu_percent(interval=2.0)
    console.print(f"busy before it begins: {busy:.0f} % of {os.cpu_count()} cores")
    measured, _ = train(with_backup=False, rivals=True)
    copy_ms = 1e3 * measured["copy_s"]
    console.print(table(f"256 MiB a rank; one copy takes {copy_ms:.0f} ms", measured))
    backed_up, memory = train(with_backup=True, rivals=False)
    console.print(table("with a backup of every step over loopback, on the same cores", backed_up))
    console.print(
        f"host memory, in copies of the state: own machine {memory.own:.3f}, backup's machine"
        f" {memory.peer:.3f}, processes {memory.processes:.3f}"
    )
    plain, backup, pull = checkpoint_transfer.measure()
    for name, rate in (("plain socket", plain), ("backup", backup), ("pull", pull)):
        console.print(f"{name}: {rate.value / 1e9:.2f} GB/s")
    ratio, words = step_time(measured)
    console.print(words)
    rival = best_rival(measured)
    console.print(f"best rival that keeps a safe copy: {rival['name']}")
    blocked_s = next(row["blocked_s"] for row in measured["rows"] if row["name"] == OURS)
    safe = measured["kept"] and backed_up["kept"]
    if not safe:
        console.print("what Everstep kept is not what was saved")
    results = [
        Result(
            "checkpoint_blocking_vs_best_rival", rival["blocked_s"] / blocked_s, "ratio", ">=", 10
        ),
        Result("step_time_with_saving", ratio, "ratio", "<=", STEP_TIME_GOAL),
        Result("backup_vs_plain_socket", backup.ratio, "ratio", ">=", 0.6),
        Result("restore_pull_vs_plain_socket", pull.ratio, "ratio", ">=", 0.6),
        # Headers, descriptions and the stacks of threads are the second decimal.
        Result("host_memory_copies", round(memory.total, 1), "shards", "<=", 4),
    ]
    return conclude(results) or int(not safe)


if __name__ == "__main__":
    sys.exit(main())
