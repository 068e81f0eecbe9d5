"""`everstep spec`: every field that a spec may have, with its default and what it is for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.table import Column, Table
from rich.text import Text

from everstep.cli.console import out
from everstep.spec.job import JobSpec
from everstep.spec.problems import part_of


def spec_command(
    as_json: Annotated[
        bool, typer.Option("--json", help="The JSON schema, which editors check a spec with.")
    ] = False,
) -> None:
    """List every field of a spec with its default and what it is for."""
    if as_json:
        typer.echo(json.dumps(JobSpec.model_json_schema(), indent=2))
        return
    table = Table(Column("field", no_wrap=True), "default", "what it is for")
    for name, default, description in fields(JobSpec):
        table.add_row(name, Text(default), Text(description))
    out.print(table)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, default and description of each field, parts of parts included, in order.

    The default is "required" where there is none, and empty where it follows from something else.
    """
    for name, field in model.model_fields.items():
        part = part_of(field)
        if part is not None:
            yield f"{prefix}{name}", "", field.description or ""
            yield from fields(part, f"{prefix}{name}.")
            continue
        if field.is_required():
            default = "required"
        elif field.default_factory is not None or field.default is None:
            default = ""
        else:
            default = str(field.default)
        yield f"{prefix}{name}", default, field.description or ""
