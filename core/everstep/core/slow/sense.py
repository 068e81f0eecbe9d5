"""The sense for fail-slow machines: rounds of votes over what ranks say, and one alert a machine.

A round in which a rank evaluated, saved a checkpoint or was paused, or in which a machine was lost,
does not count, nor does the first of an attempt. Who was found is told once an attempt.

One machine is named where it can be told which: its ranks' own steps cost more, or its own senses
say that it is hot, slowed or badly connected while the job is slow. Where several machines got
enough votes, and no other evidence singles one out, the smallest parallel group around them goes.
Departs from the paper, which always takes the group: it votes by stacks, in which those that wait
for a slow rank look as odd as the rank itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.core.groups import Layout
from everstep.core.model import Alert, RankProgress
from everstep.core.senses.inspection import Inspection, faulty, healthy, unobservable
from everstep.core.slow.ballot import Ballot, VotePolicy
from everstep.core.slow.telling import Table, lines_of, sentence, table_of
from everstep.core.slow.usual import Standing, Usual
from everstep.core.slow.work import Costs, Measure, WorkBook
from everstep.core.stacks.domain import MACHINE, Domain, domain_of
from everstep.core.vocabulary import Observer, Phase, Symptom

ITEM = "job.slow_machine"

MOST_SLOTS = 4
"""One in so many machines, or one, may stand out in a round: if more do, it is the job that changed
and not they."""


@dataclass(slots=True)
class _Attempt:
    """What is known of one attempt."""

    number: int
    work: WorkBook
    ballot: Ballot
    usual: dict[Measure, Usual]
    phases: dict[int, Phase] = field(default_factory=dict[int, Phase])
    machines: dict[int, str] = field(default_factory=dict[int, str])
    began_s: float | None = None
    disturbed: bool = True
    standings: dict[Measure, Standing] = field(default_factory=dict[Measure, Standing])
    costs: Mapping[Measure, Costs] = field(default_factory=dict[Measure, Costs])
    raised: dict[str, str] = field(default_factory=dict[str, str])


class SlowSense:
    """Takes in the progress of all ranks and says which machine slows them. Keeps no clock.

    Args:
        layout: The job's ranks and machines.
        policy: When votes name a machine.
    """

    def __init__(self, layout: Layout, policy: VotePolicy) -> None:
        self._layout = layout
        self._policy = policy
        self._suspected: dict[str, tuple[str, ...]] = {}
        self._now = self._attempt(0)

    def note(self, progress: RankProgress) -> None:
        """Take in what a rank said."""
        if progress.attempt > self._now.number:
            self._now = self._attempt(progress.attempt)
        now = self._now
        if progress.attempt < now.number:
            return
        now.phases[progress.rank] = progress.phase
        now.machines[self._layout.machine_of(progress.rank)] = progress.machine
        if progress.phase is Phase.STEP:
            now.work.note(progress)
        else:
            self.disturb()

    def suspect(self, machine: str, details: Sequence[str]) -> None:
        """What a machine's own senses see now that slows it: heat, clock, a link; maybe nothing."""
        self._suspected[machine] = tuple(details)

    def disturb(self) -> None:
        """What happens now is no example of anything: the round does not count."""
        self._now.disturbed = True
        self._now.work.forget()

    def look(self, now_s: float, declined: bool) -> list[Alert]:
        """Close the round if it is over.

        Args:
            now_s: Time on the observer's clock.
            declined: Whether the job's steps are slower than usual, whoever slows them.
        """
        now = self._now
        if now.began_s is None:
            self._begin_round(now_s)
        if now.began_s is None or now_s - now.began_s < self._policy.round_s:
            return []
        disturbed, costs = now.disturbed, now.work.costs()
        evidence = self._suspects() if declined else []
        if not (disturbed or costs or evidence):
            # Steps are longer than a round.
            return []
        self._begin_round(now_s)
        return [] if disturbed else self._close(costs, evidence, now_s)

    def inspection(self) -> Inspection:
        """How it stands; could-not-tell until it has learned what is usual."""
        now = self._now
        if now.raised:
            detail = "; ".join(sorted(set(now.raised.values())))
            return faulty(ITEM, "job", Symptom.MFU_DECLINE, detail)
        if not now.standings:
            return unobservable(ITEM, "job", "too few rounds to know what is usual")
        ranks = sorted({rank for s in now.standings.values() for rank in s.outliers})
        margin = min(standing.margin for standing in now.standings.values())
        who = f"ranks {', '.join(map(str, ranks))} stood out" if ranks else "nobody stood out"
        return healthy(ITEM, "job", f"{who} in the last round, by more than {margin:.1%}")

    # --- Rounds ----------------------------------------------------------------------------------

    def _attempt(self, number: int) -> _Attempt:
        work, ballot = WorkBook(self._layout.world_size), Ballot(self._policy)
        usual = {measure: Usual(self._policy.ratio) for measure in Measure}
        return _Attempt(number, work, ballot, usual)

    def _begin_round(self, now_s: float) -> None:
        now = self._now
        first = now.began_s is None
        now.began_s = now_s
        now.work.begin()
        some_missing = len(now.phases) < self._layout.world_size
        busy = any(phase is not Phase.STEP for phase in now.phases.values())
        now.disturbed = first or some_missing or busy

    def _close(
        self, costs: Mapping[Measure, Costs], evidence: Sequence[int], now_s: float
    ) -> list[Alert]:
        now = self._now
        now.costs, now.standings = costs, {}
        for measure, of_ranks in costs.items():
            standing = self._judge(measure, of_ranks)
            if standing is not None:
                now.standings[measure] = standing
        if not (now.standings or evidence):
            return []
        each = [self._layout.machines_of(s.outliers) for s in now.standings.values()]
        few = max(1, self._layout.num_machines // MOST_SLOTS)
        now.ballot.note(
            [slot for slots in (*each, evidence) if len(slots) <= few for slot in slots]
        )
        elected = now.ballot.elected()
        return self._accuse(elected, now_s) if elected else []

    def _judge(self, measure: Measure, of_ranks: Costs) -> Standing | None:
        usual = self._now.usual[measure]
        suspects = {r for slot in self._suspects() for r in self._layout.ranks_of(slot)}
        own = {rank: cost.compute_s for rank, cost in of_ranks.items()}
        steps_s = {rank: cost.step_s for rank, cost in of_ranks.items()}
        standing = usual.look(own, steps_s, suspects)
        if standing is None or not standing.outliers:
            usual.learn(own)
        return standing

    def _suspects(self) -> list[int]:
        """Machines whose own senses see something, ascending."""
        return sorted(
            slot for slot, name in self._now.machines.items() if self._suspected.get(name)
        )

    # --- The verdict -----------------------------------------------------------------------------

    def _accuse(self, elected: Sequence[int], now_s: float) -> list[Alert]:
        now = self._now
        domain = self._domain(elected)
        machines = [] if domain is None else [now.machines[slot] for slot in domain.machines]
        if domain is None or all(machine in now.raised for machine in machines):
            return []
        tables = [table_of(m, now.costs[m], standing) for m, standing in now.standings.items()]
        tables.sort(key=lambda table: table.clear_on(machines), reverse=True)
        votes = max(now.ballot.flags_of(slot) for slot in domain.machines)
        detail = (
            f"{self._found(machines, domain.kind, tables)}, by {votes} of the last"
            f" {now.ballot.counted} rounds of {self._policy.round_s:g} s"
        )
        now.raised |= dict.fromkeys(machines, detail)
        lines = (*self._said(machines), *lines_of(tables, self._layout))
        return [self._alert(m, detail, () if m != machines[0] else lines, now_s) for m in machines]

    def _domain(self, elected: Sequence[int]) -> Domain | None:
        """One machine where it can be told which; else the group of those that were elected."""
        suspects = self._suspects()
        told = [slot for slot in elected if slot in suspects]
        slots = told if len(told) == 1 else elected
        ranks = [rank for slot in slots for rank in self._layout.ranks_of(slot)]
        if len(slots) == 1:
            return Domain(MACHINE, tuple(ranks), tuple(slots))
        return domain_of(self._layout, ranks, each_on_evidence=True)

    def _found(self, machines: Sequence[str], kind: str, tables: Sequence[Table]) -> str:
        if tables and tables[0].worst_on(machines).excess > 0:
            return "; ".join([sentence(tables[0], machines, kind), *self._said(machines)])
        return "; ".join(["the job is slow", *self._said(machines)])

    def _said(self, machines: Sequence[str]) -> list[str]:
        return [f"{m}: {text}" for m in machines for text in self._suspected.get(m, ())]

    def _alert(self, machine: str, detail: str, lines: tuple[str, ...], now_s: float) -> Alert:
        symptom, attempt = Symptom.MFU_DECLINE, self._now.number
        return Alert(
            Observer.ANALYZER, symptom, now_s, detail, attempt, machine=machine, lines=lines
        )
