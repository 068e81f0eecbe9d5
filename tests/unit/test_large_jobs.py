"""What time-outs give to jobs of many machines, whom one server serves in turn."""

from __future__ import annotations

from datetime import timedelta

from everstep.workflows import options
from everstep.workflows.batches import MACHINES_PER_BATCH


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_a_batch_or_less_has_the_time_outs_of_the_table() -> None:
    assert options.STOP.amid(MACHINES_PER_BATCH) is options.STOP


def test_the_last_of_many_has_as_much_time_as_a_single_one() -> None:
    amid = options.STOP.amid(1_200)
    assert (amid.schedule_to_start, amid.heartbeat) == (seconds(5 + 6), seconds(2 + 6))
    assert (amid.start_to_close, amid.schedule_to_close) == (seconds(10 + 6), seconds(15 + 12))


def test_what_is_unlimited_stays_so() -> None:
    amid = options.await_step(None).amid(1_200)
    assert (amid.schedule_to_start, amid.schedule_to_close) == (None, None)


def test_a_large_job_s_workflow_has_longer_for_being_read_anew() -> None:
    assert options.workflow_task_timeout(16) == options.WORKFLOW_TASK_TIMEOUT == seconds(2)
    assert options.workflow_task_timeout(1_200) == seconds(9.6)
