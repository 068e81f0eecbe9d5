"""What a run's folder tells of a run that was stopped or cut off: all that was known by then."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.unit.test_ledger import FAULT, STEPS
from typer.testing import CliRunner

from everstep.activities.archive import FileArchive
from everstep.cli import standing
from everstep.cli.commands import app
from everstep.core.errors import PermanentError
from everstep.core.model import Assignment, MachineInfo
from everstep.core.record import IncidentRecord, TimelineEntry
from everstep.core.updates import Update
from everstep.core.vocabulary import Outcome
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.standing import KEEP_EVERY_S, Keeper, kept_incidents
from everstep.workflows.messages import JobStatus

HELD = replace(FAULT, outcome=Outcome.HELD, missing="1 machine missing for slot 1")


def machine(name: str) -> MachineInfo:
    return MachineInfo(name, "127.0.0.1", 1, 2, 3, 0.0)


STATUS = JobStatus(
    job="toy",
    phase="incident 1 open",
    assignment=Assignment(2, (machine("m0"), machine("m1")), "v1", "/code"),
    pool=(machine("m2"),),
    evicted=("m9",),
    incidents=1,
    active_incident=1,
    notes=(TimelineEntry(1.0, "m2 waits for a slot"),),
    updates=(Update(1, "", "", (("lr", "3e-4"),), "ada", "warmer", 100.0, 100.0),),
    started_at_s=0.0,
)


def ended(path: Path, **state: object) -> RunFolder:
    """A run that made three steps until a machine was lost, and that nobody gave another one."""
    folder = RunFolder(path)
    # A process number of nobody: a run that says that it runs was cut off.
    began = {"job": "toy", "pid": 2**30, "started_at_s": 0.0, "phase": "running"}
    folder.write_state(**began | state)
    folder.steps.write_text("".join(json.dumps(asdict(seen)) + "\n" for seen in STEPS))
    return folder


def shown(folder: RunFolder, *words: str) -> str:
    arguments = [*words[:1], str(folder.path), *words[1:]]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ({"phase": "was stopped", "ended_at_s": 22.0}, "was stopped"),
        ({"phase": "failed", "ended_at_s": 22.0}, "failed"),
        ({"phase": "running"}, "was cut off"),
    ],
)
def test_the_report_goes_until_the_end_and_says_which(
    state: dict[str, object], ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ended(tmp_path, **state)
    monkeypatch.setattr("everstep.workers.local.standing.time.time", lambda: 22.0)
    Keeper(folder).keep(STATUS, HELD)
    found = json.loads(shown(folder, "report", "--json"))
    assert (found["from_s"], found["to_s"], found["ending"]) == (0.0, 22.0, ending)
    assert (found["spent"]["held"], found["spent"]["restart"]) == (2.0, 4.5)
    said = f"The run {ending}: this goes up to 00:00:22.00."
    assert said in shown(folder, "report")
    page = tmp_path / "page.html"
    shown(folder, "report", "--html", str(page))
    assert f"The run {ending}: this goes up to then." in page.read_text()


def test_status_and_updates_are_those_of_the_last_look(tmp_path: Path) -> None:
    folder = ended(tmp_path, phase="was stopped")
    Keeper(folder).keep(STATUS, HELD)
    found = standing.kept(folder)
    assert (found["slots"], found["evicted"], found["attempt"]) == (["m0", None], ["m9", "m1"], 2)
    assert (found["standbys"], found["incidents"]) == (["m2"], 1)
    assert "m2 waits for a slot" in shown(folder, "status")
    assert "lr=3e-4" in shown(folder, "updates")
    assert "held" in shown(folder, "incidents")


@pytest.mark.parametrize(
    ("archived", "told"),
    [
        (None, HELD),
        (replace(HELD, timeline=()), HELD),
        (replace(HELD, outcome=Outcome.RECOVERED, timeline=()), None),
        (replace(HELD, timeline=(*HELD.timeline, TimelineEntry(9.0, "a person was paged"))), None),
    ],
    ids=["only asked for", "archived before", "closed since", "archived since"],
)
def test_the_newest_word_of_an_incident_counts(
    archived: IncidentRecord | None, told: IncidentRecord | None, tmp_path: Path
) -> None:
    folder = ended(tmp_path)
    Keeper(folder).keep(STATUS, HELD)
    if archived is not None:
        asyncio.run(FileArchive(lambda _: folder.incidents).save_incident(archived))
    assert kept_incidents(folder) == {1: told or archived}


def test_it_is_written_when_it_changes_and_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now_s = ended(tmp_path), 100.0
    monkeypatch.setattr("everstep.workers.local.standing.time.time", lambda: now_s)
    keeper = Keeper(folder)
    keeper.keep(STATUS, HELD)
    before = folder.standing.read_text()
    now_s += KEEP_EVERY_S / 2
    keeper.keep(STATUS, HELD)
    assert folder.standing.read_text() == before
    keeper.keep(STATUS, replace(HELD, outcome=Outcome.RECOVERED))
    assert kept_incidents(folder) == {}
    now_s += KEEP_EVERY_S
    keeper.keep(STATUS, replace(HELD, outcome=Outcome.RECOVERED))
    assert folder.read_standing()["told_at_s"] == now_s


@pytest.mark.parametrize(
    ("command", "told", "said"),
    [
        ("report", False, "was cut off, and its job told nobody when it began"),
        ("report", True, "was cut off, and its job had not begun when it was asked last"),
        ("updates", False, "was cut off, and kept nothing of its updates"),
    ],
)
def test_what_was_not_kept_cannot_be_told(
    command: str, told: bool, said: str, tmp_path: Path
) -> None:
    folder = ended(tmp_path)
    if told:
        Keeper(folder).keep(replace(STATUS, started_at_s=None), None)
    found = CliRunner().invoke(app, [command, str(tmp_path)]).exception
    assert type(found) is PermanentError, found
    assert said in str(found)
