"""The ladder as a table, made by climbing it: for `everstep plan --ladder` and the docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everstep.core.classify.names import Action
from everstep.core.ladder import Decision, Policy, Standing, next_rung
from everstep.core.record import Climb, Finding
from everstep.core.vocabulary import ClimbOutcome, Mode, Rung, Symptom

MACHINE = "m"
"""Stands for the machine that the evidence of a row points at."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of evidence, and the rungs for as long as the failure comes back.

    Attributes:
        evidence: In words.
        climbs: In order; the last one is a person. Modes are those of the policy.
    """

    evidence: str
    climbs: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    evidence: str
    finding: Finding
    code_proven: bool = True
    found_by: Mapping[Rung, ClimbOutcome] = field(default_factory=dict[Rung, ClimbOutcome])
    unavailable: tuple[Rung, ...] = ()
    # What follows the first rung, where that is not the same failure again.
    then: Finding | None = None


_SURE = 0.8
"""Enough for what ranks said to be followed."""


def _finding(symptom: Symptom, machines: tuple[str, ...] = (), confident: bool = False) -> Finding:
    return Finding(symptom, machines, (), confident, symptom.value)


_KINDS = (
    _Kind(
        "a machine is certainly faulty: lost, no answer, GPU gone, uncorrectable memory, kernel"
        " panic, disk fault, second network alert",
        _finding(Symptom.GPU_UNAVAILABLE, (MACHINE,), confident=True),
    ),
    _Kind("an error of user code", _finding(Symptom.CODE_ERROR)),
    _Kind(
        "the same, and no earlier code version is known",
        _finding(Symptom.CODE_ERROR),
        unavailable=(Rung.ROLLBACK,),
    ),
    _Kind(
        "any other failure before a code version's first healthy step",
        _finding(Symptom.PROCESS_CRASH),
        code_proven=False,
    ),
    _Kind(
        "a rank ended by a signal that others send",
        replace(_finding(Symptom.PROCESS_CRASH), killed=True),
    ),
    _Kind(
        "words that accuse the code or its configuration, in the middle of a run",
        replace(_finding(Symptom.CUDA_ERROR), first_action=Action.ROLLBACK.value, confidence=_SURE),
    ),
    _Kind(
        "words that accuse storage, a service, or a network outside",
        replace(
            _finding(Symptom.FILESYSTEM_MOUNT), first_action=Action.RETRY.value, confidence=_SURE
        ),
    ),
    _Kind(
        "words that accuse the data",
        replace(
            _finding(Symptom.CODE_DATA_ADJUSTMENT),
            ranks=(0,),
            first_action=Action.FIX_DATA.value,
            confidence=_SURE,
        ),
    ),
    _Kind("a crash without a culprit, or NaN", _finding(Symptom.NAN_VALUE)),
    _Kind(
        "the same, and checks name a machine",
        _finding(Symptom.NAN_VALUE),
        found_by={Rung.CHECKS: ClimbOutcome.FOUND},
    ),
    _Kind(
        "the same, and checks cannot tell",
        _finding(Symptom.NAN_VALUE),
        found_by={Rung.CHECKS: ClimbOutcome.COULD_NOT_TELL},
    ),
    _Kind(
        "the same, and only replay names a machine",
        _finding(Symptom.NAN_VALUE),
        found_by={Rung.REPLAY: ClimbOutcome.FOUND},
    ),
    _Kind(
        "crashes that point at one machine each time, and replay cannot tell",
        _finding(Symptom.PROCESS_CRASH, (MACHINE,)),
        found_by={Rung.REPLAY: ClimbOutcome.COULD_NOT_TELL},
    ),
    _Kind(
        "silence or slowness, isolated by the analyzer",
        _finding(Symptom.JOB_HANG, (MACHINE,)),
    ),
    _Kind("silence, nobody isolated", _finding(Symptom.JOB_HANG)),
    _Kind(
        "a machine does not carry out an order",
        _finding(Symptom.CONTAINER_ERROR, (MACHINE,)),
    ),
    _Kind(
        "a person asks for other code or arguments at once; they fail at their first step",
        _finding(Symptom.CODE_DATA_ADJUSTMENT),
        code_proven=False,
        then=_finding(Symptom.PROCESS_CRASH),
    ),
)


def ladder_rows(policy: Policy, unavailable: Mapping[Rung, str] | None = None) -> list[Row]:
    """A row a kind of evidence, each climbed to its end.

    Where a row does not say otherwise, all tests pass, and the failure comes back after each
    restart.

    Args:
        policy: The job's.
        unavailable: Rungs that the job cannot climb, each with why.
    """
    without = unavailable or {}
    possible = [kind for kind in _KINDS if not {*kind.found_by} & {*without}]
    return [Row(kind.evidence, _climb(kind, policy, without)) for kind in possible]


def _climb(kind: _Kind, policy: Policy, unavailable: Mapping[Rung, str]) -> tuple[Decision, ...]:
    without = {**unavailable, **dict.fromkeys(kind.unavailable, kind.evidence)}
    standing = Standing(code_proven=kind.code_proven, unavailable=without)
    climbed: list[Climb] = []
    decisions: list[Decision] = []
    while True:
        finding = kind.then if climbed and kind.then is not None else kind.finding
        decision = next_rung(finding, climbed, policy, standing)
        decisions.append(decision)
        if decision.rung is Rung.PAGE:
            return tuple(decisions)
        climbed.append(_climbed(kind, decision))


def _climbed(kind: _Kind, decision: Decision) -> Climb:
    tests = decision.rung in (Rung.CHECKS, Rung.REPLAY)
    outcome = kind.found_by.get(decision.rung, ClimbOutcome.PASSED) if tests else ClimbOutcome.DONE
    if decision.mode is Mode.OBSERVE:
        outcome = ClimbOutcome.OBSERVED
    named = (MACHINE,) if outcome is ClimbOutcome.FOUND else decision.machines
    finding = kind.finding
    return Climb(
        decision.rung, decision.reason, named, 1, 0.0, outcome, finding.symptom, finding.machines
    )
