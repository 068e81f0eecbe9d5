"""The rung of stop-time checks: every machine tests itself, then its links, then its bits.

Paper: ByteRobust, sections 4.2 and 4.3: GPU, then inside a machine, then between machines; for NaN
the bitwise test after that. The first kind of test that names somebody ends the rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from everstep.core import links
from everstep.core.checks import CUDA, slower_than_peers
from everstep.core.majority import judge_digests
from everstep.core.model import MachineInfo
from everstep.core.orders import CheckOrder, CheckResult
from everstep.core.record import Finding
from everstep.core.vocabulary import Check, ClimbOutcome, Symptom, Verdict
from everstep.workflows import ordering
from everstep.workflows.batches import Refusal
from everstep.workflows.situation import Situation
from everstep.workflows.tested import Tested


async def check_machines(now: Situation, finding: Finding) -> Tested:
    """Test all machines that hold a slot.

    Raises:
        OvertakenError: Newer evidence came first.
    """
    return await now.unless_overtaken(_check_machines(now, finding)) or Tested(
        ClimbOutcome.COULD_NOT_TELL, (), "the job finished first"
    )


async def _check_machines(now: Situation, finding: Finding) -> Tested:
    machines = now.reachable()
    asked = {info.machine for info in machines}
    # Whoever cannot be asked is not healthy for that.
    untold = {i.machine: "cannot be asked" for i in now.occupied() if i.machine not in asked}
    kinds = [Check.GPU, Check.MACHINE, Check.LINKS]
    if finding.symptom is Symptom.NAN_VALUE:
        kinds.append(Check.BITWISE)
    for check in kinds:
        results = await _results(now, machines, check, finding)
        faulty = [result for result in results if result.verdict is Verdict.FAULTY]
        if faulty:
            return Tested(
                ClimbOutcome.FOUND,
                tuple(result.machine for result in faulty),
                f"{check} test: {_told(faulty)}",
            )
        for result in results:
            if result.verdict is Verdict.UNOBSERVABLE:
                untold.setdefault(result.machine, f"{check} test: {result.detail}")
    if untold:
        reason = "; ".join(f"{machine}: {why}" for machine, why in untold.items())
        return Tested(ClimbOutcome.COULD_NOT_TELL, (), f"no test names a machine; {reason}")
    done = ", ".join(kinds)
    return Tested(ClimbOutcome.PASSED, (), f"all machines passed: {done}")


async def check_apart(now: Situation, machines: Sequence[MachineInfo]) -> dict[str, CheckResult]:
    """Test machines that hold no slot, while the job goes on without them.

    Returns:
        By machine: the first result that is not healthy, else the last one.
    """
    kinds = [Check.GPU, Check.MACHINE, *([Check.LINKS] if len(machines) > 1 else [])]
    found: dict[str, CheckResult] = {}
    for check in kinds:
        for result in await _results(now, machines, check, now.record.finding):
            before = found.get(result.machine)
            if before is None or before.verdict is Verdict.HEALTHY:
                found[result.machine] = result
    return found


async def _results(
    now: Situation, machines: Sequence[MachineInfo], check: Check, finding: Finding
) -> list[CheckResult]:
    """One verdict a machine about itself."""
    if check is Check.LINKS:
        return await _links(now, machines, finding)
    model = "moe" if now.job.spec.parallelism.ep > 1 else "dense"
    attempt, deadline_s = now.assignment.attempt, now.job.spec.ladder.check_timeout_s
    order = CheckOrder(attempt, check, deadline_s, model=model)
    results = await _answers(now, [(info, order) for info in machines])
    if check is Check.BITWISE:
        return judge_digests([info.machine for info in machines], results)
    return list(_with_slow(results))


def _with_slow(results: Sequence[CheckResult]) -> Iterable[CheckResult]:
    """A GPU far slower than all others is faulty; a CPU may just have other things to do."""
    slow = slower_than_peers([result for result in results if result.device == CUDA])
    for result in results:
        if result.machine in slow and result.verdict is Verdict.HEALTHY:
            detail = slow[result.machine]
            yield CheckResult(result.machine, result.check, Verdict.FAULTY, detail)
        else:
            yield result


async def _links(
    now: Situation, machines: Sequence[MachineInfo], finding: Finding
) -> list[CheckResult]:
    infos = {info.machine: info for info in machines}
    rounds: list[list[links.Meeting]] = []
    while True:
        pairs = links.next_pairs(list(infos), rounds)
        if isinstance(pairs, links.LinksVerdict):
            return _of_links(list(infos), pairs, finding)
        rounds.append(await _meetings(now, infos, pairs, len(rounds)))


async def _meetings(
    now: Situation, infos: Mapping[str, MachineInfo], pairs: Sequence[links.Pair], number: int
) -> list[links.Meeting]:
    """Let both ends of all pairs meet, side by side."""
    deadline_s = now.job.spec.ladder.check_timeout_s
    orders: list[tuple[MachineInfo, CheckOrder]] = []
    for one, other in pairs:
        ends = (infos[one], infos[other])
        order = CheckOrder(
            now.assignment.attempt, Check.LINKS, deadline_s, peers=ends, number=number
        )
        orders += [(info, order) for info in ends]
    results = await _answers(now, orders)
    return [links.meeting_of(pair, results[2 * at : 2 * at + 2]) for at, pair in enumerate(pairs)]


def _of_links(
    machines: Sequence[str], verdict: links.LinksVerdict, finding: Finding
) -> list[CheckResult]:
    leaving = {links.end_to_leave(link, finding.machines): link for link in verdict.links}

    def one(machine: str) -> CheckResult:
        if machine in verdict.faulty:
            return _said(machine, Verdict.FAULTY, "fails with every machine that it meets")
        if machine in leaving:
            ends = " and ".join(leaving[machine])
            detail = f"the link between {ends} fails, and both pass with others"
            return _said(machine, Verdict.FAULTY, detail)
        if machine in verdict.unobservable:
            return _said(machine, Verdict.UNOBSERVABLE, "no meeting told anything about it")
        return _said(machine, Verdict.HEALTHY, "passes with its neighbours")

    return [one(machine) for machine in machines]


def _said(machine: str, verdict: Verdict, detail: str) -> CheckResult:
    return CheckResult(machine, Check.LINKS, verdict, detail)


async def _answers(
    now: Situation, orders: Sequence[tuple[MachineInfo, CheckOrder]]
) -> list[CheckResult]:
    """One answer a machine; no answer is an answer that tells nothing."""
    answers = await ordering.order(
        now.job.spec.name,
        now.job.machines_per_batch,
        ordering.CHECK,
        [(info.machine, order) for info, order in orders],
    )
    return [
        CheckResult(
            answer.machine, order.check, Verdict.UNOBSERVABLE, f"no answer: {answer.reason}"
        )
        if isinstance(answer, Refusal)
        else answer
        for (_, order), answer in zip(orders, answers, strict=True)
    ]


def _told(faulty: Sequence[CheckResult]) -> str:
    return "; ".join(f"{result.machine}: {result.detail}" for result in faulty)
