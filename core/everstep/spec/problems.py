"""From what pydantic objects to, to what a person reads: field, value and fix, a line each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from everstep.core.errors import InputError

_SHOWN = 5
"""Problems that are listed at once; a spec with more is mended in rounds."""

_VALUE_CHARS = 60

_CLOSE = 0.5
"""Likeness from which on a name is suggested; names of two letters need it this low."""

# What was found wrong with the value, and the fix, by pydantic's stable error types.
_PHRASES = {
    "int_type": ("is not a whole number", "Write a whole number, without quotes"),
    "int_from_float": ("is not a whole number", "Write a whole number, without quotes"),
    "float_type": ("is not a number", "Write a number, without quotes"),
    "finite_number": ("is not a finite number", "Write a finite number"),
    "bool_type": ("is neither true nor false", "Write true or false, without quotes"),
    "string_type": ("is not text", 'Write it in quotes: "..."'),
    "tuple_type": ("is not a list", "Write a list: [first, second]"),
    "dict_type": ("is not a mapping", "Write a mapping: {NAME: value}"),
    "invalid_key": ("is not a name", "Write the name in quotes"),
    "too_short": ("is empty", "Give at least one item"),
    "string_too_short": ("is empty", "Give at least one character"),
    "greater_than": ("must be above {gt}", "Give a larger number"),
    "greater_than_equal": ("must be at least {ge}", "Give a larger number"),
    "less_than": ("must be below {lt}", "Give a smaller number"),
    "less_than_equal": ("must be at most {le}", "Give a smaller number"),
    "string_pattern_mismatch": ("is not the name of a variable", "Name an environment variable"),
    "literal_error": ("is none of {expected}", "Write one of them"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct.

    Attributes:
        field: Dotted path of the field; empty for the file as a whole.
        what: What is wrong with it, with the value.
        fix: What to do about it.
    """

    field: str
    what: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.field}: {self.what}. {self.fix}" if self.field else f"{self.what}. {self.fix}"
        )


def relation_error(field: str, what: str, fix: str) -> PydanticCustomError:
    """What a validator raises about several fields; `field` is relative to the validated model."""
    return PydanticCustomError("relation", "{what}", {"field": field, "what": what, "fix": fix})


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Every objection of pydantic against an input for `model`, in its order."""
    found = error.errors(include_url=False)
    return [_problem(details, model) for details in found if not _follows(details)]


def input_error(path: object, problems: Sequence[Problem]) -> InputError:
    """One error for all problems of a file, a line each where there are several."""
    if len(problems) == 1:
        [problem] = problems
        where = f"{path}: {problem.field}" if problem.field else str(path)
        return InputError(where, problem.what, problem.fix)
    lines = [str(problem) for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"... and {len(problems) - _SHOWN} more")
    return InputError(
        str(path), f"{len(problems)} problems", "\n  ".join(["Correct each of them:", *lines])
    )


def shown(value: object) -> str:
    """A value as a message quotes it: on one line, and short."""
    text = repr(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[: _VALUE_CHARS - 4]} ..."


def did_you_mean(wrong: str, known: Sequence[str]) -> str:
    """A fix for a name that is none of `known`."""
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=_CLOSE)
    return f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(known)}"


def _follows(details: ErrorDetails) -> bool:
    """Whether a list only counts as too short since its items are wrong, which is told of them."""
    return details["type"] == "too_short" and bool(details["input"])


def _problem(details: ErrorDetails, model: type[BaseModel]) -> Problem:
    kind, location = details["type"], details["loc"]
    context: dict[str, Any] = details.get("ctx", {})
    field, value = _dotted(location), shown(details["input"])
    if kind == "relation":
        field = ".".join(part for part in (field, context["field"]) if part)
        return Problem(field, context["what"], context["fix"])
    name, owner = str(location[-1]) if location else "", _model_at(model, location[:-1])
    if kind == "missing":
        return Problem(field, "is missing", _how_to_add(name, owner.model_fields[name]))
    if kind == "extra_forbidden":
        return Problem(field, "there is no such field", did_you_mean(name, [*owner.model_fields]))
    if kind == "model_type":
        fields = ", ".join(_model_at(model, location).model_fields)
        return Problem(field, f"{value} is not a mapping", f"Write {{FIELD: VALUE}} with: {fields}")
    if kind not in _PHRASES:
        return Problem(field, f"{value}: {details['msg']}", "Correct the value")
    what, fix = _PHRASES[kind]
    return Problem(field, f"{value} {what.format_map(context)}", fix)


def _how_to_add(name: str, field: FieldInfo) -> str:
    example = f", such as {name}: {field.examples[0]}" if field.examples else ""
    return f"Add it{example} ({(field.description or name).rstrip('.')})"


def part_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model that a field holds, be it optional; None for a plain value."""
    annotation: Any = field.annotation
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _dotted(location: tuple[int | str, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The innermost model on the way to `location`."""
    for part in location:
        field = model.model_fields.get(str(part))
        inner = part_of(field) if field else None
        if inner is None:
            break
        model = inner
    return model
