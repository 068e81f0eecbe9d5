"""Which steps every rank of the job holds.

A rank may give up a step's memory only for a step that all ranks hold, and training alone does not
tell it that in time: when a rank has done its update of step s + 1, the others have finished step
s, but their copies and backups of s may still be on their way. So every rank announces each step
that it holds, and the last one to do so makes it stable. The ranks' rendezvous store carries this:
it is there anyway, lives as long as the attempt, and nobody's training waits for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from everstep.core.errors import PermanentError

# Its stores are exported without being declared.
_dist: Any = dist

_CONNECT_TIMEOUT = timedelta(seconds=60)


class Agreement(ABC):
    """What the ranks of one attempt know of each other's steps. For one thread."""

    @abstractmethod
    def announce(self, step: int) -> None:
        """This rank holds the step for good; once a step, in the order of the steps.

        Raises:
            PermanentError: The other ranks cannot be told.
        """

    @abstractmethod
    def is_stable(self, step: int) -> bool:
        """Whether every rank has announced the step; to be asked of one announced by this rank.

        Raises:
            PermanentError: The other ranks cannot be asked.
        """

    @abstractmethod
    def choose(self, number: int) -> None:
        """Have the attempt's save of that number sent to storage, by all ranks.

        Chosen before the save two before it is announced, it is known to every rank in time: none
        begins a save before the one before it is stable.

        Raises:
            PermanentError: The other ranks cannot be told.
        """

    @abstractmethod
    def is_chosen(self, number: int) -> bool:
        """Whether the attempt's save of that number is sent to storage.

        Raises:
            PermanentError: The other ranks cannot be asked.
        """

    @abstractmethod
    def compare(self, step: int, group: range, digest: str) -> None:
        """Tell a group of ranks what this one's common state is; once a step, by all of them.

        Args:
            step: The step that is about to be saved.
            group: The ranks, this one among them.
            digest: Of the state.

        Raises:
            PermanentError: The other ranks cannot be told.
        """

    @abstractmethod
    def are_equal(self, step: int, group: range) -> bool | None:
        """Whether all ranks of the group told the same; None while not all have told.

        Raises:
            PermanentError: The other ranks cannot be asked.
        """


class Alone(Agreement):
    """The job has one rank."""

    def __init__(self) -> None:
        self._chosen = -1

    def announce(self, step: int) -> None:
        """Nobody is there to be told."""

    def is_stable(self, step: int) -> bool:
        """True: what this rank holds, all do."""
        return True

    def choose(self, number: int) -> None:
        """Remember it."""
        self._chosen = number

    def is_chosen(self, number: int) -> bool:
        """Whether it was the last to be chosen."""
        return self._chosen == number

    def compare(self, step: int, group: range, digest: str) -> None:
        """Nobody is there to be told."""

    def are_equal(self, step: int, group: range) -> bool | None:
        """True: it equals itself."""
        return True


class StoreAgreement(Agreement):
    """Counts announcements in a `TCPStore`, over a connection of its own.

    The trainer's connection would make its calls wait for ours. A step costs one round trip to
    announce and a few to learn; a store serves some twenty thousand a second.

    Args:
        host: Where the store listens.
        port: Where the store listens.
        num_ranks: Ranks in the job, > 1.
        attempt: Attempt of this rank: keeps its steps apart from an older one's.
    """

    def __init__(self, host: str, port: int, num_ranks: int, attempt: int) -> None:
        self._address = host, port
        self._num_ranks = num_ranks
        self._prefix = f"everstep/{attempt}"
        self._connected: Any = None
        self._stable_before: int | None = None

    def announce(self, step: int) -> None:
        """Count this rank in; the last one says so to all who wait."""
        try:
            store = self._store()
            if store.add(self._key("held", step), 1) < self._num_ranks:
                return
            store.set(self._key("stable", step), "1")
            # Nobody asks for the one before: to announce this one, all have learned of that.
            if self._stable_before is not None:
                for name in ("held", "stable"):
                    store.delete_key(self._key(name, self._stable_before))
            self._stable_before = step
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    def is_stable(self, step: int) -> bool:
        """Ask the store; its own way of waiting can be neither ended nor done without warnings."""
        try:
            return bool(self._store().check([self._key("stable", step)]))
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    def choose(self, number: int) -> None:
        """Leave a note in the store."""
        try:
            self._store().set(self._key("chosen", number), "1")
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    def is_chosen(self, number: int) -> bool:
        """Look for the note in the store."""
        try:
            return bool(self._store().check([self._key("chosen", number)]))
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    def compare(self, step: int, group: range, digest: str) -> None:
        """Count those that told this digest, and those that told any; the last one concludes."""
        told = f"{self._group_key(step, group)}/told"
        same = f"{self._group_key(step, group)}/{digest}"
        try:
            store = self._store()
            store.add(same, 1)
            if store.add(told, 1) < len(group):
                return
            equal = store.add(same, 0) == len(group)
            store.set(self._group_key(step, group), "equal" if equal else "different")
            for key in (told, same):
                store.delete_key(key)
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    def are_equal(self, step: int, group: range) -> bool | None:
        """Ask the store for the conclusion."""
        key = self._group_key(step, group)
        try:
            store = self._store()
            return bytes(store.get(key)) == b"equal" if store.check([key]) else None
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    def _group_key(self, step: int, group: range) -> str:
        return f"{self._key('common', step)}/{group[0]}"

    def _key(self, name: str, step: int) -> str:
        return f"{self._prefix}/{name}/{step}"

    def _store(self) -> Any:
        if self._connected is None:
            host, port = self._address
            self._connected = _dist.TCPStore(host, port, None, False, _CONNECT_TIMEOUT)
        return self._connected

    def _lost(self, error: Exception) -> PermanentError:
        host, port = self._address
        return PermanentError(f"the job's store at {host}:{port} is gone: {error}")


def of_environment(environment: Mapping[str, str], attempt: int) -> Agreement:
    """The agreement of a rank with torchrun's environment variables.

    Raises:
        PermanentError: They name other ranks and no store.
    """
    num_ranks = int(environment.get("WORLD_SIZE", "1"))
    if num_ranks == 1:
        return Alone()
    try:
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    except KeyError as error:
        raise PermanentError(f"{num_ranks} ranks, and {error} is not set") from error
    return StoreAgreement(host, port, num_ranks, attempt)
