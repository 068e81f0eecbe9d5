"""Running a command as the interpreter itself would, inside a process that is warm already."""

from __future__ import annotations

import atexit
import importlib.machinery
import os
import runpy
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from everstep.agent import witness


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """What a `python` command runs.

    Attributes:
        script: Path of a script as it was given, or None.
        module: Dotted name after `-m`, or None; exactly one of the two is set.
        arguments: What follows.
    """

    script: str | None
    module: str | None
    arguments: tuple[str, ...]


def python_target(command: Sequence[str]) -> PythonTarget | None:
    """What to run for `python [-u] script.py ...` or `python [-u] -m module ...`.

    Returns:
        None for every other command; that needs a fresh program.
    """
    if not command or command[0] not in ("python", "python3", sys.executable):
        return None
    rest = list(command[1:])
    # Output is never buffered here.
    if rest[:1] == ["-u"]:
        del rest[0]
    if len(rest) >= 2 and rest[0] == "-m":
        return PythonTarget(None, rest[1], tuple(rest[2:]))
    if rest and rest[0].endswith(".py") and not rest[0].startswith("-"):
        return PythonTarget(rest[0], None, tuple(rest[1:]))
    return None


def executable(name: str) -> str:
    """The program to run for a command's first word: `python` is this very interpreter."""
    return sys.executable if name in ("python", "python3") else name


def run(target: PythonTarget, directory: Path, environment: Mapping[str, str]) -> int:
    """Make this process look freshly started, run the target, and end as the interpreter ends.

    Returns:
        The exit status; the caller has to end the process with it.
    """
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    _refresh()
    witness.register(environment)
    try:
        code = _outcome(target)
        # Finalization waits for threads before it runs the exit functions.
        threading._shutdown()  # type: ignore[attr-defined]  # pyright: ignore
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    finally:
        _flush()
    return code


def _refresh() -> None:
    """Undo what siblings would share and fresh processes would not."""
    for stream in (sys.stdout, sys.stderr):
        # Whatever is not written when a rank is killed is lost to the diagnosis.
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _outcome(target: PythonTarget) -> int:
    try:
        if target.script is not None:
            sys.argv = [target.script, *target.arguments]
            _run_script(Path(target.script).absolute())
        elif target.module is not None:
            sys.argv = ["-m", *target.arguments]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(target.module, run_name="__main__", alter_sys=True)
    except SystemExit as request:
        return _exit_status(request.code)
    except BaseException as error:  # noqa: BLE001 - the script's own, and shown as it would be
        sys.excepthook(type(error), error, _own_part(error.__traceback__))
        return 1
    return 0


def _run_script(path: Path) -> None:
    # runpy.run_path would take the globals away while the script's threads still run, and would
    # give the script another argv[0].
    sys.path.insert(0, str(path.resolve().parent))
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
    sys.modules["__main__"] = module
    try:
        source = path.read_bytes()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {str(path)!r}: {error}\n")
        raise SystemExit(2) from error
    code = compile(source, str(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - running the script is what this is for


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
