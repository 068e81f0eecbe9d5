"""`everstep run SPEC`: a whole cluster on this machine, from first process to final table."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from temporalio.service import RPCError

from everstep.activities.archive import load_incidents
from everstep.cli.console import complain, counted, err, out
from everstep.cli.find import RUNS
from everstep.cli.incidents import incident_table, timeline_table
from everstep.cli.main import STOPPED
from everstep.core import ettr
from everstep.core.errors import EverstepError, InputError
from everstep.core.record import IncidentRecord, TimelineEntry
from everstep.spec.job import JobSpec
from everstep.spec.load import load_spec
from everstep.workers import settings
from everstep.workers.local import faults, ports, preflight, server
from everstep.workers.local.cluster import LocalRun, RunOptions, machine_names
from everstep.workers.local.connecting import NoServerError
from everstep.workers.local.folder import RunFolder, claim
from everstep.workers.steps import load_steps
from everstep.workers.telemetry import Snapshot
from everstep.workflows.messages import JobResult

TELL_STEP_EVERY_S = 5.0


def run_command(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The job's spec (YAML).")],
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run; runs/NAME when left out.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="Inject a fault: KIND@STEP[+SECONDS][:TARGET][,OPTION]. May be repeated."
            f" {faults.told()}"
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace a finished run in the same folder.")
    ] = False,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Ignore checkpoints of earlier runs in storage."),
    ] = False,
    temporal_port: Annotated[
        int | None, typer.Option(help="Port of the Temporal server.", min=1, max=65535)
    ] = None,
    ui_port: Annotated[
        int | None, typer.Option(help="Port of Temporal's web UI.", min=1, max=65535)
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Serve Prometheus metrics; see metrics/ of the run.")
    ] = False,
) -> None:
    """Run a job on this machine, each machine of it a process, and recover it from faults."""
    spec = load_spec(spec_file)
    if spec.safety.webhook:
        settings.require_variable("safety.webhook", spec.safety.webhook, settings.secrets())
    names = machine_names(spec)
    world_size = spec.layout().world_size
    planned = tuple(faults.parse(text, world_size, names) for text in fault or [])
    for wanted, option in ((temporal_port, "--temporal-port"), (ui_port, "--ui-port")):
        if wanted is not None:
            ports.wanted_port(ports.HOST, wanted, option)
    if temporal_port is not None and temporal_port == ui_port:
        raise InputError("--ui-port", f"port {ui_port} is --temporal-port, too", "Give another.")
    path = run_dir or RUNS / spec.name
    # Before an earlier run is replaced.
    preflight.check_host(world_size, len(names), path)
    if server.named_by_environment() is None:
        server.find_binary()
    asyncio.run(_carry(spec, path, fresh, planned, (temporal_port, ui_port), metrics, from_scratch))


async def _carry(
    spec: JobSpec,
    path: Path,
    fresh: bool,
    planned: tuple[faults.Fault, ...],
    wanted_ports: tuple[int | None, int | None],
    metrics: bool,
    from_scratch: bool,
) -> NoReturn:
    """Claim the folder, run to the end or until a person's signal, and end the process.

    Raises:
        InputError: The folder cannot be had.
    """
    interrupted = Interrupted()
    folder, _ = claim(path, fresh)
    voice = Voice()
    voice.say(
        f"run of {spec.name}: {spec.layout().world_size} ranks on {spec.machines} machines; {path}"
    )
    options = RunOptions(folder, planned, *wanted_ports, metrics, from_scratch)
    local = LocalRun(spec, options, voice)
    code = await _until_done(local, folder, interrupted)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not the interpreter's own exit: it can abort inside the SDK's threads after all is done, and
    # would wait for threads that copy code.
    os._exit(code)


class Interrupted:
    """A person's signals: the first one stops the run, further ones change nothing.

    Needs a running loop; from then on a signal is dealt with at the loop's next turn only.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen = False
        self._task: asyncio.Task[JobResult] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._signalled)

    def __bool__(self) -> bool:
        return self._seen

    def stops(self, task: asyncio.Task[JobResult]) -> None:
        """Name the task that the first signal cancels."""
        self._task = task

    def _signalled(self) -> None:
        if not self._seen and self._task is not None:
            self._task.cancel()
        self._seen = True


async def _until_done(local: LocalRun, folder: RunFolder, interrupted: Interrupted) -> int:
    """The exit code, when everything is stopped."""
    task = asyncio.create_task(local.run())
    interrupted.stops(task)
    try:
        result = await task
    except asyncio.CancelledError:
        folder.write_state(phase="was stopped", ended_at_s=time.time())
        complain("stopped; no process is left")
        return STOPPED
    except (InputError, NoServerError) as error:
        # As if it had not been tried.
        folder.discard()
        complain(str(error))
        return 2 if isinstance(error, InputError) else 1
    except (EverstepError, OSError, RPCError) as error:
        with contextlib.suppress(OSError):
            folder.write_state(phase="failed", ended_at_s=time.time())
        complain(str(error))
        err.print(f"Logs: {folder.logs} and {folder.machines}")
        return 1
    folder.write_state(
        phase="finished",
        ended_at_s=result.finished_at_s,
        job_started_at_s=result.started_at_s,
        summary=summarize(folder, result),
    )
    print_summary(folder)
    return STOPPED if interrupted else 0


def summarize(folder: RunFolder, result: JobResult) -> dict[str, float | int | None]:
    """The figures of a finished run, as kept in run.json; None for what steps would tell."""
    steps = load_steps(folder.steps)
    meter = ettr.measure(steps, result.started_at_s, result.finished_at_s)
    records = load_incidents(folder.incidents)
    return {
        "attempts": result.attempts,
        "incidents": result.incidents,
        "steps": max((seen.step for seen in steps), default=None),
        "steps_lost": sum(record.lost_steps for record in records) if steps else None,
        "wall_s": round(meter.wall_s, 3),
        "productive_s": round(meter.productive_s, 3),
        "redone_s": round(meter.redone_s, 3),
        "ettr": round(meter.ratio, 4) if steps else None,
    }


def summary_line(figures: dict[str, Any]) -> str:
    """A finished run in one line."""
    counts = (
        f"{counted(figures['attempts'], 'attempt')}, {counted(figures['incidents'], 'incident')}"
    )
    if figures["steps"] is None:
        return (
            f"finished after {figures['wall_s']:.1f} s: {counts}; "
            "the script reports no steps, so steps lost and ETTR are unknown"
        )
    return (
        f"finished: {figures['steps']} steps in {figures['wall_s']:.1f} s, {counts}, "
        f"{counted(figures['steps_lost'], 'step')} lost, ETTR {figures['ettr']:.1%} "
        f"({figures['productive_s']:.1f} s of training;"
        " the rest is start-up, checkpoints and recovery)"
    )


def print_summary(folder: RunFolder) -> None:
    """The final tables of a finished run."""
    records = load_incidents(folder.incidents)
    for record in records:
        out.print(timeline_table(record))
    if records:
        out.print(incident_table(records))
    out.print(summary_line(folder.read_state()["summary"]))
    out.print(
        f"everything is kept in {folder.path}: logs, machines, incidents, output, temporal.db"
    )


class Voice:
    """Tells a person on the terminal what happens, each line with seconds since the start."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._told_step_s = 0.0
        self._attempt = 0
        self._started = False
        self._first_step = ""
        self._told: dict[int, list[TimelineEntry]] = {}

    def say(self, text: str) -> None:
        """One line."""
        err.print(f"[dim]{time.monotonic() - self._start_s:7.1f} s[/] ", end="")
        err.print(text, markup=False)

    def started(self) -> None:
        """Said once, and of later starts by their incidents."""
        if not self._started:
            self.say("all ranks are started; the first step takes longest")
        self._started = True

    def progress(self, snapshot: Snapshot) -> None:
        """A line now and then, and for the first step of each attempt."""
        if snapshot.slowest is None:
            return
        # Steps are heard of at once, the job's phase when it is asked next.
        self.started()
        now_s = time.monotonic()
        is_first = snapshot.attempt != self._attempt
        if not is_first and now_s - self._told_step_s <= TELL_STEP_EVERY_S:
            return
        self._tell_first_step()
        self._attempt, self._told_step_s = snapshot.attempt, now_s
        text = f"step {snapshot.slowest} finished by all ranks (attempt {snapshot.attempt})"
        if is_first and snapshot.attempt > 1:
            # That it was started again is told by its incident, which is asked less often.
            self._first_step = text
        else:
            self.say(text)

    def _tell_first_step(self) -> None:
        if self._first_step:
            self.say(self._first_step)
        self._first_step = ""

    def incident(self, record: IncidentRecord) -> None:
        """The lines of the story that were not told yet."""
        told = self._told.setdefault(record.incident, [])
        for entry in record.timeline:
            if entry not in told:
                told.append(entry)
                since_s = entry.at_s - record.fault_at_s
                self.say(f"  incident {record.incident} {since_s:+.2f} s: {entry.text}")
        self._tell_first_step()
