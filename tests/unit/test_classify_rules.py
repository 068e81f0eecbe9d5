from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from everstep.core.classify.judge import classify
from everstep.core.classify.names import TABLE_1, Action, Symptom
from everstep.core.classify.reader import read, read_rule
from everstep.core.classify.rule import Rule, Standing
from everstep.core.classify.rules import RULES
from everstep.core.classify.screen import STEMS

HARMLESS = Path(__file__).parent.parent / "data" / "harmless"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_examples_are_read_by_their_own_rule(rule: Rule) -> None:
    assert rule.examples
    for example in rule.examples:
        found = read_rule(example)
        assert found is not None, example
        assert found.name == rule.name, example


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_examples_pass_the_screen(rule: Rule) -> None:
    for example in rule.examples:
        assert any(stem in example.lower().encode() for stem in STEMS), example


def test_names_are_unique_and_every_rule_has_a_source() -> None:
    assert [name for name, count in Counter(r.name for r in RULES).items() if count > 1] == []
    assert all(rule.source and rule.meaning for rule in RULES)


def test_what_asks_for_nothing_proves_nothing() -> None:
    for rule in RULES:
        if rule.standing is Standing.HARMLESS:
            assert rule.reading.action is Action.NONE


def test_only_hardware_hosts_networks_and_drivers_evict() -> None:
    evicting = {rule.reading.label.value for rule in RULES if rule.reading.action is Action.EVICT}
    assert evicting <= {"gpu_hardware", "host", "network", "infrastructure"}


def test_every_symptom_has_its_row() -> None:
    assert set(TABLE_1) == set(Symptom)


@pytest.mark.parametrize("line", sorted(HARMLESS.glob("*.log")), ids=lambda path: path.name)
def test_harmless_files_ask_for_nothing(line: Path) -> None:
    answer = classify([read([line.read_bytes()], line.name)])
    assert answer.first_action is Action.NONE, answer


@pytest.mark.parametrize(
    "line",
    [
        line
        for name in ("kernel.log", "rank.log")
        for line in (HARMLESS / name).read_text().splitlines()
    ],
)
def test_harmless_lines_ask_for_nothing_alone(line: str) -> None:
    answer = classify([read([line.encode()])])
    assert answer.first_action is Action.NONE, answer
