"""Telling persons of incidents through a webhook: one POST of JSON a notice."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import urlsplit

from temporalio import activity

from everstep.activities import slack
from everstep.activities.failure import as_failures
from everstep.core.errors import PermanentError, TransientError
from everstep.workflows.effects import PageOrder
from everstep.workflows.ports import NotifyPort

TIMEOUT_S = 10.0

RETRYABLE_STATUS = (408, 425, 429)
"""Refusals of a client's request that may pass, beside all failures of the server itself."""


class Webhook(NotifyPort):
    """Posts notices to the address that an environment variable holds.

    Args:
        environment: Where addresses are looked up; they may hold secrets, so they are never told.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    @activity.defn(name="notify.page")
    async def page(self, order: PageOrder) -> None:
        """Post the notice in its format.

        Effect: one request, with the key in the body and as `Idempotency-Key`.
        Idempotent by: the key, if the other side honours it.
        Heartbeats: no, one short request.
        Gives up when: there is no such variable or no http address in it, or the other side
            refuses the request; the incident goes on without.
        """
        with as_failures():
            await self.post(order)

    async def post(self, order: PageOrder) -> None:
        """Post the notice.

        Raises:
            PermanentError: There is no address, or the other side refuses.
            TransientError: Nobody answers, or not now.
        """
        await asyncio.to_thread(self._post, order)

    def _post(self, order: PageOrder) -> None:
        address = self._environment.get(order.webhook, "")
        if urlsplit(address).scheme not in ("http", "https"):
            raise PermanentError(f"{order.webhook} holds no http address on the controller")
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            address,
            json.dumps(_body(order)).encode(),
            {"Content-Type": "application/json", "Idempotency-Key": order.key},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - checked above
                pass
        except urllib.error.HTTPError as error:
            refused = error.code < 500 and error.code not in RETRYABLE_STATUS
            kind = PermanentError if refused else TransientError
            raise kind(f"the webhook in {order.webhook} answers {error.code}") from None
        except OSError as error:
            # The text of the error may quote the address.
            why = type(getattr(error, "reason", error)).__name__
            raise TransientError(f"the webhook in {order.webhook} does not answer: {why}") from None


def _body(order: PageOrder) -> dict[str, object]:
    if order.format == "slack":
        return {**slack.message(order)}
    own = ("webhook", "format")
    return {name: value for name, value in asdict(order).items() if name not in own}
