"""A code version on this machine: what it is, and whether it could run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from everstep.agent import imports, program
from everstep.core.orders import PrepareOrder, PrepareReport

VERSION_DIGITS = 12


def prepare(order: PrepareOrder, machine: str, command: Sequence[str]) -> PrepareReport:
    """Read all of a version, and compile what its script will import of it.

    What is read lies in memory when the ranks start from it.

    Args:
        order: Which version.
        machine: Who asks.
        command: What the ranks will run in it.
    """
    directory = Path(order.directory)
    if not directory.is_dir():
        return PrepareReport(machine, "", f"{directory} is not there")
    try:
        version = digest(directory)
        problem = _mistake(directory, command)
    except OSError as error:
        return PrepareReport(machine, "", f"{directory} cannot be read: {error}"[:300])
    if not problem and order.version not in ("", version):
        problem = f"{directory} holds {version}, not {order.version}"
    return PrepareReport(machine, version, problem)


def digest(directory: Path) -> str:
    """A version's identifier: of names, modes and contents, in order of names.

    Raises:
        OSError: Something in it cannot be read.
    """
    whole = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if "__pycache__" in path.parts:
            # Whoever has run it before has left some there.
            continue
        if path.is_symlink():
            whole.update(f"link {name} {path.readlink()}\0".encode())
        elif path.is_file():
            executable = bool(path.stat().st_mode & 0o100)
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"file {name} {executable} {content}\0".encode())
    return whole.hexdigest()[:VERSION_DIGITS]


def _mistake(directory: Path, command: Sequence[str]) -> str:
    """What would end the script before its first line, or empty; other programs are not read."""
    target = program.python_target(command)
    if target is None:
        return ""
    if target.script is not None:
        script = directory / target.script
    else:
        script = imports.script_of(target.module or "", directory)
        if not script.is_file():
            # It may be a module that is installed.
            return ""
    if not script.is_file():
        return f"there is no {target.script} in it"
    for source in imports.own_sources(script, directory):
        try:
            compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = source.relative_to(directory) if source.is_relative_to(directory) else source
            said = getattr(error, "msg", None) or str(error)
            return f"{where}{f', line {line}' if line else ''}: {said}"
    return ""
