"""What a machine says of a code version before anything stops."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from tests.fault.machines import Rig, config_of, until

from everstep.agent import process
from everstep.agent.code import digest, prepare
from everstep.agent.versions import Versions
from everstep.core.errors import InputError
from everstep.core.orders import PrepareOrder, PrepareReport, StopOrder
from everstep.workers.local.code import take_update
from everstep.workers.local.folder import RunFolder

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


BUILD = ("sh", "-c", "echo built >> kernel.so; echo once >> ../times; ls parts")


def versions(root: Path, command: tuple[str, ...], timeout_s: float = 30.0) -> Versions:
    config = config_of(root, COMMAND, prepare=command, prepare_timeout_s=timeout_s)
    return Versions(config)


def test_a_version_is_made_ready_once_in_a_copy(tmp_path: Path, code: Path) -> None:
    before = digest(code)
    ours = versions(tmp_path, BUILD)
    report = ours.prepare(PrepareOrder(str(code)))
    assert report == PrepareReport("m0", before, "")
    copy = Path(ours.place(str(code)))
    assert (copy / "kernel.so").read_text() == "built\n"
    # What other machines see of the version is as it was.
    assert digest(code) == before
    assert versions(tmp_path, BUILD).prepare(PrepareOrder(str(code))).problem == ""
    assert (copy.parent / "times").read_text() == "once\n"
    assert versions(tmp_path, ()).place(str(code)) == str(code)


def test_a_command_that_fails_says_why_and_is_tried_again(tmp_path: Path, code: Path) -> None:
    fails = "for n in 1 2 3 4 5 6; do echo line $n; done; echo no compiler >&2; exit 3"
    ours = versions(tmp_path, ("sh", "-c", f"test -e {tmp_path}/compiler || {{ {fails}; }}"))
    problem = ours.prepare(PrepareOrder(str(code))).problem
    assert problem.endswith(
        "ended with status 3: line 3 | line 4 | line 5 | line 6 | no compiler"
    ), problem
    (tmp_path / "compiler").touch()
    assert ours.prepare(PrepareOrder(str(code))).problem == ""
    (tmp_path / "other").mkdir()
    missing = versions(tmp_path / "other", ("no-such-program",)).prepare(PrepareOrder(str(code)))
    assert missing.problem.startswith("`no-such-program` ended with status 1: "), missing


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, code: Path) -> None:
    ours = versions(tmp_path, ("sh", "-c", "setsid sleep 1000 & sleep 1000"), timeout_s=0.5)
    assert (
        "took longer than 0.5 s: it said nothing" in ours.prepare(PrepareOrder(str(code))).problem
    )
    assert process.strays(f"{(tmp_path / 'm0').resolve()}{process.PREPARING}", None) == []


def test_an_update_that_is_neither_a_folder_nor_a_ref_is_said_to_be_that(
    tmp_path: Path, code: Path
) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=ada", "-c", "user.email=ada@example.com")
        subprocess.run(["git", "-C", str(code), *who, *words], check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "-m", "begin")
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for source in ({"git": str(code)}, {"directory": str(code / "parts")}):
        run.write_state(code_source=source)
        with pytest.raises(InputError) as raised:
            take_update(run, "../gtp")
        assert raised.value.where == "--code ../gtp"
        assert "no folder of that name here, and git has no ref of that name" in raised.value.what
        assert "branch or tag" in raised.value.fix
        assert take_update(run, "main").is_dir()


async def test_ranks_run_in_the_copy_and_their_end_does_not_disturb_the_next(
    tmp_path: Path,
) -> None:
    slow = f"echo 7 > seven; touch {tmp_path}/begun; test -e wait || exit 0; sleep 2"
    config = config_of(tmp_path, COMMAND, prepare=("sh", "-c", slow))
    async with Rig(config) as rig:
        rig.write(
            """
            import json, os, time
            text = open("seven").read()
            if os.environ["RANK"] == "0":
                path = os.environ["EVERSTEP_OUTPUT_DIR"] + "/seven.json"
                with open(path + ".new", "w") as file:
                    json.dump(int(text), file)
                os.rename(path + ".new", path)
            time.sleep(1000)
            """
        )
        await rig.machine.start(rig.order(attempt=1))
        assert await rig.output("seven.json") == 7
        (tmp_path / "begun").unlink()
        (tmp_path / "next").mkdir()
        (tmp_path / "next" / "train.py").write_text("pass\n")
        (tmp_path / "next" / "wait").touch()
        next_one = asyncio.ensure_future(rig.machine.prepare(PrepareOrder(str(tmp_path / "next"))))
        await until((tmp_path / "begun").exists)
        await rig.machine.stop(StopOrder(1))
        assert (await next_one).problem == ""
