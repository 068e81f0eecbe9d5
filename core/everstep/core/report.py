"""What a run's time and incidents come to: the figures of `everstep report`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.core import ledger
from everstep.core.ledger import Stretch
from everstep.core.model import StepSeen
from everstep.core.record import IncidentRecord
from everstep.core.vocabulary import ClimbOutcome, Outcome, Rung, Spent

WINDOW_S = 3600.0
"""Of the sliding ratio, as in the paper's Fig. 10."""

CURVE_POINTS = 200

_LOST_TO_INCIDENTS = (
    Spent.REDONE, Spent.DETECT, Spent.LOCATE, Spent.RESTART, Spent.HELD, Spent.UPDATE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SymptomFigures:
    """All incidents of one symptom.

    Attributes:
        symptom: What opened them.
        incidents: How many.
        mean_s: Mean time that one took from training, from its first mark to its first new step.
        worst_s: The longest.
        rungs: How often each rung was the last one climbed, of those that are over.
        later: How often what else failed before training was stable again.
    """

    symptom: str
    incidents: int
    mean_s: float
    worst_s: float
    rungs: tuple[tuple[str, int], ...]
    later: tuple[tuple[str, int], ...] = ()

    def failures(self) -> list[str]:
        """The symptom, and each later one with its number."""
        return [self.symptom, *(f"{symptom} {count}" for symptom, count in self.later)]

    def resolved(self) -> str:
        """How they were resolved, in words; those that are open are resolved by nothing yet."""
        counts = list(self.rungs)
        if still_open := self.incidents - sum(count for _, count in counts):
            counts.append(("open", still_open))
        return ", ".join(f"{rung} {count}" for rung, count in counts)


@dataclass(frozen=True, slots=True)
class Report:
    """A run in figures.

    Attributes:
        job: Its name.
        from_s: When it was started, Unix seconds.
        to_s: When it ended, or now.
        steps: Newest step that all ranks have finished.
        spent: Seconds by class; they add up to `to_s - from_s`.
        stretches: The same, moment by moment.
        curve: Time, cumulative ETTR, and ETTR of the hour before, evenly spread.
        symptoms: By number of incidents, most first.
        mechanisms: How many incidents each rung resolved, most first; open ones are left out.
        machines: How often each was evicted, most first.
        codes: How often each code version was running when an incident opened, most first.
        ending: How the run ended other than well, to be put after "the run"; else empty.
    """

    job: str
    from_s: float
    to_s: float
    steps: int
    spent: dict[Spent, float]
    stretches: tuple[Stretch, ...]
    curve: tuple[tuple[float, float, float], ...]
    symptoms: tuple[SymptomFigures, ...]
    mechanisms: tuple[tuple[str, int], ...]
    machines: tuple[tuple[str, int], ...]
    codes: tuple[tuple[str, int], ...]
    ending: str = ""

    @property
    def ettr(self) -> float:
        """Productive over wall-clock time, 0 to 1."""
        wall_s = self.to_s - self.from_s
        return self.spent[Spent.PRODUCTIVE] / wall_s if wall_s > 0 else 0.0


def report(
    job: str,
    steps: Sequence[StepSeen],
    incidents: Sequence[IncidentRecord],
    from_s: float,
    to_s: float,
    ending: str = "",
) -> Report:
    """All figures of a run.

    Args:
        job: Its name.
        steps: In order of time, over all attempts.
        incidents: By number.
        from_s: When it was started.
        to_s: When it ended, or now.
        ending: How it ended other than well.
    """
    stretches = tuple(ledger.ledger(steps, incidents, from_s, to_s))
    resolved = _resolutions(incidents)
    return Report(
        job=job,
        from_s=from_s,
        to_s=to_s,
        steps=max((seen.step for seen in steps), default=0),
        spent=ledger.totals(stretches),
        stretches=stretches,
        curve=_curve(stretches, from_s, to_s),
        symptoms=_by_symptom(incidents, stretches),
        mechanisms=tuple(resolved.most_common()),
        machines=tuple(Counter(m for r in incidents for m in r.evicted).most_common()),
        codes=tuple(Counter(r.code_version for r in incidents).most_common()),
        ending=ending,
    )


def lost_s(stretches: Sequence[Stretch], incident: int) -> dict[Spent, float]:
    """Seconds that an incident took from training, by class."""
    return {
        spent: sum(s.length_s for s in stretches if s.incident == incident and s.spent is spent)
        for spent in _LOST_TO_INCIDENTS
    }


def _resolutions(incidents: Iterable[IncidentRecord]) -> Counter[str]:
    """How many incidents that are over each rung resolved."""
    over = [record for record in incidents if record.outcome is Outcome.RECOVERED]
    return Counter(_resolved_by(record) for record in over)


def _resolved_by(record: IncidentRecord) -> str:
    """The last rung that restarted the job; in the paper's Table 4, the mechanism."""
    done = [c.rung for c in record.climbs if c.outcome is ClimbOutcome.DONE]
    restarts = [rung for rung in done if rung not in (Rung.CHECKS, Rung.REPLAY)]
    return restarts[-1].value if restarts else "none"


def _by_symptom(
    incidents: Sequence[IncidentRecord], stretches: Sequence[Stretch]
) -> tuple[SymptomFigures, ...]:
    found: list[SymptomFigures] = []
    counts = Counter(record.opened_by.symptom for record in incidents)
    for symptom, count in counts.most_common():
        of_it = [record for record in incidents if record.opened_by.symptom is symptom]
        times_s = [sum(lost_s(stretches, record.incident).values()) for record in of_it]
        later = Counter(failed.value for record in of_it for failed in record.later_symptoms)
        found.append(
            SymptomFigures(
                symptom.value,
                count,
                statistics.mean(times_s),
                max(times_s),
                tuple(_resolutions(of_it).most_common()),
                tuple(later.most_common()),
            )
        )
    return tuple(found)


def _curve(
    stretches: Sequence[Stretch], from_s: float, to_s: float
) -> tuple[tuple[float, float, float], ...]:
    if to_s <= from_s:
        return ()
    moments = [from_s + (to_s - from_s) * i / CURVE_POINTS for i in range(1, CURVE_POINTS + 1)]
    return tuple(
        (
            at_s,
            ledger.ratio(stretches, from_s, at_s),
            ledger.ratio(stretches, max(from_s, at_s - WINDOW_S), at_s),
        )
        for at_s in moments
    )
