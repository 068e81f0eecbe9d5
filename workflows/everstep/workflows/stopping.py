"""The first half of a round: end all ranks, and say what happened from how they ended."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow

from everstep.core import evidence, hang, memory
from everstep.core.model import Alert, RankExit
from everstep.core.orders import MachineReport, StopOrder
from everstep.core.record import Finding, StackRecord
from everstep.core.vocabulary import Symptom
from everstep.workflows import ordering
from everstep.workflows.batches import Refusal
from everstep.workflows.situation import MAX_TOLD, Situation


async def stop_and_classify(now: Situation, stacks: StackRecord | None) -> Finding:
    """Stop all ranks; the reports of how they ended are the best evidence there is.

    Args:
        now: The incident.
        stacks: Where ranks that hang stood before, if they were asked.
    """
    reports, silent = await _stop(now)
    occupied = now.occupied()
    alerts = now.inbox.judge()
    now.stopped = [reports[i.machine] for i in occupied if i.machine in reports]
    if workflow.patched("late-exits"):
        # With thousands of ranks, alerts of their ends may come after the reports that tell them.
        now.stopped_attempt = now.assignment.attempt
    exits = exits_of(now.stopped, alerts, now.assignment.attempt)
    now.newest_exit_step = max((e.step for e in exits if e.step is not None), default=None)
    here = {info.machine for info in occupied}
    finding = evidence.classify(
        [a for a in alerts if a.symptom is not Symptom.AGENT_LOST or a.machine in here] or alerts,
        exits,
        sorted(i.machine for i in occupied if i.machine in silent or now.inbox.is_lost(i)),
    )
    finding = hang.sharpened(finding, stacks)
    newest = [step for report in now.stopped for c in report.copies for step in c.steps]
    # Memory that went with its machines tells nothing any more.
    newest += [alert.step for alert in alerts if alert.step is not None]
    # Nor do copies of what is not saved at every step.
    newest += [e.step for e in exits if e.step is not None]
    if newest:
        now.story.change(failed_step=max(newest))
    if _made_a_step(now):
        now.codes = memory.proven(now.codes, now.assignment.code_version)
    now.story.tell(f"all ranks stopped; found {finding.symptom}: {finding.reason}")
    for words in evidence.last_words(finding, exits):
        now.story.tell(words)
    return finding


async def _stop(now: Situation) -> tuple[dict[str, MachineReport], list[str]]:
    """Reports by machine, and the machines that gave none though nobody knows them to be gone."""
    asked = {info.machine: info for info in now.reachable()}
    order = StopOrder(now.assignment.attempt)
    answers = await ordering.order(
        now.job.spec.name,
        now.job.machines_per_batch,
        ordering.STOP,
        [(machine, order) for machine in asked],
        lambda machine: now.inbox.is_lost(asked[machine]),
    )
    reports: dict[str, MachineReport] = {}
    silent: list[str] = []
    for machine, answer in zip(asked, answers, strict=True):
        if not isinstance(answer, Refusal):
            reports[machine] = answer
        elif not now.inbox.is_lost(asked[machine]):
            silent.append(machine)
            if len(silent) <= MAX_TOLD:
                now.story.tell(f"{machine} did not stop: {answer.reason}")
    if len(silent) > MAX_TOLD:
        now.story.tell(f"and {len(silent) - MAX_TOLD} more machines did not stop")
    return reports, silent


def _made_a_step(now: Situation) -> bool:
    """Whether the attempt that was stopped had finished a step of its own.

    A script that reports no steps is taken to have, if it ran for longer than the first step may
    take.
    """
    record = now.record
    if record.first_step_at_s is not None:
        return True
    began = now.given.attempt_from if record.restored_step is None else record.restored_step
    steps = [step for step in (record.failed_step, now.newest_exit_step) if step is not None]
    if steps:
        return max(steps) > began
    ran_s = record.fault_at_s - now.given.attempt_at_s
    return record.restored_step is None and ran_s > now.job.spec.ladder.first_step_timeout_s


def exits_of(
    reports: Sequence[MachineReport], alerts: Sequence[Alert], attempt: int
) -> list[RankExit]:
    """Exits of one attempt, from reports and alerts, each rank once (its earliest)."""
    exits = [e for report in reports for e in report.exits]
    exits += [a.rank_exit for a in alerts if a.rank_exit is not None]
    first: dict[int, RankExit] = {}
    for rank_exit in sorted(exits, key=lambda e: (e.at_s, e.rank)):
        if rank_exit.attempt == attempt:
            first.setdefault(rank_exit.rank, rank_exit)
    return list(first.values())
