"""Picking matches, and reading them anew: what every refinement does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from everstep.core.classify.evidence import Context, Match
from everstep.core.classify.rule import Reading, Standing

Matches = list[Match]
Refinement = Callable[[Matches, Context], Matches]


def reread(matches: Matches, names: Sequence[str], standing: Standing, reading: Reading) -> Matches:
    """Give the matches of these rules another standing and reading."""
    return [
        replace(m, standing=standing, reading=reading) if m.rule.name in names else m
        for m in matches
    ]


def of(matches: Matches, *names: str) -> Matches:
    """The matches of these rules."""
    return [m for m in matches if m.rule.name in names]
