"""Data parallel training in plain PyTorch that goes on to the bit where it was interrupted.

    everstep run job.yaml                          # a checkpoint after every step, and recovery
    torchrun --nproc-per-node 4 train.py           # the same training by itself

The three lines that Everstep needs are those with `session`; what makes the result exact is
`take` and `put`: model, optimizer, scheduler, random number generators, place in the data.
"""

# torch is loosely typed.
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, TensorDataset

from everstep import checkpoint

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
BATCH = 4
LEARNING_RATE = 0.01


def make_data(count: int = 160, width: int = 16) -> Dataset[tuple[Tensor, ...]]:
    """Points, and on which side of a random plane they lie."""
    points = torch.randn(count, width)
    return TensorDataset(points, (points @ torch.randn(width) > 0).long())


def make_model(width: int = 16) -> nn.Module:
    """Dropout, so that every step depends on the random number generator."""
    inner = 4 * width
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Dropout(0.1), nn.Linear(inner, 2))


class Training:
    """All that changes while the model learns."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.data = make_data()
        self.sampler: DistributedSampler[int] = DistributedSampler(
            self.data, seed=1, drop_last=True
        )
        self.epoch = self.step = self.batches_done = 0
        # Else it orders gradients anew after a process's first step, and so rounds sums otherwise.
        self.model = DistributedDataParallel(make_model(), find_unused_parameters=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)
        steps = EPOCHS * len(self.sampler) // BATCH
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, LEARNING_RATE, total_steps=steps
        )
        # Every rank drops, and flips, by itself.
        torch.manual_seed(2 + dist.get_rank())
        random.seed(2 + dist.get_rank())

    def take(self) -> dict[str, Any]:
        """What a later process needs to go on."""
        return {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": {"torch": torch.get_rng_state(), "python": random.getstate()},
            "data": {"epoch": self.epoch, "batches_done": self.batches_done},
        }

    def put(self, step: int, state: dict[str, Any]) -> None:
        """Go on from what an earlier process has left."""
        self.step = step
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"]["torch"])
        random.setstate(state["random"]["python"])
        self.epoch, self.batches_done = state["data"].values()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's batches of the epoch that are not done yet; the others are not loaded."""
        self.sampler.set_epoch(self.epoch)
        left = list(BatchSampler(self.sampler, BATCH, drop_last=True))[self.batches_done :]
        # With a generator of its own, beginning to iterate takes nothing from the training's.
        return iter(DataLoader(self.data, batch_sampler=left, generator=torch.Generator()))

    def run_step(self, points: Tensor, sides: Tensor) -> float:
        """One update; returns this rank's loss."""
        if random.random() < 0.5:  # noqa: S311 - no secret
            points, sides = -points, 1 - sides
        loss = nn.functional.cross_entropy(self.model(points), sides)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step, self.batches_done = self.step + 1, self.batches_done + 1
        return loss.item()


def main() -> None:
    """Train, from wherever the newest checkpoint left off."""
    dist.init_process_group("gloo")
    training = Training()

    session = checkpoint.connect()
    if (restored := session.restore()) is not None:
        training.put(restored.step, restored.state)
    session.protect(training.optimizer)

    while training.epoch < EPOCHS:
        loss = 0.0
        for points, sides in training.batches():
            loss = training.run_step(points, sides)
            session.save(training.step, training.take())
        if dist.get_rank() == 0:
            print(f"epoch {training.epoch} step {training.step} loss {loss:.4f}", flush=True)
        training.epoch, training.batches_done = training.epoch + 1, 0

    if dist.get_rank() == 0:
        folder = Path(os.environ.get("EVERSTEP_OUTPUT_DIR", "."))
        torch.save(training.model.module.state_dict(), folder / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
