"""Whether steps have become slower, and stay so: a decline of MFU."""

from __future__ import annotations

from collections import deque
from statistics import median

from everstep.core.senses.running import spread

RECENT = 20
"""Newest steps whose median is the speed now: one slow step, or five, is no decline."""

BLOCK = 50
"""Steps whose median is one measure of the usual speed."""

BLOCKS = 20
"""Measures among which the fastest is the usual speed; so a decline that creeps in is seen, too,
and a change that was meant is the usual after 1000 steps."""

NOISE_DEVIATIONS = 2.5
"""The median of 20 steps strays by 0.3 standard deviations of one step, and the fastest of 20
medians of 50 lies 0.4 below the usual: this is beyond both for years of steps."""


class PaceSense:
    """Follows the time of the job's steps, or any cost that rises when it slows.

    Paper: section 4.1 ("significant declines" of MFU; no threshold is given).

    Args:
        slowdown_ratio: Share by which steps must be slower to count as a decline, > 0.
    """

    def __init__(self, slowdown_ratio: float) -> None:
        self._slowdown_ratio = slowdown_ratio
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._block: list[float] = []
        self._medians_s: deque[float] = deque(maxlen=BLOCKS)
        self._spreads_s: deque[float] = deque(maxlen=BLOCKS)
        self._now_s: float | None = None
        self.declined = False
        """Whether a decline stands."""

    @property
    def usual_s(self) -> float | None:
        """Usual time of a step, or None as long as nobody can tell."""
        return min(self._medians_s) if self._medians_s else None

    @property
    def now_s(self) -> float | None:
        """Time of a step now, or None as long as nobody can tell."""
        return self._now_s

    def note(self, step_s: float) -> bool:
        """Take in a step's time; true once a decline, when it is certain enough."""
        self._recent.append(step_s)
        self._block.append(step_s)
        if len(self._block) == BLOCK:
            self._medians_s.append(median(self._block))
            self._spreads_s.append(spread(self._block, self._medians_s[-1]))
            self._block = []
        usual_s = self.usual_s
        if usual_s is None or len(self._recent) < RECENT:
            return False
        self._now_s = median(self._recent)
        noise_s = NOISE_DEVIATIONS * median(self._spreads_s)
        margin_s = max(self._slowdown_ratio * usual_s, noise_s)
        if self.declined:
            self.declined = self._now_s > usual_s + margin_s / 2
            return False
        self.declined = self._now_s > usual_s + margin_s
        return self.declined
