"""What is kept of a log: the lines that say something, each with the rule that read it."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.classify.names import Action, Kind, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing
from everstep.core.classify.trend import Trend


@dataclass(frozen=True, slots=True)
class Match:
    """A line and what it means.

    Attributes:
        source: Index of its file among those judged together.
        line: Its number, from 0.
        text: The line, cut to a bounded length.
        rule: The rule that read it.
        standing: What it proves here; differs from the rule's when other lines say so.
        reading: What it says here.
        rank: Global rank named in it, or None.
        clock_s: Seconds of the day at its head, or seconds of uptime; None without a time.
        culprit: Whom it accuses, when that is somebody other than `rank`.
    """

    source: int
    line: int
    text: str
    rule: Rule
    standing: Standing
    reading: Reading
    rank: int | None
    clock_s: float | None
    culprit: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One file, read.

    Attributes:
        name: Name of the file, for people.
        num_lines: Lines in it.
        matches: Lines that a rule knows, by line; of a flood, the first and the last ones.
        progress_line: First line that reports a step, or None.
        strange_line: First line that sounds like an error and that no rule knows, or None.
        kind: What sort of text it is.
        trend: A lasting change of speed or loss between its head and its tail, or None.
    """

    name: str
    num_lines: int
    matches: tuple[Match, ...]
    progress_line: int | None
    strange_line: int | None
    kind: Kind
    trend: Trend | None


@dataclass(frozen=True, slots=True)
class Context:
    """What is known beside the text; None where nobody knows.

    Attributes:
        all_ranks: Whether every rank failed in the same way (False: one did).
        first_run: Whether this code version never finished a step before.
        mid_run: Whether steps had been finished in this attempt.
        reproducible: Whether the failure came back at the same step.
        moved_machines: Whether it came back on other machines.
        hung: Whether the job was silent rather than dead.
        world_size: Number of ranks.
    """

    all_ranks: bool | None = None
    first_run: bool | None = None
    mid_run: bool | None = None
    reproducible: bool | None = None
    moved_machines: bool | None = None
    hung: bool | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Classification:
    """The answer.

    Attributes:
        symptom: What was seen.
        label: Where the fault was.
        first_action: What to do first.
        confidence: 0 to 1.
        culprit_rank: Rank that the evidence names, or None.
        file: Name of the file whose lines decided.
        lines: Numbers of those lines, from 0.
        reason: One sentence.
        line: Number of the leading line, or None when none leads.
        standing: What the leading line proves.
    """

    symptom: Symptom
    label: Label
    first_action: Action
    confidence: float
    culprit_rank: int | None
    file: str
    lines: tuple[int, ...]
    reason: str
    line: int | None = None
    standing: Standing = Standing.HARMLESS
