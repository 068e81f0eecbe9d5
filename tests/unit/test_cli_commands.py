"""Every command of `everstep` is found, says what it is for, and loads no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstep.cli.commands import COMMANDS, app, call
from everstep.cli.find import find_run, of_run
from everstep.core.errors import InputError
from everstep.workers.local.folder import RunFolder

HEAVY = ("torch", "temporalio", "matplotlib")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_is_for(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    lines = [line for line in shown.output.splitlines() if line.strip()]
    assert lines[0].split()[:3] == ["Usage:", "everstep", name]
    assert not lines[1].startswith("╭"), "it has no sentence"


def test_an_unknown_command_is_wrong_input() -> None:
    shown = CliRunner().invoke(app, ["nosuch"])
    assert shown.exit_code == 2
    assert "nosuch" in shown.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), ("No such command 'nosuch'", "everstep --help.")),
        (("approve",), ("Missing argument 'N'", "everstep approve --help.")),
        (("incident", "show", "x"), ("Invalid value for 'N'", "everstep incident show --help.")),
        (("status", "--wacht"), ("No such option: --wacht", "everstep status --help.")),
        (
            ("simulate", "job.yaml", "--days"),
            ("Option '--days' requires an argument", "everstep simulate --help."),
        ),
        (("report", "--html"), ("Option '--html' requires an argument", "everstep report --help.")),
        (
            ("incident", "show", "1", "--run"),
            ("Option '--run' requires an argument", "everstep incident show --help."),
        ),
    ],
)
def test_a_wrong_command_line_is_told_as_all_wrong_input_is(
    words: tuple[str, ...], said: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    what, where = said
    assert line.startswith(f"everstep: {what}")
    assert line.endswith(f". See: {where}")


@pytest.mark.parametrize("words", [(), ("ckpt",)])
def test_who_gives_nothing_is_shown_what_there_is(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(words)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert "Usage: everstep" in shown.out
    assert "Usage: everstep" not in shown.err


LINGER = """
import sys, threading, time
from everstep.cli import commands, main

def call():
    threading.Thread(target=time.sleep, args=(1000.0,)).start()
    print("said")
    sys.exit(3)

commands.call = call
main.main()
"""


def test_a_command_ends_although_a_thread_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LINGER], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "")


def complete(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    asked = {
        "_EVERSTEP_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("everstep", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(app, [], env=asked).output.split()


def test_a_shell_completes_commands_and_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpt-one", "gpt-two", "other"):
        RunFolder(tmp_path / "runs" / name).path.mkdir(parents=True)
        RunFolder(tmp_path / "runs" / name).write_state(job=name)
    assert complete("sta") == ["status", "stacks"]
    assert complete("incident", "sh") == ["show"]
    assert complete("status", "gpt") == ["gpt-one", "gpt-two"]
    assert "--install-completion" in complete("--")


SHOWS = (
    "status", "report", "incidents", "updates", "plan", "spec", "check", "classify", "stacks",
    "analyze-stacks", "logs", "incident show", "ckpt ls", "ckpt verify", "hot-update",
)  # fmt: skip


@pytest.mark.parametrize("name", SHOWS)
def test_what_shows_something_shows_it_to_programs(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"})
    assert "--json" in shown.output


def test_a_run_is_found_by_its_folder_or_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="there is no run here"):
        find_run(None)
    with pytest.raises(InputError, match=r"nosuch: is not a run's folder.* None lies under runs/"):
        find_run(Path("nosuch"))
    for name, job in (("a", "gpt"), ("b", "toy")):
        folder = RunFolder(Path("runs") / name)
        folder.path.mkdir(parents=True)
        folder.write_state(job=job)
        os.utime(folder.state, (1.0, 1.0 if name == "a" else 2.0))
    (Path("runs") / "c").mkdir()
    (Path("runs") / "c" / "run.json").write_text("{half a")
    os.utime(Path("runs") / "c" / "run.json", (0.0, 0.0))
    assert find_run(None).path == Path("runs/b")
    assert find_run(Path("gpt")).path == find_run(Path("a")).path == Path("runs/a")
    assert find_run(Path("runs/a")).path == Path("runs/a")
    with pytest.raises(InputError, match=r"Jobs with runs under runs: c, gpt, toy"):
        find_run(Path("nosuch"))


@pytest.mark.parametrize("name", ["plan", "spec", "check", "classify"])
def test_a_command_without_a_server_loads_no_client(name: str) -> None:
    code = (
        "import sys\n"
        "from everstep.cli.commands import app\n"
        f"app([{name!r}, '--help'], standalone_mode=False)\n"
        f"print([heavy for heavy in {HEAVY!r} if heavy in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("command", ["page", "run"])
def test_a_webhook_whose_variable_is_not_there_is_wrong_input(command: str, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    example = Path(__file__).parents[2] / "examples" / "simulation" / "job.yaml"
    (tmp_path / "train.py").touch()
    spec.write_text(example.read_text() + "safety: {webhook: NO_SUCH_WEBHOOK}\n")
    found = CliRunner().invoke(app, [command, str(spec)]).exception
    assert isinstance(found, InputError), found
    assert "NO_SUCH_WEBHOOK: there is no such variable here" in str(found)


def test_answers_that_are_offered_name_the_run() -> None:
    held = "evict: m1 is gone. To go on: everstep approve 12. To leave it out: everstep deny 12"
    assert of_run(held, RunFolder(Path("runs/toy"))) == (
        "evict: m1 is gone. To go on: everstep approve 12 runs/toy. To leave it out: everstep deny"
        " 12 runs/toy"
    )
