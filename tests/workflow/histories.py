"""What a job's Temporal histories say by themselves: nothing of ours but the names of fields.

An auditor's reading, to hold beside `everstep report`: it shares no code with the ledger, the
report, or the incident's record.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from everstep.core.model import StepSeen

TESTS = ("checks", "replay")
"""Rungs that restart nothing."""


@dataclass
class Told:
    """One incident, as its history tells it.

    Attributes:
        symptom: The last that was found.
        rungs: In order.
        moments: What training was kept up by, from when on, until its first new step.
    """

    symptom: str = ""
    rungs: list[str] = field(default_factory=list[str])
    moments: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    @property
    def mechanism(self) -> str:
        return next((rung for rung in reversed(self.rungs) if rung not in TESTS), "none")

    def lost_s(self, steps: Sequence[StepSeen]) -> dict[str, float]:
        """Seconds by class from the last step before its restart, which has the first step in it.

        Ranks may go on for a while when somebody has seen the fault; and who waits for the first
        step is told of the newest one.
        """
        restart_s = next(at_s for at_s, what in self.moments if what == "restart")
        stands_s = max(seen.at_s for seen in steps if seen.at_s < restart_s)
        trains_s = min(seen.at_s for seen in steps if seen.at_s > restart_s)
        lost_s: dict[str, float] = {}
        for (begin_s, what), (end_s, _) in pairwise(self.moments):
            took_s = min(end_s, trains_s) - max(begin_s, stands_s)
            lost_s[what] = lost_s.get(what, 0.0) + max(0.0, took_s)
        return lost_s


def seconds(moment: Timestamp) -> float:
    return moment.seconds + moment.nanos / 1e9


def loaded(payload: Any) -> Any:
    return json.loads(payload.data)


def job_times(history: WorkflowHistory) -> tuple[float, float]:
    """When the job was started, by its first order to a machine, and when its workflow ended."""
    decided_s = decisions(history)
    first = next(
        event
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "machine.start"
    )
    task = first.activity_task_scheduled_event_attributes.workflow_task_completed_event_id
    return decided_s[task], seconds(history.events[-1].event_time)


def decisions(history: WorkflowHistory) -> dict[int, float]:
    """When what each completed workflow task decided was decided: at its start."""
    started = {
        event.event_id: seconds(event.event_time)
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
    }
    return {
        event.event_id: started[event.workflow_task_completed_event_attributes.started_event_id]
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    }


def incident(history: WorkflowHistory) -> Told:
    """Read one incident that restarted the job once."""
    told = Told()
    told.moments += _moments(history, told)
    return told


def _moments(history: WorkflowHistory, told: Told) -> Iterator[tuple[float, str]]:
    """What training was kept up by, from when on."""
    decided_s = decisions(history)
    waits: set[int] = set()
    first = history.events[0].workflow_execution_started_event_attributes
    found_s = [float(alert["at_s"]) for alert in loaded(first.input.payloads[0])["alerts"]]
    told.symptom = str(loaded(first.search_attributes.indexed_fields["EverstepSymptom"]))
    opened_s = min(decided_s.values())
    yield min(found_s), "detect"
    yield opened_s, "locate"
    before = "locate"
    for event in history.events:
        moment = _upserted(event, told)
        if moment is not None:
            task, outcome = moment
            if outcome in ("held", "open"):
                yield decided_s[task], "held" if outcome == "held" else before
        signal = event.signal_external_workflow_execution_initiated_event_attributes
        if signal.signal_name == "assigned":
            before = "restart"
            yield decided_s[signal.workflow_task_completed_event_id], before
        if (
            event.activity_task_scheduled_event_attributes.activity_type.name
            == "analysis.await_step"
        ):
            waits.add(event.event_id)
        done = event.activity_task_completed_event_attributes
        if done.scheduled_event_id in waits:
            yield float(loaded(done.result.payloads[0])["at_s"]), "trains"
            return


def _upserted(event: HistoryEvent, told: Told) -> tuple[int, str] | None:
    """Note a rung and its symptom; the task, and the outcome if that was set."""
    if event.event_type != EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
        return None
    upsert = event.upsert_workflow_search_attributes_event_attributes
    fields = {
        name: loaded(value) for name, value in upsert.search_attributes.indexed_fields.items()
    }
    if "EverstepRung" in fields:
        told.rungs.append(str(fields["EverstepRung"]))
        told.symptom = str(fields["EverstepSymptom"])
    return upsert.workflow_task_completed_event_id, str(fields.get("EverstepOutcome", ""))


def productive_s(steps: Sequence[StepSeen], usual_s: float) -> float:
    """Time of steps that were done for the first time, by their own moments."""
    newest, sum_s = 0, 0.0
    before: StepSeen | None = None
    for seen in steps:
        if seen.step > newest:
            newest = seen.step
            whole = before is not None and before.attempt == seen.attempt
            gap_s = float("inf") if before is None else seen.at_s - before.at_s
            took_s = gap_s if whole else min(gap_s, usual_s)
            sum_s += took_s if seen.stalled_s < took_s / 100 else max(0.0, took_s - seen.stalled_s)
        before = seen
    return sum_s


def compare(
    found: dict[str, Any], told: Sequence[Told], steps: Sequence[StepSeen], near_s: float
) -> None:
    """Assert that a report (`everstep report --json`) says what histories and steps do."""
    symptoms = {one["symptom"]: one for one in found["symptoms"]}
    assert {name: one["incidents"] for name, one in symptoms.items()} == Counter(
        one.symptom for one in told
    )
    assert dict(found["mechanisms"]) == Counter(one.mechanism for one in told)
    for name, one in symptoms.items():
        assert dict(one["rungs"]) == Counter(e.mechanism for e in told if e.symptom == name)
    usual_s = statistics.median(
        b.at_s - a.at_s
        for a, b in pairwise(steps)
        if (b.attempt, b.step) == (a.attempt, a.step + 1)
    )
    wall_s = found["to_s"] - found["from_s"]
    assert found["ettr"] == pytest.approx(productive_s(steps, usual_s) / wall_s, abs=1e-6)
    kinds = ("detect", "locate", "restart", "held", "update")
    lost_s: dict[str, float] = {kind: 0.0 for kind in kinds}  # noqa: C420 - else keys are literals
    for incident_ in told:
        wished = incident_.mechanism == "update"
        for kind, sum_s in incident_.lost_s(steps).items():
            lost_s["update" if wished and kind != "held" else kind] += sum_s
        # Its last moments are the first step itself, and training.
        lost_s["update" if wished else "restart"] -= usual_s
    for kind in kinds:
        assert found["spent"][kind] == pytest.approx(lost_s[kind], abs=near_s), kind
