"""Reads files for a simulation, or presets by their names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from everstep.core.errors import InputError
from everstep.core.simulation.faults import Fault
from everstep.core.simulation.setting import Choices, Durations
from everstep.spec.load import read_mapping
from everstep.spec.policies import SpecPart
from everstep.spec.problems import input_error, problems_of
from everstep.spec.simulation import DurationsSpec, PolicySpec, RecordedFault, StreamSpec

T = TypeVar("T", bound=SpecPart)

STREAMS = ("paper",)
DURATIONS = ("paper", "measured")


def load_stream(given: str) -> StreamSpec | tuple[Fault, ...]:
    """A preset, a YAML file with ways to fail, or JSON lines with one fault each.

    Raises:
        InputError: It cannot be read, or says something else.
    """
    if given in STREAMS:
        return _valid(_preset("stream", given), StreamSpec)
    path = _file("--stream", given, STREAMS)
    if path.suffix == ".jsonl":
        return _recorded(path)
    return _valid(path, StreamSpec)


def load_durations(given: str) -> Durations:
    """A preset, or a YAML file.

    Raises:
        InputError: It cannot be read, or says something else.
    """
    if given in DURATIONS:
        return _valid(_preset("durations", given), DurationsSpec).durations()
    return _valid(_file("--durations", given, DURATIONS), DurationsSpec).durations()


def check_times(stream: StreamSpec | Sequence[Fault], durations: Durations, where: str) -> None:
    """Hold a stream against durations.

    Args:
        stream: What fails.
        durations: How long things take.
        where: What to call the stream in a message.

    Raises:
        InputError: It names a time of detection that there is none of.
    """
    faults = stream.ways if isinstance(stream, StreamSpec) else stream
    for fault in faults:
        for known in (durations.detect, durations.detect_by_timeout):
            if fault.detection not in known:
                fix = f"Known are: {', '.join(known)}"
                raise InputError(where, f"there is no detection time {fault.detection!r}", fix)


def load_policy(path: Path) -> Choices:
    """What a policy changes.

    Raises:
        InputError: It cannot be read, or says something else.
    """
    return _valid(_file("--policy", str(path)), PolicySpec).choices()


def _file(option: str, given: str, presets: Sequence[str] = ()) -> Path:
    """The file that an option names.

    Raises:
        InputError: It is none; says what else could be named.
    """
    path = Path(given)
    if path.exists() and not path.is_dir():
        return path
    what = "is a folder" if path.is_dir() else "there is no such file"
    fix = "Give a YAML file of what a policy changes"
    if presets:
        what = f"{what}, and no such preset"
        fix = f"Give a file, or {' or '.join(presets)}"
    raise InputError(f"{option} {given}", what, fix)


def _preset(kind: str, name: str) -> Path:
    folder = resources.files("everstep.spec").joinpath("presets")
    return Path(str(folder.joinpath(f"{kind}_{name}.yaml")))


def _valid(path: Path, model: type[T]) -> T:
    content = read_mapping(path)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise input_error(path, problems_of(error, model)) from None


def _recorded(path: Path) -> tuple[Fault, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be read: {error}", "Give JSON lines") from None
    faults: list[Fault] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            recorded = RecordedFault.model_validate(json.loads(line))
        except ValidationError as error:
            raise input_error(where, problems_of(error, RecordedFault)) from None
        except ValueError as error:
            raise InputError(where, f"is not JSON: {error}", "Give an object a line") from None
        fault = recorded.fault(len(faults) + 1)
        if faults and fault.at_s < faults[-1].at_s:
            raise InputError(where, "comes before the line above", "Sort them by at_s")
        faults.append(fault)
    return tuple(faults)
