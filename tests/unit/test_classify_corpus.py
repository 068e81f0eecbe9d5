"""Scores on the labelled corpus; run with -s to see the table."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everstep.core.classify.evidence import Classification
from everstep.core.classify.judge import classify
from everstep.core.classify.names import Action, Kind, Label, Symptom
from everstep.core.classify.reader import read

CORPUS = Path(__file__).parent.parent / "data" / "corpus" / "cases.jsonl"
MIN_RIGHT_RATIO = 0.8
MAX_EVICTIONS_MISSED = 1


@dataclass(frozen=True, slots=True)
class Judged:
    case: dict[str, Any]
    answer: Classification

    @property
    def right(self) -> bool:
        return bool(self.answer.first_action == self.case["first_action"])

    @property
    def evicts_healthy(self) -> bool:
        evicts = self.answer.first_action is Action.EVICT
        return evicts and self.case["first_action"] != Action.EVICT

    @property
    def misses_eviction(self) -> bool:
        evicts = self.answer.first_action is Action.EVICT
        return not evicts and self.case["first_action"] == Action.EVICT

    @property
    def designed_on(self) -> bool:
        """Whether the case was seen before the rules were written, by a hash of its name."""
        return int(hashlib.sha256(self.case["id"].encode()).hexdigest(), 16) % 2 == 0


def judge(case: dict[str, Any]) -> Judged:
    lines = case["evidence"].split("\n")
    kept = [line for number, line in enumerate(lines) if number not in case["helper_lines"]]
    return Judged(case, classify([read(["\n".join(kept).encode()], case["id"])]))


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    with CORPUS.open() as file:
        cases = [json.loads(line) for line in file]
    return [judge(case) for case in cases if case["text_match_ok"]]


def test_names_are_the_corpus_s() -> None:
    with CORPUS.open() as file:
        for case in map(json.loads, file):
            Symptom(case["symptom"])
            Label(case["label"])
            Action(case["first_action"])
            Kind(case["evidence_kind"])


def test_first_action_is_right_in_four_of_five(
    judged: list[Judged], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        _table(judged)
    assert sum(one.right for one in judged) >= MIN_RIGHT_RATIO * len(judged)


def test_no_healthy_machine_is_evicted(judged: list[Judged]) -> None:
    assert [one.case["id"] for one in judged if one.evicts_healthy] == []


def test_at_most_one_eviction_is_missed(judged: list[Judged]) -> None:
    missed = [one.case["id"] for one in judged if one.misses_eviction]
    assert len(missed) <= MAX_EVICTIONS_MISSED, missed


def test_deciding_lines_are_lines_of_the_text(judged: list[Judged]) -> None:
    for one in judged:
        count = one.case["evidence"].count("\n") + 1
        assert all(0 <= line < count for line in one.answer.lines)
        assert 0 <= one.answer.confidence <= 1


def _table(judged: list[Judged]) -> None:
    sys.stdout.write(
        "\n\nclassifier on the corpus   cases  first action  symptom  label  wrong evictions\n"
    )
    halves = {
        "seen while designing": [one for one in judged if one.designed_on],
        "held out at first": [one for one in judged if not one.designed_on],
        "all": judged,
    }
    for name, part in halves.items():
        labels = sum(
            one.answer.label in (one.case["label"], *one.case["label_alternatives"]) for one in part
        )
        sys.stdout.write(
            f"{name:<26} {len(part):>5}  {sum(one.right for one in part):>12}"
            f"  {sum(one.answer.symptom == one.case['symptom'] for one in part):>7}"
            f"  {labels:>5}  {sum(one.evicts_healthy for one in part):>15}\n"
        )
