"""What a rank's environment and command line say, as pure functions of what is ordered."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.config import MachineConfig
from everstep.agent.environment import machine_environment, rank_environment
from everstep.agent.program import PythonTarget, executable, python_target
from everstep.core.orders import RankStart, StartOrder

BASE = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "EVERSTEP_SECRET": "xyzzy",
    "EVERSTEP_ATTEMPT": "99",
    "TEMPORAL_API_KEY": "xyzzy",
    "OMP_NUM_THREADS": "4",
}
RANK = RankStart(rank=6, local_rank=2, backup=None)
ORDER = StartOrder(
    attempt=3,
    slot=1,
    ranks=(RankStart(4, 0, None), RankStart(5, 1, None), RANK, RankStart(7, 3, None)),
    held_ranks=(0,),
    world_size=12,
    num_machines=3,
    master_host="10.0.0.1",
    master_port=4242,
    restore_step=17,
    code_directory="/code",
)


def config(**changes: Any) -> MachineConfig:
    settings: dict[str, Any] = {"environment": {}, **changes}
    return MachineConfig(
        job="llm",
        machine="m1",
        host="10.0.0.2",
        directory=Path("/var/everstep/m1"),
        command=("python", "train.py"),
        code_directory=Path("/code"),
        output_dir=Path("/out"),
        parallelism="tp=2,pp=2,dp=3;order=tp-pp-dp",
        gpus_per_machine=4,
        secret=b"xyzzy",
        **settings,
    )


def test_a_rank_sees_what_torchrun_would_show_it() -> None:
    found = rank_environment(BASE, config(), ORDER, RANK)
    expected = {
        "RANK": "6",
        "WORLD_SIZE": "12",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_NAME": "default",
        "ROLE_RANK": "6",
        "ROLE_WORLD_SIZE": "12",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4242",
        "TORCHELASTIC_RUN_ID": "llm",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "EVERSTEP_JOB": "llm",
        "EVERSTEP_MACHINE": "m1",
        "EVERSTEP_ATTEMPT": "3",
        "EVERSTEP_OUTPUT_DIR": "/out",
        "EVERSTEP_PARALLELISM": "tp=2,pp=2,dp=3;order=tp-pp-dp",
        "TORCH_GLOO_LAZY_INIT": "1",
        "HOME": "/home/me",
    }
    assert expected.items() <= found.items()
    assert int(found["TORCHELASTIC_MAX_RESTARTS"]) > ORDER.attempt


def test_defaults_yield_to_the_agents_environment_and_all_to_the_specs() -> None:
    assert rank_environment({}, config(), ORDER, RANK)["OMP_NUM_THREADS"] == "1"
    assert rank_environment(BASE, config(), ORDER, RANK)["OMP_NUM_THREADS"] == "4"
    spec = {"OMP_NUM_THREADS": "2", "MASTER_PORT": "1", "EVERSTEP_JOB": "other", "HOME": "/"}
    found = rank_environment(BASE, config(environment=spec), ORDER, RANK)
    assert spec.items() <= found.items()


@pytest.mark.parametrize("path", ["/usr/bin", "", None])
def test_this_interpreter_comes_first(path: str | None) -> None:
    base = {} if path is None else {"PATH": path}
    first, *rest = machine_environment(base, config())["PATH"].split(os.pathsep)
    assert first == str(Path(sys.executable).parent)
    assert "" not in rest


def test_nothing_of_the_agents_own_settings_is_shown() -> None:
    for found in (
        machine_environment(BASE, config()),
        rank_environment(BASE, config(), ORDER, RANK),
    ):
        assert "xyzzy" not in "".join(found.values())
        assert "EVERSTEP_SECRET" not in found
        assert "TEMPORAL_API_KEY" not in found
    assert "EVERSTEP_ATTEMPT" not in machine_environment(BASE, config())


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("python train.py --lr 1", PythonTarget("train.py", None, ("--lr", "1"))),
        ("python3 -u sub/train.py", PythonTarget("sub/train.py", None, ())),
        ("python -m pkg.train -m x", PythonTarget(None, "pkg.train", ("-m", "x"))),
        (f"{sys.executable} train.py", PythonTarget("train.py", None, ())),
        ("python -O train.py", None),
        ("python -c pass", None),
        ("python -m", None),
        ("python", None),
        ("bash train.py", None),
        ("/another/python train.py", None),
        ("", None),
    ],
)
def test_only_plain_python_commands_are_run_warm(command: str, target: PythonTarget | None) -> None:
    assert python_target(command.split()) == target


def test_python_means_this_interpreter() -> None:
    assert executable("python") == executable("python3") == sys.executable
    assert executable("bash") == "bash"


def test_only_a_run_that_asked_for_faults_tells_where_they_lie() -> None:
    base = {**BASE, "EVERSTEP_FAULTS": "/elsewhere", "EVERSTEP_INJECT_FAULTS": "True"}
    assert "EVERSTEP_FAULTS" not in rank_environment(base, config(), ORDER, RANK)
    broken = config(faults_directory=Path("/var/everstep/m1/faults"))
    assert machine_environment(base, broken)["EVERSTEP_FAULTS"] == "/var/everstep/m1/faults"


def test_what_is_other_in_a_replay_wins_over_the_spec() -> None:
    changed = {"EVERSTEP_REPLAY": "1", "EVERSTEP_PARALLELISM": "tp=2", "WANDB_MODE": "disabled"}
    spec = config(environment={"WANDB_MODE": "online", "A": "1"})
    found = rank_environment(BASE, spec, ORDER, RANK, changed)
    assert found.items() >= {**changed, "A": "1"}.items()
    assert not any(
        name.startswith("EVERSTEP_REPLAY") for name in rank_environment(BASE, spec, ORDER, RANK)
    )
