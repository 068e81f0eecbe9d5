"""What real ranks say of themselves, over the channel or in their logs, as their agent tells it."""

from __future__ import annotations

import math
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fault.machines import SECRET, Rig, config_of, until

from everstep import checkpoint
from everstep.agent.channel import RankChannel
from everstep.agent.rank_voice import Word
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.sender import BackupSender
from everstep.core import channel, names
from everstep.core.model import RankProgress
from everstep.core.orders import StopOrder
from everstep.core.vocabulary import Phase

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


def test_the_library_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ShardStore("m0")
    sender = BackupSender(store, SECRET, "toy")
    ours, theirs = socket.socketpair()
    words: list[Word] = []
    agent_side = RankChannel(
        0,
        1,
        ours,
        store,
        sender,
        None,
        0,
        lambda rank, step: None,
        1.0,
        on_word=lambda _, word: words.append(word),
    )
    agent_side.start()
    monkeypatch.setenv(names.ENV_CHANNEL_FD, str(theirs.detach()))
    session = checkpoint.connect()
    session.report(1, loss=torch.tensor(2.5, requires_grad=True), grad_norm=1)
    with session.phase("evaluation"), session.phase("checkpoint"):
        time.sleep(0.05)
    session.phase("start")
    session.report(2, loss=float("inf"), mfu=0.5)
    with pytest.raises(ValueError, match="'lunch' is none of start, step, evaluation, checkpoint"):
        session.phase("lunch")
    session.close()
    agent_side.close()
    sender.close()
    stalls = [word.stalled_s or 0.0 for word in words if isinstance(word, channel.Report)]
    assert stalls[0] == 0.0
    assert 0.05 <= stalls[1] < 5.0
    words = [w if isinstance(w, channel.Entered) else replace(w, stalled_s=None) for w in words]
    assert words == [
        channel.Report(1, 2.5, 1.0),
        channel.Entered("evaluation"),
        channel.Entered("checkpoint"),
        channel.Entered("evaluation"),
        channel.Entered("step"),
        channel.Entered("start"),
        channel.Report(2, math.inf, None, 0.5),
    ]


def test_outside_everstep_the_library_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(names.ENV_CHANNEL_FD, raising=False)
    session = checkpoint.connect()
    session.report(1, loss=2.5)
    with session.phase("evaluation"):
        session.report(2)


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
            "time.sleep(0.5)\n"
            "print('iteration 1,001/  5000 | loss: 2 | grad norm: 1', flush=True)\n"
        )
        await rig.machine.start(rig.order(attempt=1, num_ranks=1))
        await until(lambda: told(rig) and told(rig)[-1][1] is Phase.ENDED)
    said = rig.seen(RankProgress)
    assert [(event.step, event.phase) for event in said] == [
        (999, Phase.STEP),
        (999, Phase.EVALUATION),
        (1000, Phase.STEP),
        (1000, Phase.CHECKPOINT),
        (1001, Phase.STEP),
        (1001, Phase.ENDED),
    ]
    # The log is read some ten times a second.
    assert [event.stalled_s for event in said[:4]] == [None] * 4
    assert 0.2 < (said[4].stalled_s or 0.0) < 5.0
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
