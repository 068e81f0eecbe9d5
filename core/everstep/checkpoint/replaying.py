"""The hook by which a script runs a few steps of a smaller job, to find a machine that fails."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from everstep.core import names


@dataclass(frozen=True, slots=True)
class Replay:
    """What to run instead of the job. Sizes of parallelism stand where they always do.

    Attributes:
        steps: How many steps to do, each time from the initial state.
        repeats: How often to do them.
        layers: How many layers to build; None: as many as ever.
        seed: For the weights and the data: the same seed must give the same steps.
    """

    steps: int
    repeats: int
    layers: int | None
    seed: int


def replay(environ: Mapping[str, str] = os.environ) -> Replay | None:
    """What to replay, or None in a process that trains.

    A script that asks builds the smaller model, does its steps `repeats` times, tells
    `Session.replayed` a digest of its state after each, and ends. Nothing is restored, and nothing
    that it saves is kept.
    """
    if names.ENV_REPLAY not in environ:
        return None
    return Replay(
        steps=int(environ[names.ENV_REPLAY_STEPS]),
        repeats=int(environ[names.ENV_REPLAY_REPEATS]),
        layers=int(environ[names.ENV_REPLAY_LAYERS]) or None,
        seed=int(environ[names.ENV_REPLAY_SEED]),
    )
