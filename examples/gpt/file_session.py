"""Checkpoints as files, for a run of the trainer that Everstep does not carry."""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class FileSession:
    """What `everstep.checkpoint` does, by files: one folder a step, one file a rank."""

    directory: Path
    every: int

    def paths(self, step: int) -> list[Path]:
        """Where the files of a step lie, by rank."""
        ranks = range(dist.get_world_size())
        return [self.directory / f"step-{step:08d}" / f"rank-{rank:05d}.pt" for rank in ranks]

    def restore(self) -> SimpleNamespace | None:
        """The newest step that every rank has written, or None."""
        steps = [int(folder.name.removeprefix("step-")) for folder in self.directory.glob("step-*")]
        for step in sorted(steps, reverse=True):
            if all(path.exists() for path in self.paths(step)):
                state = torch.load(self.paths(step)[dist.get_rank()], map_location="cpu")
                return SimpleNamespace(step=step, state=state)
        return None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write this rank's file whole or not at all, and drop its last but one."""
        if step % self.every:
            return
        path = self.paths(step)[dist.get_rank()]
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
        self.paths(step - 2 * self.every)[dist.get_rank()].unlink(missing_ok=True)

    def wait_before_update(self) -> None:
        """Nothing to wait for: `save` has written everything."""

    def report(self, step: int, *, loss: float | None, grad_norm: float | None) -> None:
        """Nobody listens."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Nobody listens."""
        return nullcontext()
