"""The verdict of the bitwise test: whose digest is not that of most machines.

Called by the incident workflow with what every machine computed from the same weights and input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from everstep.core.orders import CheckResult
from everstep.core.vocabulary import Check, Verdict

FEWEST_ALIKE = 2
"""One machine alone is no majority, whatever the others say."""


def judge_digests(machines: Sequence[str], results: Sequence[CheckResult]) -> list[CheckResult]:
    """One verdict a machine.

    A digest is right when more than half of the machines that computed one on the same kind of
    device agree on it, and at least two do. Then those with another one are faulty. Where no digest
    is right, nobody is: could not tell. A machine that gave no digest could not be observed, unless
    its own verdict is faulty.

    Paper: section 4.3, which isolates the machines that differ, and leaves open what to do when no
    majority agrees.

    Args:
        machines: Everyone who was asked.
        results: The answers that came, at most one a machine.

    Returns:
        A result for each of `machines`, in their order.
    """
    by_machine = {result.machine: result for result in results}
    return [_judge(by_machine.get(machine), machine, results) for machine in machines]


def _judge(result: CheckResult | None, machine: str, all_of: Sequence[CheckResult]) -> CheckResult:
    if result is None:
        return CheckResult(machine, Check.BITWISE, Verdict.UNOBSERVABLE, "gave no answer")
    if result.verdict is not Verdict.HEALTHY:
        return result
    if not result.digest:
        return replace(result, verdict=Verdict.UNOBSERVABLE, detail="computed no digest")
    peers = [r.digest for r in all_of if _comparable(r) and r.device == result.device]
    (most, votes), *_ = Counter(peers).most_common(1)
    if votes < FEWEST_ALIKE or votes * 2 <= len(peers):
        told = f"no majority: {len(set(peers))} different results of {len(peers)} machines"
        return replace(result, verdict=Verdict.UNOBSERVABLE, detail=told)
    if result.digest == most:
        return replace(result, detail=f"agrees with {votes - 1} other machines to the bit")
    told = f"computes other bits than {votes} of {len(peers)} machines that agree"
    return replace(result, verdict=Verdict.FAULTY, detail=told)


def _comparable(result: CheckResult) -> bool:
    return result.verdict is Verdict.HEALTHY and bool(result.digest)
