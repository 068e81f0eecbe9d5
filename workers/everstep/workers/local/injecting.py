"""Faults that a local run was asked for, brought about when their steps are reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from everstep.core.errors import TransientError
from everstep.workers.local import faults
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.narrator import Narrator
from everstep.workers.local.processes import Processes


class Injector:
    """Breaks a run as planned, and notes in its folder what was broken when.

    Args:
        planned: The faults.
        processes: Those of the run.
        folder: The run's.
        narrator: Who tells a person.

    Attributes:
        of_code: Faults of the code, which a run begins with.
        break_things: Whether some machine has to look for what is broken on it.
    """

    def __init__(
        self,
        planned: Sequence[faults.Fault],
        processes: Processes,
        folder: RunFolder,
        narrator: Narrator,
    ) -> None:
        code = faults.FaultKind.CODE_ERROR
        self.of_code = [fault for fault in planned if fault.kind is code]
        self.break_things = any(fault.kind not in faults.KILLED for fault in planned)
        self._plan = faults.FaultPlan(
            [fault for fault in planned if fault.kind is not code], self._schedule
        )
        self._processes = processes
        self._folder = folder
        self._narrator = narrator

    def reached(self, step: int) -> None:
        """Bring about what is due once all ranks have finished this step."""
        self._plan.reached(step)

    def tell_leftovers(self) -> None:
        """Tell of faults whose step never came."""
        for fault in self._plan.waiting:
            self._narrator.say(f"fault {fault} was never due: no such step was reported")

    def note(self, fault: faults.Fault, what: str) -> None:
        """Keep that a fault was brought about now."""
        entry = {"fault": str(fault), "at_s": time.time()}
        known = self._folder.read_state().get("faults", [])
        self._folder.write_state(faults=[*known, entry])
        self._narrator.say(f"fault injected: {what} ({fault})")

    def _schedule(self, fault: faults.Fault) -> None:
        if fault.delay_s == 0:
            self._fire(fault)
        else:
            asyncio.get_running_loop().call_later(fault.delay_s, self._fire, fault)

    def _fire(self, fault: faults.Fault) -> None:
        try:
            if fault.kind is faults.FaultKind.RANK_KILLED:
                faults.kill_rank(int(fault.target), self._folder.machines)
            elif fault.kind is faults.FaultKind.MACHINE_LOST:
                faults.kill_machine(self._processes.all[f"agent-{fault.target}"].pid)
            elif fault.kind in faults.BROKEN:
                faults.break_machines(fault, self._folder.machines)
                self.note(fault, faults.BROKEN[fault.kind])
                return
            else:
                self._processes.all[fault.kind.value.removesuffix("_killed")].kill()
        except TransientError as error:
            self._narrator.say(f"fault {fault} hit nobody: {error}")
            return
        victim = fault.kind.value.removesuffix("_killed").removesuffix("_lost")
        at = f"{victim} {fault.target}".strip()
        self.note(fault, f"SIGKILL to {at}")
