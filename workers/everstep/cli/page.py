"""`everstep page`: try the webhook of a spec before a night depends on it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from everstep.activities.webhook import Webhook
from everstep.cli.console import out
from everstep.cli.person import person
from everstep.core.errors import InputError
from everstep.core.vocabulary import Symptom
from everstep.spec.load import load_spec
from everstep.workers import settings
from everstep.workflows.effects import PageOrder


def page_command(
    spec: Annotated[Path, typer.Argument(help="The job's YAML file.")],
    reason: Annotated[str, typer.Option(help="What to say.")] = "a test: nothing is wrong",
) -> None:
    """Post one page to the webhook that the spec names, as an incident would."""
    job = load_spec(spec)
    if not job.safety.webhook:
        raise InputError(
            "safety.webhook",
            "is empty, so nobody would be called",
            "Name the environment variable that holds the address.",
        )
    secrets = settings.secrets()
    if job.safety.webhook not in secrets:
        raise InputError(
            f"safety.webhook: {job.safety.webhook}",
            "there is no such variable here",
            "Export it with the address, as the controller has it.",
        )
    order = PageOrder(
        webhook=job.safety.webhook,
        key=f"{job.name}/0/{int(time.time())}",
        job=job.name,
        incident=0,
        reason=reason,
        symptom=Symptom.CODE_DATA_ADJUSTMENT,
        machines=(),
        story=(f"sent by {person()}",),
        format=job.safety.webhook_format,
    )
    asyncio.run(Webhook(secrets).post(order))
    out.print(f"Posted to the address in {job.safety.webhook}.")
