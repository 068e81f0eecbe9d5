"""Where the command's output goes: results to stdout, everything else to stderr."""

from __future__ import annotations

from rich.console import Console

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """Say what is wrong, in a line or a few."""
    err.print("[bold red]everstep:[/] ", end="")
    err.print(text, markup=False)


def counted(number: float, noun: str) -> str:
    """A number with its noun in singular or plural."""
    shown = int(number) if number == int(number) else f"{number:g}"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"
