"""`everstep classify`: what a log, a kernel log or a stack dump says, without any cluster."""

from __future__ import annotations

import codecs
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from everstep.cli.console import out
from everstep.core.classify.encoding import Form, form_of
from everstep.core.classify.evidence import Classification, Context, Evidence
from everstep.core.classify.judge import classify
from everstep.core.classify.names import Kind
from everstep.core.classify.reader import read
from everstep.core.errors import InputError

STDIN = "-"
SHELLS = ("/dev/", "/proc/")
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 14


def classify_command(
    files: Annotated[list[str], typer.Argument(help="Files; - is standard input.")],
    kind: Annotated[
        Kind | None, typer.Option(help="What they hold; guessed when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    as_job: Annotated[bool, typer.Option("--job", help="Judge all files as one failure.")] = False,
    all_ranks: Annotated[
        bool | None, typer.Option("--all-ranks/--one-rank", help="Who failed in this way.")
    ] = None,
    first_run: Annotated[
        bool | None, typer.Option("--first-run/--ran-before", help="Of this code version.")
    ] = None,
    reproducible: Annotated[
        bool | None, typer.Option("--reproducible/--passing", help="At the same step.")
    ] = None,
    hung: Annotated[
        bool | None, typer.Option("--hung/--ended", help="Whether the job was silent.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks of the job.")
    ] = None,
) -> None:
    """Say what happened, where the fault was, what to do first, and which lines tell."""
    if files.count(STDIN) > 1:
        raise InputError("FILE", "- is given twice", "Standard input can be read once.")
    context = Context(
        all_ranks=all_ranks,
        first_run=first_run,
        reproducible=reproducible,
        hung=hung,
        world_size=world_size,
    )
    if as_job:
        evidence = [read_file(name, kind, source) for source, name in enumerate(files)]
        answers = [(classify(evidence, context), evidence)]
    else:
        each = (read_file(name, kind, 0) for name in files)
        answers = [(classify([one], context), [one]) for one in each]
    for answer, evidence in answers:
        if as_json:
            typer.echo(json.dumps(as_values(answer)))
        else:
            _show(answer, evidence)


def read_file(name: str, kind: Kind | None, source: int) -> Evidence:
    """Read one file, or standard input, in bounded memory: text, UTF-16, or either gzipped.

    Raises:
        InputError: It cannot be read, or is no text.
    """
    try:
        with _opened(name) as stream:
            return read(_texts(stream, name), name, kind, source)
    except (EOFError, zlib.error) as error:
        raise InputError(name, f"gzip: {error}", "Give a file that is whole.") from None
    except OSError as error:
        what = error.strerror or str(error)
        raise InputError(name, what, "Give a file that can be read, or - .") from None


def as_values(answer: Classification) -> dict[str, Any]:
    """A classification as JSON values; `lines` count from 0 in `file`, the deciding one."""
    return {
        "file": answer.file,
        "symptom": answer.symptom.value,
        "label": answer.label.value,
        "first_action": answer.first_action.value,
        "confidence": answer.confidence,
        "culprit_rank": answer.culprit_rank,
        "lines": list(answer.lines),
        "reason": answer.reason,
    }


def _opened(name: str) -> Any:
    if name == STDIN:
        return nullcontext(sys.stdin.buffer)
    # One of a shell's has somebody who writes to it; any other may be waited for for ever.
    if Path(name).is_fifo() and not name.startswith(SHELLS):
        raise InputError(name, "is a named pipe", f"Give files, or {STDIN} for standard input.")
    return Path(name).open("rb")


def _texts(stream: BufferedReader, name: str) -> Iterator[bytes]:
    """The text in pieces, as UTF-8 whatever it was."""
    form = form_of(stream.peek(_HEAD_BYTES)[:_HEAD_BYTES])
    if form is Form.GZIP:
        yield from _texts(BufferedReader(gzip.GzipFile(fileobj=stream)), name)
        return
    if form is Form.BINARY:
        raise InputError(name, "is no text", "Give logs; of a flight recorder, its JSON form.")
    decoder = None if form is Form.PLAIN else codecs.getincrementaldecoder(form)("replace")
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")


def _show(answer: Classification, evidence: list[Evidence]) -> None:
    table = Table.grid(padding=(0, 2))
    rank = "cannot be told" if answer.culprit_rank is None else str(answer.culprit_rank)
    for name, value in (
        ("file", answer.file),
        ("symptom", answer.symptom.value),
        ("fault in", answer.label.value),
        ("do first", answer.first_action.value),
        ("confidence", f"{answer.confidence:.2f}"),
        ("rank", rank),
        ("because", answer.reason),
    ):
        table.add_row(name, value)
    out.print(table)
    texts = {m.line: m.text for e in evidence if e.name == answer.file for m in e.matches}
    for line in answer.lines:
        out.print(f"{line:>8}  {texts.get(line, '')}", markup=False)
    out.print()
