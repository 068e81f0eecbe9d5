"""A watched run as a picture: whatever is known, and at any size."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.live import Live

from everstep.cli import watching
from everstep.cli.watch_view import MOST_ROWS, Seen, line, news, picture
from everstep.core.groups import Layout
from everstep.core.vocabulary import Phase

NOW_S = 1_000_060.0


def standing(**changes: Any) -> dict[str, Any]:
    return {
        "job": "gpt",
        "phase": "training",
        "missing": "",
        "step": 7,
        "attempt": 2,
        "slots": ["m0", "m4", "m2", "m3"],
        "standbys": [],
        "evicted": ["m1"],
        "incidents": 1,
        "incident": None,
        "notes": [[NOW_S - 9, "update 1 by ada: accepted"]],
        "updates": [],
        **changes,
    }


INCIDENT: dict[str, Any] = {
    "number": 2,
    "symptom": "agent_lost",
    "machines": ["m1"],
    "fault_at_s": NOW_S - 12.34,
    "outcome": "held",
    "rungs": ["checks", "evict"],
    "story": [[NOW_S - 12.3, "agent of m1 lost: [bold]nothing"], [NOW_S - 1.0, "two\nlines"]],
}

SEEN = Seen(
    now_s=NOW_S,
    standing=standing(),
    layout=Layout(2, tp=2, pp=2, dp=2, order=("tp", "pp", "dp")),
    attempt=2,
    steps={0: 7, 1: 7, 2: 8, 3: 7, 4: 7, 5: 7, 6: 7},
    phases={
        **dict.fromkeys(range(3), Phase.STEP),
        3: Phase.EVALUATION,
        4: Phase.CHECKPOINT,
        5: Phase.PAUSED,
        6: Phase.STEP,
    },
    machines=("m0", "m2", "m4"),
    loss=2.34567,
    ettr=0.5,
    hour_ettr=0.25,
)


def shown(seen: Seen, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(picture(seen))
    return [row.rstrip() for row in captured.get().splitlines()]


def test_a_run_that_trains() -> None:
    rows = shown(SEEN)
    assert rows[0] == (
        "gpt: training; step 7; attempt 2; loss 2.346; ETTR 50.0% (25.0% of the newest hour)"
    )
    # m3's agent is gone, and with it ranks 6 and 7, whatever they said.
    assert [row.split() for row in rows[1:4]] == [
        ["pp", "0", "pp", "1"],
        ["dp", "0", "oo", "+e"],
        ["dp", "1", "cp", "!!"],
    ]
    assert "standbys: none; evicted: m1; incidents: 1" in rows
    assert rows[-1].endswith("update 1 by ada: accepted")


def test_an_open_incident_with_its_rung_and_clock() -> None:
    slots = ["m0", None, "m2", "m3"]
    held = standing(phase="incident 2 held", incident=INCIDENT, missing="1 machine", slots=slots)
    text = "\n".join(shown(replace(SEEN, standing=held)))
    assert "incident 2: agent_lost on m1, rung evict, held, 12.3 s" in text
    assert "waits for: 1 machine" in text
    # A log's brackets are no markup, and one event is one line.
    assert "+0.04 s  agent of m1 lost: [bold]nothing" in text
    assert "+11.34 s  two" in text
    assert "lines" not in text
    assert "dp 0  oo    !!" in text
    assert "vacant slots: 1" in text


def test_nothing_is_known_yet_of_ranks() -> None:
    silent = replace(SEEN, machines=None, phases={}, steps={}, loss=None, ettr=None)
    rows = shown(silent)
    assert rows[0] == "gpt: training; step 7; attempt 2"
    assert rows[2].split() == ["dp", "0", "??", "??"]
    bare = replace(silent, layout=None, standing=standing(slots=[], step=None, attempt=0))
    assert shown(bare)[0] == "gpt: training; step none yet; attempt 0"


def test_thousands_of_ranks_are_counted() -> None:
    layout = Layout(8, tp=8, pp=2, dp=600, order=("tp", "pp", "dp"))
    slots = [f"m{slot}" for slot in range(1200)]
    seen = replace(
        SEEN,
        layout=layout,
        standing=standing(slots=slots),
        machines=tuple(slots),
        steps=dict.fromkeys(range(9600), 7),
        phases=dict.fromkeys(range(9600), Phase.STEP),
    )
    rows = shown(seen)
    assert sum(row.strip().startswith("dp ") for row in rows) == MOST_ROWS
    assert f"and {9600 - MOST_ROWS * 16} ranks more: {9600 - MOST_ROWS * 16} o" in rows
    assert len(rows) < 50


def test_one_line_where_there_is_no_terminal() -> None:
    held = replace(SEEN, standing=standing(phase="incident 2 open", incident=INCIDENT))
    assert line(held).startswith(
        "13:47:40.00; incident 2 open; step 7; attempt 2; loss 2.346; ETTR 50.0%"
    )
    assert line(held).endswith("; incident 2 agent_lost on m1, rung evict, held, 12.3 s")
    assert "loss not finite" in line(replace(SEEN, loss=math.nan))


def test_steps_are_no_news_and_a_rung_is() -> None:
    assert news(SEEN) == news(replace(SEEN, now_s=NOW_S + 1, standing=standing(step=8)))
    before = replace(SEEN, standing=standing(incident=INCIDENT))
    after = replace(SEEN, standing=standing(incident=INCIDENT | {"rungs": ["rollback"]}))
    assert len({news(SEEN), news(before), news(after)}) == 3


def test_nothing_that_a_person_is_told_is_cut_in_a_narrow_terminal() -> None:
    missing = "1 machine missing for slot 3 (evicted: m3; no standby is left). Add one: machine add"
    seen = replace(SEEN, standing=standing(missing=missing, incident=INCIDENT))
    told = io.StringIO()
    console = Console(width=60, file=told, soft_wrap=watching.SCREEN.soft_wrap)
    with Live(picture(seen), console=console, auto_refresh=False):
        pass
    shown = told.getvalue().replace("\u2502", " ").split()
    assert shown[shown.index("for:") + 1 :][: len(missing.split())] == missing.split()
