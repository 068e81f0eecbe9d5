"""What is evicted for its group alone: tested outside of the job, back in the pool if healthy.

Paper: ByteRobust, section 5: a group is evicted to be rid of one machine, and most of what goes is
innocent. Its ranks are ended and its slot is given away, but its agent lives on and is tested while
the job is started again. Who passes waits for a slot as a standby; who fails, or cannot be told, is
taken out for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

from everstep.core.model import MachineInfo
from everstep.core.orders import CheckResult
from everstep.core.vocabulary import Verdict
from everstep.workflows import asking, options
from everstep.workflows.checking import check_apart
from everstep.workflows.effects import EvictOrder
from everstep.workflows.messages import TestedMachine
from everstep.workflows.ports import ClusterPort
from everstep.workflows.situation import Situation


def begin_tests(now: Situation, machines: Sequence[tuple[MachineInfo, bool]]) -> None:
    """Begin to test machines that have just been taken out of their slots; nothing waits for that.

    Args:
        now: The incident.
        machines: Each with whether a rank of its own stood out.
    """
    if machines:
        now.in_test |= {info.machine: (info, suspected) for info, suspected in machines}
        now.tests.append(asyncio.create_task(_test(now, [info for info, _ in machines])))


async def settle_tests(now: Situation) -> None:
    """Wait for all tests, unless the job ends; who is not told when new evidence comes goes."""
    await workflow.wait_condition(
        lambda: all(task.done() for task in now.tests) or now.overtaken() or now.job_finished
    )
    for task in now.tests:
        task.cancel()
    for ended in await asyncio.gather(*now.tests, return_exceptions=True):
        if isinstance(ended, Exception) and not is_cancelled_exception(ended):
            raise ended
    for info, _ in list(now.in_test.values()):
        await _decide(now, info, False, "its tests were cut off by what came next")


async def _test(now: Situation, machines: Sequence[MachineInfo]) -> None:
    results = await check_apart(now, machines)
    for info in machines:
        result = results[info.machine]
        await _decide(now, info, result.verdict is Verdict.HEALTHY, _finding(result))


async def _decide(now: Situation, info: MachineInfo, healthy: bool, finding: str) -> None:
    if not now.asks_cluster:
        await _evict_as_before(now, info, healthy, finding)
    elif healthy:
        await asking.release(now, info.machine)
    else:
        await asking.evict(now, [info], finding)
    _, suspected = now.in_test.pop(info.machine)
    if healthy:
        now.evicting.remove(info.machine)
        now.pool = [known for known in now.pool if known.machine != info.machine]
        now.pool.append(info)
        now.story.change(returned=(*now.record.returned, info.machine))
        now.story.tell(f"{info.machine} waits for a slot again: {finding}")
    else:
        now.story.tell(f"{info.machine} stays out: {finding}")
    await now.tell_job("machine_tested", TestedMachine(info, healthy, suspected, finding))


async def _evict_as_before(now: Situation, info: MachineInfo, healthy: bool, finding: str) -> None:
    if not healthy:
        await workflow.execute_activity_method(
            ClusterPort.evict,
            EvictOrder(info, now.record.incident, finding),
            **options.EVICT.config(f"evict {info.machine}: {finding}"),
        )


def _finding(result: CheckResult) -> str:
    if result.verdict is Verdict.HEALTHY:
        return f"it passed its tests after it was evicted with its group ({result.detail})"
    could = "failed" if result.verdict is Verdict.FAULTY else "could not tell"
    return f"{result.check} test {could}: {result.detail}"
