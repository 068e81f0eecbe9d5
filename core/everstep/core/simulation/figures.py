"""What a simulated run comes to: its ETTR, and the counts of the paper's Tables 4 and 6."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from everstep.core import ledger, report
from everstep.core.ledger import Stretch
from everstep.core.record import IncidentRecord
from everstep.core.report import Report
from everstep.core.simulation.engine import Met, Run
from everstep.core.vocabulary import ClimbOutcome, Rung, Spent, Symptom

IMPLICIT = (Symptom.JOB_HANG, Symptom.MFU_DECLINE, Symptom.NAN_VALUE)

TABLE_4: Mapping[tuple[str, str], tuple[float, float]] = {
    ("evict_restart", "explicit"): (73.1, 56.8),
    ("hot_update", "manual"): (11.4, 24.8),
    ("analyzer_evict", "implicit"): (8.6, 7.2),
    ("rollback", "implicit"): (6.9, 10.4),
    ("rollback", "explicit"): (0.0, 0.8),
}
"""The paper's Table 4: share of a job's incidents in percent, dense and MoE, by mechanism and
category."""

TABLE_6: Mapping[str, tuple[float, float]] = {
    "cuda_error": (93, 600),
    "infiniband_error": (60, 60),
    "hdfs_error": (58, 65),
    "os_kernel_panic": (109, 120),
    "gpu_memory_error": (10, 10),
    "nan_value": (4289, 7200),
    "gpu_unavailable": (10, 10),
    "code_data_adjustment": (57, 64),
}
"""The paper's Table 6: mean and longest time from localization to restart, in seconds."""

LADDER_SHARES: Mapping[str, float] = {
    "direct_eviction": 32.52,
    "reattempt": 22.70,
    "rollback": 9.20,
    "replay": 1.23,
}
"""The paper's section 4.2: percent of incidents that each rung resolved; 34.35 % are not told."""

_LOST = (Spent.REDONE, Spent.DETECT, Spent.LOCATE, Spent.RESTART, Spent.HELD, Spent.UPDATE)


@dataclass(frozen=True, slots=True)
class Costs:
    """What the incidents of one symptom cost.

    Attributes:
        incidents: How many.
        locate_mean_s: Mean time from the alert to the order to start, all rounds together.
        locate_worst_s: The longest.
        restart_mean_s: Mean time of the restarts that followed.
        lost_s: All time that they took from training.
    """

    incidents: int
    locate_mean_s: float
    locate_worst_s: float
    restart_mean_s: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A simulated run in figures.

    Attributes:
        ettr: Productive over wall-clock time, 0 to 1.
        spent: Seconds by class.
        shares: Percent of incidents by what resolved them.
        table_4: Percent of incidents by mechanism and category.
        symptoms: By symptom of what was really wrong, most frequent first.
        longest_unproductive_s: Most unproductive time in any hour, as in Fig. 10.
        false_evictions: Machines that were taken out for good and had no fault.
        right_evictions: Those that had one.
        returned: Machines that were evicted with their group, tested, and let back in.
        missed: Incidents that closed while a machine that caused them still held a slot.
        standbys_used: Machines that took a slot.
        held: Incidents that waited for a machine or a person.
    """

    ettr: float
    spent: Mapping[Spent, float]
    shares: Mapping[str, float]
    table_4: Mapping[tuple[str, str], float]
    symptoms: Mapping[str, Costs]
    longest_unproductive_s: float
    false_evictions: int
    right_evictions: int
    returned: int
    missed: int
    standbys_used: int
    held: int


def figures(run: Run) -> Figures:
    """All figures of a run."""
    records = run.records
    stretches = ledger.ledger(run.steps, records, 0.0, run.to_s)
    spent = ledger.totals(stretches)
    total = max(1, len(run.met))
    resolved = Counter(resolved_by(met) for met in run.met)
    mechanisms = Counter((_mechanism(met), category(met)) for met in run.met)
    gone = [machine for record in records for machine in _for_good(record.evicted, record.returned)]
    return Figures(
        ettr=spent[Spent.PRODUCTIVE] / run.to_s,
        spent=spent,
        shares={name: 100 * count / total for name, count in resolved.most_common()},
        table_4={key: 100 * count / total for key, count in mechanisms.most_common()},
        symptoms=_symptoms(run, stretches),
        longest_unproductive_s=_worst_hour_s(stretches, run.to_s),
        false_evictions=sum(machine not in run.guilty for machine in gone),
        right_evictions=sum(machine in run.guilty for machine in gone),
        returned=sum(len(record.returned) for record in records),
        missed=run.missed,
        standbys_used=sum(len(record.replacements) for record in records),
        held=sum(any(mark.spent is Spent.HELD for mark in record.marks) for record in records),
    )


def page_report(run: Run, job: str) -> Report:
    """The run of a job as `everstep report` has it, in seconds since its begin."""
    return report.report(job, run.steps, page_records(run), 0.0, run.to_s)


def page_records(run: Run) -> list[IncidentRecord]:
    """The incidents by what was really wrong, as Table 6 counts them, and not by what was seen."""
    return [
        replace(record, finding=replace(record.finding, symptom=met.fault.symptom))
        for record, met in zip(run.records, run.met, strict=True)
    ]


def resolved_by(met: Met) -> str:
    """What ended the incident, in the words of the paper's shares, and ours for the rest."""
    climbs = [climb for climb in met.record.climbs if climb.outcome is not ClimbOutcome.OBSERVED]
    last = next(
        (c.rung for c in reversed(climbs) if c.rung not in (Rung.CHECKS, Rung.REPLAY)), None
    )
    if last is None:
        return "none"
    if last is not Rung.EVICT:
        return "hot_update" if last is Rung.UPDATE else last.value
    found = [c.rung for c in climbs if c.outcome is ClimbOutcome.FOUND]
    if found:
        return "replay" if found[-1] is Rung.REPLAY else "checks"
    return "analyzer" if met.fault.symptom in IMPLICIT else "direct_eviction"


def category(met: Met) -> str:
    """Explicit, implicit or manual, as in Table 1."""
    if met.fault.symptom is Symptom.CODE_DATA_ADJUSTMENT:
        return "manual"
    return "implicit" if met.fault.symptom in IMPLICIT else "explicit"


def _mechanism(met: Met) -> str:
    """In the words of Table 4, which has no row for a reattempt."""
    how = resolved_by(met)
    evicting = {"direct_eviction", "checks", "replay"}
    return {"analyzer": "analyzer_evict"}.get(how, "evict_restart" if how in evicting else how)


def _for_good(evicted: Sequence[str], returned: Sequence[str]) -> list[str]:
    left = Counter(evicted) - Counter(returned)
    return sorted(left)


def _symptoms(run: Run, stretches: Sequence[Stretch]) -> dict[str, Costs]:
    by_incident: dict[int, dict[Spent, float]] = defaultdict(lambda: defaultdict(float))
    for stretch in stretches:
        if stretch.incident is not None:
            by_incident[stretch.incident][stretch.spent] += stretch.length_s
    of_symptom: dict[str, list[dict[Spent, float]]] = defaultdict(list)
    for met in run.met:
        of_symptom[met.fault.symptom.value].append(by_incident[met.record.incident])
    found: dict[str, Costs] = {}
    for symptom, times in sorted(of_symptom.items(), key=lambda item: -len(item[1])):
        located = [t[Spent.LOCATE] + t[Spent.HELD] + t[Spent.UPDATE] for t in times]
        found[symptom] = Costs(
            incidents=len(times),
            locate_mean_s=statistics.fmean(located),
            locate_worst_s=max(located),
            restart_mean_s=statistics.fmean(t[Spent.RESTART] for t in times),
            lost_s=sum(t[spent] for t in times for spent in _LOST),
        )
    return found


def _worst_hour_s(stretches: Sequence[Stretch], to_s: float) -> float:
    """Most unproductive time within any hour that ends with a stretch."""
    lost = [s for s in stretches if s.spent is not Spent.PRODUCTIVE]
    worst, first = 0.0, 0
    for at, stretch in enumerate(lost):
        begin_s = min(stretch.to_s, to_s) - report.WINDOW_S
        while lost[first].to_s <= begin_s:
            first += 1
        within = sum(s.to_s - max(s.from_s, begin_s) for s in lost[first : at + 1])
        worst = max(worst, within)
    return worst
