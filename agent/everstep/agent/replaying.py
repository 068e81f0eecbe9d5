"""One machine's part in a trial of a replay: the job's own script, made small, in a group of some.

The script is told by environment variables (`names.ENV_REPLAY`; `everstep.checkpoint.replay`), and
nothing that it saves reaches this machine's memory. Paper: Algorithm 1.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

from everstep.agent.attempt import Attempt, Surroundings, Variant
from everstep.core import evidence, names
from everstep.core.errors import EverstepError, PermanentError
from everstep.core.model import MachineEvent, RankExit
from everstep.core.orders import FROM_THE_BEGINNING, RankStart, StartOrder
from everstep.core.trial import ReplayOrder, ReplayReport
from everstep.core.vocabulary import Verdict


class Replaying:
    """Takes part in trials, one at a time, on a machine on which nothing else of the job runs.

    Args:
        around: What the ranks of an attempt work with; nobody is told of those of a trial.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = replace(around, on_event=_tell_nobody)

    async def replay(self, order: ReplayOrder) -> ReplayReport:
        """How it went, within the order's deadline; all ranks are gone then.

        Raises:
            PermanentError: This machine is not in the group.
            TransientError: Something does not die.
        """
        began_s = time.monotonic()
        attempt = Attempt(self._start_order(order), self._around, self._variant(order))
        try:
            async with asyncio.timeout(order.deadline_s):
                await asyncio.to_thread(self._around.launcher.wait_ready)
                await _launched(attempt)
                await attempt.wait_until_over()
        except TimeoutError:
            verdict, detail, digest = Verdict.UNOBSERVABLE, "was not done in time", ""
        except (EverstepError, OSError) as error:
            verdict, detail, digest = Verdict.UNOBSERVABLE, f"did not start: {error}", ""
        else:
            verdict, detail, digest = judge(attempt.exits, attempt.replayed, order.repeats)
        finally:
            await attempt.end()
        took_s = time.monotonic() - began_s
        return ReplayReport(self._around.config.machine, verdict, detail, digest, took_s)

    def _start_order(self, order: ReplayOrder) -> StartOrder:
        config = self._around.config
        machines = [info.machine for info in order.machines]
        if config.machine not in machines:
            raise PermanentError(f"{config.machine} is to replay with {machines}, and not of them")
        slot, size = machines.index(config.machine), config.gpus_per_machine
        host = order.machines[0]
        return StartOrder(
            attempt=order.attempt,
            slot=slot,
            ranks=tuple(RankStart(slot * size + local, local, None) for local in range(size)),
            held_ranks=(),
            world_size=len(machines) * size,
            num_machines=len(machines),
            master_host=host.host,
            master_port=host.rendezvous_port,
            restore_step=FROM_THE_BEGINNING,
            code_directory=order.code_directory,
            settings=order.settings,
        )

    def _variant(self, order: ReplayOrder) -> Variant:
        name = f"replay-{order.attempt}-{order.number}"
        variables = {
            names.ENV_REPLAY: "1",
            names.ENV_REPLAY_STEPS: str(order.steps),
            names.ENV_REPLAY_LAYERS: str(order.layers),
            names.ENV_REPLAY_REPEATS: str(order.repeats),
            names.ENV_REPLAY_SEED: str(order.seed),
            names.ENV_PARALLELISM: order.parallelism,
            # What the job made must not be replaced by what a trial makes.
            names.ENV_OUTPUT_DIR: str(self._around.config.directory / name),
        }
        return Variant(name, variables)


def judge(
    exits: Sequence[RankExit], replayed: Sequence[Sequence[str]], repeats: int
) -> tuple[Verdict, str, str]:
    """Verdict, reason and digest of a trial that was not cut short.

    Args:
        exits: How ranks ended; those that did not end are not among them.
        replayed: Digests that each rank told, one a repetition.
        repeats: How often the steps should have been done.
    """
    failed = [exit_ for exit_ in exits if not exit_.succeeded]
    if failed:
        first = failed[0]
        last = f": {first.last_lines[-1]}" if first.last_lines else ""
        return Verdict.FAULTY, f"rank {first.rank} {evidence.describe_exit(first)}{last}", ""
    if any(len(set(digests)) > 1 for digests in replayed):
        return Verdict.FAULTY, "the same steps ended in different states", ""
    if not any(replayed):
        return Verdict.HEALTHY, "ended well, and told no digest", ""
    if any(len(digests) != repeats for digests in replayed):
        return Verdict.UNOBSERVABLE, f"not every rank did its steps {repeats} times", ""
    digest = hashlib.sha256("".join(digests[0] for digests in replayed).encode()).hexdigest()
    return Verdict.HEALTHY, f"did its steps {repeats} times, with the same end", digest


async def _launched(attempt: Attempt) -> None:
    """Start the ranks; a thread that is starting them cannot be left to itself."""
    launching = asyncio.ensure_future(asyncio.to_thread(attempt.launch))
    try:
        await asyncio.shield(launching)
    finally:
        await asyncio.wait([launching])


def _tell_nobody(_event: MachineEvent) -> None:
    """A trial's ranks are no part of the job."""
