"""Carries out a check order: which programs, with what to meet at, and what they said."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import time
from pathlib import Path

from everstep.agent.checks.programs import Program, ProgramRun
from everstep.agent.config import MachineConfig
from everstep.agent.launcher import Launcher
from everstep.agent.nursery import Ended
from everstep.core import checks
from everstep.core.checks import Ending, ProgramSettings
from everstep.core.dcgm import judge_toolkit
from everstep.core.errors import PermanentError, TransientError
from everstep.core.orders import CheckOrder, CheckResult
from everstep.core.vocabulary import Check, Verdict

logger = logging.getLogger(__name__)

TOOLKIT = "dcgmi"
TOOLKIT_LONG_S = 180.0
"""A deadline that leaves time for level 2 of the toolkit's tests, which takes two minutes."""

_PROGRAM = ("python", "-m", "everstep.selfcheck")


class Checker:
    """Checks a machine on which nothing else of the job runs, one check at a time.

    Args:
        config: The machine's part in the job.
        launcher: Starts and kills programs.
        rendezvous: Listening socket for the store in which machines meet.
    """

    def __init__(
        self, config: MachineConfig, launcher: Launcher, rendezvous: socket.socket
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._rendezvous = rendezvous

    async def check(self, order: CheckOrder) -> CheckResult:
        """The result, within the order's deadline; everything that was started is gone then.

        Raises:
            PermanentError: The machine is not among the order's peers.
        """
        began_s = time.monotonic()
        directory = self._directory(order)
        directory.mkdir(parents=True, exist_ok=True)
        try:
            async with asyncio.timeout(order.deadline_s):
                await asyncio.to_thread(self._launcher.wait_ready)
            if order.check is Check.GPU and (said := await self._toolkit(order, directory)):
                return self._result(order, began_s, said)
            left_s = order.deadline_s - (time.monotonic() - began_s)
            endings = await self._run(order, directory, max(left_s, 0.1))
        except (TransientError, TimeoutError) as error:
            told = str(error) or "pre-warming takes longer than the check may"
            said = checks.Answer(Verdict.UNOBSERVABLE, f"programs could not be started: {told}")
            return self._result(order, began_s, said)
        took_s = time.monotonic() - began_s
        return checks.judge(order, self._config.machine, endings, took_s)

    def _directory(self, order: CheckOrder) -> Path:
        name = f"check-{order.attempt}-{order.check}-{order.number}"
        return self._config.directory / name

    async def _run(self, order: CheckOrder, directory: Path, deadline_s: float) -> list[Ending]:
        machines, rank = self._places(order)
        store = str(directory / f"store-{time.monotonic_ns()}")
        if order.check is Check.LINKS:
            host = order.peers[0]
            store = f"{host.host}:{host.rendezvous_port}"
            if rank == 0:
                log = directory / "store.log"
                start = self._launcher.start_store
                await asyncio.to_thread(start, self._rendezvous, log, _note_store_end)
        size = self._config.gpus_per_machine
        programs = [
            Program(
                [
                    *_PROGRAM,
                    ProgramSettings(
                        check=order.check,
                        machine=self._config.machine,
                        local_rank=local_rank,
                        local_size=size,
                        rank=rank * size + local_rank,
                        machines=machines,
                        key=f"{order.attempt}/{order.number}/{'+'.join(machines)}",
                        store=store,
                        limit_s=deadline_s * checks.PROGRAM_SHARE,
                        model=order.model,
                        device=order.device,
                    ).text(),
                ],
                directory / f"rank-{local_rank}.log",
            )
            for local_rank in range(size)
        ]
        return await ProgramRun(self._launcher, programs).endings(deadline_s)

    def _places(self, order: CheckOrder) -> tuple[tuple[str, ...], int]:
        """Machines that meet, and this one's place among them."""
        me = self._config.machine
        if order.check is not Check.LINKS:
            return (me,), 0
        machines = tuple(info.machine for info in order.peers)
        if me not in machines:
            raise PermanentError(f"{me} is to check its links with {machines}, of which it is none")
        return machines, machines.index(me)

    async def _toolkit(self, order: CheckOrder, directory: Path) -> checks.Answer | None:
        """What the GPUs' own diagnostics say, if they are here and that settles it."""
        program = shutil.which(TOOLKIT)
        if program is None or order.device == "cpu":
            return None
        long = order.deadline_s >= TOOLKIT_LONG_S
        argv = [program, "diag", "--run", "2" if long else "1", "--json"]
        log = directory / "dcgmi.json"
        log.unlink(missing_ok=True)
        run = ProgramRun(self._launcher, [Program(argv, log)])
        [ending] = await run.endings(order.deadline_s * checks.PROGRAM_SHARE)
        if ending.timed_out:
            # A driver that never answers is what a broken GPU looks like.
            return checks.Answer(Verdict.FAULTY, f"{TOOLKIT} did not return in time")
        said = judge_toolkit(log.read_text(errors="replace") if log.exists() else "")
        logger.info("%s: %s", TOOLKIT, said.detail)
        # The short level looks at software, not at arithmetic: our own products go on from there.
        settles = said.verdict is Verdict.FAULTY or (long and said.verdict is Verdict.HEALTHY)
        return said if settles else None

    def _result(self, order: CheckOrder, began_s: float, said: checks.Answer) -> CheckResult:
        took_s = time.monotonic() - began_s
        return CheckResult(
            self._config.machine, order.check, said.verdict, said.detail, took_s=took_s
        )


def _note_store_end(ended: Ended) -> None:
    logger.debug("the store of a check ended: %s", ended)
