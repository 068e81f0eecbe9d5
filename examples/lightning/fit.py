"""A Lightning training that goes on to the bit where it was interrupted, inside of an epoch too.

    everstep run job.yaml                          # a checkpoint after every step, and recovery
    torchrun --nproc-per-node 4 fit.py             # the same training by itself

All of it is in `everstep_callback.py`: here it is the callback and the loader that are given.
"""

# torch is loosely typed.
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from everstep_callback import EverstepCallback, ResumableLoader
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DistributedSampler, TensorDataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
BATCH, WIDTH = 4, 16


class Classifier(LightningModule):
    """A common module: it knows nothing of Everstep."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, 2)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean loss over a batch."""
        points, sides = batch
        return nn.functional.cross_entropy(self.layers(points), sides)

    def configure_optimizers(self) -> Any:
        """An optimizer, and a scheduler that moves with every step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main() -> None:
    """Train, from wherever the newest checkpoint left off."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    points = torch.randn(160, WIDTH)
    data = TensorDataset(points, (points @ torch.randn(WIDTH) > 0).long())
    sampler: DistributedSampler[int] = DistributedSampler(
        data, world_size, rank, seed=1, drop_last=True
    )
    module = Classifier()
    # Every rank drops by itself.
    torch.manual_seed(1 + rank)

    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=world_size // int(os.environ["LOCAL_WORLD_SIZE"]),
        # Else it orders gradients anew after a process's first step, and so rounds sums otherwise.
        strategy=DDPStrategy(find_unused_parameters=True),
        use_distributed_sampler=False,
        callbacks=[EverstepCallback()],
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, ResumableLoader(data, sampler, BATCH))
    if rank == 0:
        torch.save(
            module.state_dict(), Path(os.environ.get("EVERSTEP_OUTPUT_DIR", ".")) / "model.pt"
        )


if __name__ == "__main__":
    main()
