"""From the tensors to shared memory, while training goes on.

The only module that knows whether tensors lie on a GPU. There, the copies run on a stream of their
own, beside the training's kernels, into memory that is registered with the driver: only such memory
is copied to without the CPU's help and without making the training's stream wait.
"""

from __future__ import annotations

from typing import Any

import torch

from everstep.checkpoint.tree import FlatTree
from everstep.core.errors import PermanentError

# Parts of it are not annotated.
_cuda: Any = torch.cuda


class Copier:
    """Copies one state after the other; on the CPU, torch lets go of the GIL while it copies."""

    def mark(self) -> None:
        """The state is as it should be copied from here on; called by the training's thread."""

    def adopt(self, memory: memoryview) -> None:
        """Copies will go to this memory, and no longer to another.

        Raises:
            PermanentError: It is of no use for copies.
        """

    def release(self) -> None:
        """No more copies will be made."""

    def copy(self, state: FlatTree, payload: memoryview) -> None:
        """Write the state as it was marked; returns when the tensors may be changed again."""
        state.write(payload)


class CudaCopier(Copier):
    """Copies from a GPU.

    Args:
        device: The GPU.

    Paper: ByteRobust, section 6.3: a dedicated stream, and two host buffers that alternate.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _cuda.Stream(device)
        self._marked = _cuda.Event()
        self._registered: memoryview | None = None

    def mark(self) -> None:
        """Remember how far the training's stream has come."""
        self._marked = _cuda.Event()
        self._marked.record(_cuda.current_stream(self._device))

    def adopt(self, memory: memoryview) -> None:
        """Register the memory with the driver, unless it is already."""
        if memory is self._registered:
            return
        self.release()
        status = _cuda.cudart().cudaHostRegister(_address(memory), len(memory), 0)
        _check(status, "register")
        # Kept, so that it stays mapped for as long as it is registered.
        self._registered = memory

    def release(self) -> None:
        """Take the memory out of the driver's register."""
        if self._registered is not None:
            _check(_cuda.cudart().cudaHostUnregister(_address(self._registered)), "release")
            self._registered = None

    def copy(self, state: FlatTree, payload: memoryview) -> None:
        """Let the copies follow the marked kernels, and wait for the copies alone."""
        with _cuda.device(self._device), _cuda.stream(self._stream):
            self._stream.wait_event(self._marked)
            state.write(payload)
            self._stream.synchronize()


def copier_for(state: FlatTree) -> Copier:
    """A copier for this state and those that will be like it."""
    device = state.cuda_device
    return Copier() if device is None else CudaCopier(device)


def _address(memory: memoryview) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def _check(status: Any, what: str) -> None:
    if int(status) != 0:
        raise PermanentError(f"the CUDA driver cannot {what} the checkpoint memory: {status}")
