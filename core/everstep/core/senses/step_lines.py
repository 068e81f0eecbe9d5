"""What a trainer's own log line says of its step, by a pattern that the job's spec gives.

The pattern is searched for in each line. A line in which it finds the group `step` finishes that
step; the groups `loss` and `grad_norm` are its figures. A line in which it finds `evaluation` or
`checkpoint` begins that phase, which the next step ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from everstep.core.vocabulary import Phase

LINE_LIMIT_BYTES = 4096
"""What a line has beyond this is not searched."""

_PHASES = (Phase.EVALUATION, Phase.CHECKPOINT)

GROUPS = ("step", "loss", "grad_norm", *(phase.value for phase in _PHASES))
"""The groups that mean something."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """What one line says.

    Attributes:
        step: The step that is finished, or None.
        phase: The phase that begins, or None.
        loss: Loss of the step, may be NaN, or None.
        grad_norm: Norm of its gradient, likewise.
    """

    step: int | None
    phase: Phase | None = None
    loss: float | None = None
    grad_norm: float | None = None


def read_line(pattern: re.Pattern[str], line: str) -> StepLine | None:
    """What a line says, or None when it says nothing of steps or phases."""
    found = pattern.search(line[:LINE_LIMIT_BYTES])
    if found is None:
        return None
    groups = {name: text for name, text in found.groupdict().items() if text is not None}
    step = _number(groups.get("step"))
    if step is not None and step.is_integer():
        return StepLine(
            int(step), None, _number(groups.get("loss")), _number(groups.get("grad_norm"))
        )
    phase = next((phase for phase in _PHASES if phase.value in groups), None)
    return None if phase is None else StepLine(None, phase)


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
