"""What a text must hold for a pattern to match: found in a hundredth of the time of a search.

Nearly every line of a log belongs to no rule. To find that out by searching every pattern takes a
millisecond a line; most patterns are ruled out by the literal words that each of their branches
needs, and a substring is found quickly.
"""

from __future__ import annotations

from collections.abc import Sequence

_SHORTEST = 3
_OPTIONAL = "?*"
_CLASSES = "bBdDwWsSAZ"
_AROUND = ("(?=", "(?!", "(?<=", "(?<!")


class Index:
    """Finds the patterns that a text may match, by the three letters that open their needles.

    Args:
        patterns: Regular expressions.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._always: list[int] = []
        self._by_head: dict[str, list[tuple[str, int]]] = {}
        for number, pattern in enumerate(patterns):
            words = needles(pattern)
            if words is None:
                self._always.append(number)
            for word in sorted(words or ()):
                self._by_head.setdefault(word[:_SHORTEST], []).append((word, number))

    def candidates(self, text: str) -> list[int]:
        """Numbers of the patterns that the text may match, ascending; the others do not match."""
        heads = self._by_head
        there = {text[at : at + _SHORTEST] for at in range(len(text) - _SHORTEST + 1)}
        found = {
            number for head in there & heads.keys() for word, number in heads[head] if word in text
        }
        return sorted(found.union(self._always))


def needles(pattern: str) -> frozenset[str] | None:
    """Words of which one occurs in every text that a pattern matches.

    Understands the part of the syntax that rules use: literals, classes, groups, look-arounds,
    quantifiers and alternatives; no flags and no back references.

    Args:
        pattern: A regular expression.

    Returns:
        The words, or None when a text may match without any literal word of three letters.
    """
    found, _ = _branches(pattern, 0)
    return found


def _branches(pattern: str, at: int) -> tuple[frozenset[str] | None, int]:
    """Needles of the alternatives from `at` up to the bracket that closes them."""
    together: frozenset[str] | None = frozenset()
    while True:
        branch, at = _branch(pattern, at)
        together = None if branch is None or together is None else together | branch
        if at >= len(pattern) or pattern[at] == ")":
            return together, at + 1
        at += 1


def _branch(pattern: str, at: int) -> tuple[frozenset[str] | None, int]:
    """The best needles of one alternative, and where it ends."""
    best: frozenset[str] | None = None
    run = ""
    while at < len(pattern) and pattern[at] not in "|)":
        literal, inner, after = _atom(pattern, at)
        times, at = _quantifier(pattern, after)
        if literal is not None and times != 0:
            run += literal
            if times == 1:
                continue
        best = _better(best, frozenset({run}))
        run = ""
        if inner is not None and times != 0:
            best = _better(best, inner)
    return _better(best, frozenset({run})), at


def _atom(pattern: str, at: int) -> tuple[str | None, frozenset[str] | None, int]:
    """One piece: the letter that it stands for, or the needles inside it; and where it ends."""
    char = pattern[at]
    if char == "(":
        return _group(pattern, at)
    if char == "[":
        end = pattern.index("]", at + (3 if pattern[at + 1] == "^" else 2))
        return None, None, end + 1
    if char == "\\":
        escaped = pattern[at + 1]
        return (None if escaped in _CLASSES else escaped), None, at + 2
    return (None if char in ".^$" else char), None, at + 1


def _group(pattern: str, at: int) -> tuple[None, frozenset[str] | None, int]:
    around = next((mark for mark in _AROUND if pattern.startswith(mark, at)), None)
    start = at + (len(around) if around else 3 if pattern.startswith("(?:", at) else 1)
    inner, end = _branches(pattern, start)
    return None, (None if around else inner), end


def _quantifier(pattern: str, at: int) -> tuple[int, int]:
    """How often the piece before must occur, 2 for more than once or any number; and its end."""
    if at >= len(pattern):
        return 1, at
    if pattern[at] in _OPTIONAL:
        return 0, at + 1
    if pattern[at] == "+":
        return 2, at + 1
    if pattern[at] == "{":
        end = pattern.index("}", at) + 1
        return (0 if pattern[at + 1] in "0," else 2), end
    return 1, at


def _better(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """The more telling of two: by their shortest words; those too short tell nothing."""
    if other is None or not other or min(map(len, other)) < _SHORTEST:
        return one
    if one is None or min(map(len, other)) > min(map(len, one)):
        return other
    return one
