"""The analyzer's judges, driven with time series: what each finds, and all that they must not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from everstep.core import evidence
from everstep.core.model import Alert, RankProgress
from everstep.core.senses.job import JobLimits, JobSenses
from everstep.core.senses.silence import SilenceLimits
from everstep.core.vocabulary import Phase, Symptom, Verdict

LIMITS = JobLimits(
    SilenceLimits(step_times=3.0, at_least_s=10.0, first_step_s=600.0, phase_s=1800.0),
    jump_ratio=5.0,
    slowdown_ratio=0.1,
)
SKEW_S = 1e6
"""Agents' clocks differ from the analyzer's; nothing may follow from it."""
LOOK_EVERY_S = 0.5


class Job:
    """Ranks that train in step, and the senses that hear of it."""

    def __init__(self, ranks: int = 4, limits: JobLimits = LIMITS) -> None:
        self.senses = JobSenses(limits)
        self.ranks = ranks
        self.now_s = 100.0
        self.step = 0
        self.attempt = 1
        self.phases = dict.fromkeys(range(ranks), Phase.START)
        self.told: list[tuple[RankProgress, float]] = []
        self.alerts: list[Alert] = []
        self.begin()

    def begin(self) -> None:
        for rank in range(self.ranks):
            self.senses.started(self.attempt, f"m{rank // 2}", [rank], self.now_s)
        self.phases = dict.fromkeys(range(self.ranks), Phase.START)
        for rank in range(self.ranks):
            self.say(rank)

    def say(self, rank: int, **numbers: float) -> None:
        progress = RankProgress(
            f"m{rank // 2}",
            self.attempt,
            rank,
            self.step,
            self.now_s + SKEW_S + 1e-6 * len(self.told),
            self.phases[rank],
            **numbers,  # type: ignore[arg-type]
        )
        self.told.append((progress, self.now_s))
        self.alerts += self.senses.note(progress, self.now_s)

    def wait(self, seconds: float) -> None:
        """Let time pass, with a look now and then."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + LOOK_EVERY_S)
            self.alerts += self.senses.look(self.now_s)

    def train(self, steps: int, step_s: float = 1.0, **numbers: float) -> None:
        for _ in range(steps):
            self.wait(step_s)
            self.step += 1
            for rank in range(self.ranks):
                self.phases[rank] = self.phases[rank].after_step()
                self.say(rank, **numbers)

    def phase(self, phase: Phase, *ranks: int) -> None:
        for rank in ranks or range(self.ranks):
            self.phases[rank] = phase
            self.say(rank)

    def anew(self, newest: int) -> None:
        """Another analyzer, which agents tell what they remember of each rank."""
        self.senses = JobSenses(LIMITS)
        for rank in range(self.ranks):
            for progress, heard_s in [t for t in self.told if t[0].rank == rank][-newest:]:
                self.alerts += self.senses.note(progress, heard_s)

    def verdict(self, item: str) -> Verdict:
        return next(i.verdict for i in self.senses.inspections() if i.item == item)

    def symptoms(self) -> list[Symptom]:
        return [alert.symptom for alert in self.alerts]


# --- What must be found ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("number", ["loss", "grad_norm"])
def test_what_is_no_number_is_one_alert_at_once_and_calls_for_action(
    number: str, value: float
) -> None:
    job = Job()
    job.train(1)
    job.train(3, **{number: value})
    (alert,) = job.alerts
    assert (alert.symptom, alert.attempt) == (Symptom.NAN_VALUE, 1)
    assert "rank 0 on m0 at step 2" in alert.detail
    assert evidence.calls_for_action(alert)
    assert job.verdict(f"job.{number}") is Verdict.FAULTY


def test_nan_in_the_next_attempt_is_another_alert() -> None:
    job = Job()
    job.train(2, loss=math.nan)
    job.attempt = 2
    job.begin()
    job.train(2, loss=math.nan)
    assert [alert.key for alert in job.alerts] == [
        "nan_value/1/None/None",
        "nan_value/2/None/None",
    ]


def test_five_times_the_usual_is_noted_once_until_it_is_over() -> None:
    job = Job()
    job.train(30, grad_norm=1.0)
    job.train(1, grad_norm=4.9)
    assert job.alerts == []
    job.train(3, grad_norm=5.1)
    job.train(2, grad_norm=1.0)
    job.train(1, grad_norm=6.0)
    (alert,) = job.alerts
    assert (alert.symptom, alert.subject) == (Symptom.LOSS_SPIKE, "gradient norm")
    assert not evidence.calls_for_action(alert)
    assert job.verdict("job.grad_norm") is Verdict.FAULTY
    job.train(5, grad_norm=1.0)
    assert job.verdict("job.grad_norm") is Verdict.HEALTHY
    job.train(1, grad_norm=6.0)
    assert len({alert.key for alert in job.alerts}) == 2


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.1, 10.0), (2.0, 10.0), (20.0, 60.0)])
def test_silence_is_a_hang_after_three_steps_and_at_least_ten_seconds(
    step_s: float, limit_s: float
) -> None:
    job = Job()
    job.train(20, step_s)
    job.wait(limit_s - 0.1)
    assert job.alerts == []
    job.wait(1.0)
    (alert,) = job.alerts
    assert (alert.symptom, alert.key) == (Symptom.JOB_HANG, "job_hang/1/None/None")
    assert evidence.calls_for_action(alert)
    assert alert.step == job.step
    job.wait(100.0)
    assert len(job.alerts) == 1


def test_ranks_that_went_on_by_themselves_are_heard_when_they_hang_again() -> None:
    job = Job()
    job.train(20, 2.0)
    job.wait(11.0)
    job.train(5, 2.0)
    assert len(job.alerts) == 1
    # The long step is among those that say how long one may take.
    job.wait(60.0)
    assert [alert.step for alert in job.alerts] == [20, 25]


def test_the_rank_that_is_furthest_behind_is_named() -> None:
    job = Job()
    job.train(20)
    job.wait(1.0)
    job.step += 1
    for rank in (0, 1, 3):
        job.say(rank)
    job.wait(11.0)
    (alert,) = job.alerts
    assert "after step 20: rank 2 on m1" in alert.detail


def test_one_silent_rank_is_found_though_the_others_go_on() -> None:
    job = Job()
    job.train(20)
    job.ranks = 3
    job.train(11)
    assert job.symptoms() == [Symptom.JOB_HANG]
    assert "rank 3 on m1" in job.alerts[0].detail


def test_a_first_step_that_never_comes_is_found() -> None:
    job = Job()
    job.wait(599.0)
    assert job.alerts == []
    job.wait(2.0)
    assert job.symptoms() == [Symptom.JOB_HANG]


def test_a_hang_within_an_evaluation_is_found_once_its_length_is_known() -> None:
    job = Job()
    for _ in range(3):
        job.train(5)
        job.phase(Phase.EVALUATION)
        job.wait(20.0)
        job.phase(Phase.STEP)
    job.train(5)
    job.phase(Phase.EVALUATION)
    job.wait(59.0)
    assert job.alerts == []
    job.wait(2.0)
    assert job.symptoms() == [Symptom.JOB_HANG]


def test_a_hang_within_the_first_evaluation_is_found_by_the_policy() -> None:
    job = Job()
    job.train(5)
    job.phase(Phase.EVALUATION, 0)
    job.wait(1799.0)
    assert job.alerts == []
    job.wait(2.0)
    assert "rank 0 on m0" in job.alerts[0].detail


@pytest.mark.parametrize("newest", [32, 8])
def test_a_hang_that_stands_when_the_analyzer_starts_anew_is_found(newest: int) -> None:
    job = Job()
    job.train(40, loss=1.0)
    job.wait(9.0)
    job.anew(newest)
    job.wait(0.5)
    assert job.alerts == []
    job.wait(1.0)
    assert [alert.key for alert in job.alerts] == ["job_hang/1/None/None"]


def test_another_analyzer_says_what_the_first_one_said_with_the_same_key() -> None:
    job = Job()
    job.train(20, loss=1.0)
    job.train(1, loss=math.nan)
    job.wait(11.0)
    job.anew(16)
    job.wait(1.0)
    assert len(job.alerts) == 4
    assert len({alert.key for alert in job.alerts}) == 2


def test_slower_steps_are_noted_once_until_they_are_over() -> None:
    job = Job()
    job.train(60, 1.0)
    job.train(19, 1.2)
    job.train(40, 1.2)
    (alert,) = job.alerts
    assert (alert.symptom, alert.subject) == (Symptom.MFU_DECLINE, "pace")
    assert not evidence.calls_for_action(alert)
    assert "1.2 s a step, usual is 1 s" in alert.detail
    assert job.verdict("job.pace") is Verdict.FAULTY
    job.train(20, 1.0)
    assert job.verdict("job.pace") is Verdict.HEALTHY
    job.train(20, 1.2)
    assert job.symptoms() == [Symptom.MFU_DECLINE] * 2


def test_a_decline_that_creeps_in_is_found() -> None:
    job = Job(ranks=1)
    for number in range(400):
        job.train(1, 1.0 + number / 2000)
    assert Symptom.MFU_DECLINE in job.symptoms()


def test_what_ranks_say_of_their_speed_counts_more_than_the_time_of_steps() -> None:
    job = Job()
    for step_s in (1.0, 3.0):
        job.train(60, step_s, mfu=0.4)
    assert job.alerts == []
    job.train(20, 1.0, mfu=0.3)
    assert job.symptoms() == [Symptom.MFU_DECLINE]


# --- What must not be found -----------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.EVALUATION, Phase.CHECKPOINT])
@pytest.mark.parametrize("ranks", [(), (0,)], ids=["all ranks", "one, and the others wait for it"])
def test_a_phase_of_twenty_steps_length_is_no_hang(phase: Phase, ranks: tuple[int, ...]) -> None:
    job = Job()
    for _ in range(12):
        job.train(25, 1.0, loss=1.0)
        job.phase(phase, *ranks)
        job.wait(20.0)
        job.phase(Phase.STEP, *ranks)
    job.train(25)
    assert job.alerts == []
    # And none of it counts as the time of a step.
    job.wait(11.0)
    assert job.symptoms() == [Symptom.JOB_HANG]


def test_a_first_step_that_compiles_and_a_second_one_are_no_hang() -> None:
    job = Job()
    job.wait(300.0)
    job.train(1)
    job.wait(120.0)
    job.train(30)
    job.phase(Phase.START, 1)
    job.wait(200.0)
    job.train(30)
    assert job.alerts == []


def test_a_paused_debugger_of_one_rank_excuses_all() -> None:
    job = Job()
    job.train(30)
    job.phase(Phase.PAUSED, 2)
    job.wait(3_000.0)
    job.step += 1
    job.say(2)
    job.wait(3_000.0)
    job.phase(Phase.STEP, 2)
    job.train(10)
    assert job.alerts == []
    job.wait(11.0)
    assert job.symptoms() == [Symptom.JOB_HANG]


def test_ranks_that_have_ended_are_not_silent() -> None:
    job = Job()
    job.train(30)
    job.phase(Phase.ENDED)
    job.wait(10_000.0)
    assert job.alerts == []


def test_ranks_of_lost_machines_are_not_silent_and_the_others_still_may_be() -> None:
    job = Job()
    job.train(20)
    job.senses.lost("m0")
    job.senses.lost("m1")
    job.wait(3600.0)
    assert job.alerts == []
    job = Job()
    job.train(20)
    job.senses.lost("m0")
    job.wait(20.0)
    [alert] = job.alerts
    assert "rank 2 on m1, rank 3 on m1" in alert.detail
    assert "m0" not in alert.detail


def test_a_restart_with_slower_code_is_no_hang() -> None:
    job = Job()
    job.train(30, 1.0)
    job.phase(Phase.ENDED)
    job.attempt = 2
    job.begin()
    job.train(30, 30.0)
    assert Symptom.JOB_HANG not in job.symptoms()


def test_an_analyzer_that_slept_does_not_hold_it_against_the_ranks() -> None:
    job = Job()
    job.train(30)
    job.now_s += 60.0
    job.senses.excuse(60.0)
    job.wait(9.0)
    job.train(30)
    assert job.alerts == []


def test_reports_that_are_told_again_or_are_of_an_older_attempt_change_nothing() -> None:
    job = Job()
    job.train(30, loss=1.0)
    job.attempt = 2
    job.begin()
    job.train(10)
    for progress, heard_s in job.told * 2:
        assert job.senses.note(progress, heard_s) == []
    job.wait(9.0)
    assert job.alerts == []


def test_where_one_rank_reports_the_silence_of_the_others_means_nothing() -> None:
    job = Job()
    for number in range(30):
        job.wait(1.0)
        job.step, job.phases[3] = number + 1, Phase.STEP
        job.say(3)
    assert job.alerts == []
    job.wait(11.0)
    assert "rank 3" in job.alerts[0].detail


def test_ranks_that_report_nothing_are_could_not_tell() -> None:
    senses = JobSenses(LIMITS)
    senses.started(1, "m0", range(4), 0.0)
    assert senses.look(1e6) == []
    assert {i.verdict for i in senses.inspections()} == {Verdict.UNOBSERVABLE}


def test_ranks_that_should_report_and_say_nothing_hang() -> None:
    senses = JobSenses(JobLimits(LIMITS.silence, 5.0, 0.1, expected=True))
    senses.started(1, "m0", range(4), 0.0)
    assert senses.look(599.0) == []
    assert [alert.symptom for alert in senses.look(601.0)] == [Symptom.JOB_HANG]


def test_losses_that_are_not_positive_have_no_five_times() -> None:
    job = Job()
    for value in (-1.0, 0.0, 0.5, -3.0) * 20:
        job.train(1, loss=value)
    assert job.alerts == []


Series = Callable[[random.Random], float]


def _steady(luck: random.Random) -> float:
    return luck.lognormvariate(0.0, 0.02)


def _noisy(luck: random.Random) -> float:
    return luck.lognormvariate(0.0, 0.2)


def _with_stragglers(luck: random.Random) -> float:
    """One step in twenty takes double, as when garbage is collected or data are late."""
    return luck.lognormvariate(0.0, 0.05) * (2.0 if luck.random() < 0.05 else 1.0)


@pytest.mark.parametrize("series", [_steady, _noisy, _with_stragglers])
def test_a_thousand_noisy_but_healthy_runs_raise_nothing(series: Series) -> None:
    for seed in range(334):
        luck = random.Random(seed)  # noqa: S311 - no secret
        job = Job(ranks=1)
        usual_s = luck.choice([0.05, 1.0, 8.0])
        for step in range(1, 121):
            # Every look at a moment just before a step comes is one that could be wrong.
            job.now_s += usual_s * series(luck)
            job.alerts += job.senses.look(job.now_s)
            job.step, job.phases[0] = step, Phase.STEP
            decay = 1.0 + 9.0 / (1 + step / 5)
            job.say(
                0,
                loss=decay * luck.lognormvariate(0.0, 0.1),
                grad_norm=decay * luck.lognormvariate(0.0, 0.3),
            )
        assert job.alerts == [], f"seed {seed}"
