"""Which agents watch their machine, and what they are told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.spec.job import JobSpec
from everstep.workers.agent import monitor_config
from everstep.workers.settings import WorkerSettings, from_environment


def settings(**changed: Any) -> WorkerSettings:
    folder = Path("/run/job")
    return WorkerSettings(
        spec_file=folder / "job.yaml",
        run_directory=folder,
        secret_file=folder / "secret",
        code_directory=folder / "code",
        telemetry_port=1234,
        **changed,
    )


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"host": "10.0.0.7"}, True),
        ({"host": "node-7"}, True),
        ({"host": "127.0.0.1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "127.0.0.1", "senses": True}, True),
        ({"host": "10.0.0.7", "senses": False}, False),
    ],
)
def test_machines_that_share_a_host_do_not_watch_it_unless_told(
    changed: dict[str, Any], expected: bool
) -> None:
    given = settings(**changed)
    assert given.watches_machine() is expected
    assert from_environment(given.environment()).watches_machine() is expected


def test_the_ranks_own_nccl_settings_win_over_the_agents() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "job",
            "command": ["python", "train.py"],
            "code": {"directory": "."},
            "machines": 1,
            "gpus_per_machine": 1,
            "standby": {"count": 0},
            "parallelism": {"dp": 1},
            "environment": {"NCCL_IB_HCA": "=mlx5_1"},
        }
    )
    environ = {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "eth"}
    relevance = monitor_config("m1", settings(host="10.0.0.7"), spec, environ).relevance
    assert (relevance.nccl_ib_hca, relevance.nccl_socket_ifname) == ("=mlx5_1", "eth")
    assert tuple(relevance.addresses) == ("10.0.0.7",)
