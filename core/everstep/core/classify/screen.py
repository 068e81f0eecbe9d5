"""Which lines of a block of bytes are worth reading, cheaply enough for logs of any size.

A log repeats itself: without its digits, nearly every line has been seen before. A wording without
any of the stems below is read once at most, whatever its digits. One with a stem that no rule cared
for is read again only when something new stands around its stems. What a rule did care for is told
apart by its small numbers (codes, counts, ranks), and each is read a few times and at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

STEMS: tuple[bytes, ...] = tuple(
    b"error|fail|xid|warn|fault|exception|traceback|abort|kill|panic|bug:|lockup|stall|corrupt"
    b"|timed out|timeout|nan|inf |inf,|inf}|inf)|=inf|:inf|: inf|-inf|finite|overflow|oom|memory"
    b"|mce:|machine check|no space|closed|refused|reset|unable|invalid|illegal|signal|exit"
    b"|not found|checkpoint|link|state|read-only|remount|mismatch|missing|lost|err!|blocked for"
    b"|device|file |terminat|preempt|cancel|slow|denied|errno|mount|.py:|+0x|cannot|assert|oops"
    b"|unhandled|not respond|scale|spik|straggl|dropped|stale|retry|seq|size|expected ranks|in use"
    b"|quota|ran out|driver|too many|uncorrect|_barrier|training|clients|container|curl|stuck"
    b"|severity|flap| bus|power|thrott|plugin|ver:".split(b"|")
)

CODES_KEPT = 16
"""How often telling lines are read that differ only in large numbers, times and addresses."""
PLAIN_READ = 5_000
"""How many wordings without a stem are read all the same; the stems are for logs beyond that."""
_MAX_REMEMBERED = 65_536
_KEY_BYTES = 512
_BEFORE, _AFTER = 8, 40
_DIGITS = b"0123456789"
_LARGE_NUMBERS = re.compile(rb"0x[0-9a-f]+|[0-9]+[.:][0-9][0-9.:e+-]*|[0-9]{4,}")


class Screen:
    """Remembers the wordings of one log; memory is bounded.

    Args:
        read: Reads a line, given its number and bytes, and tells whether a rule found it telling.
    """

    def __init__(self, read: Callable[[int, bytes], bool]) -> None:
        self._read = read
        self._plain: set[bytes] = set()
        self._dull: dict[bytes, tuple[bytes, ...]] = {}
        self._dull_seen: set[bytes] = set()
        self._counts: dict[bytes, int] = {}
        self._last: dict[bytes, tuple[int, bytes]] = {}
        self._num_plain_read = 0

    def take(self, block: bytes, lower: bytes, first: int) -> None:
        """Have the lines of a block read that may be news.

        Args:
            block: Whole lines, the last one with its newline.
            lower: The same in lower case.
            first: Number of the first line.
        """
        wordings = lower.translate(None, _DIGITS).split(b"\n")
        if all(map(self._plain.__contains__, wordings)):
            return
        lines, plain, dull = block.split(b"\n"), self._plain, self._dull
        for at, wording in enumerate(wordings):
            if wording in plain:
                continue
            stems = dull.get(wording)
            if stems is not None:
                self._dull_line(wording, stems, lines[at], first + at)
            else:
                self._line(wording, lines[at], first + at)

    def close(self) -> None:
        """Have the last line of every flood read that was cut short."""
        for number, line in sorted(self._last.values()):
            self._read(number, line)

    def _line(self, wording: bytes, line: bytes, number: int) -> None:
        key = _LARGE_NUMBERS.sub(b"", line[:_KEY_BYTES])
        seen = self._counts.get(key, 0)
        if seen >= CODES_KEPT:
            self._last[key] = (number, line)
            return
        stems = () if seen else tuple(stem for stem in STEMS if stem in wording)
        unlikely = not seen and not stems
        if unlikely and self._num_plain_read >= PLAIN_READ:
            _add(self._plain, wording)
            return
        self._num_plain_read += unlikely
        if self._read(number, line):
            if len(self._counts) >= _MAX_REMEMBERED:
                self.close()
                self._counts.clear()
                self._last.clear()
            self._counts[key] = seen + 1
        elif unlikely:
            _add(self._plain, wording)
        elif stems and len(self._dull) < _MAX_REMEMBERED:
            self._dull[wording] = stems

    def _dull_line(
        self, wording: bytes, stems: tuple[bytes, ...], line: bytes, number: int
    ) -> None:
        """Read a line of a dull wording if what stands around its stems is new."""
        lower = line.lower()
        around = wording[:16]
        for stem in stems:
            at = lower.find(stem)
            around += lower[max(0, at - _BEFORE) : at + _AFTER]
        if around in self._dull_seen:
            return
        _add(self._dull_seen, around)
        if self._read(number, line):
            del self._dull[wording]


def _add(remembered: set[bytes], item: bytes) -> None:
    if len(remembered) >= _MAX_REMEMBERED:
        remembered.clear()
    remembered.add(item)
