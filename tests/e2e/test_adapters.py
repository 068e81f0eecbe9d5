"""The examples for common trainers: interrupted or not, with Everstep or without, one result."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from everstep.core.vocabulary import Outcome, Rung
from tests.e2e.local import EXAMPLES, assert_nothing_left, clean_environment, run, write_spec

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(400)]

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Example:
    """A small run of an example on two machines, and what happens to it."""

    folder: str
    script: str
    length: str
    gpus_per_machine: int
    faults: dict[str, Rung]

    @property
    def num_ranks(self) -> int:
        return 2 * self.gpus_per_machine


SMALL_RUNS = [
    # The order in which four ranks add gradients shows in the bits; with two it would not.
    Example(
        "ddp",
        "train.py",
        "6",
        gpus_per_machine=2,
        faults={"rank_killed@15:1": Rung.REATTEMPT, "machine_lost@30:m1": Rung.EVICT},
    ),
    Example(
        "fsdp2", "train.py", "30", gpus_per_machine=1, faults={"machine_lost@8:m0": Rung.EVICT}
    ),
    # After the last step of an epoch.
    Example(
        "lightning",
        "fit.py",
        "3",
        gpus_per_machine=1,
        faults={"rank_killed@20:1": Rung.REATTEMPT},
    ),
]


def train_without_everstep(example: Example, out: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(example.num_ranks),
        str(EXAMPLES / example.folder / example.script), example.length,
    ]  # fmt: skip
    environment = {k: v for k, v in clean_environment().items() if not k.startswith("EVERSTEP_")}
    # As under Everstep: other numbers of threads give other bits.
    environment |= {"OMP_NUM_THREADS": "1", "EVERSTEP_OUTPUT_DIR": str(out)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(folder / "model.pt")
    return loaded


# The two others lose a rank and a machine between them.
VARIED = ["ddp"]


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(e, id=e.folder, marks=[pytest.mark.soak] if e.folder in VARIED else [])
        for e in SMALL_RUNS
    ],
)
def test_disturbed_run_ends_as_plain_torchrun_does(example: Example, tmp_path: Path) -> None:
    train_without_everstep(example, tmp_path)
    expected = weights(tmp_path)

    spec = write_spec(
        tmp_path,
        steps=0,
        standbys=list(example.faults.values()).count(Rung.EVICT),
        name=example.folder,
        command=["python", example.script, example.length],
        code={"directory": str(EXAMPLES / example.folder)},
        machines=2,
        gpus_per_machine=example.gpus_per_machine,
        parallelism={"dp": example.num_ranks},
        prewarm=["torch._dynamo"],
    )
    done = run(spec, tmp_path / "run", *example.faults)
    assert done.code == 0, done.explain()
    actual = weights(tmp_path / "run" / "output")
    assert sorted(actual) == sorted(expected)
    assert [name for name in actual if not torch.equal(actual[name], expected[name])] == []

    records = done.incidents
    assert {record.outcome for record in records} == {Outcome.RECOVERED}, done.explain()
    climbed = [climb.rung for record in records for climb in record.climbs]
    assert climbed == list(example.faults.values()), done.explain()
    assert all((record.restored_step or 0) > 0 for record in records), done.explain()
    assert all(record.lost_steps <= 1 for record in records), done.explain()
    assert_nothing_left(done.folder)
