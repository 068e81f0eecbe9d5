"""How a job reads in Temporal's web UI, and what failed there."""

from __future__ import annotations

import pytest
from temporalio.exceptions import ActivityError, TimeoutError, TimeoutType

from everstep.core.memory import CodeVersion
from everstep.core.updates import Update, UpdateState
from everstep.workflows import ordering, story
from everstep.workflows.messages import JobStatus


def test_an_update_is_told_with_what_has_become_of_it() -> None:
    made = Update(1, "v2", "/code/v2", (), "ada", "", 1.0, 1.0, UpdateState.APPLIED, "v2")
    waits = Update(2, "v3", "/code/v3", (), "ada", "", 2.0, 900.0)
    failed = CodeVersion("v2", "/code/v2", failed="SyntaxError in train.py")
    status = JobStatus(
        "job", "training", None, (), (), 1, None, codes=(failed,), updates=(made, waits)
    )
    told = story.job_details(status)
    assert "update 1 by ada: code v2: rolled back: SyntaxError in train.py" in told
    assert "update 2 by ada: code v3: waits for a restart" in told


@pytest.mark.parametrize(
    ("late", "told"),
    [
        (TimeoutType.SCHEDULE_TO_START, "it did not take the order in time"),
        (TimeoutType.HEARTBEAT, "it fell silent over the order"),
        (TimeoutType.START_TO_CLOSE, "it did not finish in time"),
    ],
)
def test_who_is_late_is_told_in_words(late: TimeoutType, told: str) -> None:
    error = ActivityError(
        "Activity task timed out",
        scheduled_event_id=5,
        started_event_id=6,
        identity="",
        activity_type="machine.stop",
        activity_id="1",
        retry_state=None,
    )
    error.__cause__ = TimeoutError("activity timeout", type=late, last_heartbeat_details=[])
    assert ordering.why(error) == told
