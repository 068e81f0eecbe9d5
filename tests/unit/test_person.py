"""Who is on record for what a command changes."""

from __future__ import annotations

import getpass
import os

import pytest

from everstep.cli.person import person


def test_it_is_whoever_is_logged_in() -> None:
    assert person() == getpass.getuser()


def test_a_user_without_a_name_is_a_number_unless_somebody_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of an image, in which a person runs a command by `kubectl exec`."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert person() == "user 4000000000"
    monkeypatch.setenv("USER", "ada")
    assert person() == "ada"
