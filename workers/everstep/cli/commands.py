"""The subcommands of `everstep`, and how errors become messages and exit codes."""

from __future__ import annotations

import sys

import typer
from temporalio.service import RPCError

from everstep.cli import (
    analyze_stacks,
    check,
    ckpt,
    classify,
    incidents,
    logs,
    machine,
    page,
    plan,
    run,
    spec,
    stacks,
    status,
    ui,
)
from everstep.cli.console import complain
from everstep.core.errors import EverstepError, InputError

app = typer.Typer(
    name="everstep",
    help="Keeps a long training job productive: detects, isolates, restarts in place.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("run")(run.run_command)
app.command("plan")(plan.plan_command)
app.command("spec")(spec.spec_command)
app.command("status")(status.status_command)
app.command("check")(check.check_command)
app.command("ui")(ui.ui_command)
app.command("incidents")(incidents.list_command)
app.command("classify")(classify.classify_command)
app.command("stacks")(stacks.stacks_command)
app.command("analyze-stacks")(analyze_stacks.analyze_command)
app.command("approve")(incidents.approve_command)
app.command("deny")(incidents.deny_command)
app.command("page")(page.page_command)
app.command("logs")(logs.logs_command)
app.add_typer(incidents.app, name="incident", help="Look at one incident, or let it go on.")
app.add_typer(ckpt.app, name="ckpt", help="What is held of a run's state.")
app.add_typer(machine.app, name="machine", help="Machines of a local run.")


def call() -> None:
    """Do what the command line says: no traceback for anything that a person can mend."""
    try:
        app()
    except InputError as error:
        complain(str(error))
        sys.exit(2)
    except EverstepError as error:
        complain(str(error))
        sys.exit(1)
    except RPCError as error:
        complain(f"the Temporal server says: {error.message}")
        sys.exit(1)
