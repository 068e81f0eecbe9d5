"""Code versions: what the spec's `code` names, copied to where nobody edits it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from everstep.core.errors import InputError
from everstep.core.memory import CodeVersion
from everstep.spec.job import JobSpec
from everstep.workers.local.leash import leashed

LEFT_OUT = (".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "runs")
"""Never part of a version: histories, environments, caches, and runs."""

VERSION_DIGITS = 12

CODE_ERROR = "code_error.json"
"""What makes a version fail, in a run that asked for it (`examples/gpt/injected.py`)."""


def take_version(spec: JobSpec, store: Path) -> tuple[str, Path]:
    """Copy the job's code into the store under a name that follows from its content.

    Args:
        spec: The job, its `code.directory` absolute as the loader made it.
        store: Where versions are kept.

    Returns:
        The version's identifier and its folder.

    Raises:
        InputError: The code cannot be read or fetched.
    """
    store = store.absolute()
    try:
        store.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=store))
        return _take(spec, store, staging)
    except OSError as error:
        raise InputError(
            f"code ({spec.code.directory or spec.code.git})",
            f"cannot be copied to {store}: {_short(error)}",
            "Make it readable, and the run's folder writable and roomy.",
        ) from error


def take_previous(spec: JobSpec, store: Path) -> list[CodeVersion]:
    """The version that the spec names as the one before, copied like the first; at most one.

    Raises:
        InputError: The code cannot be read or fetched.
    """
    previous = spec.code.previous
    if previous is None:
        return []
    field = "directory" if spec.code.git is None else "ref"
    code = spec.code.model_copy(update={field: previous})
    version, directory = take_version(spec.model_copy(update={"code": code}), store)
    return [CodeVersion(version, str(directory))]


def take_broken(good: Path, store: Path, step: int) -> tuple[str, Path]:
    """A version like a good one, of which the reference trainer fails after a step.

    Args:
        good: Folder of the good version.
        store: Where versions are kept.
        step: The last step that it can do.
    """
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=store.absolute()))
    try:
        shutil.copytree(good, staging, symlinks=True, dirs_exist_ok=True)
        (staging / CODE_ERROR).write_text(json.dumps({"step": step + 1}))
        version = _digest(staging)
        target = store.absolute() / version
        if not target.exists():
            staging.rename(target)
        return version, target
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _take(spec: JobSpec, store: Path, staging: Path) -> tuple[str, Path]:
    try:
        if spec.code.git is not None:
            _fetch(spec.code.git, spec.code.ref or "HEAD", staging)
        else:
            _copy(Path(spec.code.directory or "."), staging, store)
        version = _digest(staging)
        target = store / version
        if not target.exists():
            staging.rename(target)
        return version, target
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy(source: Path, target: Path, store: Path) -> None:
    run_folder = store.parent.resolve()

    def left_out(directory: str, entries: list[str]) -> list[str]:
        here = Path(directory)
        return [e for e in entries if e in LEFT_OUT or (here / e).resolve() == run_folder]

    shutil.copytree(source, target, ignore=left_out, symlinks=True, dirs_exist_ok=True)


def _fetch(url: str, ref: str, target: Path) -> None:
    git = shutil.which("git")
    if git is None:
        raise InputError("code.git", "there is no git program", "Install git.")
    commands = (
        ["init", "--quiet", str(target)],
        ["-C", str(target), "fetch", "--quiet", "--depth", "1", "--", url, ref],
        ["-C", str(target), "checkout", "--quiet", "--detach", "FETCH_HEAD"],
    )
    for command in commands:
        try:
            subprocess.run(
                leashed([git, *command]),
                check=True,
                capture_output=True,
                text=True,
                timeout=600,
                # Nobody could type a password here.
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
                stdin=subprocess.DEVNULL,
            )
        except subprocess.SubprocessError as error:
            said = getattr(error, "stderr", None) or str(error)
            raise InputError(
                "code.git", f"{url} at {ref}: {str(said).strip()[:300]}", "Check URL and ref."
            ) from error
    shutil.rmtree(target / ".git")


def _digest(directory: Path) -> str:
    """SHA-256 over names, modes and contents, in order of names."""
    whole = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            whole.update(f"link {name} {path.readlink()}\0".encode())
        elif path.is_file():
            executable = bool(path.stat().st_mode & 0o100)
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"file {name} {executable} {content}\0".encode())
    return whole.hexdigest()[:VERSION_DIGITS]


def _short(error: OSError) -> str:
    """What went wrong, of the first file when a whole tree was copied."""
    if isinstance(error, shutil.Error):
        source, _, why = error.args[0][0]
        return f"{source}: {why}"[:300]
    return str(error)[:300]
