"""A simulation as one page: its first run as `everstep report` has it, and the tables of all."""

from __future__ import annotations

from html import escape

from everstep.cli.console import counted
from everstep.cli.html_page import document, table
from everstep.cli.report_html import incident_tables, time_spent
from everstep.cli.simulate_view import Policies, Section, ettr_of, sections
from everstep.core.simulation.engine import Run
from everstep.core.simulation.faults import DAY_S
from everstep.core.simulation.figures import page_records, page_report
from everstep.workflows import story


def page(first: Run, policies: Policies) -> str:
    """The whole page.

    Args:
        first: The first run of the first policy.
        policies: What all of them came to.
    """
    found, incidents = page_report(first, policies.job), page_records(first)
    of = f": {first.setting.choices.name}, seed {first.setting.seed}"
    # Of one seed the tables would say again what the curve's part says.
    spent, *others = sections(policies)
    tables = others if len(policies.own) == 1 else [spent, *others]
    body = [
        f"<h1>{escape(policies.job)}, simulated: ETTR {ettr_of(policies)}</h1>",
        f"<p>{counted(policies.days, 'day')}, {counted(found.steps, 'step')} and"
        f" {counted(len(incidents), 'incident')} with seed {first.setting.seed}. Symptoms are what"
        " was really wrong.</p>",
        *time_spent(found, incidents, of),
        *(part for section in tables for part in _section(section)),
        *incident_tables(found, incidents, of, _clock),
    ]
    return document(f"{policies.job}: simulation", body)


def _section(section: Section) -> list[str]:
    rows = [[escape(cell) for cell in row] for row in section.rows]
    heads = [escape(head) for head in section.heads]
    note = [f"<p>{escape(section.note)}</p>"] if section.note else []
    return [f"<h2>{escape(section.title)}</h2>", table(heads, rows), *note]


def _clock(at_s: float) -> str:
    """A moment of a run that has no date."""
    return f"day {int(at_s // DAY_S) + 1}, {story.clock(at_s)}"
