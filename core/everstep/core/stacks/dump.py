"""What was heard of the processes of each rank, as plain values.

Made by the readers beside this module and by tests; judged by `everstep.core.stacks.judge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from everstep.core.stacks.recorder import Recorder


class Answer(StrEnum):
    """How a rank took the question where it stands. Only the first one is an answer."""

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    STOPPED = "stopped"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call; `line` is 0 where it is not known."""

    name: str
    file: str
    line: int


# Compared by identity: a reader hands out one object for many threads that stand alike.
@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The calls of one thread, innermost first, as py-spy lists them."""

    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a rank's process or of one of its children.

    Attributes:
        pid: Its process; 0 where that is not known.
        os_thread_id: The kernel's number, equal to `pid` for a main thread; or None.
        name: The name that Python or the system gave it; empty where it has none.
        stack: Where it stands.
        process: What the kernel calls a child's process; empty for the rank's own.
    """

    pid: int
    os_thread_id: int | None
    name: str
    stack: Stack
    process: str = ""


@dataclass(frozen=True, slots=True)
class RankDump:
    """What was heard of one rank.

    Attributes:
        answer: How it took the question.
        threads: Its own threads and its children's; may be there for a stopped one, too.
        detail: What went wrong; empty for an answer.
        silent_children: Children that did not answer: what they are, with the reason.
    """

    answer: Answer
    threads: tuple[Thread, ...] = ()
    detail: str = ""
    silent_children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What one rank said to its machine's tracer.

    Attributes:
        answer: Whether it did.
        detail: What went wrong, or how it was read; empty for a plain answer.
        dump: The file.
        recorder: Its flight recorder as JSON; None where it has none or gave none.
    """

    answer: Answer
    detail: str
    dump: bytes
    recorder: bytes | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that was heard at about one time.

    Attributes:
        ranks: By rank; one that is left out did not answer. Empty when nobody was asked.
        recorders: Flight recorders by rank; those that are left out are not known.
    """

    ranks: Mapping[int, RankDump]
    recorders: Mapping[int, Recorder] = field(default_factory=dict[int, Recorder])

    def of(self, rank: int) -> RankDump:
        """What was heard of this rank."""
        return self.ranks.get(rank, _NOTHING)


_NOTHING = RankDump(Answer.NO_ANSWER, detail="there is no dump of it")
