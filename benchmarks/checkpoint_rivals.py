"""Other libraries' ways of saving at every step, as far as they are installed and run on a CPU.

`benchmarks/rivals.txt` lists them. Each is used as its own documentation says, with the options
that make it fastest here.
"""

# None of them is typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.checkpoint_methods import Method, State

PATIENCE = timedelta(minutes=10)
HOST = "127.0.0.1"

# Its stores are exported without being declared.
_dist: Any = dist


class TorchftHttp(Method):
    """Serves the state to whoever asks for it."""

    name = "torchft HTTPTransport"
    note = "on a CPU it copies nothing: it serves the live tensors"

    def __init__(self, folder: Path) -> None:
        module = importlib.import_module("torchft.checkpointing.http_transport")
        self._transport: Any = module.HTTPTransport(PATIENCE, num_chunks=0)
        self._step = 0

    def save(self, step: int, state: State) -> None:
        """Serve this one from now on."""
        self._transport.disallow_checkpoint()
        self._transport.send_checkpoint([1], step, state, PATIENCE)
        self._step = step

    def load(self) -> State:
        """Ask for it as a recovering machine does."""
        address = self._transport.metadata()
        return dict(self._transport.recv_checkpoint(0, address, self._step, PATIENCE))

    def close(self) -> None:
        """Serve nobody any more."""
        self._transport.shutdown(wait=False)


class TorchftGroup(Method):
    """Sends the state to another process through gloo."""

    name = "torchft PGTransport"
    note = "one copy in another process, torn if this one dies meanwhile"

    def __init__(self, folder: Path) -> None:
        self._store = _dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        address = f"{HOST}:{self._store.port}/transport"
        self._receiver = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.checkpoint_rivals", address],
            stdout=subprocess.DEVNULL,
        )
        self._transport = _group_transport(address, 0)
        self._num_sent = 0

    def save(self, step: int, state: State) -> None:
        """Send it."""
        self._num_sent += 1
        self._transport.send_checkpoint([1], self._num_sent, state, PATIENCE)

    def close(self) -> None:
        """End the receiver."""
        self._receiver.kill()
        self._receiver.wait()


class Nvrx(Method):
    """NVIDIA Resiliency Extension's local checkpoint, in memory's file system."""

    name = "NVRx LocalCheckpointManager"
    note = "files in /dev/shm; its asynchronous way needs CUDA"

    def __init__(self, folder: Path) -> None:
        local = "nvidia_resiliency_ext.checkpointing.local"
        managers = importlib.import_module(f"{local}.ckpt_managers.local_manager")
        states = importlib.import_module(f"{local}.basic_state_dict")
        self._manager = managers.LocalCheckpointManager(folder)

        class OnCpu(states.BasicTensorAwareStateDict):  # type: ignore[name-defined,misc]
            """The library's own takes tensors on a GPU only."""

            def __init__(self, state_dict: State) -> None:
                self.state_dict = state_dict
                self._is_hollow = False

            def restore_tensor_device(self, non_blocking: bool = True) -> None:
                """They are where they belong."""

        # Its files are pickled, and name the class.
        OnCpu.__qualname__ = "OnCpu"
        globals()["OnCpu"] = OnCpu
        self._wrap: Callable[[State], Any] = OnCpu

    def save(self, step: int, state: State) -> None:
        """Write the file."""
        # It changes the containers that it is given.
        self._manager.save(self._wrap({**state, "weights": dict(state["weights"])}), step)

    def load(self) -> State:
        """Read it."""
        self._manager.find_latest()
        loaded, _ = self._manager.load()
        return dict(loaded.state_dict)


class Dlrover(Method):
    """DLRover's flash checkpoint: a copy in shared memory."""

    name = "DLRover flash checkpoint, MEMORY"
    note = "one copy, none while it is written"

    def __init__(self, folder: Path) -> None:
        self._run = f"everstep-benchmark-{os.getpid()}"
        os.environ["TORCHELASTIC_RUN_ID"] = self._run
        module = importlib.import_module("dlrover.trainer.torch.flash_checkpoint.ddp")
        log = importlib.import_module("dlrover.python.common.log")
        log.default_logger.setLevel(logging.ERROR)
        kinds = importlib.import_module("dlrover.trainer.torch.flash_checkpoint.checkpointer")
        self._in_memory = kinds.StorageType.MEMORY
        self._checkpointer = module.DdpCheckpointer(str(folder))

    def save(self, step: int, state: State) -> None:
        """Copy it."""
        self._checkpointer.save_checkpoint(step, state, storage_type=self._in_memory)

    def load(self) -> State:
        """Read it back from there."""
        return dict(self._checkpointer.load_checkpoint())

    def close(self) -> None:
        """Take away the memory, which would outlive all of its processes."""
        self._checkpointer._engine.close()  # pyright: ignore[reportPrivateUsage]
        for left in Path("/dev/shm").glob(f"{self._run}*"):  # noqa: S108 - where it lies
            left.unlink()


RIVALS: dict[str, tuple[type[TorchftGroup | TorchftHttp | Nvrx | Dlrover], ...]] = {
    "torchft": (TorchftGroup, TorchftHttp),
    "nvidia-resiliency-ext": (Nvrx,),
    "dlrover": (Dlrover,),
}
"""By the name under which it is installed."""


def installed(folder: Path) -> tuple[list[Method], dict[str, str]]:
    """The methods of all libraries that are there, and what became of each other one."""
    methods: list[Method] = []
    absent: dict[str, str] = {}
    for library, kinds in RIVALS.items():
        try:
            number = version(library)
        except PackageNotFoundError:
            absent.update({kind.name: "not installed" for kind in kinds})
            continue
        for kind in kinds:
            place = folder / kind.__name__
            place.mkdir(parents=True)
            try:
                method = kind(place)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                absent[f"{kind.name} ({number})"] = f"does not work here: {error!r:.200}"
                continue
            method.name = f"{kind.name} ({number})"
            methods.append(method)
    return methods, absent


def _group_transport(address: str, rank: int, state: State | None = None) -> Any:
    groups = importlib.import_module("torchft.process_group")
    group = groups.ProcessGroupGloo(timeout=PATIENCE)
    group.configure(address, f"replica-{rank}", rank, 2)
    module = importlib.import_module("torchft.checkpointing.pg_transport")
    into = None if state is None else lambda: state
    return module.PGTransport(group, PATIENCE, torch.device("cpu"), state_dict=into)


def receive(address: str) -> None:
    """Take in one state after the other, into the same memory, as its documentation advises."""
    received: State = {}
    transport = _group_transport(address, 1, received)
    number = 1
    while True:
        received.update(transport.recv_checkpoint(0, "", number, PATIENCE))
        number += 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    receive(sys.argv[1])
