"""Code versions: what the spec's `code` names, copied to where nobody edits it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from everstep.agent.code import digest
from everstep.agent.leash import leashed
from everstep.core.errors import InputError
from everstep.core.memory import CodeVersion
from everstep.spec.job import JobSpec
from everstep.spec.policies import CodeSource
from everstep.workers.local.folder import RunFolder

LEFT_OUT = (".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "runs")
"""Never part of a version: histories, environments, caches, and runs."""

_GIT = "code.git"

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
    return _take_source(spec.code, store.absolute())


def _take_source(code: CodeSource, store: Path, inside: str = "") -> tuple[str, Path]:
    try:
        store.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=store))
        return _take(code, store, staging, inside)
    except OSError as error:
        raise InputError(
            f"code ({code.directory or code.git})",
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


def take_update(folder: RunFolder, code: str) -> Path:
    """Copy other code for a run into its store.

    Args:
        folder: The run's.
        code: A folder; or a ref of the git repository that the run's first code came from, or lay
            in, where the same folder of that ref is taken.

    Returns:
        The version's folder, absolute.

    Raises:
        InputError: There is no such folder or ref, or it cannot be read.
    """
    store = folder.code.absolute()
    if Path(code).is_dir():
        source = CodeSource(directory=str(Path(code).absolute()))
        return _take_source(source, store)[1]
    known = folder.read_state().get("code_source", {})
    if known.get("git"):
        return _take_ref(known["git"], code, store)
    where = _repository(known.get("directory"))
    if where is None:
        raise InputError(
            f"--code {code}",
            "is no folder, and the run's code does not come from git",
            "Give the folder of the new code.",
        )
    root, inside = where
    return _take_ref(root, code, store, inside)


def _take_ref(url: str, ref: str, store: Path, inside: str = "") -> Path:
    try:
        return _take_source(CodeSource(git=url, ref=ref), store, inside)[1]
    except InputError as error:
        if error.where != _GIT:
            raise
        raise InputError(
            f"--code {ref}",
            f"there is no folder of that name here, and git has no ref of that name: {error.what}",
            "Give the folder of the new code, or a branch or tag of its repository.",
        ) from error


def _repository(directory: str | None) -> tuple[str, str] | None:
    """The git repository that a folder lies in, and where in it."""
    git = shutil.which("git")
    if directory is None or git is None:
        return None
    command = [git, "-C", directory, "rev-parse", "--show-toplevel", "--show-prefix"]
    done = subprocess.run(leashed(command), capture_output=True, text=True, check=False)
    lines = [*done.stdout.splitlines(), ""]
    return None if done.returncode else (lines[0], lines[1])


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
        version = digest(staging)
        target = store.absolute() / version
        if not target.exists():
            staging.rename(target)
        return version, target
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _take(code: CodeSource, store: Path, staging: Path, inside: str) -> tuple[str, Path]:
    try:
        if code.git is not None:
            _fetch(code.git, code.ref or "HEAD", staging)
        else:
            _copy(Path(code.directory or "."), staging, store)
        taken = staging / inside
        if not taken.is_dir():
            raise InputError(f"code ({code.ref})", f"there is no {inside} in it", "Check the ref.")
        version = digest(taken)
        target = store / version
        if not target.exists():
            taken.rename(target)
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
        raise InputError(_GIT, "there is no git program", "Install git.")
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
                _GIT, f"{url} at {ref}: {str(said).strip()[:300]}", "Check URL and ref."
            ) from error
    shutil.rmtree(target / ".git")


def _short(error: OSError) -> str:
    """What went wrong, of the first file when a whole tree was copied."""
    if isinstance(error, shutil.Error):
        source, _, why = error.args[0][0]
        return f"{source}: {why}"[:300]
    return str(error)[:300]
