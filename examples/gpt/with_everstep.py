"""What the trainer does with Everstep if it is there: checkpoints, replays, faults for tests."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from file_session import FileSession

if TYPE_CHECKING:
    from injected import Faults
    from torch._C._distributed_c10d import Store

    from everstep.checkpoint import Session


def open_session(args: argparse.Namespace) -> Session | FileSession | None:
    """Where checkpoints go: to files if asked, else to Everstep, else nowhere."""
    if args.checkpoint_dir:
        return FileSession(Path(args.checkpoint_dir), args.checkpoint_every)
    try:
        from everstep import checkpoint  # noqa: PLC0415 - plain torchrun does without
    except ImportError:
        return None
    return checkpoint.connect()


def shrink(args: argparse.Namespace) -> argparse.Namespace:
    """What to run instead of the job if Everstep asks for a replay: fewer layers and steps."""
    args.replays = 0
    with contextlib.suppress(ImportError):
        from everstep import checkpoint  # noqa: PLC0415 - plain torchrun does without

        if replay := checkpoint.replay():
            # Data by rank as in the job, of which there is a smaller part.
            args.batch = args.microbatches * args.dp
            args.layers = replay.layers or args.layers
            args.steps, args.seed, args.replays = replay.steps, replay.seed, replay.repeats
            args.checkpoint_dir, args.step_time_s = None, 0.0
    return args


def open_faults(groups: list[list[int]], store: Store) -> Faults | None:
    """Faults that `everstep run --fault` was asked for; in every other run there are none."""
    if (directory := os.environ.get("EVERSTEP_FAULTS")) is None:
        return None
    from injected import Faults  # noqa: PLC0415

    faults = Faults(directory, groups, store)
    faults.announce()
    return faults
