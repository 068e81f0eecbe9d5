"""Code versions: what the spec's `code` names, copied to where nobody edits it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from everstep.core.errors import InputError
from everstep.spec.job import JobSpec

LEFT_OUT = (".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "runs")
"""Never part of a version: histories, environments, caches, and runs."""

VERSION_DIGITS = 12


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
    store.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=store))
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

    try:
        shutil.copytree(source, target, ignore=left_out, symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise InputError(
            f"code.directory ({source})", f"cannot be copied: {_short(error)}", "Make it readable."
        ) from error


def _fetch(url: str, ref: str, target: Path) -> None:
    commands = (
        ["git", "init", "--quiet", str(target)],
        ["git", "-C", str(target), "fetch", "--quiet", "--depth", "1", "--", url, ref],
        ["git", "-C", str(target), "checkout", "--quiet", "--detach", "FETCH_HEAD"],
    )
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        except FileNotFoundError as error:
            raise InputError("code.git", "there is no git program", "Install git.") from error
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


def _short(error: Exception) -> str:
    return str(error)[:300]
