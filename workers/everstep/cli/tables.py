"""Tables as wide as a terminal, in which no word is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

_Column = Sequence[str]
"""Its head first."""


def fitted(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], width: int
) -> Iterable[Table]:
    """A table, or several where its columns have no room side by side.

    Args:
        title: What it is of, text.
        heads: What its columns are called.
        rows: Its cells, text; the first of each says whose row it is, and stands in each table.
        width: Of the terminal, in characters.
    """
    for part in _parts([*zip(heads, *rows, strict=True)], width):
        names, *cells = zip(*part, strict=True)
        table = Table(title=escape(title), title_justify="left")
        for name, wide in zip(names, _widths(part, width - _lines(part)), strict=True):
            table.add_column(escape(name), overflow="fold", width=wide)
        for row in cells:
            table.add_row(*map(escape, row))
        yield table


def _parts(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """The columns by tables that fit into a width, the first one in each of them."""
    parts = [[columns[0]]]
    for column in columns[1:]:
        longer = [*parts[-1], column]
        if len(parts[-1]) > 1 and sum(map(_longest_word, longer)) + _lines(longer) > width:
            parts.append([columns[0]])
        parts[-1].append(column)
    return parts


def _widths(columns: Sequence[_Column], room: int) -> list[int]:
    """How wide to draw columns: words are cut only where not even the longest ones have room."""
    most = [max(map(cell_len, column)) for column in columns]
    widths = [*map(_longest_word, columns)]
    while sum(widths) > max(room, len(widths)):
        widths[widths.index(max(widths))] -= 1
    while sum(widths) < min(room, sum(most)):
        lacking = [full - width for full, width in zip(most, widths, strict=True)]
        widths[lacking.index(max(lacking))] += 1
    return widths


def _longest_word(column: _Column) -> int:
    return max(cell_len(word) for cell in column for word in cell.split() or [""])


def _lines(columns: Sequence[_Column]) -> int:
    """Room that the lines between columns take."""
    return 3 * len(columns) + 1
