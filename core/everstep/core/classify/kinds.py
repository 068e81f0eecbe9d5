"""What sort of text a file is, when nobody says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everstep.core.classify.names import Kind
from everstep.core.classify.rule import Rule

_SIGNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        Kind.STACK_DUMP,
        re.compile(
            r"^\s*Thread \S+ \(|most recent call first|^\s*Process \d+: |^#\d+ +(?:0x|\w)"
            r"|^\s+\S+ \([^)]*\.(?:py|so|c|cpp):?\d*\)$"
        ),
    ),
    (
        Kind.FLIGHT_RECORDER,
        re.compile(r"collective_seq_id|pg_status|torchfrtrace|flight.?recorder|\"entries\":", re.I),
    ),
    (
        Kind.KERNEL_LOG,
        re.compile(
            r"\bkernel: |^\[ *\d+\.\d{3,}\]|\bNVRM: |^\[\w{3} +\d+ [\d:]+\] |\bEDAC\b|\bmce: "
            r"|^(?:EXT4|XFS)\b|^kern: ",
        ),
    ),
    (
        Kind.METRICS,
        re.compile(r"^\s*[\w/]+(?:\{[^}]*\})? +-?[\d.]+(?:e[+-]?\d+)?$|^(?:step|time),"),
    ),
)


def guess(head: Sequence[str], rules: Sequence[Rule]) -> Kind:
    """Say what sort of text begins with these lines.

    Args:
        head: First lines of the file.
        rules: Rules that matched in it.
    """
    votes = {kind: sum(bool(sign.search(line)) for line in head) for kind, sign in _SIGNS}
    best = max(votes, key=lambda kind: votes[kind])
    lines = sum(1 for line in head if line.strip())
    if votes[best] * 2 >= max(lines, 1):
        return best
    if votes[best] and any(rule.name.startswith(("xid", "oom", "panic")) for rule in rules):
        return Kind.MIXED
    return Kind.RANK_LOG
