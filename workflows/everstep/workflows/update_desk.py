"""What persons ask of a job while it runs: other code, other arguments, and to leave that be.

A part of the job's workflow, which knows when to open an incident and what to tell it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow

from everstep.core import updates
from everstep.core.errors import InputError, TransientError
from everstep.core.model import Alert, CopyDamaged, MachineInfo
from everstep.core.updates import Update, UpdateState
from everstep.core.vocabulary import Observer, Symptom
from everstep.workflows import updating
from everstep.workflows.messages import (
    Cancellation,
    JobInput,
    JobState,
    UpdateAnswer,
    UpdateRequest,
    UpdatesHeard,
    UpdatesMade,
    UpdatesUndone,
)

HEARD_WITHIN = timedelta(seconds=30)
"""How long an incident takes at most to hear something: milliseconds, but on a starved host."""

Told = MachineInfo | CopyDamaged | list[Alert] | list[Update] | None
"""What a job passes on to its open incident."""


class UpdateDesk(ABC):
    """Accepts changes, keeps them until a restart makes them, and calls for one when it is due.

    Args:
        job: The job's input.
        state: The job's state; its updates are kept here.
    """

    def __init__(self, job: JobInput, state: JobState) -> None:
        self._job = job
        self._state = state
        self._heard: tuple[int, ...] = ()

    @workflow.signal
    def updates_made(self, made: UpdatesMade) -> None:
        """The open incident's restart makes these updates."""
        self._state.updates = updates.applied(self._state.updates, made.numbers, made.version)

    @workflow.signal
    def updates_undone(self, undone: UpdatesUndone) -> None:
        """The open incident has rolled back what these updates had become."""
        self._state.updates = updates.rolled_back(
            self._state.updates, undone.versions, undone.reason
        )

    @workflow.update
    async def hot_update(self, request: UpdateRequest) -> UpdateAnswer:
        """Accept a change of code or arguments, once every machine says that it could run.

        Nothing stops before: a change that some machine objects to is refused.
        """
        return await self._accept(request)

    @hot_update.validator
    def _may_update(self, request: UpdateRequest) -> None:
        """Refuse what could never be made.

        Raises:
            InputError: The request or the job's state forbids it.
        """
        if not request.directory and not request.all_settings():
            raise InputError("update", "it changes nothing", "Give --code or --set.")
        if request.window_s <= 0:
            raise InputError("window_s", f"{request.window_s} is not above 0", "Give seconds.")
        if objection := updates.objection(dict(request.all_settings())):
            raise InputError("settings", objection, "Give NAME=VALUE.")
        if self._state.assignment is None:
            raise InputError("job", "it has not started yet", "Try again when it trains.")
        if self._all_finished():
            raise InputError("job", "it has finished", "Start another: everstep run SPEC.")

    @workflow.signal
    async def push_update(self, request: UpdateRequest) -> None:
        """The same for whoever can only send signals; the answer stands in the job's notes."""
        try:
            self._may_update(request)
        except InputError as error:
            self._note(f"update of {request.author} refused: {error}")
            return
        await self._accept(request)

    @workflow.update
    async def cancel_update(self, wish: Cancellation) -> None:
        """Withdraw an update that still waits.

        Raises:
            InputError: An incident's restart was making it just then.
            TransientError: The incident does not say whether it is.
        """
        incident = self._state.active
        self._state.updates = updates.cancelled(self._state.updates, wish.number)
        if not workflow.patched("cancel-heard"):
            await self._pass_on_updates()
        elif incident is not None:
            gone = [one for one in self._state.updates if one.number == wish.number]
            await self._pass_on_updates(gone)
            await self._see_it_withdrawn(wish.number, incident)
        self._note(f"update {wish.number} withdrawn by {wish.person}")

    @cancel_update.validator
    def _may_cancel(self, wish: Cancellation) -> None:
        known = {update.number: update for update in self._state.updates}
        update = known.get(wish.number)
        if update is None:
            raise InputError("update", f"there is no update {wish.number}", "See: everstep updates")
        if update.state is not UpdateState.PENDING:
            told = updates.outcome(update, self._state.codes, self._state.updates)
            what = f"update {wish.number} does not wait any more, it is {told}"
            raise InputError("update", what, "See: everstep updates")

    @workflow.signal
    def updates_heard(self, heard: UpdatesHeard) -> None:
        """The open incident will not make these."""
        self._heard += heard.withdrawn

    async def _see_it_withdrawn(self, number: int, incident: int) -> None:
        """Wait until it is known whether the incident had made it before it heard."""

        def made() -> bool:
            return any(
                one.number == number and one.state in (UpdateState.APPLIED, UpdateState.ROLLED_BACK)
                for one in self._state.updates
            )

        try:
            await workflow.wait_condition(
                lambda: made() or number in self._heard or self._state.active != incident,
                timeout=HEARD_WITHIN,
                timeout_summary="wait for the incident to hear it",
            )
        except TimeoutError as error:
            raise TransientError(
                f"whether update {number} is being made could not be told; see: everstep updates"
            ) from error
        if made():
            what = f"a restart was making update {number} just then"
            raise InputError("update", what, "To go back: everstep hot-update with the code before")

    # --- For the job's loop ----------------------------------------------------------------------

    def _next_due_s(self) -> float | None:
        """When an update is due; while an incident is open, its restart makes them all."""
        return None if self._state.active is not None else updates.next_due_s(self._state.updates)

    def _due_updates(self) -> list[Update]:
        now_s = workflow.now().timestamp()
        if self._state.active is not None:
            return []
        return [one for one in updates.pending(self._state.updates) if one.due_at_s <= now_s]

    async def _pass_on_updates(self, withdrawn: Sequence[Update] = ()) -> None:
        """An open incident's next restart makes what waits now."""
        if self._state.active is not None:
            waiting = updates.pending(self._state.updates)
            await self._tell_incident("updates", [*waiting, *withdrawn])

    def _call_for(self, update: Update) -> Alert:
        """What opens the incident that makes an update."""
        assert self._state.assignment is not None  # noqa: S101 - no update is accepted before
        return Alert(
            Observer.PERSON,
            Symptom.CODE_DATA_ADJUSTMENT,
            workflow.now().timestamp(),
            f"{update.text()}, {'urgent' if update.urgent else 'its window is over'}",
            self._state.assignment.attempt,
        )

    # --- What the job does ------------------------------------------------------------------------

    async def _accept(self, request: UpdateRequest) -> UpdateAnswer:
        assignment = self._state.assignment
        assert assignment is not None  # noqa: S101 - else the validator has refused it
        version, problems = "", list[str]()
        if request.directory:
            version, problems = await self._prepare(request.directory)
        if problems:
            self._note(f"update of {request.author} refused: {'; '.join(problems)}")
            return UpdateAnswer(None, tuple(problems))
        self._state.num_updates += 1
        now_s = workflow.now().timestamp()
        update = Update(
            self._state.num_updates,
            version,
            request.directory,
            request.all_settings(),
            request.author,
            request.reason,
            now_s,
            now_s if request.urgent else now_s + request.window_s,
        )
        self._state.updates = [*self._state.updates, update][-updates.MAX_UPDATES :]
        self._note(f"{update.text()}: accepted")
        await self._pass_on_updates()
        if update.urgent:
            self._state.pending.append(self._call_for(update))
        return UpdateAnswer(update)

    async def _prepare(self, directory: str) -> tuple[str, list[str]]:
        """Let all machines look at the code, and who joins meanwhile."""
        looked = set[MachineInfo]()
        version, problems = "", list[str]()
        while not problems and (machines := [i for i in self._machines() if i not in looked]):
            looked.update(machines)
            version, problems = await updating.prepare(self._job, directory, machines)
        return version, problems

    def _machines(self) -> list[MachineInfo]:
        """Those with a slot, and those that may get one."""
        assignment = self._state.assignment
        return [*(() if assignment is None else assignment.slots), *self._state.pool]

    @abstractmethod
    def _note(self, text: str, at_s: float | None = None) -> None:
        """Keep a line for whoever asks."""

    @abstractmethod
    def _all_finished(self) -> bool:
        """Whether all ranks have ended well."""

    @abstractmethod
    async def _tell_incident(self, signal: str, value: Told) -> None:
        """Signal the open incident, if there is one that still listens."""
