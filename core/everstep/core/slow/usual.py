"""What a step usually costs each rank, and which ranks stand out from that now.

Ranks differ for good: pipeline stages are uneven, and one rank writes the log. So each rank is
compared with its own usual, and then with how all ranks do now, which takes out what is common to
them: longer sequences, a busy host.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from everstep.core.senses.running import quantile

LEARN_ROUNDS = 6
"""Rounds before anybody can stand out: a minute of training."""

SETTLED_ROUNDS = 30
"""Rounds of which the median is a rank's usual, for good: what creeps in after them is seen."""

SPREAD_ROUNDS = 60
"""Newest rounds that say how far ranks stray when nothing is wrong."""

RECENT_ROUNDS = 12
"""A burst of other work that lasts for a minute is noise; what stays longer is not."""

SAMPLED_RANKS = 64
"""Ranks of each round that are enough to know it by."""

NOISE_SHARE, NOISE_TIMES = 0.9, 1.6
"""A rank stands out that strays by so many times what this share of strays does not exceed: 2.6
standard deviations where they are normal, which is 1 round in 200 by chance, and more where single
rounds stray far. That it happens in 4 of 5 rounds by chance is 1 in 10^8."""

HARM_RATIO = 0.005
"""Extra time that is less of a step than this slows nobody: a rank may log more than it did."""

_MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median of n normal values, in those of their mean."""

FEW_RANKS = 2
"""Of two ranks, the slow one must not hide behind the mean of both."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How ranks do in one round.

    Attributes:
        excess: By rank, by which share its steps cost it more than is usual for it, all ranks
            considered; 0.1 is 10 % more.
        margin: Excess beyond which a rank stands out.
        outliers: Ranks that do, ascending.
    """

    excess: Mapping[int, float]
    margin: float
    outliers: tuple[int, ...]


class Usual:
    """Learns by one measure what is usual, and says who stands out.

    Args:
        ratio: Least excess that counts, > 0, however calm the job is.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._learned: list[dict[int, float]] = []
        self._usual: dict[int, float] = {}
        self._recent: deque[dict[int, float]] = deque(maxlen=RECENT_ROUNDS)
        self._strayed: deque[list[float]] = deque(maxlen=SPREAD_ROUNDS)

    @property
    def known(self) -> bool:
        """Whether enough rounds were seen."""
        return len(self._learned) >= LEARN_ROUNDS

    def look(
        self, costs: Mapping[int, float], steps_s: Mapping[int, float], suspects: Collection[int]
    ) -> Standing | None:
        """Judge a round; None while what is usual is not known.

        Args:
            costs: Seconds a step that are each rank's own; the same ranks in every round.
            steps_s: Seconds that a step takes each rank, waiting included.
            suspects: Ranks against which there is other evidence: half the ratio is enough.
        """
        if not self.known or min(costs.values()) <= 0:
            return None
        excess, noise = _excess(costs, self._usual), self._noise()
        self._note_strays(excess)

        def stands_out(rank: int) -> bool:
            ratio = self._ratio / 2 if rank in suspects else self._ratio
            extra_s = excess[rank] / (1 + excess[rank]) * costs[rank]
            return excess[rank] > max(ratio, noise) and extra_s > HARM_RATIO * steps_s[rank]

        outliers = tuple(sorted(filter(stands_out, excess)))
        return Standing(excess, max(self._ratio, noise), outliers)

    def learn(self, costs: Mapping[int, float]) -> None:
        """Take a round in which nothing is wrong as an example of the usual."""
        if min(costs.values()) <= 0:
            return
        if len(self._learned) < SETTLED_ROUNDS:
            common = median_low(costs.values())
            self._learned.append({rank: cost / common for rank, cost in costs.items()})
            self._usual = _medians(self._learned)
        if self.known and not self._strayed:
            for left_out in self._learned:
                others = [learned for learned in self._learned if learned is not left_out]
                excess = _excess(left_out, _medians(others))
                self._strayed.append(list(_sample(excess).values()))

    def _note_strays(self, excess: Mapping[int, float]) -> None:
        """How far each rank is from where it has been lately, so that what creeps is no noise."""
        sample = _sample(excess)
        self._recent.append(sample)
        lately = _medians(self._recent)
        self._strayed.append([value - lately[rank] for rank, value in sample.items()])

    def _noise(self) -> float:
        strays = [abs(value) for strays in self._strayed for value in strays]
        uncertain = math.sqrt(1 + _MEDIAN_VARIANCE / len(self._learned))
        return NOISE_TIMES * uncertain * quantile(strays, NOISE_SHARE)


def _sample(excess: Mapping[int, float]) -> dict[int, float]:
    return dict(list(excess.items())[:: math.ceil(len(excess) / SAMPLED_RANKS)])


def _medians(rounds: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {rank: median(costs[rank] for costs in rounds) for rank in rounds[0]}


def _excess(costs: Mapping[int, float], usual: Mapping[int, float]) -> dict[int, float]:
    now = {rank: cost / usual[rank] for rank, cost in costs.items()}
    common = (median_low if len(now) <= FEW_RANKS else median)(now.values())
    return {rank: value / common - 1 for rank, value in now.items()}
