"""`everstep check`: how this machine is, by its own senses and, if it is free, by its own tests."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everstep.agent.checks.alone import check_alone
from everstep.agent.probes.host import own_cgroup
from everstep.agent.probes.links import Relevance
from everstep.agent.probes.monitor import MonitorConfig
from everstep.agent.probes.once import inspect
from everstep.cli.console import err, out
from everstep.core.orders import CheckResult
from everstep.core.senses.inspection import Inspection, exit_code, unobservable
from everstep.core.vocabulary import Check, Verdict

SOMEWHERE_ELSE = ("192.0.2.1", "2001:db8::1")
"""Addresses that stand for any other machine (RFC 5737, 3849): reached by the default routes."""

WORDS = {
    Verdict.HEALTHY: "[green]healthy[/]",
    Verdict.FAULTY: "[bold red]faulty[/]",
    Verdict.UNOBSERVABLE: "[yellow]could not tell[/]",
}

TESTS = {
    Check.GPU: "products, memory, bandwidth",
    Check.MACHINE: "all-to-all between its ranks",
    Check.BITWISE: "one step of a reference model, twice",
}

WORST_FIRST = (Verdict.FAULTY, Verdict.UNOBSERVABLE, Verdict.HEALTHY)


def check_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    gpus: Annotated[
        int | None,
        typer.Option(help="How many GPUs there should be; 0 leaves them out.", min=0),
    ] = None,
    paths: Annotated[
        list[str] | None,
        typer.Option("--path", help="Where a job would read and write; may be given again."),
    ] = None,
    interfaces: Annotated[
        list[str] | None,
        typer.Option(
            "--interface",
            help="Network interface, or InfiniBand port such as mlx5_0:1, that matters; may be"
            " given again. Else NCCL_SOCKET_IFNAME, NCCL_IB_HCA, or the default route decide.",
        ),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also do what a job does to a suspect machine while training is stopped: products,"
            " memory and bandwidth, exchange between its ranks, bits of a reference model. Needs"
            " torch and takes a minute or two; nothing else should run meanwhile.",
        ),
    ] = False,
    deadline_s: Annotated[
        float, typer.Option(help="How long each deep check may take.", min=1.0)
    ] = 120.0,
) -> None:
    """Inspect this machine once: host, network, GPUs.

    Exit code: 0 all healthy, 1 something is faulty, 3 nothing is faulty but something could not be
    told.
    """
    found = asyncio.run(
        inspect(
            MonitorConfig(
                machine=socket.gethostname(),
                paths=tuple(paths or (os.getcwd(), "/dev/shm")),  # noqa: S108, PTH109
                relevance=Relevance(
                    given=tuple(interfaces or ()),
                    nccl_socket_ifname=os.environ.get("NCCL_SOCKET_IFNAME", ""),
                    nccl_ib_hca=os.environ.get("NCCL_IB_HCA", ""),
                    addresses=SOMEWHERE_ELSE,
                ),
                gpus=gpus,
                own_cgroup=own_cgroup(),
            )
        )
    )
    found += absent(paths or ())
    if deep:
        found += inspected(asyncio.run(check_alone(gpus, deadline_s, announce)))
    if as_json:
        out.print_json(json.dumps(describe(found)))
    else:
        show(found)
    raise typer.Exit(exit_code(found))


def absent(paths: Sequence[str]) -> list[Inspection]:
    """Paths that are not there, whatever their mount is like: nothing was learnt of them."""
    return [
        unobservable("host.path", path, "there is no such path")
        for path in paths
        if not os.path.exists(path)  # noqa: PTH110
    ]


def announce(check: Check) -> None:
    """Say what is going on while a person waits."""
    err.print(f"[dim]checking: {TESTS[check]} ...[/]")


def inspected(results: Sequence[CheckResult]) -> list[Inspection]:
    """Results of deep checks, in the form of all others."""
    return [
        Inspection(
            f"deep.{result.check}",
            result.device or "-",
            result.verdict,
            "; ".join(
                [
                    f"{result.detail} ({result.took_s:.1f} s)",
                    *(f"{name} {value:.3g}" for name, value in result.figures),
                ]
            ),
        )
        for result in results
    ]


def describe(found: Sequence[Inspection]) -> dict[str, Any]:
    """What `everstep check --json` prints."""
    return {
        "machine": socket.gethostname(),
        "exit_code": exit_code(found),
        "inspections": [asdict(inspection) for inspection in found],
    }


def show(found: Sequence[Inspection]) -> None:
    """A table with the worst on top, and one line that sums it up."""
    table = Table("inspection", "of", "verdict", "why")
    for inspection in sorted(found, key=lambda i: WORST_FIRST.index(i.verdict)):
        table.add_row(
            inspection.item,
            escape(inspection.subject),
            WORDS[inspection.verdict],
            escape(inspection.detail),
        )
    out.print(table)
    counts = {v: sum(1 for i in found if i.verdict is v) for v in WORST_FIRST}
    out.print(", ".join(f"{counts[v]} {WORDS[v]}" for v in WORST_FIRST))
