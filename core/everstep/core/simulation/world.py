"""The simulated cluster: machines, code versions, faults, and how far training has come.

It has no clock: whoever drives it says when something happens, in seconds since the job's begin.
Both engines ask the same world, one for itself, the other on behalf of the fake agents and analyzer
that the real workflows talk to. Training comes to an end by at most one fault an attempt: what
befalls a job that stands still befalls it right after its next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from everstep.core.model import StepSeen
from everstep.core.simulation.chance import Chance, Spread
from everstep.core.simulation.faults import Cause, Fault, Shows
from everstep.core.simulation.setting import Setting
from everstep.core.vocabulary import Check

GOES_ON = (Shows.SLOW, Shows.WISH)
"""What does not stop training by itself."""

FIRST_STEPS = 1.5
"""Steps that an attempt makes before the first fault: so that it is seen to have begun."""


@dataclass(slots=True)
class Trouble:
    """A fault that has struck.

    Attributes:
        fault: Which one.
        culprits: Machines that have it; empty unless its cause is a machine.
        version: Code that ran then.
        first_attempt: The attempt in which it struck first.
        mended: Whether a person has put it right, or it has passed.
    """

    fault: Fault
    culprits: tuple[str, ...]
    version: str
    first_attempt: int
    mended: bool = False


@dataclass(frozen=True, slots=True)
class Strike:
    """How an attempt fails.

    Attributes:
        trouble: What strikes.
        attempt: Which attempt.
        at_s: When.
        alert_at_s: When it is noticed.
    """

    trouble: Trouble
    attempt: int
    at_s: float
    alert_at_s: float

    @property
    def until_s(self) -> float:
        """Until when ranks make progress."""
        goes_on = self.trouble.fault.shows in GOES_ON
        return self.alert_at_s if goes_on else self.at_s


@dataclass(slots=True)
class Attempt:
    """One start of the ranks.

    Attributes:
        number: Its number.
        from_step: Where it began.
        begun_s: When its first step began.
        until_s: Until when it makes progress.
        stopped: Whether it is over, and its steps noted.
    """

    number: int
    from_step: int
    begun_s: float
    until_s: float
    stopped: bool = False


@dataclass
class World:
    """Everything that is true of a simulated job.

    Attributes:
        setting: What it was given.
        faults: What will go wrong, in order of time.
        inspected: Whether machines are inspected, which is what detection times follow from.
        slots: Names of the machines, by slot.
        version: Code that runs.
        attempt: The newest attempt, or None before the first one.
        strike: How that one fails, or None when it lasts to the end.
        trouble: What the open incident is about.
        steps: First, last, and newly reached steps of each attempt that is over.
        struck: All strikes that were noticed, in order.
        guilty: Machines that ever had a fault.
    """

    setting: Setting
    faults: Iterable[Fault]
    inspected: bool = True
    slots: list[str] = field(default_factory=list[str])
    version: str = ""
    attempt: Attempt | None = None
    strike: Strike | None = None
    trouble: Trouble | None = None
    steps: list[StepSeen] = field(default_factory=list[StepSeen])
    struck: list[Strike] = field(default_factory=list[Strike])
    guilty: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._chance = Chance(self.setting.seed)
        self._coming = iter(self.faults)
        self._next = next(self._coming, None)
        self._troubles: list[Trouble] = []
        self._present: set[str] = set()
        self._places: dict[str, int] = {}
        self._gone: set[str] = set()
        self._furthest = 0
        self._stored = 0

    # --- Machines ---------------------------------------------------------------------------------

    def first_machines(self) -> list[str]:
        """Names of all machines that there are at first: those of the slots, then the standbys."""
        num_machines = self.setting.layout.num_machines + self.setting.standbys
        return [f"m{number}" for number in range(1, num_machines + 1)]

    def replacement(self, machine: str) -> tuple[str, float]:
        """The machine that will come for one that was taken out for good, and after how long.

        Its name follows from that one's, so that it does not matter who is taken out first: m4 is
        replaced by m4-2, and that by m4-3.
        """
        self._gone.add(machine)
        place, _, number = machine.partition("-")
        after_s = self.setting.durations.join.draw(self._chance.of("join", machine))
        return f"{place}-{int(number or 1) + 1}", after_s

    def place_of(self, machine: str) -> int | None:
        """The slot that a machine holds in the newest attempt, or None."""
        return self._places.get(machine)

    def faulty(self, test: str, machines: Iterable[str]) -> set[str]:
        """Those of the machines that a test names."""
        if test == Check.BITWISE and not self.setting.choices.bitwise:
            return set()
        named = {
            culprit
            for trouble in self._troubles
            if test in trouble.fault.found_by and not trouble.mended
            for culprit in trouble.culprits
        }
        return named & {*machines}

    def guess(self, slots: Sequence[int]) -> int:
        """One of these slots: each time another draw."""
        trouble, attempt = self.trouble, self.attempt
        assert trouble is not None and attempt is not None  # noqa: S101, PT018 - in an incident
        times = attempt.number - trouble.first_attempt
        return self._chance.of("guess", trouble.fault.number, times).choice(slots)

    def fails_everywhere(self) -> bool:
        """Whether the code is to blame, so that it fails on whatever machines it runs."""
        trouble = self.trouble
        return trouble is not None and trouble.fault.cause is Cause.CODE and self._is_there(trouble)

    def mend(self) -> None:
        """A person puts right what the open incident is about."""
        if self.trouble is not None:
            self.trouble.mended = True

    @property
    def wished_version(self) -> str:
        """The code that a person asks for."""
        assert self.trouble is not None  # noqa: S101 - a wish is noticed first
        return f"code-{self.trouble.fault.number}"

    # --- Time that things take --------------------------------------------------------------------

    def takes_s(self, purpose: str, spread: Spread, *key: object) -> float:
        """How long something takes in the open incident: the same when it is asked for again."""
        number = 0 if self.trouble is None else self.trouble.fault.number
        return spread.draw(self._chance.of(purpose, number, *key))

    def check_s(self, check: Check, number: int = 0) -> float:
        """How long a test of all machines takes.

        Args:
            check: Which test.
            number: Tells apart meetings of one links test.
        """
        if check is Check.BITWISE and not self.setting.choices.bitwise:
            return 0.0
        return self.takes_s("check", self.setting.durations.check[check], check, number)

    def restart_s(self, purpose: str, spread: Spread, attempt: int) -> float:
        """How long a part of a restart takes.

        Args:
            purpose: Which part.
            spread: Its distribution.
            attempt: The attempt that failed.
        """
        first = attempt if self.trouble is None else self.trouble.first_attempt
        return self.takes_s(purpose, spread, attempt - first)

    # --- Training ---------------------------------------------------------------------------------

    def begin(
        self, number: int, slots: Sequence[str], version: str, from_step: int, at_s: float
    ) -> None:
        """An attempt begins its first step."""
        self.slots, self.version, self._present = list(slots), version, {*slots}
        self._places = {machine: slot for slot, machine in enumerate(slots)}
        self.attempt = Attempt(number, from_step, at_s, at_s)
        self.strike = self._first_strike(self.attempt)
        end_s = self.setting.days * 86_400.0
        self.attempt.until_s = end_s if self.strike is None else min(self.strike.until_s, end_s)

    def time_of(self, step: int) -> float | None:
        """When the newest attempt has finished a step, or None if it never will."""
        attempt = self.attempt
        if attempt is None:
            return None
        at_s = attempt.begun_s + (step - attempt.from_step) * self.setting.durations.step_s
        return at_s if at_s <= attempt.until_s else None

    def newest_step(self) -> int:
        """The step that all ranks of the newest attempt have finished when it fails."""
        return 0 if self.attempt is None else self._step_at(self.attempt, self.attempt.until_s)

    def notice(self) -> Strike:
        """What strikes the newest attempt has been seen: from now on it is the matter at hand."""
        assert self.strike is not None  # noqa: S101 - only what strikes is seen
        if not self.struck or self.struck[-1] is not self.strike:
            self.struck.append(self.strike)
        self.trouble = self.strike.trouble
        if self.trouble.fault.cause in (Cause.PASSING, Cause.WISH):
            self.trouble.mended = True
        return self.strike

    def stop(self) -> bool:
        """End the newest attempt; False if that has been done."""
        attempt = self.attempt
        if attempt is None or attempt.stopped:
            return False
        attempt.stopped = True
        last = self._step_at(attempt, attempt.until_s)
        telling = {attempt.from_step + 1, attempt.from_step + 2, self._furthest, last}
        for step in sorted(telling):
            at_s = self.time_of(step)
            if attempt.from_step < step <= last and at_s is not None:
                self.steps.append(StepSeen(attempt.number, step, at_s))
        self._store(attempt)
        self._furthest = max(self._furthest, last)
        return True

    def kept_step(self) -> int:
        """The newest step of which memory holds copies."""
        attempt, every = self.attempt, self.setting.choices.checkpoint_every_steps
        if attempt is None:
            return 0
        return max(attempt.from_step, self.newest_step() // every * every)

    @property
    def stored_step(self) -> int:
        """The newest step in storage; 0 when there is none."""
        return self._stored

    # --- What happens -----------------------------------------------------------------------------

    def _step_at(self, attempt: Attempt, at_s: float) -> int:
        ran_s = max(0.0, at_s - attempt.begun_s)
        # A hair more, as the time of a step is computed the other way round.
        return attempt.from_step + int(ran_s / self.setting.durations.step_s + 1e-9)

    def _store(self, attempt: Attempt) -> None:
        every_s = self.setting.storage_every_s
        if every_s is None:
            return
        saved_at_s = attempt.until_s // every_s * every_s
        if saved_at_s >= attempt.begun_s:
            self._stored = max(self._stored, self._step_at(attempt, saved_at_s))

    def _first_strike(self, attempt: Attempt) -> Strike | None:
        self._troubles = [trouble for trouble in self._troubles if self._may_return(trouble)]
        soonest_s = attempt.begun_s + FIRST_STEPS * self.setting.durations.step_s
        found: tuple[float, Trouble] | None = None
        for trouble in self._troubles:
            at_s = max(soonest_s, attempt.begun_s + trouble.fault.returns_s)
            if self._is_there(trouble) and (found is None or at_s < found[0]):
                found = at_s, trouble
        fault = self._next
        if fault is not None and (found is None or max(soonest_s, fault.at_s) < found[0]):
            found = max(soonest_s, fault.at_s), self._new(fault, attempt)
            self._next = next(self._coming, None)
        if found is None:
            return None
        at_s, trouble = found
        times = self.setting.durations
        detect = times.detect if self.inspected else times.detect_by_timeout
        spread = detect[trouble.fault.detection]
        chance = self._chance.of("detect", trouble.fault.number)
        return Strike(trouble, attempt.number, at_s, at_s + spread.draw(chance))

    def _new(self, fault: Fault, attempt: Attempt) -> Trouble:
        of_machine = fault.cause is Cause.MACHINE
        culprits = tuple(self.slots[slot] for slot in fault.slots) if of_machine else ()
        trouble = Trouble(fault, culprits, self.version, attempt.number)
        self._troubles.append(trouble)
        self.guilty.update(culprits)
        return trouble

    def is_in_job(self, trouble: Trouble) -> bool:
        """Whether a machine that has this still holds a slot."""
        return trouble.fault.cause is Cause.MACHINE and self._is_there(trouble)

    def strike_at(self, at_s: float) -> Strike:
        """What was noticed then, or next to then."""
        return min(self.struck, key=lambda strike: abs(strike.alert_at_s - at_s))

    def _may_return(self, trouble: Trouble) -> bool:
        """False once it can never be there again, nor be found by any test."""
        of_machine = trouble.fault.cause is Cause.MACHINE
        return not (trouble.mended or (of_machine and self._gone.issuperset(trouble.culprits)))

    def _is_there(self, trouble: Trouble) -> bool:
        """Whether what caused it is still part of the job."""
        if trouble.mended:
            return False
        if trouble.fault.cause is Cause.MACHINE:
            return not self._present.isdisjoint(trouble.culprits)
        return trouble.version == self.version
