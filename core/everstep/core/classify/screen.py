"""Which lines of a block of bytes are worth reading, cheaply enough for logs of any size.

A log repeats itself: without its digits and addresses, nearly every line has been seen before. A
wording without any of the stems below is read once at most, whatever its digits. One with a stem
that no rule cared for is read again only when something new stands around its stems. What a rule
did care for is told apart by its small numbers (codes, counts, ranks), and each is read a few times
and at its end. The more a log has to say, the more telling a new wording must sound to be read.
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
    b"|unhandled|not respond|spik|straggl|dropped|stale|retry|expected ranks|world size"
    b"|in use|quota|ran out|driver|too many|uncorrect|_barrier|training|clients|container"
    b"|curl|stuck|loss scale|severity|flap| bus|power|thrott|plugin|ver:".split(b"|")
)

STRONG_STEMS: tuple[bytes, ...] = tuple(
    b"error|xid|fatal|exception|traceback|panic|oom|killed|fallen|timed out|timeout|signal|no space"
    b"|nccl warn|uncorrect|corrupt|aborted|overflow|: nan|assert|preempt|cancelled|stale".split(
        b"|"
    )
)
"""What a new wording needs once a log has shown that its wordings have no end."""

VITAL_STEMS: tuple[bytes, ...] = tuple(
    b"xid|fallen off|uncorrect|panic|oom|out of memory|killed|fatal|corrupt|no space|: nan".split(
        b"|"
    )
)
"""What a new wording needs in a log that says something else in every line."""

CODES_KEPT = 16
"""How often telling lines are read that differ only in large numbers, times and addresses."""
PLAIN_READ = 2_000
"""How many wordings without a stem are read all the same."""
DULL_READ = 10_000
"""How many wordings may turn out dull before new ones need a strong stem."""
MOST_READ = 30_000
"""How many lines are read before new wordings need a vital stem."""
_MAX_REMEMBERED = 65_536
_MAX_FLOODS = 8_192
_KEY_BYTES = 512
_LINE_BYTES = 2_048
_BEFORE, _AFTER = 8, 28
_DIGITS = b"0123456789"
_ADDRESSES = re.compile(rb"0x[0-9a-f]+")
_LARGE_NUMBERS = re.compile(rb"0x[0-9a-f]+|[0-9]+[.:][0-9][0-9.:e+-]*|[0-9]{4,}")


class Screen:
    """Remembers the wordings of one log, by their hashes; memory is bounded.

    Args:
        read: Reads a line, given its number and bytes, and tells whether a rule found it telling.
    """

    def __init__(self, read: Callable[[int, bytes], bool]) -> None:
        self._read = read
        self._plain: set[int] = set()
        self._dull: dict[int, tuple[bytes, ...]] = {}
        self._dull_seen: set[int] = set()
        # A short cut: windows as they stand, since those around a zero never change.
        self._windows: set[bytes] = set()
        self._counts: dict[bytes, int] = {}
        self._last: dict[bytes, tuple[int, bytes]] = {}
        self._num_plain_read = 0
        self._num_dull_read = 0
        self._num_read = 0

    def take(self, block: bytes, lower: bytes, first: int) -> None:
        """Have the lines of a block read that may be news.

        Args:
            block: Whole lines, the last one with its newline.
            lower: The same in lower case.
            first: Number of the first line.
        """
        wordings = _ADDRESSES.sub(b"", lower).translate(None, _DIGITS).split(b"\n")
        plain, dull = self._plain, self._dull
        if all(map(plain.__contains__, map(hash, wordings))):
            return
        lines, lowers = block.split(b"\n"), lower.split(b"\n")
        for at, wording in enumerate(wordings):
            key = hash(wording)
            if key in plain:
                continue
            stems = dull.get(key)
            if stems is not None:
                self._dull_line(key, stems, lines[at], lowers[at], first + at)
            elif self._is_plain(wording):
                _add(plain, key)
            else:
                self._line(wording, lines[at], first + at)

    def close(self) -> None:
        """Have the last line of every flood read that was cut short."""
        for number, line in sorted(self._last.values()):
            self._read(number, line)
        self._counts.clear()
        self._last.clear()

    def _is_plain(self, wording: bytes) -> bool:
        """Whether to pass over a wording for good without reading it."""
        if self._num_read >= MOST_READ:
            stems = VITAL_STEMS
        elif self._num_dull_read >= DULL_READ:
            stems = STRONG_STEMS
        elif self._num_plain_read < PLAIN_READ:
            return False
        else:
            stems = STEMS
        for stem in stems:  # noqa: SIM110 - a loop takes a third of the time of any()
            if stem in wording:
                return False
        return True

    def _line(self, wording: bytes, line: bytes, number: int) -> None:
        self._num_read += 1
        key = _LARGE_NUMBERS.sub(b"", line[:_KEY_BYTES])
        seen = self._counts.get(key, 0)
        if seen >= CODES_KEPT:
            self._last[key] = (number, line[:_LINE_BYTES])
        elif self._read(number, line):
            if len(self._counts) >= _MAX_FLOODS:
                self.close()
            self._counts[key] = seen + 1
        else:
            self._turned_out_dull(wording)

    def _turned_out_dull(self, wording: bytes) -> None:
        stems = tuple(stem for stem in STEMS if stem in wording)
        if not stems:
            self._num_plain_read += 1
            _add(self._plain, hash(wording))
            return
        self._num_dull_read += 1
        if len(self._dull) >= _MAX_REMEMBERED:
            self._dull.clear()
        self._dull[hash(wording)] = stems

    def _dull_line(
        self, key: int, stems: tuple[bytes, ...], line: bytes, lower: bytes, number: int
    ) -> None:
        """Read a line of a dull wording if what stands around its stems is new."""
        news, windows = False, self._windows
        for stem in stems:
            at = lower.find(stem)
            window = lower[at - _BEFORE if at > _BEFORE else 0 : at + _AFTER]
            if window in windows:
                continue
            if len(windows) < _MAX_FLOODS:
                windows.add(window)
            around = hash(_LARGE_NUMBERS.sub(b"", window))
            if around not in self._dull_seen:
                _add(self._dull_seen, around)
                news = True
        if news and self._read(number, line):
            del self._dull[key]


def _add(remembered: set[int], item: int) -> None:
    if len(remembered) >= _MAX_REMEMBERED:
        remembered.clear()
    remembered.add(item)
