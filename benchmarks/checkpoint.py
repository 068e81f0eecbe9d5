"""What saving at every step costs a training loop: Everstep beside torch's own checkpoints.

One process trains, with 256 MiB of state and steps that last about three copies of it; the ways of
saving take turns on the same tensors. Everstep saves into the memory of an agent, which is another
process; torch.distributed.checkpoint into files in /dev/shm, synchronously and in the background,
each time waiting for the save before. Then 1 GiB goes from one agent's memory into another's and
back, beside a plain socket copy (`benchmarks.checkpoint_transfer`).

Run as `python -m benchmarks.checkpoint`; takes about two minutes on two idle cores. Everstep's own
thread and agents need a core beside the training's: on a machine that is busy otherwise, step times
say nothing. Other rivals are only named.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

import psutil

from benchmarks import checkpoint_transfer
from benchmarks.checkpoint_trainer import STATE_BYTES
from benchmarks.results import Result, conclude
from everstep.agent.channel import RankChannel
from everstep.agent.shards import ShardStore
from everstep.agent.transfer import BackupSender, TransferServer
from everstep.core import names
from everstep.core.model import MachineInfo

PATIENCE_S = 240.0
OTHERS = {
    "torchft": "torchft",
    "NVIDIA Resiliency Extension": "nvidia_resiliency_ext",
    "DLRover flash checkpoint": "dlrover",
}


def train(with_backup: bool, rivals: bool) -> tuple[dict[str, Any], float]:
    """What the training process measured, and how many copies of its state lay in memory."""
    secret, job = b"a secret of the benchmark", "benchmark"
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
    channel.close()
    sender.close()
    server.close()
    copies = (store.memory_bytes + peer.memory_bytes) / STATE_BYTES
    return json.loads(done.stdout.splitlines()[-1]), copies


def show(title: str, measured: dict[str, Any]) -> None:
    """One line a way of saving."""
    print(f"{title}: one copy of the state takes {1e3 * measured['copy_s']:.0f} ms")
    for name, (step_s, waited_s) in measured["methods"].items():
        print(f"  {name:26} step {1e3 * step_s:7.1f} ms, of which saving {1e3 * waited_s:8.2f} ms")


def main() -> int:
    """Measure, print, compare."""
    print(f"busy before it begins: {psutil.cpu_percent(interval=2.0):.0f} % of the cores")
    for name, module in OTHERS.items():
        installed = "installed" if importlib.util.find_spec(module) else "not installed"
        print(f"not compared: {name} ({installed})")
    measured, _ = train(with_backup=False, rivals=True)
    show("own copy at every step", measured)
    backed_up, copies = train(with_backup=True, rivals=False)
    show("with a backup of every step over loopback, on the same cores", backed_up)
    plain, backup, pull = checkpoint_transfer.measure()
    for name, rate in (("plain socket", plain), ("backup", backup), ("pull", pull)):
        print(f"{name}: {rate / 1e9:.2f} GB/s")
    waited_s = {name: waited for name, (_, waited) in measured["methods"].items()}
    rival = min(waited for name, waited in waited_s.items() if name.startswith("dcp."))
    # Headers and descriptions are the third decimal.
    return conclude(
        [
            Result(
                "checkpoint_blocking_vs_best_rival", rival / waited_s["everstep"], "ratio", ">=", 10
            ),
            Result("step_time_with_saving", measured["step_ratio"], "ratio", "<=", 1.02),
            Result("backup_vs_plain_socket", backup / plain, "ratio", ">=", 0.6),
            Result("restore_pull_vs_plain_socket", pull / plain, "ratio", ">=", 0.6),
            Result("host_memory_buffers", round(copies, 2), "shards", "<=", 4),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
