"""Reads a job spec and checks it against this machine. The only module of the spec with I/O."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from everstep.core.errors import InputError
from everstep.spec.job import JobSpec
from everstep.spec.problems import Problem, did_you_mean, input_error, problems_of, shown

# They stand for the interpreter that runs Everstep, so they need not be on PATH.
_OWN_INTERPRETER = frozenset({"python", "python3"})
_ANY_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")


def load_spec(path: str | Path) -> JobSpec:
    """Reads a spec file.

    Returns:
        The spec, with `code.directory` and a folder `checkpoint.storage.path` made absolute.

    Raises:
        InputError: The file cannot be read, is not YAML, is not a valid spec, or names a code
            folder, program or script that this machine does not have. The message lists up to
            five problems, a line each.
    """
    path = Path(path)
    spec = _with_absolute_storage(read_spec(path), path)
    directory = _code_directory(spec, path)
    problems = [*_directory_problems(directory), *_command_problems(spec, directory)]
    if directory is not None and spec.code.previous is not None:
        previous = (path.parent / spec.code.previous).absolute()
        problems += _directory_problems(previous, "code.previous")
    if problems:
        raise input_error(path, problems)
    if directory is None:
        return spec
    code = spec.code.model_copy(update={"directory": str(directory)})
    if code.previous is not None:
        code = code.model_copy(update={"previous": str((path.parent / code.previous).absolute())})
    return spec.model_copy(update={"code": code})


def read_spec(path: Path) -> JobSpec:
    """Reads a spec file for what it says of the job; its code need not be on this machine.

    Raises:
        InputError: As `load_spec`, except that code, program and script are not looked for.
    """
    content = read_mapping(path)
    try:
        return JobSpec.model_validate(content)
    except ValidationError as error:
        raise input_error(path, problems_of(error, JobSpec)) from None


def read_mapping(path: Path) -> object:
    """What a YAML file with fields says, not validated yet.

    Raises:
        InputError: It cannot be read, is not YAML, or does not begin with a field.
    """
    return _parse(path, _read(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(str(path), "is not UTF-8 text", "Give a YAML file") from None
    except FileNotFoundError:
        raise InputError(str(path), "there is no such file", "Give the path of a spec") from None
    except IsADirectoryError:
        raise InputError(str(path), "is a folder", "Give the file in it") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(str(path), f"cannot be read: {reason}", "Make it readable") from None


def _parse(path: Path, text: str) -> object:
    try:
        content: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        reason = getattr(error, "problem", None) or "unreadable characters"
        raise InputError(
            str(path), f"is not valid YAML, {line}: {reason}", "Correct the syntax there"
        ) from None
    except RecursionError:
        raise InputError(str(path), "is nested too deeply", "Give a job spec") from None
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"holds {shown(content)}, not fields"
        raise InputError(str(path), found, "Begin with a line such as: name: my-job")
    return content  # pyright: ignore[reportUnknownVariableType] - JobSpec looks inside


def _with_absolute_storage(spec: JobSpec, path: Path) -> JobSpec:
    storage = spec.checkpoint.storage
    # A URL, also such as `simplecache::s3://...`, says by itself where it is.
    if storage is None or "://" in storage.path:
        return spec
    folder = str((path.parent / storage.path).absolute())
    storage = storage.model_copy(update={"path": folder})
    checkpoint = spec.checkpoint.model_copy(update={"storage": storage})
    return spec.model_copy(update={"checkpoint": checkpoint})


def _code_directory(spec: JobSpec, path: Path) -> Path | None:
    """The code folder, or None when the code comes from git."""
    if spec.code.directory is None:
        return None
    return (path.parent / spec.code.directory).absolute()


def _directory_problems(directory: Path | None, field: str = "code.directory") -> list[Problem]:
    if directory is None:
        return []
    fix = "Give a folder that exists, relative to the spec file's folder"
    try:
        next(directory.iterdir(), None)
    except FileNotFoundError:
        return [Problem(field, f"{directory} does not exist", fix)]
    except NotADirectoryError:
        return [Problem(field, f"{directory} is not a folder", fix)]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return [Problem(field, f"{directory} cannot be read: {reason}", "Make it readable")]
    if not os.access(directory, os.X_OK):
        return [Problem(field, f"{directory} cannot be entered", f"Run: chmod u+rx {directory}")]
    return []


def _command_problems(spec: JobSpec, directory: Path | None) -> list[Problem]:
    problem = _program_problem(spec, directory) or _script_problem(spec.command, directory)
    return [problem] if problem else []


def _program_problem(spec: JobSpec, directory: Path | None) -> Problem | None:
    program = spec.command[0]
    if program in _OWN_INTERPRETER:
        return None
    if os.sep not in program:
        if shutil.which(program, path=spec.environment.get("PATH")):
            return None
        fix = "Install it, or give its path"
        return Problem("command[0]", f"there is no program {shown(program)} on PATH", fix)
    if directory is None and not Path(program).is_absolute():
        return None
    # Ranks run in the code folder, so a relative path starts there.
    file = (directory or Path()) / program
    if not file.is_file():
        return Problem("command[0]", f"there is no program {file}", "Correct the path")
    if not os.access(file, os.X_OK):
        return Problem("command[0]", f"{file} is not executable", f"Run: chmod +x {file}")
    return None


def _script_problem(command: Sequence[str], directory: Path | None) -> Problem | None:
    """A script of Python that the code folder lacks; what other programs read is theirs to say."""
    script = _script(command)
    if script is None or directory is None or not directory.is_dir():
        return None
    file = directory / script
    if file.is_file():
        return None
    scripts = sorted(file.name for file in directory.glob("*.py"))
    fix = did_you_mean(script, scripts) if scripts else "Put it there, or correct code.directory"
    return Problem("command", f"there is no script {shown(script)} in {directory}", fix)


def _script(command: Sequence[str]) -> str | None:
    """The file that a Python command runs, or None when it runs a module or no Python at all."""
    if not _ANY_INTERPRETER.fullmatch(Path(command[0]).name):
        return None
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-"):
            return argument
        # Short options cluster, as in `-um module`, and the last one may take a value.
        if argument.endswith(("m", "c")) and not argument.startswith("--"):
            return None
        if argument in ("-W", "-X", "--check-hash-based-pycs"):
            next(arguments, None)
    return None
