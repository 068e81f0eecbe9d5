from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from everstep.core.classify.needles import Index, needles
from everstep.core.classify.reader import read_rule
from everstep.core.classify.rules import RULES

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("out of memory", {"out of memory"}),
        ("error|failed", {"error", "failed"}),
        (r"\bxid\s*(?:79|48)\b", {"xid"}),
        ("(?:socket|pipe) closed", {" closed"}),
        ("(?:socket|pipe)s?", {"socket", "pipe"}),
        ("colou?rs", {"colo"}),
        ("a+bcd", {"bcd"}),
        ("(?!not here)killed", {"killed"}),
        (r"no\.\d{2}[abc]stalls", {"stalls"}),
        ("x{2}yz|pq", None),
        (r"\d+", None),
        ("(?:maybe)?", None),
    ],
)
def test_needles_of_a_pattern(pattern: str, expected: set[str] | None) -> None:
    assert needles(pattern) == expected


def test_no_rule_has_to_be_searched_in_every_line() -> None:
    assert [rule.name for rule in RULES if needles(rule.pattern) is None] == []


def test_index_misses_nothing_that_a_search_of_every_pattern_finds() -> None:
    texts = [example for rule in RULES for example in rule.examples]
    for line in (DATA / "corpus" / "cases.jsonl").read_text().splitlines():
        texts += json.loads(line)["evidence"].split("\n")
    for file in [*(DATA / "unseen").glob("*.txt"), *(DATA / "harmless").glob("*.log")]:
        texts += file.read_text().split("\n")
    patterns = [(rule, re.compile(rule.pattern)) for rule in RULES]
    for text in texts:
        lower = text.lower()
        first = next((rule for rule, pattern in patterns if pattern.search(lower)), None)
        assert read_rule(text) is first, text


def test_patterns_without_needles_are_always_candidates() -> None:
    assert Index([r"\d+", "abc", "bcd"]).candidates("xabcx") == [0, 1]
    assert Index([r"\d+", "abc"]).candidates("") == [0]
