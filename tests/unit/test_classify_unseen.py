"""Scores on logs that the rules met only after they had been written; run with -s to see them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.core.classify.judge import classify
from everstep.core.classify.names import Action
from everstep.core.classify.reader import read

BATCHES = sorted((Path(__file__).parent.parent / "data" / "unseen").glob("batch-*.txt"))
MIN_RIGHT_RATIO = 0.95
"""Today's figure; what the batches scored at first contact is written beside them."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    expected: Action
    log: str

    @property
    def answer(self) -> Action:
        return classify([read([self.log.encode()], self.name)]).first_action


def cases(batch: Path) -> list[Case]:
    blocks = re.split(r"^=== ", batch.read_text(), flags=re.MULTILINE)[1:]
    return [_case(block) for block in blocks]


def _case(block: str) -> Case:
    head, _, log = block.partition("\n---\n")
    name, *fields = head.split("\n")
    values = dict(field.split(": ", 1) for field in fields)
    assert values.keys() == {"source", "first_action"}, name
    return Case(name, Action(values["first_action"]), log.rstrip("\n"))


@pytest.fixture(scope="module")
def judged() -> list[tuple[str, Case, Action]]:
    return [(batch.stem, case, case.answer) for batch in BATCHES for case in cases(batch)]


def test_names_are_unique(judged: list[tuple[str, Case, Action]]) -> None:
    assert len({case.name for _, case, _ in judged}) == len(judged) >= 150


def test_first_action_is_right(
    judged: list[tuple[str, Case, Action]], capsys: pytest.CaptureFixture[str]
) -> None:
    right = [case.expected is answer for _, case, answer in judged]
    with capsys.disabled():
        for batch in BATCHES:
            part = [case.expected is a for name, case, a in judged if name == batch.stem]
            sys.stdout.write(f"\nclassifier on {batch.stem}: {sum(part)} of {len(part)} now")
        sys.stdout.write("; at first contact: tests/data/unseen/README.md\n")
    assert sum(right) >= MIN_RIGHT_RATIO * len(right), [
        (case.name, answer.value) for _, case, answer in judged if case.expected is not answer
    ]


def test_no_healthy_machine_is_evicted(judged: list[tuple[str, Case, Action]]) -> None:
    wrong = [c.name for _, c, answer in judged if Action.EVICT is answer is not c.expected]
    assert wrong == []


def test_no_eviction_is_missed(judged: list[tuple[str, Case, Action]]) -> None:
    missed = [c.name for _, c, answer in judged if Action.EVICT is c.expected is not answer]
    assert missed == []
