"""Errors, typed by what the caller can do about them.

    EverstepError
    |-- TransientError      retry the same call; it may work
    |-- PermanentError      the same call will fail again: plan otherwise, or ask a person
    |   `-- InputError      a person's input is wrong: field or file, value, and the fix
    |-- UnobservableError   could not tell; never to be read as "healthy"
    `-- StaleAttempt        somebody newer owns this: stop, touch nothing

Parts are given positionally and the text is built in `__str__`, so that every class survives
pickling (a test pickles each).
"""

from __future__ import annotations


class EverstepError(Exception):
    """Base of all errors that Everstep raises on purpose."""


class TransientError(EverstepError):
    """The same call may succeed when it is tried again."""


class PermanentError(EverstepError):
    """The same call will fail again; another plan or a person is needed."""


class UnobservableError(EverstepError):
    """The state could not be told, which says nothing about its health."""


class InputError(PermanentError):
    """Somebody's input is wrong.

    Args:
        where: Field of a spec, file, or option that is wrong.
        what: What is wrong with it, with the value.
        fix: What to do about it.
    """

    def __init__(self, where: str, what: str, fix: str) -> None:
        super().__init__(where, what, fix)
        self.where = where
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.fix}"


class StaleAttempt(EverstepError):
    """An order of an older attempt came to a machine that already serves a newer one.

    Args:
        ordered: Attempt of the order.
        current: Attempt that the machine serves.
    """

    def __init__(self, ordered: int, current: int) -> None:
        super().__init__(ordered, current)
        self.ordered = ordered
        self.current = current

    def __str__(self) -> str:
        return f"order of attempt {self.ordered} refused: attempt {self.current} owns this machine"
