"""The subcommands of `everstep`, and how errors become messages and exit codes.

A command's module is loaded when the command is called: all of them together take over a second,
most of it for what the other commands need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from everstep.cli.console import complain
from everstep.core.errors import EverstepError, InputError

COMMANDS: Mapping[str, str] = {
    "run": "run:run_command",
    "plan": "plan:plan_command",
    "spec": "spec:spec_command",
    "simulate": "simulate:simulate_command",
    "status": "status:status_command",
    "check": "check:check_command",
    "ui": "ui:ui_command",
    "report": "report:report_command",
    "incidents": "incidents:list_command",
    "incident": "incidents:app",
    "approve": "incidents:approve_command",
    "deny": "incidents:deny_command",
    "hot-update": "hot_update:hot_update_command",
    "updates": "hot_update:updates_command",
    "classify": "classify:classify_command",
    "stacks": "stacks:stacks_command",
    "analyze-stacks": "analyze_stacks:analyze_command",
    "logs": "logs:logs_command",
    "page": "page:page_command",
    "ckpt": "ckpt:app",
    "machine": "machine:app",
    "install": "install:install_command",
    "submit": "submit:submit_command",
    "doctor": "doctor:doctor_command",
}
"""Where each lies: a module beside this one, and a function or a group of commands in it."""


class LazyGroup(TyperGroup):
    """Commands whose modules are loaded when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """The command of that name, loaded; None when there is none."""
        place = COMMANDS.get(cmd_name)
        return None if place is None else _load(cmd_name, place)


def _load(name: str, place: str) -> TyperCommand | TyperGroup:
    module, _, attribute = place.partition(":")
    found: typer.Typer | Callable[..., Any] = getattr(
        import_module(f"everstep.cli.{module}"), attribute
    )
    if isinstance(found, typer.Typer):
        group = found
    else:
        group = typer.Typer(add_completion=False)
        group.command(name)(found)
    command = cast(TyperCommand | TyperGroup, typer.main.get_command(group))
    command.name = name
    return command


app = typer.Typer(
    name="everstep",
    cls=LazyGroup,
    help="Keeps a long training job productive: detects, isolates, restarts in place.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass


def call(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says: no traceback for anything that a person can mend.

    Args:
        arguments: Those of the command; the process's own when left out.
    """
    try:
        code = app(arguments, prog_name="everstep", standalone_mode=False)
    except _UsageError as error:
        _complain_of_usage(error, sys.argv[1:] if arguments is None else arguments)
        sys.exit(2)
    except InputError as error:
        complain(str(error))
        sys.exit(2)
    except EverstepError as error:
        complain(str(error))
        sys.exit(1)
    except Exception as error:
        if not _is_from_server(error):
            raise
        complain(f"the Temporal server says: {error}")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


_UsageError = cast("type[Exception]", typer.BadParameter.__base__)
"""What a command line is refused with; of its kinds Typer names only this one."""


def _complain_of_usage(error: Exception, arguments: Sequence[str]) -> None:
    given = cast(Any, error)
    if type(error).__name__ == "NoArgsIsHelpError":
        # The help, which was asked for by giving nothing, stands there already.
        return
    said = str(given.format_message()).strip().rstrip(".")
    # An option that lacks its value is refused without word of whose it is.
    path = _path_of(arguments) if given.ctx is None else given.ctx.command_path
    complain(f"{said}. See: {path} --help.")


def _path_of(arguments: Sequence[str]) -> str:
    """The command that a command line names, with the groups that it is in."""
    command: Any = typer.main.get_command(app)
    path = ["everstep"]
    for name in arguments:
        if not isinstance(command, TyperGroup):
            break
        # Groups look into their own tables for it, and not into the context.
        command = command.get_command(cast(Any, None), name)
        if command is None:
            break
        path.append(name)
    return " ".join(path)


def _is_from_server(error: Exception) -> bool:
    # Only commands that talk to a server have loaded what its errors are made of.
    service = sys.modules.get("temporalio.service")
    return service is not None and isinstance(error, service.RPCError)
