"""`everstep analyze-stacks`: who holds a job up, from stack dumps in a folder."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from everstep.cli.console import out
from everstep.cli.stack_files import read_folder
from everstep.cli.stack_view import show_groups, show_judgement
from everstep.core.errors import InputError
from everstep.core.stacks import picture, summary
from everstep.core.stacks.judge import judge
from everstep.core.stacks.verdict import Judgement, NextStep
from everstep.spec.load import read_spec


def analyze_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="rank-N.json (py-spy), recorder-N.json.")
    ],
    spec: Annotated[Path, typer.Option(help="The job's YAML file, for its layout.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write the grid as a picture.")] = None,
) -> None:
    """Say which ranks hold a job up, what they share, and which machines to evict.

    A second dump of the same ranks, some seconds later, tells who is stuck from who moves: as
    rank-N.2.json, or in a folder of its own inside DIR. Without it, nobody is named who may only be
    on the way. A rank without a file did not answer.
    """
    job = read_spec(spec)
    layout = job.layout()
    # Nothing is thrown away until the end, and looking for it takes half of the time.
    gc.disable()
    snapshots = read_folder(folder, layout.world_size)
    judgement = judge(layout, snapshots, known_hung=False)
    missing = [
        rank for group in summary.silent(snapshots[-1], layout.world_size) for rank in group.ranks
    ]
    if svg is not None:
        title = f"{job.name}: {judgement.verdict}"
        _write(svg, picture.svg(layout, judgement, missing, title))
    if as_json:
        typer.echo(json.dumps(as_values(judgement)))
        return
    show_groups(snapshots[-1], layout.world_size)
    show_judgement(layout, judgement, missing)
    if judgement.next_step is NextStep.LOOK_AGAIN:
        again = f"as {folder}/rank-N.{len(snapshots) + 1}.json"
        out.print(Text(f"Look again some seconds later: {again}, or in a folder of its own there."))


def as_values(judgement: Judgement) -> dict[str, Any]:
    """A judgement as JSON values; machines are slots, counted from 0."""
    domain = judgement.domain
    return {
        "verdict": judgement.verdict.value,
        "suspect_ranks": list(judgement.suspect_ranks),
        "group": None if domain is None else {"kind": domain.kind, "ranks": list(domain.ranks)},
        "evict_machines": list(judgement.evict_machines),
        "reasons": list(judgement.reasons),
        "next_step": judgement.next_step.value,
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        what = error.strerror or str(error)
        raise InputError(f"--svg {path}", what, "Name a file that can be written.") from None
