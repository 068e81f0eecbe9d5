"""Telling persons of an incident: once an event and reason, beside everything else that goes on."""

from __future__ import annotations

import asyncio
import hashlib

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.core.vocabulary import Notice
from everstep.spec.ladder import Safety
from everstep.workflows import options
from everstep.workflows.chronicle import Chronicle
from everstep.workflows.effects import PageOrder
from everstep.workflows.ports import NotifyPort

KEY_DIGITS = 16

STORY_LINES = 20
"""The newest lines of the story that a notice carries."""

_CALLS = (Notice.NEEDS_APPROVAL, Notice.PAGED)
"""What somebody has to know of; of the others, a channel may."""


class Pages:
    """Sends the notices of one incident; recovery waits for none. Lives inside a workflow.

    Args:
        story: The incident's record, which a notice quotes.
        safety: Where they go, and which of them.
        run: The job's run: a later one of that name counts its incidents from 1 again.
    """

    def __init__(self, story: Chronicle, safety: Safety, run: str) -> None:
        self._story = story
        self._safety = safety
        self._run = run
        self._keys: list[str] = []
        self._under_way: list[asyncio.Task[None]] = []
        self.tells_all = True
        """False in incidents that were opened when there were only pages."""

    def opened(self) -> None:
        """Tell that the incident is there."""
        self._tell(Notice.OPENED, self._story.record.finding.reason)

    def closed(self, text: str) -> None:
        """Tell that it is over."""
        self._tell(Notice.CLOSED, text)

    def send(self, reason: str, event: Notice = Notice.PAGED) -> None:
        """Tell it, unless this very thing has been told already."""
        record = self._story.record
        digest = hashlib.sha256(f"{self._run}/{event}/{reason}".encode()).hexdigest()[:KEY_DIGITS]
        key = f"{record.job}/{record.incident}/{digest}"
        wanted = self._safety.webhook and event.value in self._safety.webhook_events
        if not wanted or key in self._keys:
            return
        self._keys.append(key)
        order = PageOrder(
            webhook=self._safety.webhook,
            key=key,
            job=record.job,
            incident=record.incident,
            reason=reason,
            symptom=record.finding.symptom,
            machines=record.finding.machines,
            story=tuple(entry.text for entry in record.timeline[-STORY_LINES:]),
            event=event,
            format=self._safety.webhook_format,
        )
        self._under_way.append(asyncio.create_task(self._send(order)))

    def drop(self) -> None:
        """Give up what is still under way: the incident is over."""
        for task in self._under_way:
            task.cancel()

    async def settle(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _tell(self, event: Notice, reason: str) -> None:
        if self.tells_all:
            self.send(reason, event)

    async def _send(self, order: PageOrder) -> None:
        called = order.event in _CALLS
        what = "page a person" if called else f"tell that it is {order.event}"
        try:
            await workflow.execute_activity_method(
                NotifyPort.page, order, **options.PAGE.config(f"{what}: {order.reason}")
            )
        except ActivityError as error:
            if isinstance(error.cause, asyncio.CancelledError):
                return
            if called:
                self._story.tell(f"nobody could be paged: {error.cause}")
            else:
                workflow.logger.warning("nobody was told: %s", error.cause)
        else:
            if called:
                self._story.tell(f"a person was paged (key {order.key})")
