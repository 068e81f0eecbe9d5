"""Votes on a recorded run under heavy other load: half an hour names nobody, a slowed rank is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from everstep.core.groups import Layout
from everstep.core.model import Alert, RankProgress
from everstep.core.slow.ballot import VotePolicy
from everstep.core.slow.sense import SlowSense

TRACE = Path(__file__).resolve().parents[1] / "data" / "slow" / "trace.txt"
LAYOUT = Layout(1, tp=2, dp=2, order=("tp", "dp"))


@dataclass(frozen=True)
class Word:
    """What a rank had used when it ended a step."""

    at_s: float
    rank: int
    step: int
    ran_s: float
    waited_s: float


def recorded() -> list[Word]:
    lines = [line.split() for line in TRACE.read_text().splitlines()]
    return [Word(float(t), int(r), int(s), float(ran), float(w)) for t, r, s, ran, w in lines]


def again(words: list[Word], turn: int) -> list[Word]:
    """The same noise once more, later, and on other ranks."""
    last = {word.rank: word for word in words}
    pause_s = last[0].at_s + 1.0
    return [
        Word(
            word.at_s + pause_s,
            rank,
            word.step + last[rank].step,
            word.ran_s + last[rank].ran_s,
            word.waited_s + last[rank].waited_s,
        )
        for word in recorded()
        for rank in [(word.rank + turn) % LAYOUT.world_size]
    ]


def slowed(words: list[Word], rank: int, times: float, from_s: float) -> Iterator[Word]:
    """One rank needs more time on a core for each step from a moment on."""
    before, extra_s = 0.0, 0.0
    for word in words:
        if word.rank == rank:
            if word.at_s >= from_s:
                extra_s += (times - 1) * (word.ran_s - before)
            before = word.ran_s
            word = replace(word, ran_s=word.ran_s + extra_s)
        yield word


def judge(words: Iterator[Word] | list[Word]) -> list[Alert]:
    sense = SlowSense(LAYOUT, VotePolicy())
    alerts: list[Alert] = []
    for word in words:
        sense.note(
            RankProgress(
                f"m{word.rank}",
                1,
                word.rank,
                word.step,
                word.at_s,
                ran_s=word.ran_s,
                waited_s=word.waited_s,
            )
        )
        alerts += sense.look(word.at_s, declined=False)
    return alerts


def test_half_an_hour_of_noise_names_nobody() -> None:
    for turns in ((0, 0), (1, 1), (2, 3)):
        words = recorded()
        for turn in turns:
            words += again(words, turn)
        assert words[-1].at_s > 1800.0
        assert judge(words) == [], turns


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("from_s", [200.0, 407.0, 500.0])
@pytest.mark.parametrize("times", [1.2, 1.3, 2.0])
def test_a_slowed_rank_is_named_within_a_minute(rank: int, from_s: float, times: float) -> None:
    first, *_ = judge(slowed(recorded(), rank, times, from_s))
    assert first.machine == f"m{rank}"
    assert 0.0 < first.at_s - from_s < 62.0


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("from_s", [200.0, 300.0])
def test_ten_percent_are_found_under_such_a_load_though_it_may_take_longer(
    rank: int, from_s: float
) -> None:
    (alert,) = judge(slowed(recorded(), rank, 1.1, from_s))
    assert alert.machine == f"m{rank}"
    assert 0.0 < alert.at_s - from_s < 180.0
