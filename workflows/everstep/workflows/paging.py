"""Calling a person: once an incident and reason, beside everything else that goes on."""

from __future__ import annotations

import asyncio
import hashlib

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.workflows import options
from everstep.workflows.chronicle import Chronicle
from everstep.workflows.messages import PageOrder
from everstep.workflows.ports import NotifyPort

KEY_DIGITS = 16

STORY_LINES = 20
"""The newest lines of the story that a page carries."""


class Pages:
    """Sends the pages of one incident; nothing waits for them. Lives inside a workflow.

    Args:
        story: The incident's record, which a page quotes.
        webhook: Environment variable that holds the address; empty: nobody is called.
    """

    def __init__(self, story: Chronicle, webhook: str) -> None:
        self._story = story
        self._webhook = webhook
        self._keys: list[str] = []
        self._under_way: list[asyncio.Task[None]] = []

    def send(self, reason: str) -> None:
        """Call a person, unless this very reason has been sent already."""
        record = self._story.record
        digest = hashlib.sha256(reason.encode()).hexdigest()[:KEY_DIGITS]
        key = f"{record.job}/{record.incident}/{digest}"
        if not self._webhook or key in self._keys:
            return
        self._keys.append(key)
        order = PageOrder(
            webhook=self._webhook,
            key=key,
            job=record.job,
            incident=record.incident,
            reason=reason,
            symptom=record.finding.symptom,
            machines=record.finding.machines,
            story=tuple(entry.text for entry in record.timeline[-STORY_LINES:]),
        )
        self._under_way.append(asyncio.create_task(self._send(order)))

    def drop(self) -> None:
        """Give up what is still under way: the incident is over."""
        for task in self._under_way:
            task.cancel()

    async def _send(self, order: PageOrder) -> None:
        try:
            await workflow.execute_activity_method(
                NotifyPort.page, order, **options.PAGE.config(f"page a person: {order.reason}")
            )
        except ActivityError as error:
            if not isinstance(error.cause, asyncio.CancelledError):
                self._story.tell(f"nobody could be paged: {error.cause}")
        else:
            self._story.tell(f"a person was paged (key {order.key})")
