from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import pytest

from everstep.core.classify.judge import classify
from everstep.core.classify.names import Action
from everstep.core.classify.reader import MAX_LINE_BYTES, read
from everstep.core.classify.screen import MOST_READ, Screen

MEBIBYTE = 1 << 20
STEP = (
    " iteration {0:8d}/ 500000 | lm loss: 2.{0:06d}E+00 | loss scale: 1.0 | grad norm: 0.150 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
XID = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.\n"
FALLEN = XID.rstrip()
MIN_CPU_BYTES_PER_S = 20e6
"""A floor that a loaded machine keeps; the figure for a quiet one is measured by hand."""


def steps(mebibytes: int) -> Iterator[bytes]:
    made, number = 0, 0
    while made < mebibytes * MEBIBYTE:
        chunk = "".join(STEP.format(n) for n in range(number, number + 4000)).encode()
        number, made = number + 4000, made + len(chunk)
        yield chunk


def test_line_numbers_do_not_depend_on_how_the_file_is_cut() -> None:
    text = b"".join(steps(1))[: MEBIBYTE // 4] + b"\n" + XID + b"KeyError: 'x'"
    whole = read([text])
    expected = [(match.line, match.rule.name) for match in whole.matches]
    assert expected[-2:] == [
        (whole.num_lines - 2, "xid 79"),
        (whole.num_lines - 1, "error of the program"),
    ]
    for size in (1, 7, 4096):
        if size > 1 or len(text) < MEBIBYTE:
            cut = read(text[at : at + size] for at in range(0, len(text), size))
            assert [(match.line, match.rule.name) for match in cut.matches] == expected
            assert cut.num_lines == whole.num_lines


def test_one_line_in_a_large_log_is_found_without_keeping_the_log() -> None:
    def log() -> Iterator[bytes]:
        yield from steps(24)
        yield XID
        yield from steps(8)

    tracemalloc.start()
    evidence = read(log())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert classify([evidence]).first_action is Action.EVICT
    assert peak_bytes < 12 * MEBIBYTE


def test_a_flood_keeps_its_first_and_last_lines() -> None:
    line = "[3] NCCL WARN NET/IB : Got completion from peer with status=12 len={} vendor err 1"
    evidence = read([("\n".join(line.format(100_000 + n) for n in range(9000))).encode()])
    numbers = [match.line for match in evidence.matches]
    assert numbers[0] == 0
    assert numbers[-1] == 8999
    assert len(numbers) < 100


def test_another_code_in_a_flood_is_still_read() -> None:
    flood = b"NVRM: Xid (PCI:0000:3b:00): 45, pid=7, Ch 00000010\n" * 5000
    other = b"NVRM: Xid (PCI:0000:3b:00): 48, pid=7, Ch 00000010\n"
    assert classify([read([flood + other + flood])]).first_action is Action.EVICT


def test_a_count_that_stops_being_zero_is_still_read() -> None:
    text = b"".join(steps(1)) + STEP.format(1).encode().replace(
        b"nan iterations:   0", b"nan iterations:   3"
    )
    assert classify([read([text])]).first_action is Action.CHECK


def test_a_line_without_end_is_cut() -> None:
    head = XID[:-1] + b" " * MAX_LINE_BYTES
    evidence = read([head, *[b"x" * MEBIBYTE] * 8, b"\nKeyError: 'x'\n"])
    assert [match.line for match in evidence.matches] == [0, 1]
    assert evidence.num_lines == 2


def test_bytes_that_are_no_text_are_read() -> None:
    assert read([bytes(range(256)) * 64]).num_lines > 0
    assert read([]).num_lines == 0


def test_a_log_of_steps_is_read_fast() -> None:
    chunks = list(steps(32))
    began = time.process_time()
    read(chunks)
    taken_s = time.process_time() - began
    assert sum(map(len, chunks)) / taken_s > MIN_CPU_BYTES_PER_S


def test_of_a_log_that_says_something_else_in_every_line_a_bounded_part_is_read() -> None:
    lines_read: list[bytes] = []

    def note(_number: int, line: bytes) -> bool:
        lines_read.append(line)
        return True

    names = [f"{n * 7919:o}".translate(LETTERS) for n in range(MOST_READ + 10_000)]
    strange = [f"RuntimeError: {name} of {name} was skipped\n".encode() for name in names]
    block = b"".join([*strange, XID, *strange[:10]])
    Screen(note).take(block, block.lower(), 0)
    assert MOST_READ <= len(lines_read) <= MOST_READ + 1
    assert lines_read[-1] == XID.rstrip(b"\n")


def test_addresses_do_not_make_a_line_new() -> None:
    lines_read: list[bytes] = []

    def note(_number: int, line: bytes) -> bool:
        lines_read.append(line)
        return False

    block = b"".join(b"frame at 0x%x in module\n" % (n * 0xABCDEF) for n in range(500))
    Screen(note).take(block, block.lower(), 0)
    assert len(lines_read) < 10


LETTERS = str.maketrans("01234567", "abcdefgh")


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_what_follows_a_progress_bar_on_its_line_is_read(size: int) -> None:
    bar = b"".join(b"\r %d/90000 [1.9s/it]" % n for n in range(9_000))
    data = b"start\r\n" + bar + b"\r 9000/90000 " + FALLEN + b"\r\nend\r\n"
    (match,) = read(data[at : at + size] for at in range(0, len(data), size)).matches
    assert (match.line, match.text) == (1, " 9000/90000 " + FALLEN.decode())


@pytest.mark.parametrize("length", [3_000, 100_000])
@pytest.mark.parametrize("end", [b"", b"\nend\n"])
@pytest.mark.parametrize("size", [999, 1 << 20])
def test_the_end_of_a_long_line_is_read(length: int, end: bytes, size: int) -> None:
    data = b"start\n" + b"fine " * (length // 5) + FALLEN + end
    (match,) = read(data[at : at + size] for at in range(0, len(data), size)).matches
    assert match.line == 1
    assert match.text.endswith(FALLEN.decode())
