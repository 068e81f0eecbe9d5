"""A training process's connection to its machine's agent.

    session = checkpoint.connect()
    if (restored := session.restore()) is not None:
        model.load_state_dict(restored.state["model"])
    session.protect(optimizer)
    for step in range(first, last + 1):
        ...
        optimizer.step()
        session.save(step, {"model": model.state_dict(), ...})

Without an agent (`names.ENV_CHANNEL_FD` is not set) the same script runs as it would by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, SupportsFloat

from everstep.checkpoint import agreement, tree
from everstep.checkpoint.agent_link import AgentLink
from everstep.checkpoint.replaying import replay
from everstep.checkpoint.restoring import Restoring
from everstep.checkpoint.saver import Saver, Stage
from everstep.checkpoint.sharing import Sharing
from everstep.checkpoint.stalling import StallClock
from everstep.checkpoint.waiting import WaitClock
from everstep.core import channel, names
from everstep.core.errors import EverstepError, PermanentError
from everstep.core.shard import Region
from everstep.core.vocabulary import Phase

logger = logging.getLogger(__name__)

_ANSWER_PATIENCE_S = 60.0

_SAVE = "save"
"""Why a rank stands still, beside its own phase `checkpoint`."""


class Optimizer(Protocol):
    """What `protect` needs of a `torch.optim.Optimizer`."""

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Have a function called before every step."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Where training goes on.

    Attributes:
        step: Last step that is contained in the state; training continues with the one after it.
        state: What `save` was given, in memory of its own, tensors on the CPU.
    """

    step: int
    state: dict[Any, Any]


class Session(ABC):
    """Restores a rank's state once, and saves it after every step. Not for use by two threads."""

    @abstractmethod
    def restore(self, into: Mapping[Any, Any] | None = None) -> Restored | None:
        """The state to start from, or None to start from the beginning.

        Args:
            into: This rank's state as it would be saved now. Needed only for a checkpoint in
                storage that was saved in another layout: its tensors are filled in place, DTensors
                with the parts that belong here, and what comes back holds these same tensors. Such
                a checkpoint has nothing for what differed from rank to rank in the other layout
                (unless it is a DTensor): leave it out of `into`.

        Raises:
            TypeError: `into` contains something that cannot be stored.
            PermanentError: The stored state is damaged here and on the machine of its backup, or is
                another job's or layout's; or the agent is gone. A checkpoint of another layout
                cannot be turned into `into`, or there is no `into`: the text names what is missing.
        """

    @abstractmethod
    def save(self, step: int, state: Mapping[Any, Any], *, blocking: bool = False) -> None:
        """Keep the state after `step` in this machine's memory, and in another's.

        Returns at once, and copies in the background, in a script that has called
        `wait_before_update` since its last save, itself or by `protect`: it is taken to go on doing
        so. In any other script it waits here, as if it called it now. When the other machine fails
        to take a step for as long as the job allows, this machine's copy stands alone, and a
        warning is logged.

        Args:
            step: Number of finished steps, greater than that of the last save or restore. Every
                rank of the job saves the same steps.
            state: Nested dicts (keys str or int), lists and tuples of tensors and scalars. Tensors
                of more than 64 KiB must not change until `wait_before_update` returns; what else
                is in it may be changed at once.
            blocking: Whether to return only when every rank's state after this step is in two
                machines' memories.

        Raises:
            TypeError: The state contains something that cannot be stored; the text names it.
            ValueError: The step is not greater than the last.
            PermanentError: This step or an earlier one could not be saved: no memory for it, a
                tensor was changed while it was copied, or the agent or another rank is gone.
            TransientError: The agent does not answer.
        """

    @abstractmethod
    def wait_before_update(self) -> None:
        """Wait until the saved tensors may be changed; to be called before every update.

        After it returns, this machine has the state of the last save, and if the session allows
        one redone step only, every rank's state is in two machines' memories.

        Raises:
            PermanentError, TransientError: The last step could not be saved.
        """

    def protect(self, optimizer: Optimizer) -> None:
        """Have `wait_before_update` called before each of the optimizer's steps."""

        def wait(*_: object) -> None:
            self.wait_before_update()

        optimizer.register_step_pre_hook(wait)

    @abstractmethod
    def report(
        self,
        step: int,
        *,
        loss: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        mfu: SupportsFloat | None = None,
    ) -> None:
        """Tell the agent that `step` is finished, and what is known of it.

        What a rank leaves out is not judged. One rank that knows the loss is enough; a step that is
        reported by no rank should be saved by one, or its time is unknown.

        Args:
            step: Number of finished steps.
            loss: Loss of the step. A tensor on a GPU is waited for: hand over one that is ready.
            grad_norm: Norm of its gradient before clipping. Leave it out at a step that a loss
                scaler skips: infinity is no fault there, and is taken for one here.
            mfu: Speed: MFU, TFLOP/s, tokens a second; only its changes matter. Without it, speed is
                judged by the time between steps.

        Raises:
            PermanentError: The agent is gone.
        """

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Announce what this rank does from now on, which decides how long it may be silent.

        A rank begins in phase `start` and is in phase `step` once it has finished one, which also
        ends every other phase but `paused`. Used with `with`, the phase before is announced again
        at the end of the block.

        Args:
            name: `evaluation` or `checkpoint`: may take as long as they usually do; `start`: will
                compile again; `paused`: somebody debugs, and nothing is a hang, on any rank;
                `step`: training goes on.

        Raises:
            ValueError: There is no phase of that name.
            PermanentError: The agent is gone.
        """
        phases = [phase for phase in Phase if phase is not Phase.ENDED]
        if name not in phases:
            raise ValueError(f"phase {name!r} is none of {', '.join(phases)}")
        before = self._enter(Phase(name))

        @contextlib.contextmanager
        def until_left() -> Generator[None]:
            try:
                yield
            finally:
                self._enter(before)

        return until_left()

    @abstractmethod
    def _enter(self, phase: Phase) -> Phase:
        """Be in another phase; the one before."""

    def replayed(self, digest: str) -> None:  # noqa: B027 - nothing to do in a session that trains
        """In a replay (`checkpoint.replay`): all steps were done, and this is the state's digest.

        Args:
            digest: Of all weights and moments of this rank, to the bit.
        """

    @abstractmethod
    def close(self) -> None:
        """Let the last step be saved, and let go of the agent; also done when the script ends."""


def connect(redone_steps: Literal[1, 2] = 1) -> Session:
    """The session of this process; to be called once in it.

    Args:
        redone_steps: How many finished steps may be lost with a machine. With 1, an update waits
            until every rank's backup of the step before has arrived. With 2, it waits only for this
            rank's own copy, and so never for the backup of that step; a backup may take until the
            update after. Where backups take less than a step, neither waits, and one is lost.

    Raises:
        PermanentError: There should be an agent and it cannot be spoken to.
        TransientError: The agent does not answer.
    """
    number = os.environ.get(names.ENV_CHANNEL_FD)
    if number is None:
        return _DetachedSession()
    try:
        sock = socket.socket(fileno=int(number))
    except (OSError, ValueError) as error:
        raise PermanentError(
            f"{names.ENV_CHANNEL_FD}={number} is not an open socket: {error}"
        ) from error
    # Programs that the script starts would else keep the channel open after the script's end.
    sock.set_inheritable(False)
    try:
        if replay() is not None:
            return _ReplaySession(sock)
        return _AttachedSession(sock, Stage.STABLE if redone_steps == 1 else Stage.COPIED)
    except BaseException:
        sock.close()
        raise


class _DetachedSession(Session):
    """No agent: every start is from the beginning, and nothing is kept."""

    def restore(self, into: Mapping[Any, Any] | None = None) -> Restored | None:
        return None

    def save(self, step: int, state: Mapping[Any, Any], *, blocking: bool = False) -> None:
        pass

    def wait_before_update(self) -> None:
        pass

    def report(
        self,
        step: int,
        *,
        loss: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        mfu: SupportsFloat | None = None,
    ) -> None:
        pass

    def _enter(self, phase: Phase) -> Phase:
        return Phase.STEP

    def close(self) -> None:
        pass


class _ReplaySession(_DetachedSession):
    """An agent that hears how a replay ends, and keeps nothing of it."""

    def __init__(self, sock: socket.socket) -> None:
        self._link = AgentLink(sock, _ANSWER_PATIENCE_S)
        self._link.ask(channel.Hello(), channel.Welcome)

    def replayed(self, digest: str) -> None:
        self._link.tell(channel.Replayed(digest))

    def close(self) -> None:
        self._link.close()


class _AttachedSession(Session):
    def __init__(self, sock: socket.socket, before_update: Stage) -> None:
        self._before_update = before_update
        self._waited = False
        self._last_step = -1
        self._phase = Phase.START
        self._waits = WaitClock()
        self._stalls = StallClock()
        self._saver: Saver | None = None
        self._link = AgentLink(sock, _ANSWER_PATIENCE_S)
        self._me, _ = self._link.ask(channel.Hello(), channel.Welcome)
        self._sharing = Sharing(self._me)
        atexit.register(self.close)

    def restore(self, into: Mapping[Any, Any] | None = None) -> Restored | None:
        answer, fd = self._link.ask(channel.Restore(), channel.Restored)
        if answer.step is None:
            return None
        if answer.stored:
            return self._reshard(answer.step, answer.stored, into)
        state, region = Restoring(self._link, self._me).state(answer.step, fd)
        self._last_step = answer.step
        self._saver = self._new_saver(region)
        return Restored(answer.step, state)

    def save(self, step: int, state: Mapping[Any, Any], *, blocking: bool = False) -> None:
        if step <= self._last_step:
            raise ValueError(f"step {step} is saved after step {self._last_step}")
        if self._saver is None:
            self._saver = self._new_saver(None)
        with self._stalls.stalling(_SAVE):
            self._saver.submit(step, self._taken(self._saver, state))
        self._last_step = step
        self._go_on()
        if blocking:
            with self._stalls.stalling(_SAVE):
                self._saver.wait(Stage.STABLE)
        elif not self._waited:
            self.wait_before_update()
        self._waited = False

    def wait_before_update(self) -> None:
        self._waited = True
        if self._saver is not None:
            with self._waits.waiting(), self._stalls.stalling(_SAVE):
                self._saver.wait(self._before_update)

    def report(
        self,
        step: int,
        *,
        loss: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        mfu: SupportsFloat | None = None,
    ) -> None:
        numbers = [None if n is None else _number(n) for n in (loss, grad_norm, mfu)]
        numbers += [self._waits.waited_s(), self._stalls.stalled_s]
        self._link.tell(channel.Report(step, *numbers))
        self._go_on()

    def _go_on(self) -> None:
        """A step is finished, which ends what the rank did instead."""
        self._phase = self._phase.after_step()
        self._stalls.end(Phase.CHECKPOINT)

    def _enter(self, phase: Phase) -> Phase:
        before, self._phase = self._phase, phase
        if phase is Phase.CHECKPOINT:
            self._stalls.begin(phase)
        else:
            self._stalls.end(Phase.CHECKPOINT)
        self._link.tell(channel.Entered(phase.value))
        return before

    def close(self) -> None:
        atexit.unregister(self.close)
        self._waits.close()
        if self._saver is not None:
            try:
                self._saver.close()
            except EverstepError as error:
                logger.warning("%s: %s", self._who, error)
        self._link.close()

    def _taken(self, saver: Saver, state: Mapping[Any, Any]) -> tree.FlatTree:
        if not self._sharing.shared:
            return tree.FlatTree(state)
        # How this one is taken depends on what the ranks found at the last one.
        saver.wait(Stage.COPIED)
        return self._sharing.take(state)

    def _reshard(self, step: int, url: str, into: Mapping[Any, Any] | None) -> Restored:
        if into is None:
            raise PermanentError(
                f"step {step} in {url} was saved in another layout than {self._me.layout!r}: call"
                " restore(into=STATE), STATE being what this rank would save, to turn it into this"
                " one"
            )
        # Loads what most scripts never need.
        resharding = importlib.import_module("everstep.checkpoint.resharding")
        state: dict[Any, Any] = resharding.load(url, into, self._me.rank)
        self._last_step = step
        return Restored(step, state)

    @property
    def _who(self) -> str:
        return f"rank {self._me.rank} on {self._me.machine}"

    def _new_saver(self, region: Region | None) -> Saver:
        others = agreement.of_environment(os.environ, self._me.attempt)
        return Saver(self._link, self._me, others, region, self._sharing, self._stalls)


def _number(told: SupportsFloat) -> float:
    """A number that was told; torch warns of a tensor that it computes a gradient for."""
    detach = getattr(told, "detach", None)
    return float(told if detach is None else detach())
