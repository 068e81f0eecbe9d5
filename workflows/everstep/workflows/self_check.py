"""Whether a machine without a slot could take one: it has the code, and passes its own tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from everstep.core import names
from everstep.core.model import MachineInfo
from everstep.core.orders import CheckOrder
from everstep.core.vocabulary import Check, Verdict
from everstep.workflows import options, restart, updating
from everstep.workflows.messages import JobInput
from everstep.workflows.ports import CheckPort

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
        _, problems = await updating.prepare(job.spec.name, missing[0], [info])
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
    try:
        result = await workflow.execute_activity_method(
            CheckPort.check,
            order,
            **options.check(order.deadline_s).config(
                f"{order.check} test of {info.machine}, which has no slot",
                names.machine_queue(job.spec.name, info.machine),
            ),
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        return Verdict.UNOBSERVABLE, f"no answer: {restart.why(error)}"
    return result.verdict, result.detail
