"""A notice as a channel shows it."""

from __future__ import annotations

from everstep.activities.slack import MAX_CHARS, STORY_LINES, message
from everstep.core.vocabulary import Notice, Symptom
from everstep.workflows.effects import PageOrder


def order(event: Notice, *story: str, reason: str = "because") -> PageOrder:
    machines = ("m1", "m2")
    return PageOrder(
        "VAR", "key", "gpt", 3, reason, Symptom.AGENT_LOST, machines, story, event, "slack"
    )


def test_every_event_has_its_words() -> None:
    texts = [message(order(event))["text"] for event in Notice]
    assert len({text.splitlines()[0] for text in texts}) == len(Notice)
    assert texts[0].splitlines() == [
        "*:large_orange_diamond: gpt: incident 3 opened*",
        "because",
        "agent_lost on m1, m2",
        "`everstep incident show 3`",
    ]


def test_what_ranks_printed_mentions_nobody() -> None:
    text = message(order(Notice.PAGED, "<!channel> & ```code```", reason="<@U1>"))["text"]
    assert "<" not in text
    assert "&lt;!channel&gt; &amp; '''code'''" in text
    assert text.count("```") == 2


def test_long_stories_are_cut() -> None:
    lines = [f"line {number}" for number in range(20)]
    text = message(order(Notice.CLOSED, *lines))["text"]
    assert "line 19" in text
    assert f"line {19 - STORY_LINES}" not in text
    assert len(message(order(Notice.CLOSED, "x" * 10_000))["text"]) < MAX_CHARS + 500
