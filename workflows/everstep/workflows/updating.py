"""Changes of code and arguments: prepared on every machine before they count, made at a restart.

`prepare` runs in the job's workflow, `make` in the incident whose restart the change joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everstep.core import memory, updates
from everstep.core.memory import CodeVersion
from everstep.core.model import MachineInfo
from everstep.core.orders import PrepareOrder, PrepareReport
from everstep.workflows import ordering
from everstep.workflows.batches import Refusal
from everstep.workflows.messages import JobInput, UpdatesMade
from everstep.workflows.situation import Situation


async def prepare(
    job: JobInput, directory: str, machines: Sequence[MachineInfo]
) -> tuple[str, list[str]]:
    """Let every machine look at a code version, while training goes on.

    Args:
        job: The job.
        directory: Where the version lies on every machine.
        machines: Those of the job and its standbys.

    Returns:
        The version's identifier, and why it cannot run, a text a machine that says so.
    """
    order = PrepareOrder(directory)
    answers = await ordering.order(
        job.spec.name,
        job.machines_per_batch,
        ordering.PREPARE,
        [(info.machine, order) for info in machines],
    )
    reports = [
        PrepareReport(answer.machine, "", f"could not tell: {answer.reason}")
        if isinstance(answer, Refusal)
        else answer
        for answer in answers
    ]
    problems = [f"{report.machine}: {report.problem}" for report in reports if report.problem]
    versions = sorted({report.version for report in reports if report.version})
    if not problems and len(versions) != 1:
        problems = [f"machines see different code in {directory}: {', '.join(versions) or 'none'}"]
    return (versions or [""])[0], problems


async def make(now: Situation) -> None:
    """Let the next attempt run with all changes that wait, and tell the job which these were."""
    waiting, now.updates = now.updates, ()
    if not waiting:
        return
    running = memory.version_of(now.codes, now.assignment.code_version) or CodeVersion(
        now.assignment.code_version,
        now.assignment.code_directory or now.job.code_directory,
        settings=now.assignment.settings,
    )
    target = updates.merged(running, waiting)
    now.codes = memory.with_code(now.codes, target)
    now.assignment = replace(
        now.assignment,
        code_version=target.version,
        code_directory=target.directory,
        settings=target.settings,
    )
    numbers = tuple(update.number for update in waiting)
    now.updates_made += numbers
    await now.tell_job("updates_made", UpdatesMade(numbers, target.version))
    for update in waiting:
        now.story.tell(f"{update.text()} joins this restart")
    now.story.tell(f"code version {running.version} gives way to {target.version}")
