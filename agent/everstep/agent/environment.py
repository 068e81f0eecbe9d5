"""The environment variables that ranks see: torchrun's, Everstep's, and those of the spec."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

from everstep.agent import witness
from everstep.agent.config import MachineConfig
from everstep.agent.process import ENV_OWNER
from everstep.core import names, updates
from everstep.core.orders import RankStart, StartOrder

_NO_LIMIT = str(2**31 - 1)

_DEFAULTS = {
    # As torchrun does; and other numbers of threads give other bits.
    "OMP_NUM_THREADS": "1",
    # Else a new group connects all its members at once: 72 ms instead of 0.5 at 32 ranks.
    "TORCH_GLOO_LAZY_INIT": "1",
    # torch looks up the name of every peer's address; a slow resolver would halt all ranks for 5 s.
    "RES_OPTIONS": "timeout:1 attempts:1",
    # The last words of a rank that is killed must be in its log.
    "PYTHONUNBUFFERED": "1",
}


def machine_environment(base: Mapping[str, str], config: MachineConfig) -> dict[str, str]:
    """What all processes under the agent share.

    Args:
        base: The agent's environment.
        config: The machine's part in the job.
    """
    # The agent's own settings, the job's secret among them, are none of a rank's business.
    public = {name: base[name] for name in base if not name.startswith(names.PRIVATE_PREFIXES)}
    interpreters = os.path.dirname(sys.executable)  # noqa: PTH120 - a variable wants a string
    path = os.pathsep.join([interpreters, *filter(None, [base.get("PATH", os.defpath)])])
    shared = {
        **_DEFAULTS,
        **public,
        "PATH": path,
        names.ENV_JOB: config.job,
        names.ENV_MACHINE: config.machine,
        names.ENV_OUTPUT_DIR: str(config.output_dir),
        names.ENV_PARALLELISM: config.parallelism,
        **config.environment,
    }
    if config.faults_directory is not None:
        shared[names.ENV_FAULTS] = str(config.faults_directory)
    return {**shared, ENV_OWNER: config.owner}


def rank_environment(
    base: Mapping[str, str],
    config: MachineConfig,
    order: StartOrder,
    start: RankStart,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The whole environment of one rank, apart from its channel's descriptor.

    Args:
        base: The agent's environment.
        config: The machine's part in the job.
        order: The order that starts the rank.
        start: The rank.
        variables: What is other for this rank than for one that trains; wins over everything else.
    """
    world_size = str(order.world_size)
    return {
        **machine_environment(base, config),
        "RANK": str(start.rank),
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": str(start.local_rank),
        "LOCAL_WORLD_SIZE": str(len(order.ranks)),
        "GROUP_RANK": str(order.slot),
        "GROUP_WORLD_SIZE": str(order.num_machines),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(start.rank),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": order.master_host,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RUN_ID": config.job,
        "TORCHELASTIC_RESTART_COUNT": str(order.attempt),
        "TORCHELASTIC_MAX_RESTARTS": _NO_LIMIT,
        # Rank 0 joins the store as the others do, and does not open one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        names.ENV_ATTEMPT: str(order.attempt),
        names.ENV_STACKS_FILE: str(witness.stacks_file(config, order.attempt, start.rank)),
        **config.environment,
        **updates.variables_of(order.settings),
        **variables,
        ENV_OWNER: config.owner,
    }
