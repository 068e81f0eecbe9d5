"""What a script will import from outside its own code, read from its source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement.

    Attributes:
        module: Dotted name.
        names: What is taken from it; some of them may be modules too.
    """

    module: str
    names: tuple[str, ...] = ()


def outside_imports(script: Path, code_directory: Path) -> list[Import]:
    """Imports of the script, and of the modules of its own that it imports, that lead outside.

    Only what runs on import counts: functions' imports may be meant never to happen. A source that
    cannot be read or parsed adds nothing; its own error shows when it runs.

    Args:
        script: The file that will run.
        code_directory: Where the code lies that may change with a code version.
    """
    return _followed(script, code_directory)[0]


def own_sources(script: Path, code_directory: Path) -> list[Path]:
    """The script and the modules of its own that it imports, in the order in which they are met.

    Args:
        script: The file that will run.
        code_directory: Where the code lies that may change with a code version.
    """
    return _followed(script, code_directory)[1]


def _followed(script: Path, code_directory: Path) -> tuple[list[Import], list[Path]]:
    roots = (script.parent, code_directory)
    outside: dict[Import, None] = {}
    own: dict[Path, None] = {script: None}
    waiting = [script]
    while waiting:
        for item in _imports_of(waiting.pop()):
            if not _is_own(item, roots):
                outside[item] = None
            sources = {path for name in _candidates(item) for path in _sources(name, roots)}
            new = sorted(sources - own.keys())
            waiting.extend(new)
            own.update(dict.fromkeys(new))
    return list(outside), list(own)


def script_of(module: str, directory: Path) -> Path:
    """The file that `python -m module` would run, if it lies in `directory`."""
    path = directory.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def _imports_of(source: Path) -> Iterator[Import]:
    try:
        module = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for statement in _run_on_import(module.body):
        if isinstance(statement, ast.Import):
            yield from (Import(alias.name) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            names = tuple(alias.name for alias in statement.names if alias.name != "*")
            yield Import(statement.module, names)
        elif isinstance(statement, ast.ImportFrom):
            yield from _relative(statement, source)


def _relative(statement: ast.ImportFrom, source: Path) -> Iterator[Import]:
    # Told as an absolute name from the outermost package on, as that is what `_sources` knows.
    package = source.parent
    for _ in range(statement.level - 1):
        package = package.parent
    parts: list[str] = []
    while (package / "__init__.py").exists():
        parts.insert(0, package.name)
        package = package.parent
    if parts:
        dotted = ".".join([*parts, *([statement.module] if statement.module else [])])
        yield Import(dotted, tuple(alias.name for alias in statement.names if alias.name != "*"))


def _run_on_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from _run_on_import(statement.orelse)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(statement, "handlers", [])]
            for block in blocks:
                yield from _run_on_import(block)


def _candidates(item: Import) -> list[str]:
    """All modules that the statement may run: packages above, and what may be modules in it."""
    parts = item.module.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return above + [f"{item.module}.{name}" for name in item.names]


def _is_own(item: Import, roots: Iterable[Path]) -> bool:
    top = item.module.partition(".")[0]
    return any((root / top).is_dir() or (root / f"{top}.py").exists() for root in roots)


def _sources(name: str, roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        path = root.joinpath(*name.split("."))
        for source in (path / "__init__.py", path.with_name(path.name + ".py")):
            if source.is_file():
                yield source
