"""Everstep for PyTorch Lightning: a callback and a loader to copy into a project.

    loader = ResumableLoader(dataset, sampler, batch_size)
    Trainer(callbacks=[EverstepCallback()], use_distributed_sampler=False, ...).fit(module, loader)

The module stays as it is. Without Everstep the callback does nothing.
"""

# torch is loosely typed.
# mypy: disable-error-code="no-untyped-call, no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from everstep import checkpoint


class EverstepCallback(Callback):
    """Saves after every update, and goes on from the newest one after a restart.

    Steps are those of `trainer.global_step`, which counts updates: with gradients accumulated over
    several batches, it saves between two updates only, when there are no gradients to keep.
    """

    def __init__(self) -> None:
        self._session = checkpoint.connect()
        self._restored: checkpoint.Restored | None = None
        self._step = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load all that has to be there before the loops begin."""
        self._restored = self._session.restore()
        if self._restored is None:
            return
        self._step, state = self._restored.step, self._restored.state
        pl_module.load_state_dict(state["model"])
        for optimizer, part in zip(trainer.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)
        for config, part in zip(trainer.lr_scheduler_configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(part)
        for callback in _callbacks(trainer):
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])
        trainer.precision_plugin.load_state_dict(state["precision"])
        trainer.fit_loop.load_state_dict(state["loops"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set what setting up may have used: the loader's place, and the generators."""
        loader = _loader(trainer)
        if self._restored is not None:
            loader.load_state_dict(self._restored.state["data"])
            _set_random_state(self._restored.state["random"])
            self._restored = None

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Wait for the last save; not by `protect`, as Lightning's step includes the forward."""
        self._session.wait_before_update()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save, if the batch ended with an update."""
        if trainer.global_step > self._step:
            self._step = trainer.global_step
            self._session.save(self._step, _state(trainer, pl_module))


def _state(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    return {
        "model": pl_module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "callbacks": {
            callback.state_key: callback.state_dict() for callback in _callbacks(trainer)
        },
        "precision": trainer.precision_plugin.state_dict(),
        # Epochs, batches, updates.
        "loops": trainer.fit_loop.state_dict(),
        "data": _loader(trainer).state_dict(),
        "random": _random_state(),
    }


def _callbacks(trainer: Trainer) -> list[Callback]:
    # Lightning does not declare them.
    untyped: Any = trainer
    return untyped.callbacks


def _loader(trainer: Trainer) -> ResumableLoader:
    loader = trainer.train_dataloader
    if not isinstance(loader, ResumableLoader):
        raise TypeError(f"fit() was given a {type(loader).__name__}: give it a ResumableLoader")
    return loader


def _random_state() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])


class ResumableLoader:
    """Batches that Lightning can go on with in the middle of an epoch, without loading the rest.

    What workers have read ahead does not count as done. They start anew with every epoch, and must
    not draw random numbers.

    Args:
        dataset: The data.
        sampler: Gives the same order again for the same `set_epoch`, as `DistributedSampler` does.
        batch_size: Items a batch; what is left at the end of an epoch is dropped.
        options: For the `DataLoader`.
    """

    def __init__(
        self, dataset: Dataset[Any], sampler: Sampler[int], batch_size: int, **options: Any
    ) -> None:
        # Lightning looks for it here, to tell it each epoch.
        self.sampler = sampler
        self._batches = BatchSampler(sampler, batch_size, drop_last=True)
        # With a generator of its own, an iterator's beginning draws nothing from the training's.
        self._loader = partial(DataLoader, dataset, generator=torch.Generator(), **options)
        self._begin_at = self._batches_done = 0

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        """An epoch, or what is left of the one that was interrupted."""
        self._batches_done, self._begin_at = self._begin_at, 0
        for batch in self._loader(batch_sampler=list(self._batches)[self._batches_done :]):
            self._batches_done += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The place in the data."""
        return {"batches_done": self._batches_done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The place at which the next iterator begins."""
        self._begin_at = state["batches_done"] % len(self)
