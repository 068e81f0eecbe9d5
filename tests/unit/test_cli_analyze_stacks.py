"""`everstep analyze-stacks` on folders of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from tests.unit import stack_texts as texts
from typer.testing import CliRunner

from everstep.cli import commands
from everstep.core.errors import InputError

DATA = Path(__file__).parent.parent / "data" / "stacks"
PAPER = """\
name: paper
command: [python, not-here.py]
code: {directory: not-here}
machines: 16
gpus_per_machine: 2
parallelism: {tp: 2, pp: 4, dp: 4, order: tp-pp-dp}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(PAPER)
    return path


def call(*arguments: str | Path) -> str:
    app: typer.Typer = commands.app
    result = CliRunner().invoke(app, ["analyze-stacks", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


def analyzed(folder: Path, spec: Path, *options: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(folder, "--spec", spec, "--json", *options))
    return found


def test_fig_7_as_files(tmp_path: Path, spec: Path) -> None:
    for name in ("rank-{}.json", "rank-{}.2.json"):
        texts.write(tmp_path / "dumps", texts.fig_7(), name)
    picture = tmp_path / "grid.svg"
    found = analyzed(tmp_path / "dumps", spec, "--svg", picture)
    assert found["verdict"] == "evict"
    assert found["suspect_ranks"] == list(range(24, 32))
    assert found["group"] == {"kind": "pp", "ranks": list(range(24, 32))}
    assert found["evict_machines"] == [12, 13, 14, 15]
    assert any("irecv" in reason for reason in found["reasons"])
    squares = ElementTree.parse(picture).getroot().findall(".//{*}rect/{*}title")  # noqa: S314 - our own
    assert len(squares) == 32
    assert sum("suspect" in (square.text or "") for square in squares) == 8


def test_a_person_sees_groups_reasons_and_the_grid(tmp_path: Path, spec: Path) -> None:
    texts.write(tmp_path / "dumps", texts.without(texts.fig_7(), [3]))
    output = call(tmp_path / "dumps", "--spec", spec)
    assert "23: ranks 0-2, 4-23, waiting" in output
    assert "1: rank 3, no_answer: there is no dump of it" in output
    grid = output.splitlines()[-7:-1]
    assert [line.split() for line in grid[1:]] == [
        ["dp", "0", "0", "1", "2", "3?", "4", "5", "6", "7"],
        ["dp", "1", *map(str, range(8, 16))],
        ["dp", "2", *map(str, range(16, 24))],
        ["dp", "3", *(f"{rank}!" for rank in range(24, 32))],
        ["!", "suspect", "~", "evicted", "with", "it", "?", "did", "not", "answer"],
    ]
    assert grid[0].index("pp 3") == grid[1].index("6 7")
    assert "evict slots 12-15" in output


def test_one_look_at_ranks_that_may_move_names_no_machine_to_evict(
    tmp_path: Path, spec: Path
) -> None:
    texts.write(tmp_path, texts.fig_7())
    found = analyzed(tmp_path, spec)
    assert (found["verdict"], found["next_step"]) == ("unobservable", "look_again")
    assert (found["group"], found["evict_machines"]) == (None, [])
    assert found["suspect_ranks"] == list(range(24, 32))
    doubts = [reason for reason in found["reasons"] if reason.startswith("Doubt: ")]
    assert len(doubts) == 1
    assert "one look cannot tell a rank that moves from one that stands" in doubts[0]
    assert doubts[0].endswith("evict slots 12-15")
    assert f"Look again some seconds later: as {tmp_path}/rank-N.2.json" in call(
        tmp_path, "--spec", spec
    )
    # Who does not answer does not move either.
    texts.write(tmp_path / "silent", texts.without(texts.everywhere(texts.GRAD_SYNC), [13]))
    assert analyzed(tmp_path / "silent", spec)["evict_machines"] == [6]


def test_second_dumps_are_files_with_a_number_or_folders(tmp_path: Path, spec: Path) -> None:
    one, other = texts.everywhere(texts.GRAD_SYNC), texts.everywhere(texts.GRAD_SYNC)
    one[7], other[20] = texts.dump(texts.USER_LOCK, 7), texts.dump(texts.USER_LOCK, 20)
    for name, folder in (("rank-{}.2.json", "a"), ("later/rank-{}.json", "b")):
        texts.write(tmp_path / folder, one)
        (tmp_path / folder / "later").mkdir()
        texts.write(tmp_path / folder, other, name)
        assert analyzed(tmp_path / folder, spec)["verdict"] == "moving"


def test_recorders_are_read_and_broken_ones_left_out(tmp_path: Path, spec: Path) -> None:
    world = str(list(range(32)))
    works = {"0": (41, "all_reduce", 8)}
    texts.write(tmp_path / "dumps", texts.everywhere(texts.TP_REDUCE))
    recorders = dict.fromkeys(range(32), texts.recorder({"0": (41, 40, world)}, works))
    recorders[9] = texts.recorder({"0": (41, 40, world)}, {"0": (41, "all_reduce", 9)})
    recorders[10] = b'{"entries": ['
    texts.write(tmp_path / "dumps", recorders, "recorder-{}.json")
    assert analyzed(tmp_path / "dumps", spec)["suspect_ranks"] == [9]


def test_a_real_hang_is_judged(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(PAPER.replace("pp: 4, dp: 4", "pp: 2, dp: 2").replace("16", "4"))
    found = analyzed(DATA / "stopped", spec)
    assert (found["suspect_ranks"], found["evict_machines"]) == ([5], [2])


def test_wrong_input_is_named_with_the_fix(tmp_path: Path, spec: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, what in (("empty", "holds no rank-N.json"), ("no", "No such")):
        with pytest.raises(InputError, match=what):
            call(tmp_path / name, "--spec", spec)
    texts.write(tmp_path / "dumps", {32: texts.dump(texts.GRAD_SYNC)})
    with pytest.raises(InputError, match="rank 32 is not one of 0 to 31"):
        call(tmp_path / "dumps", "--spec", spec)


def test_half_characters_in_a_dump_are_shown_as_well_as_they_can(
    tmp_path: Path, spec: Path
) -> None:
    ranks = texts.everywhere(texts.GRAD_SYNC)
    ranks[9] = texts.dump([("[/b]hold\ud800", "user.py"), *texts.MAIN], 9)
    texts.write(tmp_path / "dumps", ranks)
    output = call(tmp_path / "dumps", "--spec", spec, "--svg", tmp_path / "grid.svg")
    assert "[/b]hold? (user.py)" in output
    assert analyzed(tmp_path / "dumps", spec)["suspect_ranks"] == [9]
