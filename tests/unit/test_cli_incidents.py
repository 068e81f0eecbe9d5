"""How incidents read: short where many ranks ended, literal where logs hold brackets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from everstep.cli.commands import app
from everstep.cli.incidents import MAX_ALERTS_IN_A_ROW, incident_table, timeline_table
from everstep.core.errors import InputError
from everstep.core.record import Climb, Finding, IncidentRecord, TimelineEntry
from everstep.core.vocabulary import ClimbOutcome, Outcome, Rung, Symptom
from everstep.workers.local.folder import RunFolder


def record_of(*texts: str) -> IncidentRecord:
    timeline = tuple(TimelineEntry(100.0 + number, text) for number, text in enumerate(texts))
    finding = Finding(Symptom.PROCESS_CRASH, (), (), False, "")
    return IncidentRecord(1, "job", 100.0, 100.0, Outcome.OPEN, finding, timeline=timeline)


def shown(record: IncidentRecord) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(timeline_table(record))
    return captured.get()


def test_long_rows_of_alerts_are_cut_short() -> None:
    alerts = [f"agent: rank {rank} ended" for rank in range(3_000)]
    text = shown(record_of("controller: begins", *alerts, "all ranks stopped"))
    assert text.count("agent: rank") == MAX_ALERTS_IN_A_ROW - 1
    assert f"agent: {3_000 - MAX_ALERTS_IN_A_ROW + 1} more like these" in text
    assert text.index("more like these") < text.index("all ranks stopped")


def test_short_rows_of_alerts_are_told_whole() -> None:
    alerts = [f"agent: rank {rank} ended" for rank in range(MAX_ALERTS_IN_A_ROW)]
    text = shown(record_of(*alerts, "all ranks stopped", *alerts))
    assert text.count("agent: rank") == 2 * MAX_ALERTS_IN_A_ROW
    assert "more like these" not in text


def test_brackets_of_logs_are_no_markup() -> None:
    text = shown(record_of("rank 0 printed last:\n[rank0]: [bold]Traceback[/nonsense]"))
    assert "[rank0]: [bold]Traceback[/nonsense]" in text


def test_the_list_fits_into_a_narrow_terminal() -> None:
    """At 80 columns no line is longer, and no word is cut."""
    finding = Finding(Symptom.EXTERNAL_SERVICE_ERROR, ("m12", "m13", "m14"), (), False, "")
    climbs = tuple(
        Climb(rung, "", (), 1, 100.0) for rung in (Rung.REATTEMPT, Rung.ROLLBACK, Rung.EVICT)
    )
    record = replace(
        record_of(),
        incident=12,
        finding=finding,
        climbs=climbs,
        outcome=Outcome.RECOVERED,
        first_step_at_s=12_445.678,
    )
    console = Console(width=80)
    with console.capture() as captured:
        console.print(incident_table([record]))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).replace(",", " ").split()
    assert {"where", "m12", "m13", "m14", "reattempt", "rollback", "evict"} <= set(words)
    assert {"external_service_error", "recovered", "12345.68"} <= set(words)


def test_what_failed_later_stands_below_what_opened_the_incident() -> None:
    opened = Finding(Symptom.JOB_HANG, ("m1",), (), False, "silent")
    record = replace(record_of(), first_finding=opened)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(incident_table([record]))
    (first, second) = captured.get().splitlines()[-2:]
    assert [cell.strip() for cell in first.split("│")][1:3] == ["job_hang", "m1"]
    assert second.split("│")[1].strip() == "then process_crash"


def test_what_was_left_out_is_marked() -> None:
    denied = Climb(Rung.EVICT, "", ("m1",), 1, 100.0, ClimbOutcome.DENIED)
    record = replace(record_of(), climbs=(denied, Climb(Rung.REATTEMPT, "", (), 1, 101.0)))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(incident_table([record]))
    assert "evict (denied), reattempt" in captured.get()


@pytest.mark.parametrize("words", [("incident", "show"), ("approve",), ("deny",)])
@pytest.mark.parametrize("option", [(), ("--run",)], ids=["argument", "option"])
def test_the_run_stands_where_all_commands_have_it(
    words: tuple[str, ...], option: tuple[str, ...], tmp_path: Path
) -> None:
    RunFolder(tmp_path).write_state(job="toy", phase="finished")
    found = CliRunner().invoke(app, [*words, "7", *option, str(tmp_path)]).exception
    assert isinstance(found, InputError), found
    wanted = f"incident 7: there is none of that number in {tmp_path}. Known: none."
    assert str(found) == wanted
