"""Ways of saving a training state at every step: ours, torch's own, and what they are held against.

Each is asked for three things: to save after an update, to say before the next update that the
tensors may change, and to give back what it keeps, so that nobody counts who keeps no copy.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import importlib
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from everstep import checkpoint

State = dict[str, Any]


class Method(ABC):
    """A way of saving at every step.

    Attributes:
        name: What the table calls it.
        note: What a reader of its figure has to know.
        is_rival: Whether it is somebody else's way, and not a yardstick.
    """

    name: str
    note: str = ""
    is_rival: bool = True

    @abstractmethod
    def save(self, step: int, state: State) -> None:
        """Save; returns when training may go on."""

    def before_update(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait until the tensors may be changed."""

    def finish(self) -> None:  # noqa: B027
        """Wait for all that still goes on."""

    def load(self) -> State | None:
        """What it keeps; None where another process keeps it."""
        return None

    def close(self) -> None:  # noqa: B027
        """Leave nothing behind."""


class Nothing(Method):
    """What all others are compared with."""

    name = "none"
    is_rival = False

    def save(self, step: int, state: State) -> None:
        """Do not."""


class PlainCopy(Method):
    """A second set of tensors, written by a thread: what no way of saving can do without."""

    name = "bare copy in a thread"
    note = "no checksum, lost with the process: the floor"
    is_rival = False

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._copies = [torch.zeros_like(tensor) for tensor in tensors]
        self._thread = ThreadPoolExecutor(1)
        self._copied: Future[None] | None = None

    def save(self, step: int, state: State) -> None:
        """Let the thread copy."""
        self._copied = self._thread.submit(self._copy)

    def before_update(self) -> None:
        """Wait for the copy."""
        if self._copied is not None:
            self._copied.result()

    def finish(self) -> None:
        """Likewise."""
        self.before_update()

    def load(self) -> State:
        """The copies."""
        return {"weights": dict(enumerate(self._copies))}

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _copy(self) -> None:
        for copied, tensor in zip(self._copies, self._tensors, strict=True):
            copied.copy_(tensor)


class Everstep(Method):
    """Ours; what it keeps lies in the agent's memory, and is looked at there."""

    name = "everstep"
    note = "the agent's memory, two steps, checksums"
    is_rival = False

    def __init__(self, session: checkpoint.Session) -> None:
        self._session = session
        self._last: tuple[int, State] = 0, {}

    def save(self, step: int, state: State) -> None:
        """Leave it to the background."""
        self._session.save(2 * step, state)
        self._last = step, state

    def before_update(self) -> None:
        """Wait for this rank's own copy."""
        self._session.wait_before_update()

    def finish(self) -> None:
        """Let the last step become whole, so that what is measured next is alone."""
        step, state = self._last
        self._session.save(2 * step + 1, state, blocking=True)

    def close(self) -> None:
        """Let go of the agent."""
        self._session.close()


class _Files(Method):
    """`torch.distributed.checkpoint`, to files in memory.

    A reader of these checkpoints takes a whole one only: the one before is deleted once the next
    is there, as ours keeps two.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: list[Path] = []
        self._tensors: list[torch.Tensor] = []

    def load(self) -> State:
        """Read the newest."""
        state = {"weights": {str(i): torch.zeros_like(t) for i, t in enumerate(self._tensors)}}
        dcp().load(state, checkpoint_id=self._kept[-1])
        return state

    def _new(self, step: int, state: State) -> Path:
        self._tensors = list(state["weights"].values())
        while len(self._kept) > 1:
            shutil.rmtree(self._kept.pop(0))
        self._kept.append(self._folder / str(step))
        return self._kept[-1]


class DcpSave(_Files):
    """Synchronous."""

    name = "torch dcp.save"
    note = "files in /dev/shm"

    def save(self, step: int, state: State) -> None:
        """Write the files."""
        dcp().save(state, checkpoint_id=self._new(step, state))


class DcpAsync(_Files):
    """In the background; waits for its last save, as a step is of no use until it is whole.

    Args:
        folder: Where to write.
        kind: "thread" or "process".
        staged: Whether to keep one staging buffer for all steps and to copy into it in a thread:
            the best of its options without a GPU; else as it comes.
    """

    def __init__(self, folder: Path, kind: str, staged: bool) -> None:
        super().__init__(folder)
        self.name = f"torch dcp.async_save, {kind}{', DefaultStager' if staged else ''}"
        self.note = "files in /dev/shm; waits for the save before"
        self._kind = dcp().state_dict_saver.AsyncCheckpointerType[kind.upper()]
        self._stager: Any = None
        if staged:
            staging = importlib.import_module("torch.distributed.checkpoint.staging")
            options = staging.StagingOptions(False, True, True, False)
            self._stager = staging.DefaultStager(options)
        self._answer: Any = None

    def save(self, step: int, state: State) -> None:
        """Stage the state, once the last step's files are written."""
        self.finish()
        options = {} if self._stager is None else {"async_stager": self._stager}
        self._answer = dcp().async_save(
            state,
            checkpoint_id=self._new(step, state),
            async_checkpointer_type=self._kind,
            **options,
        )

    def before_update(self) -> None:
        """Wait until the state is staged."""
        if hasattr(self._answer, "staging_completion"):
            self._answer.staging_completion.result()

    def finish(self) -> None:
        """Wait for the files."""
        if self._answer is not None:
            getattr(self._answer, "upload_completion", self._answer).result()

    def close(self) -> None:
        """Give the staging buffer back."""
        if self._stager is not None:
            self._stager.close()


def dcp() -> Any:
    """Loaded only once it is its turn."""
    return importlib.import_module("torch.distributed.checkpoint")


def dcp_methods(folder: Path) -> list[Method]:
    """All of torch's own."""
    return [
        DcpSave(folder / "save"),
        *(
            DcpAsync(folder / f"{kind}{staged}", kind, staged)
            for kind in ("thread", "process")
            for staged in (False, True)
        ),
    ]
