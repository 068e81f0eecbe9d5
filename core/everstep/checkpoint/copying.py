"""From the tensors to shared memory, while training goes on.

The only module that knows whether tensors lie on a GPU. There, the copies run on a stream of their
own, beside the training's kernels, into memory that is registered with the driver: only such memory
is copied to without the CPU's help and without making the training's stream wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch

from everstep.checkpoint.checksums import digest_of
from everstep.checkpoint.tree import FlatTree
from everstep.core.errors import PermanentError

# Parts of it are not annotated.
_cuda: Any = torch.cuda

_ALL_GPUS = 1
"""cudaHostRegisterPortable: pinned for every GPU that the process uses."""


class Copier:
    """Copies one state after the other; on the CPU, torch lets go of the GIL while it copies."""

    devices: tuple[torch.device, ...] = ()
    """The GPUs from which it copies."""

    def mark(self) -> None:
        """The state is as it should be copied from here on; called by the training's thread."""

    def adopt(self, memory: memoryview) -> None:
        """Copies will go to this memory, and no longer to another.

        Raises:
            PermanentError: It is of no use for copies.
        """

    def release(self) -> None:
        """No more copies will be made.

        Raises:
            PermanentError: The memory cannot be given back.
        """

    def copy(self, state: FlatTree, payload: memoryview) -> None:
        """Write the state as it was marked; returns when the tensors may be changed again."""
        state.write(payload)

    def digest_common(self, state: FlatTree) -> str:
        """A digest of what the DP group has in common, as it was marked."""
        return digest_of(state.common)


class CudaCopier(Copier):
    """Copies from GPUs.

    The tensors need no `record_stream`: the state keeps them, and so their memory, until the copies
    are done, and only then is it let go of.

    Args:
        devices: The GPUs, at least one.

    Paper: ByteRobust, section 6.3: a dedicated stream, and two host buffers that alternate.
    """

    def __init__(self, devices: tuple[torch.device, ...]) -> None:
        self.devices = devices
        self._streams: list[Any] = [_cuda.Stream(device) for device in devices]
        self._marked: list[Any] = []
        self._registered: memoryview | None = None

    def mark(self) -> None:
        """Remember how far the training's stream has come, on each GPU."""
        self._marked = [_cuda.current_stream(device).record_event() for device in self.devices]

    def adopt(self, memory: memoryview) -> None:
        """Register the memory with the driver, unless it is already."""
        if memory is self._registered:
            return
        self.release()
        with self._on_gpu():
            status = _cuda.cudart().cudaHostRegister(_address(memory), len(memory), _ALL_GPUS)
        _check(status, "register")
        # Kept, so that it stays mapped for as long as it is registered.
        self._registered = memory

    def release(self) -> None:
        """Take the memory out of the driver's register."""
        if self._registered is not None:
            with self._on_gpu():
                status = _cuda.cudart().cudaHostUnregister(_address(self._registered))
            _check(status, "release")
            self._registered = None

    def copy(self, state: FlatTree, payload: memoryview) -> None:
        """Let the copies follow the marked kernels, and wait for the copies alone."""
        with self._beside_training():
            state.write(payload)

    def digest_common(self, state: FlatTree) -> str:
        """Let the sums follow the marked kernels; they are made on the GPUs."""
        with self._beside_training():
            return digest_of(state.common)

    @contextlib.contextmanager
    def _beside_training(self) -> Generator[None]:
        with self._on_gpu(), contextlib.ExitStack() as current:
            for stream, marked in zip(self._streams, self._marked, strict=True):
                stream.wait_event(marked)
                # Each GPU has a current stream of its own, and a tensor is copied on that of its.
                current.enter_context(_cuda.stream(stream))
            try:
                yield
            finally:
                # What has been begun still reads the tensors.
                for stream in self._streams:
                    stream.synchronize()

    def _on_gpu(self) -> Any:
        # A new thread's GPU is the first one, where this process may have no business.
        return _cuda.device(self.devices[0])


def copier_for(state: FlatTree) -> Copier:
    """A copier for this state and those on the same devices."""
    devices = state.cuda_devices
    return CudaCopier(devices) if devices else Copier()


def _address(memory: memoryview) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def _check(status: Any, what: str) -> None:
    if int(status) != 0:
        raise PermanentError(f"the CUDA driver cannot {what} the checkpoint memory: {status}")
