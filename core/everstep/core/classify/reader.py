"""Bytes of any size into evidence, in bounded memory."""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable

from everstep.core.classify.evidence import Evidence, Match
from everstep.core.classify.kinds import guess
from everstep.core.classify.lines import clock_of, rank_of
from everstep.core.classify.names import Kind
from everstep.core.classify.needles import Index
from everstep.core.classify.rule import Rule, Standing
from everstep.core.classify.rules import RULES
from everstep.core.classify.screen import Screen
from everstep.core.classify.trend import trend

MAX_LINE_BYTES = 65_536
"""Of a longer line the head and the tail are read."""
_END_BYTES = 1_000
_MAX_TEXT = 2 * _END_BYTES
_LEFT_OUT = b" ... "
_FIRST_OF_A_RULE = 64
_LAST_OF_A_RULE = 16
_HEAD_LINES = 400
_TAIL_BYTES = 32_768

_INDEX = Index([rule.pattern for rule in RULES])
_PROGRESS = re.compile(rb"\b(?:iter(?:ation)?|step|epoch|global_step)\b['\" :=/\[]*\d+")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[a-zA-Z]|\[\d{1,3}(?:;\d{1,3})*m")
_STRANGE = re.compile(r"\b(?:error|fatal|exception|fail(?:ed|ure)|critical)\b")


def read_rule(text: str) -> Rule | None:
    """The rule that a line belongs to, or None."""
    lower = text.lower()
    candidates = (RULES[number] for number in _INDEX.candidates(lower))
    return next((rule for rule in candidates if _compiled(rule.pattern).search(lower)), None)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Most patterns are never needed: each is compiled when a line calls for it."""
    return re.compile(pattern)


class Reader:
    """Reads one file, block by block.

    Of lines with the same words, and of lines of the same rule, the first and the last ones are
    kept; so memory does not grow with the file.

    Args:
        name: Name of the file, for people.
        kind: What sort of text it is, or None to guess.
        source: Index of the file among those that are judged together.
    """

    def __init__(self, name: str, kind: Kind | None = None, source: int = 0) -> None:
        self._name, self._kind, self._source = name, kind, source
        self._carry: bytes = b""
        self._rest: bytes | None = None
        self._num_lines = 0
        self._screen = Screen(self._read)
        self._first: dict[str, list[Match]] = {}
        self._last: dict[str, deque[Match]] = {}
        self._head: list[str] = []
        self._tail = b""
        self._progress_line: int | None = None
        self._strange_line: int | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; they may end in the middle of a line."""
        if self._rest is not None:
            at = chunk.find(b"\n")
            if at < 0:
                self._rest = (self._rest + chunk)[-_END_BYTES:]
                return
            self._end_of_a_long_line((self._rest + chunk[:at])[-_END_BYTES:])
            chunk = chunk[at:]
        data = self._carry + chunk
        cut = data.rfind(b"\n") + 1
        self._carry = _shown(data[cut:])
        if len(self._carry) > MAX_LINE_BYTES:
            self._rest = self._carry[-_END_BYTES:]
            self._carry = self._carry[:MAX_LINE_BYTES]
        self._block(_all_shown(data[:cut]))

    def close(self) -> Evidence:
        """The evidence; nothing may be fed afterwards."""
        if self._rest is not None:
            self._end_of_a_long_line(self._rest)
        if self._carry:
            self._block(_shown(self._carry) + b"\n")
            self._carry = b""
        self._screen.close()
        found = {m.line: m for kept in (*self._first.values(), *self._last.values()) for m in kept}
        matches = tuple(found[line] for line in sorted(found))
        kind = self._kind or guess(self._head, [m.rule for m in matches])
        return Evidence(
            self._name,
            self._num_lines,
            matches,
            self._progress_line,
            self._strange_line,
            kind,
            trend(self._ends()),
        )

    def _end_of_a_long_line(self, rest: bytes) -> None:
        self._carry = _shown(self._carry + _LEFT_OUT + rest)
        self._rest = None

    def _ends(self) -> list[tuple[int, str]]:
        """The first and the last lines, each once, with their numbers."""
        tail = self._tail.decode("utf-8", "replace").splitlines()
        first = max(self._num_lines - len(tail), len(self._head))
        last = tail[len(tail) - (self._num_lines - first) :]
        return [*enumerate(self._head), *enumerate(last, start=first)]

    def _block(self, block: bytes) -> None:
        lower = block.lower()
        self._tail = (self._tail + block[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        self._look_around(block, lower)
        self._screen.take(block, lower, self._num_lines)
        self._num_lines += block.count(b"\n")

    def _look_around(self, block: bytes, lower: bytes) -> None:
        if self._progress_line is None:
            found = _PROGRESS.search(lower)
            if found is not None:
                self._progress_line = self._num_lines + lower.count(b"\n", 0, found.start())
        if len(self._head) < _HEAD_LINES:
            head = block[:MAX_LINE_BYTES].decode("utf-8", "replace").splitlines()
            self._head += head[: _HEAD_LINES - len(self._head)]

    def _read(self, line: int, raw: bytes) -> bool:
        if len(raw) > _MAX_TEXT:
            raw = raw[:_END_BYTES] + _LEFT_OUT + raw[-_END_BYTES:]
        text = _COLOURS.sub("", raw.decode("utf-8", "replace")).rstrip("\r")
        rule = read_rule(text)
        if rule is None:
            if self._strange_line is None and _STRANGE.search(text.lower()):
                self._strange_line = line
            return False
        rank, clock_s = rank_of(text), clock_of(text)
        match = Match(self._source, line, text, rule, rule.standing, rule.reading, rank, clock_s)
        first = self._first.setdefault(rule.name, [])
        if len(first) < _FIRST_OF_A_RULE:
            first.append(match)
        else:
            self._last.setdefault(rule.name, deque(maxlen=_LAST_OF_A_RULE)).append(match)
        return rule.standing > Standing.HARMLESS


def _shown(line: bytes) -> bytes:
    """What a terminal shows of a line that a progress bar wrote over again and again."""
    text = line.rstrip(b"\r")
    return text[text.rfind(b"\r") + 1 :] + line[len(text) :]


def _all_shown(block: bytes) -> bytes:
    if b"\r" not in block:
        return block
    return b"\n".join([_shown(line) if b"\r" in line else line for line in block.split(b"\n")])


def read(
    chunks: Iterable[bytes], name: str = "-", kind: Kind | None = None, source: int = 0
) -> Evidence:
    """Read a whole file given in pieces."""
    reader = Reader(name, kind, source)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.close()
