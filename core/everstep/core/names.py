"""Names that cross a process: wire format, so changed only with a migration (a test pins them).

Environment variables of the ranks stand here too, because both halves of the node side read them.
"""

from __future__ import annotations

CONTROLLER_QUEUE = "everstep.controller"


def machine_queue(job: str, machine: str) -> str:
    """Task queue that only this machine's agent polls."""
    return f"everstep.machine.{job}.{machine}"


def analyzer_queue(job: str) -> str:
    """Task queue that only this job's analyzer polls."""
    return f"everstep.analyzer.{job}"


def job_workflow_id(job: str) -> str:
    """Id of the job's workflow; also what keeps two runs of one job from being started."""
    return f"job/{job}"


def incident_workflow_id(job: str, incident: int) -> str:
    """Id of an incident's workflow."""
    return f"incident/{job}/{incident}"


def batch_workflow_id(parent: str, order: str, number: int) -> str:
    """Id of a workflow that orders one batch of machines.

    Args:
        parent: Id of the workflow that asks for it.
        order: What is ordered, and what tells it from other orders of the same kind.
        number: Of the batch, from 1.
    """
    return f"{parent}/{order}/{number}"


def stacks_workflow_id(job: str, number: str) -> str:
    """Id of a workflow that collects the stacks of a job once."""
    return f"stacks/{job}/{number}"


PRIVATE_PREFIXES = ("EVERSTEP_", "TEMPORAL_")
"""What the names of our own variables, and of Temporal's, begin with."""

TORCHRUN_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    | {"MASTER_ADDR", "MASTER_PORT"}
)
"""Those of torchrun's variables that are another's for each rank or attempt."""

# Set for every rank, beside torchrun's own variables.
ENV_CHANNEL_FD = "EVERSTEP_CHANNEL_FD"
ENV_JOB = "EVERSTEP_JOB"
ENV_ATTEMPT = "EVERSTEP_ATTEMPT"
ENV_MACHINE = "EVERSTEP_MACHINE"
ENV_OUTPUT_DIR = "EVERSTEP_OUTPUT_DIR"
ENV_PARALLELISM = "EVERSTEP_PARALLELISM"
ENV_STACKS_FILE = "EVERSTEP_STACKS_FILE"

# Set for ranks of a replay alone, beside those above.
ENV_REPLAY = "EVERSTEP_REPLAY"
ENV_REPLAY_STEPS = "EVERSTEP_REPLAY_STEPS"
ENV_REPLAY_LAYERS = "EVERSTEP_REPLAY_LAYERS"
ENV_REPLAY_REPEATS = "EVERSTEP_REPLAY_REPEATS"
ENV_REPLAY_SEED = "EVERSTEP_REPLAY_SEED"

# Set for the programs of a check, and for ranks and checks of a run that asked for faults.
ENV_RESULT_FD = "EVERSTEP_RESULT_FD"
ENV_FAULTS = "EVERSTEP_FAULTS"
