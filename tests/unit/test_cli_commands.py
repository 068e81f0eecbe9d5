"""Every command of `everstep` is found, says what it is for, and loads no other."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from everstep.cli.commands import COMMANDS, app

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
