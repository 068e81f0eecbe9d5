"""Tables for terminals of every width: by what stands on the screen."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from everstep.cli.tables import fitted

HEADS = ("symptom", "locate mean", "ahead by, points", "[x] used")
ROWS = [
    ("code_data_adjustment", "77", "+0.10 (-0.10 to +0.30), holds 0", "1"),
    ("cuda_error", "294", "+31.29 (-7.44 to +70.02), clear", "22"),
]


def drawn(width: int) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=width)
    for table in fitted("A [title]", HEADS, ROWS, width):
        console.print(table)
    return screen.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_every_word_is_whole_and_no_line_is_too_long(width: int) -> None:
    screen = drawn(width)
    words = {word for line in (HEADS, *ROWS) for cell in line for word in cell.split()}
    assert words <= {*screen.split()}
    assert "A [title]" in screen
    assert max(map(len, screen.splitlines())) <= width


def test_columns_without_room_come_below_with_whose_row_it_is() -> None:
    assert drawn(200).count("cuda_error") == 1
    assert drawn(40).count("cuda_error") == 3
    assert "code_data_adjustment" not in drawn(20), "not even the name has room"
    cells = re.findall(r"│ +(\S+)", drawn(20))
    assert "code_data_adjustment".startswith(cells[0])


def test_cells_stand_beside_each_other_in_full_where_there_is_room() -> None:
    assert "+0.10 (-0.10 to +0.30), holds 0" in drawn(200)
    assert "+0.10 (-0.10 to +0.30), holds 0" not in drawn(70)
