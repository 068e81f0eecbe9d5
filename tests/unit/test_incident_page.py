"""An incident as a page: whole, offline, with its evidence, and safe from what ranks printed."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html import unescape

from tests.unit.test_ledger import FAULT
from tests.unit.test_report_page import check_whole_and_offline

from everstep.cli.incident_html import page
from everstep.core.record import StackRecord, TimelineEntry
from everstep.core.vocabulary import Outcome, Symptom

STACKS = StackRecord(
    14.2, 1, "evict", "", (2,), "pp", ("m1",), (), ("rank 2 is alone",), "s3://kept", "a", "b"
)
CLOSED = replace(
    FAULT,
    stacks=(STACKS,),
    first_step_at_s=20.0,
    restored_step=2,
    lost_steps=1,
    timeline=(
        TimelineEntry(13.5, "rank 2 printed last:\n<b>boom</b>"),
        TimelineEntry(14.5, "rung evict m1: because"),
    ),
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def test_page_is_whole_and_has_the_evidence() -> None:
    text = page(CLOSED, {"b": SVG})
    check_whole_and_offline(text)
    assert "job, incident 1: agent_lost" in text
    assert "<td>restart</td><td class=n>2.50</td>" in text
    assert "<td>evict</td><td>done</td><td>m1</td><td>because</td>" in text
    assert "<li>rank 2 is alone</li>" in text
    assert base64.b64encode(SVG).decode() in text
    assert "+1.00" in text


def test_page_is_about_what_opened_the_incident_and_tells_the_rest_beside_it() -> None:
    bad = replace(FAULT.finding, symptom=Symptom.CODE_ERROR, reason="SyntaxError")
    text = page(replace(CLOSED, finding=bad, first_finding=FAULT.finding), {})
    assert "job, incident 1: agent_lost" in text
    assert "<td>then</td><td>code_error: SyntaxError</td>" in text


def test_what_ranks_and_pictures_say_is_never_run() -> None:
    text = page(CLOSED, {"b": SVG})
    assert "<script>" not in text
    assert "<b>boom" not in text
    assert "&lt;b&gt;boom" in text


def test_the_record_itself_is_there_for_programs() -> None:
    found = re.search(r"<details><pre>(.*)</pre></details>", page(CLOSED, {}), re.DOTALL)
    assert found is not None
    record = json.loads(unescape(found[1]))
    assert (record["incident"], record["stacks"][0]["suspects"]) == (1, [2])


def test_evidence_that_is_gone_and_an_incident_that_is_held() -> None:
    held = replace(
        CLOSED, outcome=Outcome.HELD, missing="1 machine", first_step_at_s=None, climbs=()
    )
    text = page(held, {})
    check_whole_and_offline(text)
    assert "The picture (b in s3://kept) could not be had." in text
    assert "<b>Waits for:</b> 1 machine" in text
    assert "What took its time" not in text
