"""What a machine says of a code version before anything stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.agent.code import digest, prepare
from everstep.core.orders import PrepareOrder, PrepareReport

COMMAND = ("python", "train.py", "--steps", "3")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A script that imports a module of its own, beside one that nobody imports."""
    folder = tmp_path / "code"
    (folder / "parts").mkdir(parents=True)
    (folder / "train.py").write_text("from parts import model\n\nmodel.run()\n")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "model.py").write_text("def run() -> None:\n    pass\n")
    (folder / "old_python.py").write_text("print 'nobody imports me'\n")
    return folder


def look(code: Path, version: str = "", command: tuple[str, ...] = COMMAND) -> PrepareReport:
    return prepare(PrepareOrder(str(code), version), "m3", command)


def test_a_good_version_is_told_by_its_digest(code: Path) -> None:
    assert look(code) == PrepareReport("m3", digest(code), "")
    assert look(code, digest(code)).problem == ""
    module = look(code, command=("python", "-m", "parts.model"))
    assert module.problem == ""


def test_leftovers_of_a_run_are_no_part_of_it(code: Path) -> None:
    before = digest(code)
    (code / "parts" / "__pycache__").mkdir()
    (code / "parts" / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"x")
    assert digest(code) == before


@pytest.mark.parametrize("change", ["content", "name", "mode"])
def test_every_change_makes_another_version(code: Path, change: str) -> None:
    before, script = digest(code), code / "train.py"
    if change == "content":
        script.write_text(script.read_text() + "\n")
    elif change == "name":
        (code / "old_python.py").rename(code / "older_python.py")
    else:
        script.chmod(0o755)
    assert digest(code) != before
    assert look(code, before).problem == f"{code} holds {digest(code)}, not {before}"


def test_a_mistake_in_what_is_imported_is_named_with_its_line(code: Path) -> None:
    (code / "parts" / "model.py").write_text("def run() -> None:\n    return (\n")
    said = look(code).problem
    assert said.startswith("parts/model.py, line 2: ")
    assert "was never closed" in said


def test_a_file_that_is_not_there(code: Path) -> None:
    (code / "train.py").unlink()
    assert look(code).problem == "there is no train.py in it"
    assert look(code / "nowhere").problem == f"{code / 'nowhere'} is not there"


def test_other_programs_are_not_read(code: Path) -> None:
    assert look(code, command=("sh", "train.sh")).problem == ""
    assert look(code, command=("python", "-m", "torch.distributed.run")).problem == ""
