"""How long training has stood still for its checkpoints, by a rank's own clock.

Told with every step, so that the job's ledger can say what checkpoints cost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator


class StallClock:
    """Adds up the time in which one thread waits for checkpoints, or takes one in its own way."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._since_s = 0.0
        self._before_s = 0.0

    @property
    def stalled_s(self) -> float:
        """Seconds so far; may be read by any thread."""
        running_s = time.monotonic() - self._since_s if self._reasons else 0.0
        return self._before_s + running_s

    def begin(self, reason: str) -> None:
        """Training stands for this reason from now on; one moment counts once, for however many."""
        if not self._reasons:
            self._since_s = time.monotonic()
        self._reasons.add(reason)

    def end(self, reason: str) -> None:
        """Training stands for this reason no more; nothing if it did not."""
        if self._reasons == {reason}:
            self._before_s = self.stalled_s
        self._reasons.discard(reason)

    @contextlib.contextmanager
    def stalling(self, reason: str) -> Generator[None]:
        """Training stands for this reason in the block."""
        self.begin(reason)
        try:
            yield
        finally:
            self.end(reason)
