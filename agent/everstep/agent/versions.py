"""Code versions on this machine, made ready by the job's own command where the spec has one.

A version is known by its content, so nothing may be built in it where it lies, perhaps in a folder
that machines share: the command runs in a copy of the machine's own, and ranks run there, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from everstep.agent import code, environment, process
from everstep.agent.config import MachineConfig
from everstep.agent.launcher import last_lines
from everstep.agent.leash import leashed
from everstep.core.errors import PermanentError
from everstep.core.orders import PrepareOrder, PrepareReport

SAID_LINES = 5
"""Of a command that failed, in the answer to whoever asked for the version."""

_DEATH_PATIENCE_S = 5.0


class Versions:
    """Looks at versions, and makes them ready. Everything here blocks; any thread may call it.

    Args:
        config: The machine's part in the job.
    """

    def __init__(self, config: MachineConfig) -> None:
        self._config = config
        self._folder = config.directory / "code"
        # Apart from the machine's other processes, which end when its ranks are stopped.
        self._owner = f"{config.owner}{process.PREPARING}"
        self._one = threading.Lock()

    def prepare(self, order: PrepareOrder) -> PrepareReport:
        """Whether a version can run here; when this returns, it is ready to."""
        report = code.prepare(order, self._config.machine, self._config.command)
        if report.problem or not self._config.prepare:
            return report
        try:
            self.place(order.directory)
        except PermanentError as error:
            return PrepareReport(report.machine, report.version, str(error))
        return report

    def place(self, directory: str) -> str:
        """Where ranks run a version: where it lies, or in a copy that was made ready.

        Args:
            directory: Where the version lies.

        Raises:
            PermanentError: The version cannot be copied, or the command fails.
        """
        if not self._config.prepare:
            return directory
        with self._one:
            try:
                return str(self._ready_copy(Path(directory)))
            except OSError as error:
                raise PermanentError(f"{directory} cannot be copied: {error}"[:300]) from error

    def _ready_copy(self, source: Path) -> Path:
        version = code.digest(source)
        copy, done = self._folder / version, self._folder / f"{version}.ready"
        if done.exists():
            return copy
        # What an earlier agent had begun, and its processes, are of no use.
        process.kill_strays(self._owner, None, _DEATH_PATIENCE_S)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy, symlinks=True)
        self._run(copy, self._folder / f"{version}.log")
        done.touch()
        return copy

    def _run(self, copy: Path, log: Path) -> None:
        command, limit_s = self._config.prepare, self._config.prepare_timeout_s
        program = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        variables = environment.machine_environment(os.environ, self._config)
        with log.open("wb") as output:
            running = subprocess.Popen(
                leashed(program),
                env={**variables, process.ENV_OWNER: self._owner},
                cwd=copy,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            status = running.wait(limit_s)
            how = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            status, how = None, f"took longer than {limit_s:g} s"
        finally:
            # What it left running, or could not end in time.
            process.kill_strays(self._owner, None, _DEATH_PATIENCE_S)
            running.wait()
        if status != 0:
            said = " | ".join(last_lines(log)[-SAID_LINES:]) or "it said nothing"
            raise PermanentError(f"`{' '.join(command)}` {how}: {said}")
