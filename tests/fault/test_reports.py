"""What real ranks say of themselves, over the channel or in their logs, as their agent tells it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.fault.machines import Rig, config_of, until

from everstep.core.model import Phase, RankProgress, StopOrder

TRAIN = ("python", "train.py")

# Most tests have no torch, which the library needs; this stands for what `Session` sends.
SPEAK = """
import math, os, socket, time
from everstep.core import channel
sock = socket.socket(fileno=int(os.environ["EVERSTEP_CHANNEL_FD"]))
def say(message):
    sock.sendall(channel.encode(message))
"""

WAIT = "import time\ntime.sleep(1000)\n"


def told(rig: Rig) -> list[tuple[int, Phase, float | None]]:
    return [(event.step, event.phase, event.loss) for event in rig.seen(RankProgress)]


async def test_figures_and_phases_are_told_as_the_rank_says_them(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN)) as rig:
        rig.write(
            SPEAK + "say(channel.Hello())\n"
            "say(channel.Report(6, 2.5, 1.25, 0.4))\n"
            "say(channel.Entered('evaluation'))\n"
            "say(channel.Report(7, math.nan))\n"
            "say(channel.Entered('paused'))\n"
            "say(channel.Report(8))\n"
            "say(channel.Entered('lunch'))\n"
            "say(channel.Entered('ended'))\n"
            "say(channel.Report(9))\n" + WAIT
        )
        await rig.machine.start(rig.order(attempt=1, num_ranks=1, restore_step=5))
        await until(lambda: told(rig) and told(rig)[-1][0] == 9)
        await rig.machine.stop(StopOrder(1))
    said = rig.seen(RankProgress)
    assert (said[1].grad_norm, said[1].mfu) == (1.25, 0.4)
    assert math.isnan(said[3].loss or 0.0)
    assert [(event.step, event.phase) for event in said] == [
        (5, Phase.START),
        (6, Phase.STEP),
        (6, Phase.EVALUATION),
        (7, Phase.STEP),
        (7, Phase.PAUSED),
        (8, Phase.PAUSED),
        (9, Phase.PAUSED),
        (9, Phase.ENDED),
    ]


@pytest.mark.slow
async def test_the_library_says_it(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN, torch=True)) as rig:
        rig.write(
            "import torch\n"
            "from everstep import checkpoint\n"
            "session = checkpoint.connect()\n"
            "assert session.restore() is None\n"
            "session.report(1, loss=torch.tensor(2.5), grad_norm=1)\n"
            "with session.phase('evaluation'):\n"
            "    with session.phase('checkpoint'):\n"
            "        pass\n"
            "session.phase('start')\n"
            "session.report(2, loss=float('inf'), mfu=0.5)\n"
            "try:\n"
            "    session.phase('lunch')\n"
            "except ValueError as error:\n"
            "    print(error)\n"
        )
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await until(lambda: told(rig) and told(rig)[-1][1] is Phase.ENDED, 60.0)
        assert "'lunch' is none of start, step, evaluation, checkpoint, paused" in rig.log(1, 0)
    assert told(rig) == [
        (0, Phase.START, None),
        (1, Phase.STEP, 2.5),
        (1, Phase.EVALUATION, None),
        (1, Phase.CHECKPOINT, None),
        (1, Phase.EVALUATION, None),
        (1, Phase.STEP, None),
        (1, Phase.START, None),
        (2, Phase.STEP, math.inf),
        (2, Phase.ENDED, None),
    ]


PATTERN = (
    r"iteration +(?P<step>[\d,]+)/.*loss: (?P<loss>\S+).*norm: (?P<grad_norm>\S+)"
    r"|(?P<evaluation>evaluating)|(?P<checkpoint>saving checkpoint)"
)


async def test_steps_of_a_script_without_the_library_are_read_from_its_log(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN, step_pattern=PATTERN)) as rig:
        rig.write(
            "import sys, time\n"
            "print('iteration      999/  5000 | loss: 2.5E+00 | grad norm: 0.5', flush=True)\n"
            "print('loading 12 files', flush=True)\n"
            "print('evaluating', flush=True)\n"
            "print('iteration    1,000/  5000 | loss: nan | grad ', end='', flush=True)\n"
            "time.sleep(0.5)\n"
            "print('norm: inf |\\nsaving checkpoint', flush=True)\n"
        )
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await until(lambda: told(rig) and told(rig)[-1][1] is Phase.ENDED)
    said = rig.seen(RankProgress)
    assert [(event.step, event.phase) for event in said] == [
        (999, Phase.STEP),
        (999, Phase.EVALUATION),
        (1000, Phase.STEP),
        (1000, Phase.CHECKPOINT),
        (1000, Phase.ENDED),
    ]
    assert (said[0].loss, said[0].grad_norm) == (2.5, 0.5)
    assert math.isnan(said[2].loss or 0.0)
    assert said[2].grad_norm == math.inf
    assert all(event.from_log for event in said)


async def test_a_rank_that_uses_the_library_is_not_read(tmp_path: Path) -> None:
    async with Rig(config_of(tmp_path, TRAIN, step_pattern=PATTERN)) as rig:
        rig.write(
            SPEAK + "say(channel.Hello())\n"
            "time.sleep(0.5)\n"
            "print('iteration 7/ loss: 1 norm: 1', flush=True)\n"
        )
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await until(lambda: told(rig) and told(rig)[-1][1] is Phase.ENDED)
    assert told(rig) == [(0, Phase.START, None), (0, Phase.ENDED, None)]
