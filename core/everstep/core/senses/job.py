"""What the analyzer senses in what all ranks say of themselves: five judges, and one alert a fault.

| sense | raises | certain | what the job does |
| --- | --- | --- | --- |
| `job.loss`, `job.grad_norm` not a number | `nan_value` | at once | an incident |
| `job.loss`, `job.grad_norm` jumped | `loss_spike` | no | notes it |
| `job.silence` | `job_hang` | past its limit | an incident |
| `job.pace` | `mfu_decline` | no | notes it |
| `job.slow_machine` | `mfu_decline` of a machine | by votes | an incident |

What stops training is told once an attempt, and its alert names nobody but who is slow, so that an
analyzer that was started anew says the same again: its key is the same, and the job drops it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.core.model import Alert, RankProgress
from everstep.core.senses.inspection import Inspection, faulty, healthy, unobservable
from everstep.core.senses.numerics import NumberSense, Reading
from everstep.core.senses.pace import PaceSense
from everstep.core.senses.silence import SilenceLimits, SilenceSense
from everstep.core.slow.sense import SlowSense
from everstep.core.vocabulary import Observer, Symptom

LOSS, GRAD_NORM = "loss", "gradient norm"
_ITEMS = {LOSS: "job.loss", GRAD_NORM: "job.grad_norm"}


@dataclass(frozen=True, slots=True)
class JobLimits:
    """When the ranks' reports mean a fault.

    Attributes:
        silence: How long ranks may be silent.
        jump_ratio: How many times the usual loss or gradient norm is a jump, > 1.
        slowdown_ratio: Share by which steps must be slower to count as a decline, > 0.
        expected: Whether ranks are known to report.
    """

    silence: SilenceLimits
    jump_ratio: float
    slowdown_ratio: float
    expected: bool = False


class JobSenses:
    """Takes in the reports of all ranks of one job and says what is wrong. Keeps no clock.

    Times are those of the observer's clock, except where a report's own is named.

    Args:
        limits: When the reports mean a fault.
        slow: Finds out who slows the job; None: nobody asks.
    """

    def __init__(self, limits: JobLimits, slow: SlowSense | None = None) -> None:
        self._limits = limits
        self._slow = slow
        self._silence = SilenceSense(limits.silence, limits.expected)
        self._pace = PaceSense(limits.slowdown_ratio)
        self._pace_by_mfu = False
        self._numbers: dict[tuple[str, int], NumberSense] = {}
        self._high: dict[str, set[int]] = {LOSS: set(), GRAD_NORM: set()}
        self._raised: dict[Symptom, Alert] = {}
        """What stops training, as it was raised in this attempt."""
        self._newest: dict[str, float] = {}
        self._mfu_step = -1
        self.step_s: float | None = None
        """Time that the newest step took, as far as it is known."""

    @property
    def loss(self) -> float | None:
        """The newest one that any rank reported, may be NaN; None before the first."""
        return self._newest.get(LOSS)

    def started(self, attempt: int, machine: str, ranks: Iterable[int], heard_s: float) -> None:
        """Ranks of an attempt are being started."""
        self._turn_to(attempt)
        self._silence.started(attempt, machine, ranks, heard_s)

    def note(self, progress: RankProgress, heard_s: float) -> list[Alert]:
        """Take in what a rank said at `heard_s`; what was taken in before changes nothing."""
        if not self._silence.news(progress):
            return []
        self._turn_to(progress.attempt)
        step_s = self._silence.note(progress, heard_s)
        self.step_s = self.step_s if step_s is None else step_s
        if self._slow is not None:
            self._slow.note(progress)
        alerts: list[Alert] = []
        for quantity, value in ((LOSS, progress.loss), (GRAD_NORM, progress.grad_norm)):
            if value is not None:
                alerts += self._note_number(quantity, value, progress)
        return alerts + self._note_pace(progress, step_s)

    def look(self, now_s: float) -> list[Alert]:
        """What the passing of time alone means."""
        hang = self._silence.look(now_s)
        if hang is None:
            # They were slow and went on by themselves: the next silence is another one.
            self._raised.pop(Symptom.JOB_HANG, None)
            return [] if self._slow is None else self._slow.look(now_s, self._pace.declined)
        detail, step = f"the job hangs: {hang}", hang.step if hang.step >= 0 else None
        return self._raise(Symptom.JOB_HANG, hang.attempt, now_s, detail, step)

    def lost(self, machine: str) -> None:
        """A machine's agent is lost: its ranks' silence means no more than that."""
        self._silence.lost(machine)
        if self._slow is not None:
            self._slow.disturb()

    def slowed(self, machine: str, details: Sequence[str]) -> None:
        """What a machine's own senses see now that slows it; nothing: all is well again."""
        if self._slow is not None:
            self._slow.suspect(machine, details)

    def excuse(self, asleep_s: float) -> None:
        """Do not hold it against the ranks that nobody listened for a while."""
        self._silence.excuse(asleep_s)
        if self._slow is not None:
            self._slow.disturb()

    def inspections(self) -> list[Inspection]:
        """How each sense stands; one that has not learned enough could not tell."""
        numbers = [self._number_now(quantity) for quantity in (LOSS, GRAD_NORM)]
        slow = [] if self._slow is None else [self._slow.inspection()]
        return [*numbers, self._silence_now(), self._pace_now(), *slow]

    # --- Numbers ---------------------------------------------------------------------------------

    def _note_number(self, quantity: str, value: float, progress: RankProgress) -> list[Alert]:
        sense = self._numbers.setdefault(
            (quantity, progress.rank), NumberSense(self._limits.jump_ratio)
        )
        usual = sense.usual
        reading = sense.note(value)
        self._newest[quantity] = value
        where = f"of rank {progress.rank} on {progress.machine} at step {progress.step}"
        if reading is Reading.NOT_FINITE:
            detail = f"{quantity} {where} is {value}"
            return self._raise(Symptom.NAN_VALUE, progress.attempt, progress.at_s, detail)
        high = self._high[quantity]
        first = not high
        (high.add if sense.high else high.discard)(progress.rank)
        if reading is not Reading.JUMPED or not first:
            return []
        detail = f"{quantity} {where} is {value:.4g}, usual is {usual:.4g}"
        return [_noted(Symptom.LOSS_SPIKE, quantity, progress, detail)]

    def _number_now(self, quantity: str) -> Inspection:
        item, job = _ITEMS[quantity], "job"
        raised = self._raised.get(Symptom.NAN_VALUE)
        if raised is not None and not math.isfinite(self._newest.get(quantity, 0.0)):
            return faulty(item, job, raised.symptom, raised.detail)
        if self._high[quantity]:
            ranks = ", ".join(map(str, sorted(self._high[quantity])))
            return faulty(item, job, Symptom.LOSS_SPIKE, f"jumped on ranks {ranks}")
        if quantity not in self._newest:
            return unobservable(item, job, f"no rank reports its {quantity}")
        return healthy(item, job, f"{quantity} {self._newest[quantity]:.4g}")

    # --- Pace ------------------------------------------------------------------------------------

    def _note_pace(self, progress: RankProgress, step_s: float | None) -> list[Alert]:
        """Judge by what ranks say of their speed, or else by how long steps take."""
        mfu = progress.mfu
        if mfu is not None and math.isfinite(mfu) and mfu > 0:
            if not self._pace_by_mfu:
                self._pace_by_mfu, self._pace = True, PaceSense(self._limits.slowdown_ratio)
            if progress.step <= self._mfu_step:
                return []
            self._mfu_step, step_s = progress.step, 1 / mfu
        elif self._pace_by_mfu:
            return []
        if step_s is None or not self._pace.note(step_s):
            return []
        detail = f"steps have become slower: {self._pace_text()}"
        return [_noted(Symptom.MFU_DECLINE, "pace", progress, detail)]

    def _pace_text(self) -> str:
        now_s, usual_s = self._pace.now_s or 0.0, self._pace.usual_s or 0.0
        if self._pace_by_mfu:
            return f"speed {1 / now_s:.4g}, usual is {1 / usual_s:.4g}"
        return f"{now_s:.3g} s a step, usual is {usual_s:.3g} s"

    def _pace_now(self) -> Inspection:
        if self._pace.usual_s is None or self._pace.now_s is None:
            return unobservable("job.pace", "job", "too few steps to know what is usual")
        if self._pace.declined:
            return faulty("job.pace", "job", Symptom.MFU_DECLINE, self._pace_text())
        return healthy("job.pace", "job", self._pace_text())

    # --- Smaller parts ---------------------------------------------------------------------------

    def _silence_now(self) -> Inspection:
        raised = self._raised.get(Symptom.JOB_HANG)
        if raised is not None:
            return faulty("job.silence", "job", raised.symptom, raised.detail)
        if not self._silence.informed:
            return unobservable("job.silence", "job", "no rank reports its steps")
        return healthy("job.silence", "job", f"step {self._silence.front_step}")

    def _raise(
        self, symptom: Symptom, attempt: int, at_s: float, detail: str, step: int | None = None
    ) -> list[Alert]:
        """Raise what stops training, once an attempt."""
        if symptom in self._raised:
            return []
        self._raised[symptom] = Alert(Observer.ANALYZER, symptom, at_s, detail, attempt, step=step)
        return [self._raised[symptom]]

    def _turn_to(self, attempt: int) -> None:
        if attempt > self._silence.attempt:
            self._raised, self._numbers, self._mfu_step = {}, {}, -1
            self._high = {LOSS: set(), GRAD_NORM: set()}


def _noted(symptom: Symptom, subject: str, progress: RankProgress, detail: str) -> Alert:
    """An alert that stops nothing; the report's own time tells it from a later one like it."""
    attempt, at_s = progress.attempt, progress.at_s
    return Alert(Observer.ANALYZER, symptom, at_s, detail, attempt, subject=subject)
