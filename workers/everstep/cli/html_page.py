"""What pages that `everstep` writes share: one file, offline, for a phone too, light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from everstep.core.errors import InputError

_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fff; --line: #d5d5d5; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --back: #16181b; --line: #3a3d42; } }
body { font: 16px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 46rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
div.wide, pre { overflow-x: auto; }
pre { font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
pre.grid { white-space: pre; }
svg { width: 100%; height: auto; } svg text { fill: var(--text); font-size: 12px; }
img { max-width: 100%; background: #fff; }
i.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; }
"""


def document(title: str, body: Iterable[str]) -> str:
    """A whole page.

    Args:
        title: Text.
        body: HTML.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML already, and those that are numbers stand to the right."""

    def cell(tag: str, text: str) -> str:
        number = text.rstrip("%").replace(".", "").isdigit()
        return f"<{tag}{' class=n' if number else ''}>{text}</{tag}>"

    lines = [f"<tr>{''.join(cell('th', head) for head in heads)}</tr>"] if heads else []
    lines += [f"<tr>{''.join(cell('td', text) for text in row)}</tr>" for row in rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def check(path: Path) -> None:
    """See before long work whether a page could be written to where a person wants it.

    Raises:
        InputError: It could not.
    """
    if path.is_dir():
        what = "is a folder"
    elif not path.parent.is_dir():
        what = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        what = "cannot be written"
    else:
        return
    raise InputError(f"--html {path}", what, "Name a file to write.")


def write(path: Path, page: str) -> None:
    """Write a page to where a person wants it.

    Raises:
        InputError: It cannot be written there.
    """
    try:
        path.write_text(page)
    except OSError as error:
        raise InputError(f"--html {path}", str(error), "Name a file to write.") from error
