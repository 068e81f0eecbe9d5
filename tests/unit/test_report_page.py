"""The report as a page: whole, offline, and safe from what incidents say."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from tests.unit.test_ledger import AFTER, FAULT

from everstep.cli.report_html import page
from everstep.core.report import report

VOID = {"meta", "line", "rect", "polyline", "br", "img"}


class Balance(HTMLParser):
    """Every element is closed by its own end tag."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or not (self.get_starttag_text() or "").endswith(("/>", "<br>")):
            self.open += [] if tag in ("meta", "img") else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_whole_and_offline(text: str) -> None:
    balance = Balance()
    balance.feed(text.replace("<br>", "<br/>"))
    assert balance.open == []
    addresses = re.findall(r"https?://[^\"' ]+", text)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_page_is_whole_and_needs_no_network() -> None:
    text = page(report("job", AFTER, [FAULT], 0.0, 22.0), [FAULT])
    check_whole_and_offline(text)
    assert "ETTR 18.18%" in text
    assert "agent_lost: evict" in text
    assert "; 1 incident.</p>" in text


def test_what_ranks_said_is_text_and_nothing_else() -> None:
    finding = replace(FAULT.finding, reason="<script>alert(1)</script>")
    text = page(report("a<b", AFTER, [FAULT], 0.0, 22.0), [replace(FAULT, finding=finding)])
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "a&lt;b" in text
