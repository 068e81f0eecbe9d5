"""docs/simulation.md tells all that the files of a simulation may say, in samples that work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from everstep.core.simulation.faults import Cause, Shows
from everstep.core.simulation.setting import Choices
from everstep.core.vocabulary import Symptom
from everstep.spec.load_simulation import (
    DURATIONS,
    check_times,
    load_durations,
    load_policy,
    load_stream,
)
from everstep.spec.simulation import (
    DurationsSpec,
    PolicySpec,
    RecordedFault,
    Seconds,
    StreamSpec,
    WaySpec,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "simulation"


def _section() -> str:
    page = (ROOT / "docs" / "simulation.md").read_text()
    return page.split("## Your own faults, durations and policies\n")[1].split("\n## ")[0]


PARTS = {
    part.partition("\n")[0]: part.partition("\n")[2] for part in _section().split("\n### ")[1:]
}
"""What stands below each heading."""

MODELS = {
    "A policy": (PolicySpec,),
    "A stream of ways to fail": (StreamSpec, WaySpec),
    "Recorded faults": (RecordedFault,),
    "Durations": (DurationsSpec, Seconds),
}


def _words_of(kind: Any) -> Iterator[str]:
    """The words that a type allows, however deep."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    for inner in get_args(kind):
        yield from _words_of(inner)


def _block(part: str, kind: str) -> str:
    (block,) = re.findall(rf"^```{kind}\n(.*?)^```$", PARTS[part], re.MULTILINE | re.DOTALL)
    return str(block)


def _policy(given: str) -> Choices:
    return load_policy(Path(given))


def test_every_part_and_no_other_is_held_against_its_model() -> None:
    assert [*PARTS] == [*MODELS]
    assert _section().count("```") == 2 * len(PARTS)


@pytest.mark.parametrize(
    ("part", "model"), [(part, model) for part, models in MODELS.items() for model in models]
)
def test_every_field_has_its_row_and_every_word_is_there(part: str, model: type[BaseModel]) -> None:
    firsts = re.findall(r"^\| (.*?) \|", PARTS[part], re.MULTILINE)
    rows = {name for first in firsts for name in re.findall(r"`(\w+)`", first)}
    assert {*model.model_fields} - rows == set()
    words = {word for field in model.model_fields.values() for word in _words_of(field.annotation)}
    assert words - {*re.findall(r"`(\w+)`", _section())} == set()


def test_every_row_of_fields_is_a_field() -> None:
    for part, models in MODELS.items():
        known = {name for model in models for name in model.model_fields}
        for table in re.findall(
            r"^\| field .*\n\|[- |]+\n((?:\|.*\n)+)", PARTS[part], re.MULTILINE
        ):
            firsts = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
            assert {n for first in firsts for n in re.findall(r"`(\w+)`", first)} <= known


def test_every_word_of_a_fault_is_told_where_it_belongs() -> None:
    ways = PARTS["A stream of ways to fail"]
    after = {
        word: {*re.findall(r"^\| `(\w+)` \|", ways.split(f"The words of `{word}`:")[1].split(
            "\n\nThe ")[0], re.MULTILINE)}
        for word in ("cause", "shows")
    }  # fmt: skip
    assert after == {"cause": {*map(str, Cause)}, "shows": {*map(str, Shows)}}
    symptoms = ways.split("The words of `symptom`:")[1]
    assert {*re.findall(r"`(\w+)`", symptoms)} == {*map(str, Symptom)}
    detections = ways.split("The words of `detection`")[1].split("\n\n")[0]
    for name in DURATIONS:
        assert {*re.findall(r"`(\w+)`", detections)} == {*load_durations(name).detect}


@pytest.mark.parametrize(
    ("part", "suffix", "load"),
    [
        ("A policy", "yaml", _policy),
        ("A stream of ways to fail", "yaml", load_stream),
        ("Recorded faults", "jsonl", load_stream),
        ("Durations", "yaml", load_durations),
    ],
)
def test_every_sample_is_accepted(
    part: str, suffix: str, load: Callable[[str], Any], tmp_path: Path
) -> None:
    path = tmp_path / f"sample.{suffix}"
    path.write_text(_block(part, suffix))
    loaded = load(str(path))
    if load is load_stream:
        check_times(loaded, load_durations("paper"), part)


def test_the_sample_of_recorded_faults_lies_beside_the_other_examples() -> None:
    assert (EXAMPLES / "faults.jsonl").read_text() == _block("Recorded faults", "jsonl")
    faults = load_stream(str(EXAMPLES / "faults.jsonl"))
    assert not isinstance(faults, StreamSpec)
    assert {fault.shows for fault in faults} >= {Shows.SENSED, Shows.WORDS, Shows.HANG}
    for path in sorted((EXAMPLES / "policies").iterdir()):
        load_policy(path)
