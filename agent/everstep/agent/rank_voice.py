"""What one rank says of itself, over its channel or by its log, put together for the outside.

Belongs to the event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from everstep.agent.step_lines import StepLines
from everstep.core import channel
from everstep.core.model import RankProgress
from everstep.core.vocabulary import Phase

logger = logging.getLogger(__name__)

Word = channel.Report | channel.Entered | channel.Saved
"""What a rank says of itself over its channel."""


class RankVoice:
    """Keeps a rank's newest step and its phase, and tells of every word.

    Args:
        machine: Where it runs.
        attempt: The attempt that it belongs to.
        rank: Global rank.
        restore_step: The step that it starts from.
        lines: Reads its log, until it speaks over the channel; None does not.
        ran_s: Tells how long its main thread has been on a core, or None.
        tell: Called with what it said.
    """

    def __init__(
        self,
        machine: str,
        attempt: int,
        rank: int,
        restore_step: int,
        lines: StepLines | None,
        ran_s: Callable[[], float | None],
        tell: Callable[[RankProgress], None],
    ) -> None:
        self.step: int | None = None
        """The newest step that it finished or said that it starts from, or None before any word."""
        self._place = (machine, attempt, rank)
        self._restore_step = restore_step
        self._lines = lines
        self._from_log = False
        self._phase = Phase.START
        self._ran_s = ran_s
        self._tell = tell
        self._stalled_s: float | None = None
        self._stands_since_s: float | None = None

    def reached(self, step: int) -> None:
        """It finished a step, or begins at one."""
        self._advance(step)
        self._say()

    def said(self, word: Word) -> None:
        """It spoke of itself; a phase that there is not is not passed on.

        What it saved is told by `reached`, once it is kept.
        """
        if not isinstance(word, channel.Entered) and word.stalled_s is not None:
            self._stalled_s = word.stalled_s
        if isinstance(word, channel.Saved):
            return
        if isinstance(word, channel.Report):
            self._advance(word.step)
            self._say(word.loss, word.grad_norm, word.mfu, word.waited_s)
        elif word.phase not in list(Phase) or word.phase == Phase.ENDED:
            logger.warning("rank %d is in no phase %r", self._place[-1], word.phase)
        elif self._phase is not Phase.ENDED:
            self._phase = Phase(word.phase)
            self._say()

    def read_log(self) -> None:
        """Hear what it has printed since the last time, if that is how it speaks."""
        if self._lines is None or (self.step is not None and not self._from_log):
            return
        for line in self._lines.read():
            self._from_log = True
            self._count_stall(line.phase)
            if line.step is None:
                self._phase = line.phase or self._phase
                self._say()
            else:
                self.step, self._phase = line.step, self._phase.after_step()
                self._say(line.loss, line.grad_norm)

    def ended(self) -> None:
        """Its process is gone."""
        self.read_log()
        if self.step is not None:
            self._phase = Phase.ENDED
            self._say()

    def _count_stall(self, phase: Phase | None) -> None:
        """A line of its log ends a checkpoint that an earlier one began, or begins one."""
        if self._stands_since_s is not None:
            self._stalled_s = (self._stalled_s or 0.0) + time.time() - self._stands_since_s
        self._stands_since_s = time.time() if phase is Phase.CHECKPOINT else None

    def _advance(self, step: int) -> None:
        if step > (self._restore_step if self.step is None else self.step):
            self._phase = self._phase.after_step()
        self.step = step

    def _say(
        self,
        loss: float | None = None,
        grad_norm: float | None = None,
        mfu: float | None = None,
        waited_s: float | None = None,
    ) -> None:
        step = self._restore_step if self.step is None else self.step
        figures = (loss, grad_norm, mfu)
        now = RankProgress(*self._place, step, time.time(), self._phase, *figures, self._from_log)
        self._tell(replace(now, ran_s=self._ran_s(), waited_s=waited_s, stalled_s=self._stalled_s))
