"""Votes on who slows a job, driven with time series: who is named, how soon, and who never."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from everstep.core import evidence
from everstep.core.groups import Layout
from everstep.core.model import Alert, RankProgress
from everstep.core.senses.job import JobLimits, JobSenses
from everstep.core.senses.silence import SilenceLimits
from everstep.core.slow.ballot import VotePolicy
from everstep.core.slow.sense import SlowSense
from everstep.core.vocabulary import Phase, Symptom, Verdict

LAYOUT = Layout(2, tp=2, pp=2, dp=4, order=("tp", "pp", "dp"))
"""8 machines of a tensor-parallel pair each; a pipeline is two machines side by side."""
LIMITS = JobLimits(SilenceLimits(3.0, 10.0, 600.0, 1800.0), jump_ratio=5.0, slowdown_ratio=0.1)
SKEW_S = 1e6
"""Agents' clocks differ from the analyzer's; nothing may follow from it."""

Slowed = Callable[[int, float], float]


class Job:
    """Ranks in step: each computes, then all wait for the last one."""

    def __init__(
        self,
        layout: Layout = LAYOUT,
        noise: float = 0.01,
        compute_s: float = 1.0,
        by_wall: bool = False,
        counted: bool = True,
    ) -> None:
        self.layout, self.noise, self.compute_s = layout, noise, compute_s
        self.by_wall, self.counted = by_wall, counted
        self.senses = JobSenses(LIMITS, SlowSense(layout, VotePolicy()))
        self.luck = random.Random(7)  # noqa: S311 - no secret
        self.now_s, self.step, self.attempt = 1000.0, 0, 1
        self.slowed: Slowed = lambda rank, at_s: 1.0
        self.alerts: list[Alert] = []
        self.begin()

    @property
    def ranks(self) -> range:
        return range(self.layout.world_size)

    def begin(self) -> None:
        self.counters = dict.fromkeys(self.ranks, 0.0)
        for rank in self.ranks:
            self.say(rank, Phase.START)

    def say(self, rank: int, phase: Phase = Phase.STEP) -> None:
        machine = f"m{self.layout.machine_of(rank)}"
        counted = self.counters[rank] if self.counted else None
        ran_s, waited_s = (None, counted) if self.by_wall else (counted, None)
        at_s = self.now_s + SKEW_S * rank
        said = RankProgress(
            machine, self.attempt, rank, self.step, at_s, phase, ran_s=ran_s, waited_s=waited_s
        )
        self.alerts += self.senses.note(said, self.now_s)

    def train(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            own_s = {
                rank: self.compute_s
                * (1 + rank % 4 / 10)
                * self.slowed(rank, self.now_s)
                * self.luck.gauss(1.0, self.noise)
                for rank in self.ranks
            }
            step_s = max(own_s.values()) + 0.05
            self.now_s += step_s
            self.step += 1
            for rank in self.ranks:
                self.counters[rank] += step_s - own_s[rank] if self.by_wall else own_s[rank]
                self.say(rank)
            self.alerts += self.senses.look(self.now_s)

    def phase(self, phase: Phase, seconds: float) -> None:
        self.now_s += 0.01
        self.say(0, phase)
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            # It computes alone.
            self.counters[0] += 0.5
            self.alerts += self.senses.look(self.now_s)
        self.say(0)

    def slow(self, *ranks: int, times: float) -> float:
        began_s = self.now_s
        self.slowed = lambda rank, at_s: times if rank in ranks else 1.0
        return began_s

    @property
    def named(self) -> list[str | None]:
        return [alert.machine for alert in self.accusations]

    @property
    def accusations(self) -> list[Alert]:
        return [alert for alert in self.alerts if evidence.calls_for_action(alert)]


# --- Who is named, and how soon -------------------------------------------------------------------


@pytest.mark.parametrize("by_wall", [False, True], ids=["cpu", "wall"])
@pytest.mark.parametrize("times", [1 / 0.95, 1.1, 1.3, 3.0])
@pytest.mark.parametrize("calm_s", [100.0, 104.9, 400.0])
def test_one_slow_rank_is_named_within_a_minute(times: float, calm_s: float, by_wall: bool) -> None:
    job = Job(by_wall=by_wall)
    job.train(calm_s)
    began_s = job.slow(5, times=times)
    job.train(120.0)
    (alert,) = job.accusations
    assert (alert.symptom, alert.machine, alert.attempt) == (Symptom.MFU_DECLINE, "m2", 1)
    assert 30.0 < alert.at_s - began_s < 60.0
    assert alert.detail.startswith("rank 5 on m2 ")
    assert "by 4 of the last 5 rounds of 10 s" in alert.detail
    assert job.senses.inspections()[-1].verdict is Verdict.FAULTY


def test_a_machine_that_slows_as_a_whole_is_named_alone() -> None:
    job = Job()
    job.train(100.0)
    job.slow(4, 5, times=1.1)
    job.train(60.0)
    assert job.named == ["m2"]


def test_two_machines_of_a_pipeline_are_named_with_their_group() -> None:
    job = Job()
    job.train(100.0)
    job.slow(4, 6, times=1.2)
    job.train(60.0)
    assert job.named == ["m2", "m3"]
    first, second = job.accusations
    assert "m2, m3 (pp)" in first.detail
    assert first.lines
    assert not second.lines


def test_what_a_machine_says_of_itself_singles_it_out_of_its_group() -> None:
    job = Job()
    job.train(100.0)
    job.senses.slowed("m3", ["GPU 0000:1a:00: hardware thermal slowdown"])
    job.slow(4, 6, times=1.2)
    job.train(60.0)
    assert job.named == ["m3"]
    assert "hardware thermal slowdown" in job.accusations[0].detail


def test_creeping_slowness_is_named() -> None:
    job = Job()
    job.train(400.0)
    began_s = job.now_s
    job.slowed = lambda rank, at_s: 1 + (at_s - began_s) / 3600 if rank == 9 else 1.0
    job.train(600.0)
    assert job.named == ["m4"]
    # At 4 %, which is after 144 s, and then the votes.
    assert job.accusations[0].at_s - began_s < 144 + 60


def test_a_hot_machine_of_a_job_without_counters_is_named_once_the_job_is_slow() -> None:
    """Ranks that wait for a GPU by spinning: counters tell nothing, its own senses do."""
    job = Job(counted=False)
    job.train(100.0)
    job.senses.slowed("m6", ["GPU 0000:1a:00: 89 C, limit 85 C"])
    job.train(100.0)
    assert job.named == []
    job.slow(12, times=2.0)
    job.train(100.0)
    (alert,) = job.accusations
    assert alert.machine == "m6"
    assert alert.detail.startswith("the job is slow; m6: GPU 0000:1a:00: 89 C, limit 85 C, by 4 of")


def test_steps_of_a_minute_take_longer_rounds() -> None:
    job = Job(compute_s=20.0)
    job.train(2000.0)
    job.slow(5, times=1.1)
    job.train(1000.0)
    assert job.named == ["m2"]


def test_the_evidence_is_a_table_of_ranks_and_groups() -> None:
    job = Job(noise=0.0)
    job.train(100.0)
    job.slow(5, times=1.5)
    job.train(60.0)
    lines = job.accusations[0].lines
    assert lines[0] == "last round, cpu time a step: own, waiting, own against usual"
    # The step is as long as rank 5 computes, and 0.05 s for the others.
    assert lines[1] == "  rank 5 on m2 (tp1 pp0 dp1): 1.6500 s, 0.0500 s, +50.0%"
    assert lines[9] == "  8 other ranks: -0.0% to +0.0%"
    assert lines[10:] == (
        "  slowest tp group: ranks 4, 5: +25.0%",
        "  slowest pp group: ranks 5, 7: +25.0%",
        "  slowest dp group: ranks 1, 5, 9, 13: +12.5%",
    )


# --- Who must not be named ------------------------------------------------------------------------


def test_noise_of_half_an_hour_names_nobody() -> None:
    for noise in (0.01, 0.1, 0.3):
        job = Job(Layout(1, tp=2, dp=2), noise, compute_s=2.0)
        job.train(1800.0)
        assert job.accusations == []


def test_a_job_that_slows_as_a_whole_names_nobody() -> None:
    job = Job()
    job.train(100.0)
    job.slow(*job.ranks, times=1.5)
    job.train(300.0)
    assert job.accusations == []
    assert Symptom.MFU_DECLINE in [alert.symptom for alert in job.alerts]


def test_a_pipeline_stage_that_slows_in_all_replicas_names_nobody() -> None:
    """New data make the last stage's loss dearer: half of all machines stand out."""
    job = Job()
    job.train(100.0)
    job.slow(*(rank for rank in job.ranks if job.layout.coordinates(rank)["pp"]), times=1.2)
    job.train(300.0)
    assert job.accusations == []


def test_slow_rounds_here_and_there_name_nobody() -> None:
    job = Job()
    job.train(100.0)
    job.slowed = lambda rank, at_s: 1.3 if rank == 5 and at_s % 60 < 12 else 1.0
    job.train(600.0)
    assert job.accusations == []


@pytest.mark.parametrize("phase", [Phase.EVALUATION, Phase.CHECKPOINT, Phase.PAUSED])
def test_a_rank_that_evaluates_alone_is_not_slow(phase: Phase) -> None:
    job = Job()
    job.train(100.0)
    for _ in range(40):
        job.phase(phase, 8.0)
        job.train(8.0)
    assert job.accusations == []


def test_evaluations_between_do_not_hide_a_slow_rank() -> None:
    job = Job()
    job.train(100.0)
    job.slow(5, times=1.2)
    for _ in range(6):
        job.phase(Phase.EVALUATION, 5.0)
        job.train(30.0)
    assert job.named == ["m2"]


def test_a_restart_begins_anew_with_what_is_usual() -> None:
    job = Job()
    job.train(100.0)
    job.slow(5, times=1.2)
    job.train(25.0)
    job.attempt, job.step = 2, 10
    job.begin()
    job.train(45.0)
    assert job.accusations == []
    assert job.senses.inspections()[-1].verdict is Verdict.UNOBSERVABLE


def test_each_attempt_tells_for_itself_and_once() -> None:
    job = Job()
    for attempt in (1, 2):
        job.attempt = attempt
        job.slow(times=1.0)
        job.begin()
        job.train(100.0)
        job.slow(5, times=1.2)
        job.train(300.0)
    assert [alert.key for alert in job.accusations] == [
        "mfu_decline/1/m2/None",
        "mfu_decline/2/m2/None",
    ]


def test_ranks_that_do_not_tell_could_not_be_told() -> None:
    job = Job(counted=False)
    job.train(100.0)
    job.slow(5, times=1.5)
    job.train(300.0)
    assert job.accusations == []
    found = job.senses.inspections()[-1]
    assert (found.item, found.verdict) == ("job.slow_machine", Verdict.UNOBSERVABLE)
