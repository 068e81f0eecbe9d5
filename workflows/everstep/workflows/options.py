"""The one table of time-outs, heartbeats and retries, with the reason of each number.

Durations that a person may want to change stand in the job's spec; these are properties of the
activities themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from everstep.workflows.batches import MACHINES_PER_BATCH

NEVER_AGAIN = ("StaleAttempt", "PermanentError", "InputError")
"""Error types (by class name, as Temporal matches them) for which a retry cannot help."""

PROMPT_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    non_retryable_error_types=list(NEVER_AGAIN),
)
"""Thousands of GPUs wait: the first retry comes at once, later ones no further than 5 s apart."""


WORKFLOW_TASK_TIMEOUT = timedelta(seconds=2)
"""How long a workflow task of a dead worker waits before another takes it (Temporal's default is
10 s); a task of ours takes milliseconds."""

TASK_TIME_A_MACHINE = timedelta(milliseconds=8)
"""A controller that takes a job over reads all that its open incident has been told so far, within
one workflow task: about a millisecond a machine, on a starved host several."""


def workflow_task_timeout(machines: int) -> timedelta:
    """For the workflows that see all machines of a job: 2 s up to 250 of them, 9.6 s for 1,200.

    Args:
        machines: Their number.
    """
    return max(WORKFLOW_TASK_TIMEOUT, machines * TASK_TIME_A_MACHINE)


TURN_A_MACHINE = timedelta(milliseconds=20)
"""An order takes a server 4 ms a machine on two cores that it shares with controller and agents,
and on a starved host several times that. What a time-out of a few seconds says of one machine it
must not say of whoever is served last: with 5 ms, 7 innocent ones of 360 were evicted. That an
agent is lost its analyzer knows at once, however long the time-out; and heartbeats of a thousand
every second would keep the server from the orders themselves."""


MAX_SUMMARY_CHARS = 200
"""The server refuses summaries of more than 400 bytes."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of one activity.

    Attributes:
        start_to_close: Longest that one try may run.
        schedule_to_close: Longest that all tries together may take.
        schedule_to_start: Longest that a machine may leave an order lying; None where any worker
            may take it, because then waiting for a worker is right.
        heartbeat: Longest silence of a running try; only where a try may outlast it.
    """

    start_to_close: timedelta
    schedule_to_close: timedelta | None
    schedule_to_start: timedelta | None = None
    heartbeat: timedelta | None = None

    def amid(self, machines: int) -> CallOptions:
        """The same where so many machines are ordered at once, whom the server serves in turn.

        Args:
            machines: Their number; up to a batch makes no difference.
        """
        if machines <= MACHINES_PER_BATCH:
            return self
        longer = machines * TURN_A_MACHINE
        return CallOptions(
            self.start_to_close + longer,
            None if self.schedule_to_close is None else self.schedule_to_close + 2 * longer,
            None if self.schedule_to_start is None else self.schedule_to_start + longer,
            None if self.heartbeat is None else self.heartbeat + longer,
        )

    def config(self, summary: str, task_queue: str | None = None) -> ActivityConfig:
        """Keyword arguments for `execute_activity_method`, with the sentence for the web UI."""
        config = ActivityConfig(
            start_to_close_timeout=self.start_to_close,
            retry_policy=PROMPT_RETRY,
            summary=summary[:MAX_SUMMARY_CHARS],
        )
        if self.schedule_to_close is not None:
            config["schedule_to_close_timeout"] = self.schedule_to_close
        if self.schedule_to_start is not None:
            config["schedule_to_start_timeout"] = self.schedule_to_start
        if self.heartbeat is not None:
            config["heartbeat_timeout"] = self.heartbeat
        if task_queue is not None:
            config["task_queue"] = task_queue
        return config


# A live agent takes an order within milliseconds, on a starved host within a second or two. One
# that is gone is told by the analyzer long before (connection closed: 0.3 s, silence: 3 s); this is
# the net below that one, for an agent that beats and does not serve.
_ANSWER = timedelta(seconds=5)

STOP = CallOptions(
    # SIGKILL and reaping take milliseconds; a process in uninterruptible sleep takes for ever.
    start_to_close=timedelta(seconds=10),
    schedule_to_close=timedelta(seconds=15),
    schedule_to_start=_ANSWER,
    heartbeat=timedelta(seconds=2),
)
RESTORE = CallOptions(
    # Moves whole shards: 100 GB at 1 GB/s, with heartbeats to see a dead agent at once.
    start_to_close=timedelta(minutes=3),
    schedule_to_close=timedelta(minutes=5),
    schedule_to_start=_ANSWER,
    heartbeat=timedelta(seconds=2),
)
LOOK_AT_STORAGE = CallOptions(
    # A listing takes seconds; a filesystem that hangs is given up by the agent after two minutes.
    start_to_close=timedelta(minutes=3),
    schedule_to_close=timedelta(minutes=4),
    schedule_to_start=_ANSWER,
    heartbeat=timedelta(seconds=2),
)
RESTORE_FROM_STORAGE = CallOptions(
    # All machines read at once, at what the storage gives; heartbeats tell a dead agent at once,
    # and a read that hangs is given up by the agent when the spec says.
    start_to_close=timedelta(hours=6),
    schedule_to_close=timedelta(hours=12),
    schedule_to_start=_ANSWER,
    heartbeat=timedelta(seconds=2),
)
START = CallOptions(
    # A fork takes milliseconds; a cold interpreter, or a pre-warm still under way, a minute.
    start_to_close=timedelta(minutes=2),
    schedule_to_close=timedelta(minutes=3),
    schedule_to_start=_ANSWER,
    heartbeat=timedelta(seconds=2),
)
PREPARE = CallOptions(
    # Reads a repository from a shared folder, and may compile it, while training runs; heartbeats
    # tell a dead agent at once, and what hangs is given up by the agent when the spec says.
    start_to_close=timedelta(hours=6),
    schedule_to_close=timedelta(hours=12),
    # Nobody is in a hurry, and a host that is busy with its ranks would else refuse an update.
    schedule_to_start=timedelta(minutes=1),
    heartbeat=timedelta(seconds=10),
)
TRACE = CallOptions(
    # Each process has a few seconds of its own, at most 32 of a machine's are asked at once; one
    # try only, since who does not answer is what is asked.
    start_to_close=timedelta(seconds=30),
    schedule_to_close=timedelta(seconds=30),
    schedule_to_start=_ANSWER,
    heartbeat=timedelta(seconds=2),
)
JUDGE = CallOptions(
    # 9,600 ranks, twice, are judged within 2 s; the time goes into reading them from the store.
    start_to_close=timedelta(minutes=1),
    schedule_to_close=timedelta(minutes=2),
    heartbeat=timedelta(seconds=5),
)


def check(deadline_s: float) -> CallOptions:
    """Options of a check: it answers within its deadline, and a dead agent is seen at once.

    Args:
        deadline_s: That of the order.
    """
    # Killing what is left at the deadline, and a look at it, take a second; a starved host, ten.
    answer = timedelta(seconds=deadline_s) + timedelta(seconds=15)
    return CallOptions(
        start_to_close=answer,
        # Not twice: an agent that died in a check has said enough.
        schedule_to_close=answer + _ANSWER,
        schedule_to_start=_ANSWER,
        heartbeat=timedelta(seconds=2),
    )


EVICT = CallOptions(
    # Kills local processes, or talks to an API server that may be slow but comes back.
    start_to_close=timedelta(seconds=30),
    schedule_to_close=timedelta(minutes=10),
    heartbeat=timedelta(seconds=3),
)
EVICT_PATIENCE = timedelta(seconds=5)
"""How long a recovery waits for evictions: local processes are gone in milliseconds, and a cluster
has its marks. A pod, or an API server, that takes longer is no reason to wait."""

CLUSTER_MARK = CallOptions(
    # A few requests to an API server, for people to see; what does not come soon matters no more.
    start_to_close=timedelta(seconds=30),
    schedule_to_close=timedelta(minutes=1),
    heartbeat=timedelta(seconds=5),
)
CLAIM = CallOptions(
    # Three requests a machine, side by side; recovery waits for it, and no longer than this.
    start_to_close=timedelta(seconds=3),
    schedule_to_close=timedelta(seconds=3),
)
REQUEST_MACHINES = CallOptions(
    # Writes a file, or talks to an API server; nothing waits for it but the note that it was done.
    start_to_close=timedelta(seconds=30),
    schedule_to_close=timedelta(minutes=10),
)
ARCHIVE = CallOptions(
    # A small file. Recovery never waits for it longer than this; Temporal has the record, too.
    start_to_close=timedelta(seconds=10),
    schedule_to_close=timedelta(seconds=30),
)
ANSWER = CallOptions(
    # The simulated cluster computes; a controller's death costs it nothing.
    start_to_close=timedelta(minutes=1),
    schedule_to_close=None,
)
PAGE = CallOptions(
    # A short request to a service that may be away; whoever is to be called can see the hold, too.
    start_to_close=timedelta(seconds=15),
    schedule_to_close=timedelta(minutes=2),
)


def await_step(limit: timedelta | None) -> CallOptions:
    """Options of a wait for a step: as long as `limit`, and a dead analyzer is seen at once."""
    return CallOptions(
        start_to_close=limit or timedelta(days=1),
        schedule_to_close=limit,
        heartbeat=timedelta(seconds=2),
    )
