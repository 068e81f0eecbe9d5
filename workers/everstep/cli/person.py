"""Who gives a command, for the record of what was decided and changed."""

from __future__ import annotations

import getpass
import os


def person() -> str:
    """Name of whoever gives this command.

    The user of an image has none of its own: USER says who is meant, else its number stands there.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
