"""Whether a machine without a slot could take one: it has the code, and passes its own tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everstep.core.model import MachineInfo
from everstep.core.orders import CheckOrder
from everstep.core.vocabulary import Check, Verdict
from everstep.workflows import ordering, updating
from everstep.workflows.batches import Refusal
from everstep.workflows.messages import JobInput

CHECKS = (Check.GPU, Check.MACHINE)
"""What a machine can find out about itself alone."""

TRIES = 2
"""Of a test that could not tell: a machine is not given up for one answer that got lost."""


async def lacks_code(
    job: JobInput, info: MachineInfo, directories: Callable[[], Sequence[str]]
) -> str:
    """Why a machine could not run the code that it may have to, or empty.

    Args:
        job: The job.
        info: The machine.
        directories: Where versions lie that the next attempt may run; asked again until all have
            been looked at, since a change may be accepted meanwhile.
    """
    looked_at: list[str] = []
    while missing := [one for one in directories() if one not in looked_at]:
        _, problems = await updating.prepare(job, missing[0], [info])
        if problems:
            return f"code: {problems[0].removeprefix(f'{info.machine}: ')}"
        looked_at.append(missing[0])
    return ""


async def fails_tests(
    job: JobInput, info: MachineInfo, attempt: int, number: Callable[[], int]
) -> str:
    """What a machine's own tests find against it, or empty; what cannot be told is held against it.

    Args:
        job: The job.
        info: The machine.
        attempt: The job's newest attempt.
        number: Numbers that no other test of a machine has; asked for each test.
    """
    for check in CHECKS:
        for last in range(1, TRIES + 1):
            deadline_s = job.spec.ladder.check_timeout_s
            order = CheckOrder(attempt, check, deadline_s, number=number(), yields=True)
            verdict, detail = await _answer(job, info, order)
            if verdict is Verdict.FAULTY:
                return f"{check} test: {detail}"
            if verdict is Verdict.HEALTHY:
                break
            if last == TRIES:
                return f"{check} test could not tell: {detail}"
    return ""


async def _answer(job: JobInput, info: MachineInfo, order: CheckOrder) -> tuple[Verdict, str]:
    [answer] = await ordering.order(
        job.spec.name, job.machines_per_batch, ordering.CHECK, [(info.machine, order)]
    )
    if isinstance(answer, Refusal):
        return Verdict.UNOBSERVABLE, f"no answer: {answer.reason}"
    return answer.verdict, answer.detail
