"""What ranks said before they ended, read by the classifier: one line that decides, and whose.

Called by `evidence` with the ranks of one failure. Causes lead consequences, whoever came first; a
rank that only lost a peer, or waited in vain, says nothing about the cause.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.classify.evidence import Context
from everstep.core.classify.judge import classify
from everstep.core.classify.names import TABLE_1, Action, Kind, Label
from everstep.core.classify.reader import read
from everstep.core.classify.rule import Reading, Standing
from everstep.core.model import RankExit
from everstep.core.vocabulary import Symptom

MAX_HEARD = 256
"""Ranks whose words are read, the earliest to end; bounds the time that an incident takes for it,
however many ranks there are. Who fails first ends first, or soon after."""

MAX_ALIKE = 4
"""Ranks that say the same but for numbers: the first ones tell all that hundreds do."""

QUOTED_CHARS = 160

_OF_THE_MACHINE = (Label.GPU_HARDWARE, Label.HOST, Label.NETWORK, Label.INFRASTRUCTURE)
_CERTAIN_CONFIDENCE = 0.75
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True, slots=True)
class Testimony:
    """The line that decides.

    Attributes:
        rank_exit: The rank that said it.
        standing: What it proves.
        reading: What it says.
        line: The line.
        meaning: The rule that reads it, in words.
    """

    rank_exit: RankExit
    standing: Standing
    reading: Reading
    line: str
    meaning: str

    @property
    def symptom(self) -> Symptom:
        """The job's own word for it."""
        return TABLE_1[self.reading.symptom] or Symptom.PROCESS_CRASH

    @property
    def accuses_machine(self) -> bool:
        """Whether it is a fault of the machine where it was said, which is what to evict."""
        return self.reading.action is Action.EVICT and self.standing >= Standing.CAUSE

    @property
    def is_certain(self) -> bool:
        """Whether the machine may go at once: proof, and a careful reader would be right."""
        proves = self.standing is Standing.PROOF
        return self.accuses_machine and proves and self.reading.confidence >= _CERTAIN_CONFIDENCE

    @property
    def clears_machine(self) -> bool:
        """Whether the cause lies elsewhere: in the code, the data, a service, or with a person."""
        return self.standing >= Standing.CAUSE and self.reading.label not in _OF_THE_MACHINE

    @property
    def quote(self) -> str:
        """The line and what it means, for people."""
        return f'it said "{self.line.strip()[:QUOTED_CHARS]}" ({self.meaning})'


def hear(failed: Sequence[RankExit]) -> Testimony | None:
    """Find the line that decides.

    Those that SIGKILL ended are not heard: it came over them, whatever they were saying.

    Args:
        failed: Ranks that did not end well, by time.

    Returns:
        The testimony, or None when no rank said anything telling.
    """
    heard = _distinct([e for e in failed if e.signal != signal.SIGKILL][:MAX_HEARD])
    said = [(rank_exit, line) for rank_exit in heard for line in rank_exit.last_lines]
    if not said:
        return None
    text = "\n".join(line.replace("\n", " ") for _, line in said)
    context = Context(mid_run=any(e.step for e in heard))
    answer = classify([read([text.encode()], "ranks", Kind.RANK_LOG)], context)
    if answer.line is None or answer.standing < Standing.CONSEQUENCE:
        return None
    rank_exit, line = said[answer.line]
    reading = Reading(answer.symptom, answer.label, answer.first_action, answer.confidence)
    return Testimony(rank_exit, answer.standing, reading, line, answer.reason.split(";")[0])


def _distinct(ranks: Sequence[RankExit]) -> list[RankExit]:
    """Those that say something new, in the same order: thousands of ranks fail alike."""
    times: Counter[str] = Counter()
    found: list[RankExit] = []
    for rank_exit in ranks:
        said = _NUMBERS.sub("#", "\n".join(rank_exit.last_lines))
        times[said] += 1
        if times[said] <= MAX_ALIKE:
            found.append(rank_exit)
    return found
