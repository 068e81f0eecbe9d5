"""A small byte-level GPT with tensor, pipeline and data parallelism, written by hand.

It learns the sources of Python's standard library, so it needs no data set. It runs under Everstep
and under plain `torchrun --nproc-per-node 8 train.py --tp 2 --pp 2 --dp 2` alike. For a given
layout its results are equal to the bit, however often it is interrupted.
"""

# torch is loosely typed.
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import random
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

# Read by the libraries when they load: one thread, as the number of threads changes bits; groups
# that connect at first use; and no seconds lost to a slow resolver on start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from file_session import FileSession
from torch import Tensor, nn
from with_everstep import open_faults, open_session, shrink

if TYPE_CHECKING:
    from injected import Faults

    from everstep.checkpoint import Session


AXES = ("tp", "pp", "dp")
VOCABULARY = 256
NUM_FILES = 32


@dataclass(frozen=True)
class Axis:
    """One kind of parallelism as this rank sees it: its index in its group's global ranks."""

    index: int
    is_last: bool
    ranks: list[int]
    group: dist.ProcessGroup | None


Mesh = dict[str, Axis]
"""A rank's place in the job, by name of the axis."""


def join(args: argparse.Namespace) -> Mesh:
    """Meet the other ranks and make this one's groups; the order's first axis varies fastest."""
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    timeout = timedelta(seconds=args.timeout_s)
    backend = args.backend or ("nccl" if args.device == "cuda" else "gloo")
    dist.init_process_group(backend, timeout=timeout)
    rank, stride, mesh = dist.get_rank(), 1, Mesh()
    for name in args.order.split("-"):
        size = getattr(args, name, 1)
        index = rank // stride % size
        ranks = [rank + (i - index) * stride for i in range(size)]
        # Only members make a group, so that starting costs the same at any number of ranks.
        group = None if size == 1 else dist.new_group(ranks, timeout, None, None, True, name)
        mesh[name] = Axis(index, index == size - 1, ranks, cast(dist.ProcessGroup | None, group))
        stride *= size
    assert stride == dist.get_world_size(), f"the layout has {stride} ranks"
    return mesh


# One named function for each kind of wait, so that a stack tells who waits for what.


def tp_all_reduce(tensor: Tensor, tp: Axis) -> Tensor:
    """Sum over the tensor-parallel group, in place."""
    if tp.group is not None:
        dist.all_reduce(tensor, group=tp.group)
    return tensor


def dp_all_reduce(tensor: Tensor, dp: Axis) -> Tensor:
    """Sum over the data-parallel group, in place."""
    if dp.group is not None:
        dist.all_reduce(tensor, group=dp.group)
    return tensor


def pp_send(tensor: Tensor, pp: Axis, offset: int) -> None:
    """Give a tensor to the stage `offset` away."""
    dist.send(tensor.contiguous(), dst=pp.ranks[pp.index + offset], group=pp.group)


def pp_recv(buffer: Tensor, pp: Axis, offset: int) -> Tensor:
    """Fill a tensor from the stage `offset` away."""
    dist.recv(buffer, src=pp.ranks[pp.index + offset], group=pp.group)
    return buffer


class _CopyToTp(torch.autograd.Function):
    """Enter a tensor-parallel region: identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Axis) -> Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return tp_all_reduce(grads[0].clone(), ctx.tp), None


class _ReduceFromTp(torch.autograd.Function):
    """Leave a tensor-parallel region: all-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Axis) -> Tensor:
        return tp_all_reduce(x.clone(), tp)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def make_weight(
    seed: int, tp: Axis, name: str, *shape: int, std: float, cut: int | None = None
) -> Tensor:
    """This rank's part along `cut` of a random weight, whose seed is the same in every layout."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    whole = torch.randn(shape, generator=generator) * std
    part = whole if cut is None else whole.chunk(len(tp.ranks), cut)[tp.index]
    return nn.Parameter(part.contiguous())


class Block(nn.Module):
    """Attention and MLP, each column-parallel into its region and row-parallel out of it."""

    def __init__(self, layer: int, args: argparse.Namespace, tp: Axis) -> None:
        super().__init__()
        self.tp, width, self.head_width = tp, args.width, args.width // args.heads
        weight = partial(make_weight, args.seed, tp)
        std, out_std = width**-0.5, (2 * args.layers * width) ** -0.5
        self.norm1 = nn.Parameter(torch.ones(width))
        self.qkv = weight(f"{layer}.qkv", 3, width, width, std=std, cut=1)
        self.out = weight(f"{layer}.out", width, width, std=out_std, cut=1)
        self.norm2 = nn.Parameter(torch.ones(width))
        self.up = weight(f"{layer}.up", 4 * width, width, std=std, cut=0)
        self.down = weight(f"{layer}.down", width, 4 * width, std=out_std / 2, cut=1)

    def column_parallel(self, x: Tensor, weight: Tensor) -> Tensor:
        """This rank's columns of the product with the whole `x`."""
        return F.linear(cast(Tensor, _CopyToTp.apply(x, self.tp)), weight)

    def row_parallel(self, x: Tensor, weight: Tensor) -> Tensor:
        """The whole product, of which every rank has a part of `x`."""
        return cast(Tensor, _ReduceFromTp.apply(F.linear(x, weight), self.tp))

    def forward(self, x: Tensor) -> Tensor:
        """One transformer layer; `x` is [sequence, position, width]."""
        normed = F.layer_norm(x, self.norm1.shape, self.norm1)
        q, k, v = (
            part.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in self.column_parallel(normed, self.qkv.flatten(0, 1)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.row_parallel(mixed.transpose(1, 2).flatten(2), self.out)
        normed = F.layer_norm(x, self.norm2.shape, self.norm2)
        return x + self.row_parallel(F.gelu(self.column_parallel(normed, self.up)), self.down)


class Stage(nn.Module):
    """This rank's share of the layers; the first stage embeds and the last one predicts."""

    def __init__(self, args: argparse.Namespace, mesh: Mesh) -> None:
        super().__init__()
        pp, tp, width = mesh["pp"], mesh["tp"], args.width
        weight = partial(make_weight, args.seed, tp)
        if pp.index == 0:
            self.tokens = weight("tokens", VOCABULARY, width, std=0.5)
            self.positions = weight("positions", args.context, width, std=0.1)
        share = args.layers // len(pp.ranks)
        layers = range(pp.index * share, (pp.index + 1) * share)
        self.blocks = nn.Sequential(*(Block(layer, args, tp) for layer in layers))
        if pp.is_last:
            self.norm = nn.Parameter(torch.ones(width))
            self.head = weight("head", VOCABULARY, width, std=width**-0.5)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy, in nats a byte."""
        logits = F.linear(F.layer_norm(x, self.norm.shape, self.norm), self.head)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Adam:
    """Adam over one flat buffer, whose gradient the data-parallel group reduces in one go.

    Hand-written, as `torch.optim` imports the compiler on first use, which costs a restart seconds.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        parameters = list(model.parameters())
        sizes = [p.numel() for p in parameters]
        self.lr = lr
        self.weights = torch.cat([p.detach().flatten() for p in parameters])
        # One element more for the loss, which so needs no collective of its own.
        self.reduced = self.weights.new_zeros(sum(sizes) + 1)
        self.mean = torch.zeros_like(self.weights)
        self.variance = torch.zeros_like(self.weights)
        buffers = self.weights.split(sizes), self.reduced[:-1].split(sizes)
        for p, weight, grad in zip(parameters, *buffers, strict=True):
            p.data, p.grad = weight.view_as(p), grad.view_as(p)

    def step(self, step: int) -> None:
        """Update the weights from the reduced gradient; `step` counts from 1."""
        grad = self.reduced[:-1]
        self.mean.lerp_(grad, 0.1)
        self.variance.mul_(0.95).addcmul_(grad, grad, value=0.05)
        root = (self.variance / (1 - 0.95**step)).sqrt_().add_(1e-8)
        self.weights.addcdiv_(self.mean, root, value=-self.lr / (1 - 0.9**step))


class Trainer:
    """One rank's model, optimizer and last losses (on the last pipeline stage; 0 elsewhere)."""

    def __init__(self, args: argparse.Namespace, mesh: Mesh) -> None:
        self.args, self.mesh, self.pp, self.dp = args, mesh, mesh["pp"], mesh["dp"]
        self.model = Stage(args, mesh).to(args.device)
        self.adam = Adam(self.model, args.lr)
        self.losses = torch.zeros(10)
        self.before_reduce: Callable[[Tensor], None] = lambda _: None
        self.before_update: Callable[[], None] = lambda: None
        # Few enough sources of the standard library that reading them costs a start nothing.
        files = sorted(Path(os.__file__).parent.glob("*.py"))[:NUM_FILES]
        self.text = b"".join(file.read_bytes() for file in files)

    def state(self) -> dict[str, Any]:
        """What a later process needs to go on; the data follow from the step."""
        moments = {"mean": self.adam.mean, "variance": self.adam.variance}
        return {"model": self.model.state_dict(), "optimizer": moments, "losses": self.losses}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from an earlier process's state."""
        self.model.load_state_dict(state["model"])
        self.adam.mean.copy_(state["optimizer"]["mean"])
        self.adam.variance.copy_(state["optimizer"]["variance"])
        self.losses.copy_(state["losses"])

    def global_batch(self, step: int) -> Tensor:
        """All token ids of a step, [sequence, context + 1]: the same in every layout."""
        chooser = random.Random(f"{self.args.seed}/{step}")  # noqa: S311 - no secret
        length = self.args.context + 1
        starts = [chooser.randrange(len(self.text) - length) for _ in range(self.args.batch)]
        rows = [list(self.text[start : start + length]) for start in starts]
        return torch.tensor(rows, device=self.args.device)

    def run_step(self, step: int) -> None:
        """Do step number `step`, from 1: all micro-batches forward, all backward, update."""
        self.adam.reduced.zero_()
        rows = self.global_batch(step)[self.dp.index :: len(self.dp.ranks)]
        micro_batches = rows.tensor_split(self.args.microbatches)
        for received, out in [self.forward(tokens) for tokens in micro_batches]:
            self.backward(received, out)
        self.before_reduce(self.adam.reduced)
        dp_all_reduce(self.adam.reduced, self.dp)
        if not self.adam.reduced.sum().isfinite():
            raise FloatingPointError(f"found NaN in the reduced gradient or loss of step {step}")
        self.before_update()
        self.adam.step(step)
        self.losses = self.losses.roll(-1)
        self.losses[-1] = self.adam.reduced[-1]

    def forward(self, tokens: Tensor) -> tuple[Tensor | None, Tensor]:
        """One micro-batch through this stage: what it received, and what came out."""
        inputs, targets, received = tokens[:, :-1], tokens[:, 1:], None
        if self.pp.index == 0:
            x = F.embedding(inputs, self.model.tokens) + self.model.positions
        else:
            buffer = self.adam.weights.new_empty(*inputs.shape, self.args.width)
            x = received = pp_recv(buffer, self.pp, -1).requires_grad_()
        out = cast(Tensor, self.model.blocks(x))
        if self.pp.is_last:
            out = self.model.loss(out, targets) * (len(tokens) / self.args.batch)
            self.adam.reduced[-1] += out.detach()
        else:
            pp_send(out.detach(), self.pp, +1)
        return received, out

    def backward(self, received: Tensor | None, out: Tensor) -> None:
        """The same micro-batch's gradient back through this stage."""
        if not self.pp.is_last:
            # The same as out.backward(gradient), which would import sympy: most of a second.
            out = (out * pp_recv(torch.empty_like(out), self.pp, +1)).sum()
        out.backward()
        if received is not None:
            pp_send(cast(Tensor, received.grad), self.pp, -1)

    def figures(self) -> dict[str, float | None]:
        """What this rank knows of the last step: a loss on the last stage, its own gradient."""
        loss = self.losses[-1].item() if self.pp.is_last else None
        return {"loss": loss, "grad_norm": self.adam.reduced[:-1].norm().item()}

    def digest(self) -> str:
        """SHA-256 over all weights and moments."""
        sha = hashlib.sha256()
        for tensor in (self.adam.weights, self.adam.mean, self.adam.variance):
            host = tensor.cpu()
            sha.update(ctypes.string_at(host.data_ptr(), host.nbytes))
        return sha.hexdigest()

    def write_digest(self, step: int, directory: Path) -> None:
        """Leave proof of what was learned."""
        record = {
            "rank": dist.get_rank(),
            "step": step,
            "sha256": self.digest(),
            "coordinates": {name: axis.index for name, axis in self.mesh.items()},
            "losses": self.losses.tolist(),
        }
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"digest-rank-{dist.get_rank():05d}.json"
        path.with_suffix(".tmp").write_text(json.dumps(record))
        path.with_suffix(".tmp").replace(path)


def parse_arguments() -> argparse.Namespace:
    """Flags; the layout's defaults come from Everstep's environment, `tp=2,pp=2;order=tp-pp-dp`."""
    given, _, order = os.environ.get("EVERSTEP_PARALLELISM", "").partition(";order=")
    sizes = dict(part.split("=") for part in given.split(",") if part)
    numbers = {name: int(sizes.get(name, 1)) for name in AXES}
    numbers |= {"steps": 60, "layers": 2, "width": 64, "heads": 4, "context": 64, "batch": 16}
    numbers |= {"microbatches": 2, "seed": 1, "checkpoint-every": 1}
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--order", default=order or "-".join(AXES), help="first varies fastest")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--step-time-s", type=float, default=0.0, help="make steps last this long")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", help="default: gloo on cpu, nccl on cuda")
    parser.add_argument("--checkpoint-dir", help="checkpoints as files, instead of by Everstep")
    parser.add_argument("--out", default=os.environ.get("EVERSTEP_OUTPUT_DIR", "."))
    args = shrink(parser.parse_args())
    uneven = args.layers % args.pp or args.heads % args.tp or args.width % args.heads
    if uneven or args.batch % (args.dp * args.microbatches):
        parser.error("layers, heads, width or batch do not divide evenly by the layout")
    return args


def main() -> None:
    """Train, from wherever the newest checkpoint left off; or replay a few steps."""
    args = parse_arguments()
    torch.set_num_threads(1)
    # use_deterministic_algorithms() would import the compiler: nearly two seconds a rank.
    torch._C._set_deterministic_algorithms(True)
    mesh = join(args)
    session = open_session(args)
    store = dist.distributed_c10d._get_default_store()
    faults = open_faults([axis.ranks for axis in mesh.values()], store)
    if args.replays:
        for _ in range(args.replays):
            trainer = train(args, mesh, None, faults)
            if session and not isinstance(session, FileSession):
                session.replayed(trainer.digest())
    else:
        trainer = train(args, mesh, session, faults)
        with session.phase("checkpoint") if session else contextlib.nullcontext():
            trainer.write_digest(args.steps, Path(args.out))
    dist.destroy_process_group()


def train(
    args: argparse.Namespace,
    mesh: Mesh,
    session: Session | FileSession | None,
    faults: Faults | None,
) -> Trainer:
    """All steps that are left to do."""
    trainer = Trainer(args, mesh)
    restored = session.restore() if session else None
    if restored:
        trainer.load(restored.state)
    if session:
        # With an optimizer of torch: session.protect(optimizer).
        trainer.before_update = session.wait_before_update
    if faults:
        trainer.before_reduce = faults.poison
    reports = mesh["pp"].is_last and mesh["tp"].index == 0 and mesh["dp"].index == 0
    for step in range(restored.step + 1 if restored else 1, args.steps + 1):
        start_s = time.monotonic()
        with faults.during(step) if faults else contextlib.nullcontext():
            trainer.run_step(step)
        if session:
            session.save(step, trainer.state())
            session.report(step, **trainer.figures())
        time.sleep(max(0.0, start_s + args.step_time_s - time.monotonic()))
        if reports:
            took_s = time.monotonic() - start_s
            print(f"step {step} loss {trainer.losses[-1]:.4f} {took_s:.3f} s", flush=True)
    return trainer


if __name__ == "__main__":
    main()
