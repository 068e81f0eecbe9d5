"""A notice as Slack shows it, and whatever else takes its incoming webhooks (Mattermost, ...)."""

from __future__ import annotations

from collections.abc import Mapping

from everstep.core.vocabulary import Notice
from everstep.workflows.effects import PageOrder

STORY_LINES = 5
"""A channel is for knowing; `everstep incident show` tells it all."""

MAX_CHARS = 3_000
"""Slack cuts longer texts of a message at some 40,000; nobody reads that on a phone."""

_TITLES: Mapping[Notice, str] = {
    Notice.OPENED: ":large_orange_diamond: {job}: incident {incident} opened",
    Notice.NEEDS_APPROVAL: ":raised_hand: {job}: incident {incident} needs a person's word",
    Notice.CLOSED: ":white_check_mark: {job}: incident {incident} closed",
    Notice.PAGED: ":rotating_light: {job}: incident {incident} calls a person",
}


def message(order: PageOrder) -> dict[str, str]:
    """The body of the request."""
    title = _TITLES[order.event].format(job=order.job, incident=order.incident)
    lines = [f"*{_literal(title)}*", _literal(order.reason)]
    machines = f" on {', '.join(order.machines)}" if order.machines else ""
    lines.append(_literal(f"{order.symptom}{machines}"))
    if order.story:
        story = "\n".join(order.story[-STORY_LINES:]).replace("```", "'''")
        lines.append(f"```{_literal(story[:MAX_CHARS])}```")
    lines.append(f"`everstep incident show {order.incident}`")
    return {"text": "\n".join(lines)}


def _literal(text: str) -> str:
    """What no part of is taken for a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
