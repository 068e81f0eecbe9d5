"""`everstep simulate`: what a policy would make of ninety days of a job, in seconds."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import Progress

from everstep.cli import html_page
from everstep.cli.console import counted, err, out
from everstep.cli.simulate_html import page
from everstep.cli.simulate_view import Policies, as_json, show
from everstep.core.errors import InputError
from everstep.core.simulation.engine import Run, simulate
from everstep.core.simulation.faults import Fault, draw_faults
from everstep.core.simulation.figures import Figures, figures
from everstep.core.simulation.setting import Choices, Durations, Method, Setting
from everstep.spec.job import JobSpec
from everstep.spec.load import read_spec
from everstep.spec.load_simulation import check_times, load_durations, load_policy, load_stream
from everstep.spec.simulation import StreamSpec, setting, spec_for_workflows, spec_with
from everstep.workers.simulation.controller import OBJECTS_BETWEEN_COLLECTIONS
from everstep.workers.simulation.parts import Given, SoFar
from everstep.workers.simulation.run import simulate as simulate_with_workflows

MOST_DAYS = 3650.0


def simulate_command(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The job.")],
    days: Annotated[float, typer.Option("--days", help="How long it runs.")] = 90.0,
    stream: Annotated[
        str,
        typer.Option(
            "--stream",
            metavar="FILE|PRESET",
            help="What fails: paper, a YAML file of ways to fail, or JSON lines of faults.",
        ),
    ] = "paper",
    durations: Annotated[
        str,
        typer.Option(
            "--durations",
            metavar="FILE|PRESET",
            help="How long things take: paper, measured, or a YAML file.",
        ),
    ] = "paper",
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy", metavar="FILE", help="Compare with this policy, too; may be repeated."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="Times to run, each with faults of its own.")
    ] = 1,
    first_seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 1,
    engine: Annotated[
        Literal["counted", "workflows"],
        typer.Option(
            "--engine",
            help="counted: a clock that is only counted up. workflows: the real workflows, on a"
            " server that skips time; minutes, for one seed and the job's own policy or one other.",
        ),
    ] = "counted",
    kills: Annotated[
        int, typer.Option("--kills", metavar="N", help="Times to kill the workflows' controller.")
    ] = 0,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="One page that needs no network, for others."),
    ] = None,
    json_wanted: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Simulate a job of any size for months, with the ladder that decides in production.

    What the files of its options may say stands in docs/simulation.md.
    """
    _in_range(days, seeds, kills, engine)
    if html is not None:
        html_page.check(html)
    job, faults = read_spec(spec), load_stream(stream)
    times = load_durations(durations)
    check_times(faults, times, stream)
    choices = [Choices(), *(load_policy(path) for path in policy or [])]
    began_s = time.monotonic()
    numbers = range(first_seed, first_seed + seeds)
    if engine == "workflows":
        # The job's own policy is not run beside another one: that would be minutes more.
        choices = choices[1:] or choices
        first, found = _run_workflows(job, faults, times, choices, numbers, days, kills)
    else:
        first, found = _run_all(job, faults, times, choices, numbers, days)
    took_s = time.monotonic() - began_s
    policies = Policies(job.name, days, found)
    if html is not None:
        html_page.write(html, page(first, policies))
        (err if json_wanted else out).print(f"written to {html}")
    if json_wanted:
        typer.echo(json.dumps(as_json(policies), indent=2))
    elif html is None:
        show(first, policies)
    runs = counted(len(choices) * seeds, "run")
    err.print(f"{runs} of {counted(days, 'day')} in {took_s:.1f} s")


def _in_range(days: float, seeds: int, kills: int, engine: str) -> None:
    if not 0 < days <= MOST_DAYS:
        fix = f"Give more than 0 and at most {MOST_DAYS:g}."
        raise InputError("--days", f"{days:g} is out of range", fix)
    if seeds < 1:
        raise InputError("--seeds", f"{seeds} is too few", "Give at least 1.")
    if kills < 0:
        raise InputError("--kills", f"{kills} is too few", "Give at least 0.")
    if kills and engine != "workflows":
        what = f"{kills} controllers cannot be killed where there is none"
        raise InputError("--kills", what, "Give --engine workflows, too.")


def faults_of(
    stream: StreamSpec | Sequence[Fault], machines: int, days: float, seed: int
) -> Sequence[Fault]:
    """The faults of one run: drawn with its seed, or as they were recorded.

    Raises:
        InputError: A recorded fault is at a slot that the job does not have.
    """
    if isinstance(stream, StreamSpec):
        ways = [way.way() for way in stream.ways]
        return tuple(draw_faults(ways, stream.every_s(machines), machines, days, seed))
    for fault in stream:
        if fault.slots[-1] >= machines:
            what = f"fault {fault.number} is at slot {fault.slots[-1]} of {machines}"
            raise InputError("--stream", what, f"Give slots from 0 to {machines - 1}.")
    return stream


def _run_all(
    job: JobSpec,
    stream: StreamSpec | Sequence[Fault],
    times: Durations,
    choices: Sequence[Choices],
    seeds: Sequence[int],
    days: float,
) -> tuple[Run, dict[str, list[Figures]]]:
    """All policies with all seeds; the first run of the first policy, and the figures of all."""
    first: Run | None = None
    found: dict[str, list[Figures]] = {choice.name: [] for choice in choices}
    if len(found) < len(choices):
        raise InputError("--policy", "two policies have one name", "Name each otherwise.")
    with _progress() as progress:
        bar = progress.add_task("simulating", total=len(choices) * len(seeds))
        for seed in seeds:
            faults = faults_of(stream, job.machines, days, seed)
            for choice in choices:
                run = _run(setting(job, times, choice, seed, days), faults, progress, bar)
                first = first or run
                found[choice.name].append(figures(run))
    assert first is not None  # noqa: S101 - there is one policy and one seed at least
    return first, found


def _run(given: Setting, faults: Sequence[Fault], progress: Progress, bar: Any) -> Run:
    done = 0.0

    def tell(ratio: float) -> None:
        nonlocal done
        progress.advance(bar, ratio - done)
        done = ratio

    run = simulate(given, faults, tell)
    tell(1.0)
    return run


def _run_workflows(
    job: JobSpec,
    stream: StreamSpec | Sequence[Fault],
    times: Durations,
    choices: Sequence[Choices],
    seeds: Sequence[int],
    days: float,
    kills: int,
) -> tuple[Run, dict[str, list[Figures]]]:
    """One run through the real workflows."""
    choice, *others = choices
    if others:
        what = f"{len(choices)} are given, and the workflows run with one"
        raise InputError("--policy", what, "Give one, or leave --engine out.")
    if len(seeds) > 1:
        raise InputError("--seeds", f"{len(seeds)} runs take too long", "Leave it out.")
    if choice.method is not Method.LADDER or choice.retry_first:
        what = f"policy {choice.name!r} is not what the workflows do"
        raise InputError("--policy", what, "Leave --engine out.")
    small = spec_for_workflows(spec_with(job, choice))
    faults = faults_of(stream, job.machines, days, seeds[0])
    seen = SoFar(0.0, 0, 0)
    with _progress() as progress:
        bar = progress.add_task("starts", total=1.0)

        def tell(so_far: SoFar) -> None:
            nonlocal seen
            seen = so_far
            met = counted(so_far.incidents, "incident")
            told = f"{so_far.ratio * days:.1f} of {counted(days, 'day')}, {met}"
            progress.update(bar, completed=so_far.ratio, description=told)

        given = Given(small, kills=kills, progress=tell)
        given_setting = setting(small, times, choice, seeds[0], days)
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        run = asyncio.run(simulate_with_workflows(given_setting, faults, given))
    if kills:
        err.print(f"{seen.kills} of {kills} controllers were killed, as incidents allowed")
    return run, {choice.name: [figures(run)]}


def _progress() -> Progress:
    return Progress(console=err, transient=True, disable=not err.is_terminal)
