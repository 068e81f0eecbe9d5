"""Fully sharded training (FSDP2) that goes on to the bit where it was interrupted.

    everstep run job.yaml                          # a checkpoint after every step, and recovery
    torchrun --nproc-per-node 4 train.py           # the same training by itself

A small language model learns this file. Its state dicts hold DTensors: every rank saves the part
that it has, and restores it by itself, without a word to the others.
"""

# torch is loosely typed.
# mypy: disable-error-code="no-untyped-call, no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from everstep import checkpoint

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
BATCH, LENGTH, WIDTH, LAYERS = 4, 32, 32, 2
LEARNING_RATE, WARM_UP_STEPS = 3e-3, 10


class Model(nn.Module):
    """Bytes in, the next bytes out; the first and the last weight are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, [sequence, position, byte]."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.mask, is_causal=True)
        return self.head(x)


def learning_rate_ratio(step: int) -> float:
    """A line up, and then a line down."""
    return min((step + 1) / WARM_UP_STEPS, 1 - step / (STEPS + 1))


class Training:
    """All that changes while the model learns."""

    def __init__(self) -> None:
        self.text = Path(__file__).read_bytes()
        self.step = self.sequences_read = 0
        torch.manual_seed(0)
        self.model = Model()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, learning_rate_ratio)
        # Every rank drops by itself.
        torch.manual_seed(1 + dist.get_rank())

    def take(self) -> dict[str, Any]:
        """What a later process needs to go on, as far as it is this rank's."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": torch.get_rng_state(),
            "data": {"sequences_read": self.sequences_read},
        }

    def put(self, step: int, state: dict[str, Any]) -> None:
        """Go on from what an earlier process with this rank has left."""
        self.step = step
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])
        self.sequences_read = state["data"]["sequences_read"]

    def batch(self) -> Tensor:
        """This rank's next sequences, [sequence, position]; all ranks read the text together."""
        first = self.sequences_read + BATCH * dist.get_rank()
        self.sequences_read += BATCH * dist.get_world_size()
        starts = [i * LENGTH % (len(self.text) - LENGTH) for i in range(first, first + BATCH)]
        return torch.tensor([list(self.text[start : start + LENGTH + 1]) for start in starts])

    def run_step(self) -> float:
        """One update; returns this rank's loss."""
        tokens = self.batch()
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return loss.item()


def main() -> None:
    """Train, from wherever the newest checkpoint left off."""
    dist.init_process_group("gloo")
    training = Training()

    session = checkpoint.connect()
    # After init_process_group, whose ranks the sharded tensors lie on.
    if (restored := session.restore()) is not None:
        training.put(restored.step, restored.state)
    session.protect(training.optimizer)

    while training.step < STEPS:
        loss = training.run_step()
        session.save(training.step, training.take())
        if dist.get_rank() == 0 and training.step % 10 == 0:
            print(f"step {training.step} loss {loss:.4f}", flush=True)

    # All ranks give their parts; one writes the whole.
    state = training.model.state_dict()
    whole = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}
    if dist.get_rank() == 0:
        torch.save(whole, Path(os.environ.get("EVERSTEP_OUTPUT_DIR", ".")) / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
