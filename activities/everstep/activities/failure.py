"""The only place where errors become Temporal failures.

Error types cross the wire by class name (retry policies match on it), and a message is cut to a
size that a history can hold many of.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from everstep.core import errors

MAX_MESSAGE_CHARS = 2_000


@contextmanager
def as_failures() -> Generator[None]:
    """Turn the errors of `everstep.core.errors` into Temporal's, keeping what a caller can do.

    Raises:
        ApplicationError: For every `EverstepError`; not retryable unless it is transient or says
            that the state could not be told.
    """
    try:
        yield
    except errors.EverstepError as error:
        retryable = isinstance(error, errors.TransientError | errors.UnobservableError)
        raise ApplicationError(
            str(error)[:MAX_MESSAGE_CHARS],
            type=type(error).__name__,
            non_retryable=not retryable,
        ) from error
