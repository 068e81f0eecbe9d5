from __future__ import annotations

from everstep.core.logtimes import Line, Note, decode, merge, timed


def test_a_line_is_as_old_as_the_first_note_that_holds_its_end() -> None:
    lines = [b"one\n", b"two\n", b"three\r\n", b"four"]
    notes = [Note(10.0, 4), Note(11.0, 9), Note(12.0, 15), Note(13.0, 19)]
    assert [line.at_s for line in timed(3, lines, notes)] == [10.0, 11.0, 12.0, 13.0]
    assert list(timed(3, lines, notes))[2] == Line(12.0, 3, 2, b"three")


def test_lines_that_nobody_timed_are_as_old_as_the_line_before() -> None:
    times = [line.at_s for line in timed(0, [b"a\n", b"b\n", b"c\n"], [Note(10.0, 2)])]
    assert times == [10.0, 10.0, 10.0]
    assert [line.at_s for line in timed(0, [b"a\n"], [])] == [0.0]


def test_pieces_of_one_line_have_its_number() -> None:
    pieces = [b"xx", b"yy\n", b"z\n"]
    assert [line.number for line in timed(0, pieces, [Note(1.0, 7)])] == [0, 0, 1]


def test_ranks_are_merged_by_time_and_keep_their_own_order() -> None:
    one = timed(1, [b"a\n", b"b\n"], [Note(10.0, 2), Note(12.0, 4)])
    two = timed(0, [b"c\n", b"d\n"], [Note(11.0, 2), Note(12.0, 4)])
    assert [line.text for line in merge([one, two])] == [b"a", b"c", b"d", b"b"]


def test_notes_survive_their_file_and_a_cut_one_is_left_out() -> None:
    data = Note(1.5, 7).encode() + Note(2.5, 1 << 40).encode()
    assert list(decode(data + b"half")) == [Note(1.5, 7), Note(2.5, 1 << 40)]
