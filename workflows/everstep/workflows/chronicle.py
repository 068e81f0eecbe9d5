"""An incident's record while it grows, and every place where it shows.

The record is the workflow's result; beside it, Temporal's web UI shows it as current details and
search attributes, and the archive keeps it for when no server is up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate
from temporalio.exceptions import ActivityError

from everstep.core.ladder import Decision
from everstep.core.record import Climb, Finding, IncidentRecord, Mark, TimelineEntry
from everstep.core.vocabulary import ClimbOutcome, Outcome, Spent
from everstep.workflows import options, story
from everstep.workflows.ports import ArchivePort


class Chronicle:
    """Keeps one incident's record. Lives inside a workflow.

    Args:
        record: The record as the incident opens.
    """

    def __init__(self, record: IncidentRecord) -> None:
        self.record = record
        self._before_hold = Spent.LOCATE

    def tell(self, text: str, at_s: float | None = None) -> None:
        """Add a line to the story, at an observer's time or now."""
        entry = TimelineEntry(workflow.now().timestamp() if at_s is None else at_s, text)
        timeline = sorted((*self.record.timeline, entry), key=lambda one: one.at_s)
        self.change(timeline=tuple(timeline))
        workflow.set_current_details(story.details(self.record))

    def change(self, **fields: Any) -> None:
        """Change fields of the record, by name."""
        self.record = replace(self.record, **fields)

    def found(self, finding: Finding) -> None:
        """The evidence of a failure was judged; the first one stays what the incident is about."""
        first = self.record.first_finding or finding
        self.change(finding=finding, first_finding=first, first_step_at_s=None)

    def mark(self, spent: Spent, at_s: float | None = None) -> None:
        """Time goes into this from now on, or has since a moment that an observer names."""
        mark = Mark(workflow.now().timestamp() if at_s is None else at_s, spent)
        self.change(marks=(*self.record.marks, mark))

    def climbed(
        self,
        finding: Finding,
        decision: Decision,
        attempt: int,
        outcome: ClimbOutcome = ClimbOutcome.DONE,
    ) -> None:
        """A rung is climbed: told, recorded, and searchable with all machines so far."""
        climb = Climb(
            decision.rung,
            decision.reason,
            decision.machines,
            attempt,
            workflow.now().timestamp(),
            outcome,
            finding.symptom,
            finding.machines,
        )
        self.change(climbs=(*self.record.climbs, climb))
        named = [machine for each in self.record.climbs for machine in each.machines]
        about = self.record.opened_by.symptom
        _upsert(story.climbed(about, decision.rung, list(dict.fromkeys(named))))
        whom = f" {', '.join(decision.machines)}" if decision.machines else ""
        brought = "" if outcome is ClimbOutcome.DONE else f" ({outcome.replace('_', ' ')})"
        self.tell(f"rung {decision.rung}{whom}{brought}: {decision.reason}")

    def held(self, missing: str) -> None:
        """The incident waits for a person or a machine."""
        self._before_hold = self.record.marks[-1].spent if self.record.marks else Spent.LOCATE
        self.mark(Spent.HELD)
        self.change(outcome=Outcome.HELD, missing=missing)
        self.tell(f"held: {missing}")
        _upsert(story.stands(Outcome.HELD))

    def goes_on(self) -> None:
        """The wait is over."""
        self.mark(self._before_hold)
        self.change(outcome=Outcome.OPEN, missing="")
        _upsert(story.stands(Outcome.OPEN))

    def closed(self, text: str) -> None:
        """The incident is over."""
        self.change(outcome=Outcome.RECOVERED, closed_at_s=workflow.now().timestamp())
        self.tell(text)
        _upsert(story.stands(Outcome.RECOVERED))

    async def archive(self) -> None:
        """Keep the record outside Temporal, too; failing to is told and stops nothing."""
        try:
            await workflow.execute_activity_method(
                ArchivePort.save_incident,
                self.record,
                **options.ARCHIVE.config("save the record"),
            )
        except ActivityError as error:
            self.tell(f"the record could not be saved outside Temporal: {error.cause}")


def _upsert(updates: Sequence[SearchAttributeUpdate[Any]]) -> None:
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]
