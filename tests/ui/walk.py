"""An operator who knows only Temporal's web UI: `python -m tests.ui.walk [FOLDER]`, in a browser.

A real server with its web UI, the real workflows, fake machines. The job and its held incident are
found by search attributes, the story is read, the incident approved and an update pushed, all by
clicks and typing; each is checked where it takes effect. Pictures of what was seen go to FOLDER.

Needs `pip install playwright` beside the tests' packages (no browser of its own: Debian's chromium,
or what BROWSER names), and is no part of `make test` for that.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from everstep.core import names
from everstep.core.updates import UpdateState
from everstep.core.vocabulary import Outcome
from everstep.spec.job import JobSpec
from everstep.workers.local import ports
from tests.fakes.control import Control, controlled
from tests.fakes.fleet import FakeWorld
from tests.fakes.servers import HOST, dev_server
from tests.workflow.test_recovery import assemble, spec_of

QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-first-run",
)  # fmt: skip

PATIENCE_MS = 20_000.0


class Operator:
    """Somebody in front of a browser.

    Args:
        page: The browser's page.
        base: Address of the namespace's workflows.
        pictures: Where pictures go, or None.
    """

    def __init__(self, page: Any, base: str, pictures: Path | None) -> None:
        self._page = page
        self._base = base
        self._pictures = pictures

    async def list(self, query: str, *expected: str, name: str = "") -> None:
        """The list of workflows shows these, and no other."""
        await self._page.goto(f"{self._base}?query={quote(query)}")
        for workflow_id in expected:
            await self._page.get_by_role("link", name=workflow_id, exact=True).first.wait_for()
        rows = self._page.get_by_role("link").filter(has_text="/")
        shown = {text for text in await rows.all_inner_texts() if text.startswith(("job/", "inc"))}
        assert shown == set(expected), shown
        await self._picture(name)

    async def open(self, workflow_id: str) -> None:
        """Follow the link to a workflow."""
        await self._page.get_by_role("link", name=workflow_id, exact=True).first.click()
        await self._page.locator("h1", has_text=workflow_id).first.wait_for()

    async def read_story(self, *texts: str, name: str = "") -> None:
        """The story of the open workflow says this."""
        await self._page.get_by_role("tab", name="User Metadata").first.click()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_MS / 1000
        missing = list(texts)
        while missing:
            assert loop.time() < deadline_s, f"not told: {missing}"
            # What Markdown says is shown in a frame of its own.
            shown = [await frame.locator("body").inner_text() for frame in self._page.frames]
            missing = [text for text in texts if not any(text in each for each in shown)]
            await asyncio.sleep(0.1)
        await self._picture(name)

    async def signal(self, signal: str, data: str, name: str = "") -> None:
        """Send a signal that the dialog lists, with this text as its data."""
        await self._page.locator("button:visible", has_text="More Actions").first.click()
        await self._page.get_by_role("menuitem", name="Send a Signal").click()
        dialog = self._page.get_by_role("dialog").filter(has_text="Signal name").first
        await dialog.get_by_test_id("signal-select-button").click()
        await dialog.get_by_role("option").filter(has_text=signal).first.click()
        await dialog.locator(".cm-content").first.click()
        await self._page.keyboard.insert_text(data)
        # Left, the field puts its text in order and grows, which moves the button.
        await dialog.get_by_text("json/plain").click()
        await self._picture(name, dialog)
        await dialog.get_by_role("button", name="Submit").click()
        await dialog.wait_for(state="hidden")

    async def _picture(self, name: str, part: Any = None) -> None:
        """Keep what is seen, or a part of it, under a name; nothing without one."""
        if self._pictures is not None and name:
            # Whatever unfolds has done so.
            await self._page.wait_for_timeout(1_000)
            seen = self._page if part is None else part
            await seen.screenshot(path=self._pictures / f"{name}.png")


@asynccontextmanager
async def browser(base: str, pictures: Path | None) -> AsyncGenerator[Operator]:
    """A new browser that knows nobody."""
    playwright: Any = importlib.import_module("playwright.async_api")
    program = os.environ.get("BROWSER", "/usr/bin/chromium")
    with tempfile.TemporaryDirectory() as profile:
        async with playwright.async_playwright() as driver:
            opened = await driver.chromium.launch_persistent_context(
                profile,
                executable_path=program,
                headless=True,
                args=list(QUIET),
                viewport={"width": 1280, "height": 800},
            )
            page = await opened.new_page()
            page.set_default_timeout(PATIENCE_MS)
            yield Operator(page, base, pictures)
            await opened.close()


async def walk(operator: Operator, control: Control) -> None:
    """From a lost machine to other arguments, by the web UI alone."""
    job = names.job_workflow_id(control.spec.name)
    incident = names.incident_workflow_id(control.spec.name, 1)
    await control.lose("m1")
    await control.until(lambda record: record.outcome is Outcome.HELD)

    await operator.list(f'EverstepJob="{control.spec.name}"', job, incident, name="web-ui-list")
    await operator.list('EverstepOutcome="held" AND EverstepSymptom="agent_lost"', incident)
    await operator.open(incident)
    await operator.read_story("Waits for a person or a machine", "m1 (lost)", name="web-ui-story")
    await operator.signal(
        "approve", '{"person": "ada", "note": "m1 is burnt"}', name="web-ui-approve"
    )
    await control.until(lambda record: record.first_step_at_s is not None)
    told = [entry.text for entry in (await control.record()).timeline]
    assert "approved by ada (m1 is burnt)" in told, told
    await control.world.advance(2, 20)
    await control.until(lambda record: record.outcome is Outcome.RECOVERED)
    await control.until_phase("training")

    await operator.list('EverstepMachine="m1" AND EverstepRung="evict"', incident)
    await operator.list(f'WorkflowId="{job}"', job)
    await operator.open(job)
    await operator.read_story("training", "To change code or arguments from here")
    change = '{"author": "ada", "reason": "warmer", "set": {"lr": "3e-4"}, "urgent": true}'
    await operator.signal("push_update", change)
    await control.until(lambda record: record.first_step_at_s is not None, incident=2)
    status = await control.status()
    assert status.assignment is not None
    assert status.assignment.settings == (("lr", "3e-4"),)
    assert [update.state for update in status.updates] == [UpdateState.APPLIED]

    await operator.list(f'WorkflowId="{job}"', job)
    await operator.open(job)
    await operator.read_story("update 1 by ada: lr=3e-4 (warmer): accepted", name="web-ui-job")


async def main(address: str, ui_port: int, pictures: Path | None) -> None:
    fields = spec_of(standbys=2).model_dump()
    spec = JobSpec.model_validate(fields | {"safety": {"modes": {"evict": "approve"}}})
    base = f"http://{HOST}:{ui_port}/namespaces/default/workflows"
    async with controlled(address, spec, FakeWorld(8)) as control:
        await assemble(control)
        async with browser(base, pictures) as operator:
            await walk(operator, control)


def begin(pictures: Path | None) -> None:
    ui_port = ports.free_port(HOST)
    with tempfile.TemporaryDirectory() as folder, dev_server(Path(folder), ui_port) as address:
        asyncio.run(main(address, ui_port, pictures))


if __name__ == "__main__":
    begin(Path(sys.argv[1]) if sys.argv[1:] else None)
