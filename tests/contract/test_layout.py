"""Rules of the repository that no single module can keep."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.core import errors

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("core", "workflows", "activities", "agent", "workers")


def test_no_root_hides_the_others() -> None:
    """`everstep` is a namespace: one `__init__.py` would hide every other root at run time."""
    found = [root for root in SOURCE_ROOTS if (ROOT / root / "everstep" / "__init__.py").exists()]
    assert found == []


def test_every_source_root_is_installed_and_checked() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for root in SOURCE_ROOTS:
        assert f'"{root}/everstep"' in text
        assert text.count(f'"{root}"') >= 5, f"{root} is missing from some tool's configuration"


@pytest.mark.parametrize(
    "error",
    [
        errors.TransientError("later"),
        errors.PermanentError("never"),
        errors.UnobservableError("could not tell"),
        errors.InputError("machines", "0 is wrong", "Give 1."),
        errors.StaleAttempt(3, 4),
    ],
)
def test_errors_survive_pickling(error: errors.EverstepError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args


def test_every_kind_of_error_is_tested_above() -> None:
    kinds = {c for c in vars(errors).values() if isinstance(c, type)} - {errors.EverstepError}
    assert {k.__name__ for k in kinds} == {
        "TransientError",
        "PermanentError",
        "UnobservableError",
        "InputError",
        "StaleAttempt",
    }


def test_workflows_load_nothing_that_does_io() -> None:
    """Their sandbox must stay small: neither torch nor psutil, yaml or any adapter comes along."""
    code = (
        "import sys, everstep.workflows.job\n"
        "bad = [m for m in ('torch', 'psutil', 'yaml', 'kubernetes', 'everstep.activities',"
        " 'everstep.agent', 'everstep.workers') if m in sys.modules]\n"
        "sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
