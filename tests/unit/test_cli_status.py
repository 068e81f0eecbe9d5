"""What `everstep status` says of standbys, of updates, and of a run that ends meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from everstep.cli import standing, watching
from everstep.cli.commands import app
from everstep.cli.hot_update import update_table
from everstep.cli.status import standby_text
from everstep.core import updates
from everstep.core.memory import CodeVersion
from everstep.core.updates import Update, UpdateState
from everstep.workers.local.folder import RunFolder
from everstep.workflows.messages import StandbyStatus


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, ""),
        (StandbyStatus(2, None, 0, 0.0, (), 0), " (of 2 wanted)"),
        (
            StandbyStatus(3, 0.00224, 1, 4.25, ("m7", "m8"), 1),
            " (of 3 wanted, at 0.00224 failures a machine and day; own history: 1 in 4.25"
            " machine-days); being tested: m7, m8; asked the cluster for 1",
        ),
    ],
)
def test_standbys_in_words(status: StandbyStatus | None, text: str) -> None:
    plan = None if status is None else asdict(status)
    assert standby_text({"standby_plan": plan}) == text


UPDATE = Update(1, "", "", (("lr", "3e-4"),), "ada", "warmer", 100.0, 100.0)


def shown(folder: Path, command: str, *options: str) -> str:
    result = CliRunner().invoke(app, [command, str(folder), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_status_says_of_an_update_what_updates_says_of_it(tmp_path: Path) -> None:
    made = replace(UPDATE, state=UpdateState.APPLIED, became="v1+abc")
    codes = [CodeVersion("v1+abc", "/code", failed="it crashed before its first step")]
    RunFolder(tmp_path).write_state(
        job="toy",
        phase="finished",
        notes=[[100.0, f"{UPDATE.text()}: accepted"], [101.0, "m4 waits for a slot"]],
        updates=updates.told([made], codes),
    )
    outcome = "rolled back: it crashed before its first step"
    assert outcome in shown(tmp_path, "updates", "--json")
    status = shown(tmp_path, "status").splitlines()
    assert status[-2].endswith(f"update 1 by ada: lr=3e-4 (warmer): accepted, {outcome}")
    assert status[-1].endswith("m4 waits for a slot")


class EndsMeanwhile(RunFolder):
    """A run that ends right after somebody has looked at it."""

    def read_state(self) -> dict[str, Any]:
        state = super().read_state()
        if state["phase"] == "running":
            RunFolder(self.path).write_state(**{**state, "phase": "finished"})
        return state


def running(path: Path) -> dict[str, Any]:
    path.mkdir(parents=True, exist_ok=True)
    state = {"job": "toy", "phase": "running", "pid": os.getpid(), "started_at_s": time.time()}
    RunFolder(path).write_state(**state)
    return state


def test_a_run_that_ends_while_it_is_looked_at_was_not_cut_off(tmp_path: Path) -> None:
    running(tmp_path)
    assert standing.kept(EndsMeanwhile(tmp_path))["phase"] == "finished"
    running(tmp_path)
    RunFolder(tmp_path).write_state(temporal={"own": True, "address": "127.0.0.1:1"})
    found = asyncio.run(standing.describe(EndsMeanwhile(tmp_path)))
    assert (found["phase"], found["missing"]) == ("finished", "")


async def test_watching_ends_with_how_the_run_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(tmp_path)
    task = asyncio.create_task(watching.watch(RunFolder(tmp_path)))
    async with asyncio.timeout(20.0):
        while "; starting; step none yet" not in (said := capsys.readouterr().out):
            await asyncio.sleep(0.01)
        RunFolder(tmp_path).write_state(phase="failed")
        assert await task == 0
    assert len(said.splitlines()) == 1
    lines = capsys.readouterr()
    assert lines.err == ""
    assert [line.split("; ")[1] for line in lines.out.splitlines()] == ["failed"]


def test_what_an_update_changes_is_not_cut_in_a_narrow_terminal() -> None:
    asked = replace(
        UPDATE,
        version="9cadb5621a66",
        settings=(("lr", "3e-4"), ("NCCL_DEBUG", "INFO")),
        author="christopher",
        reason="fused norm [x], and a warmer start after the spike of yesterday",
        state=UpdateState.APPLIED,
        became="v1+abc",
    )
    codes = [CodeVersion("v1+abc", "/code", failed="rank 5 on m2 ended with exit code 1")]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(update_table(updates.told([asked], codes)))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    words = {"9cadb5621a66", "lr=3e-4", "NCCL_DEBUG=INFO", "christopher", "[x],", "yesterday"}
    assert words <= set(" ".join(lines).split())
