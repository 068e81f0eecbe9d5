"""All checks that a machine can do by itself, outside of any job: `everstep check --deep`."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from everstep.agent.checks.checker import Checker
from everstep.agent.config import MachineConfig
from everstep.agent.launcher import Launcher
from everstep.core.checks import judge_twice
from everstep.core.orders import CheckOrder, CheckResult
from everstep.core.vocabulary import Check

LOOPBACK = "127.0.0.1"
WITHOUT_GPUS = 2
"""Programs on a machine that has no GPU; one alone would exchange nothing."""


def num_gpus(devices: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """GPUs that the driver knows; 0 where there is no driver."""
    try:
        return len(list(devices.iterdir()))
    except OSError:
        return 0


async def check_alone(
    gpus: int | None, deadline_s: float, on_begin: Callable[[Check], None]
) -> list[CheckResult]:
    """Check this machine, which should do nothing else meanwhile.

    The bitwise test has no other machines to be held against, so it is done twice.

    Args:
        gpus: How many GPUs there should be; None: as many as the driver knows; 0: check the CPU.
        deadline_s: How long each check may take, > 0.
        on_begin: Told which check begins.
    """
    wanted = num_gpus() if gpus is None else gpus
    with tempfile.TemporaryDirectory(prefix="everstep-check-") as folder:
        config = _config(Path(folder), wanted or WITHOUT_GPUS)
        launcher = Launcher(config)
        try:
            with socket.create_server((LOOPBACK, 0)) as rendezvous:
                checker = Checker(config, launcher, rendezvous)
                device = "cuda" if wanted else "cpu"
                order = CheckOrder(0, Check.GPU, deadline_s, device=device)
                return await _all(checker, order, on_begin)
        finally:
            await asyncio.to_thread(launcher.close)


async def _all(
    checker: Checker, order: CheckOrder, on_begin: Callable[[Check], None]
) -> list[CheckResult]:
    results: list[CheckResult] = []
    for check in (Check.GPU, Check.MACHINE, Check.BITWISE):
        on_begin(check)
        results.append(await checker.check(replace(order, check=check)))
    again = await checker.check(replace(order, check=Check.BITWISE, number=1))
    return [*results[:-1], judge_twice(results[-1], again)]


def _config(folder: Path, ranks: int) -> MachineConfig:
    directory = folder / "machine"
    directory.mkdir()
    return MachineConfig(
        job="check",
        machine=socket.gethostname(),
        host=LOOPBACK,
        directory=directory,
        # What is pre-warmed: torch and, with it, all that checks import.
        command=("python", "-m", "everstep.selfcheck"),
        code_directory=folder,
        output_dir=folder,
        parallelism="",
        gpus_per_machine=ranks,
        secret=os.urandom(16),
    )
