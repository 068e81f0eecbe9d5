"""The simulation against examples that are worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.unit.simulated import SPEC, STEP_S, fault, setting_of

from everstep.core import ledger
from everstep.core.groups import Layout
from everstep.core.record import IncidentRecord
from everstep.core.simulation import compare
from everstep.core.simulation.chance import Chance, Shape, Spread
from everstep.core.simulation.engine import Run, simulate
from everstep.core.simulation.faults import Cause, Fault, Shows, Way, draw_faults
from everstep.core.simulation.figures import figures, resolved_by
from everstep.core.simulation.setting import Choices, Method
from everstep.core.simulation.testing import ring_rounds
from everstep.core.vocabulary import Check, ClimbOutcome, Outcome, Rung, Spent, Symptom
from everstep.spec.simulation import one_rank_a_machine

CRASH = "RuntimeError: CUDA error: unspecified launch failure"


def run(*faults: Fault, choices: Choices | None = None, days: float = 1.0) -> Run:
    return simulate(setting_of(choices, days), faults)


def only(found: Run) -> IncidentRecord:
    assert len(found.met) == 1, [one.record.climbs for one in found.met]
    return found.met[0].record


def rungs(record: IncidentRecord) -> list[str]:
    return [climb.rung.value for climb in record.climbs]


def test_certain_fault_of_a_machine_takes_what_its_parts_take() -> None:
    # Training begins at 30 s. At 1,035 s, 100 steps are done, and half of one more.
    found = run(fault(1035.0))
    record = only(found)
    assert rungs(record) == ["evict"]
    assert record.evicted == ("m4",)
    assert record.replacements == ("m17",)
    assert record.failed_step == record.restored_step == 100
    assert record.fault_at_s == 1045.0  # 10 s to detect
    # 0.5 s of evidence, 5 s to stop, 7 s to fetch, 30 s to start, one step.
    assert record.first_step_at_s == pytest.approx(1045.0 + 0.5 + 5.0 + 7.0 + 30.0 + STEP_S)
    spent = ledger.totals(ledger.ledger(found.steps, found.records, 0.0, found.to_s))
    assert spent[Spent.DETECT] == pytest.approx(10.0)
    assert spent[Spent.LOCATE] == pytest.approx(5.5)
    assert spent[Spent.RESTART] == pytest.approx(37.0)
    assert spent[Spent.REDONE] == pytest.approx(5.0)
    assert spent[Spent.START] == pytest.approx(30.0)
    assert sum(spent.values()) == pytest.approx(86_400.0)


def test_days_that_end_between_a_fault_and_the_next_incident_end() -> None:
    faults = fault(3600.0, number=1), fault(3900.0, number=2, slots=(5,))
    whole = run(*faults)
    record = whole.met[1].record
    between_s = (record.fault_at_s + record.opened_at_s) / 2
    assert record.fault_at_s < between_s < record.opened_at_s
    assert len(run(*faults, days=between_s / 86_400.0).met) == 1


def test_fault_that_tests_miss_climbs_to_replay() -> None:
    faulty = fault(
        1035.0, Shows.WORDS, symptom=Symptom.CUDA_ERROR, detection="crash", words=CRASH,
        found_by=("replay",),
    )  # fmt: skip
    found = run(faulty)
    record = only(found)
    assert rungs(record) == ["checks", "reattempt", "rollback", "replay", "evict"]
    assert record.evicted == ("m4",)
    assert resolved_by(found.met[0]) == "replay"
    checks, reattempt, rollback, replay, evict = record.climbs
    assert checks.outcome is ClimbOutcome.PASSED
    # GPU, machine, and two meetings of neighbours.
    assert reattempt.at_s == pytest.approx(1036.0 + 0.5 + 5.0 + 100.0 + 40.0 + 2 * 20.0)
    # It comes back after 60 s of training, each time; two rounds of replay then name it.
    assert rollback.at_s == pytest.approx(reattempt.at_s + 30.0 + 60.0 + 1.0 + 5.5)
    assert replay.outcome is ClimbOutcome.FOUND
    assert evict.at_s == pytest.approx(rollback.at_s + 30.0 + 60.0 + 1.0 + 5.5 + 2 * 300.0)


def test_fault_that_a_test_finds_is_evicted_before_anything_else_is_tried() -> None:
    faulty = fault(
        1035.0, Shows.NAN, symptom=Symptom.NAN_VALUE, detection="nan", found_by=("bitwise",)
    )
    record = only(run(faulty))
    assert rungs(record) == ["checks", "evict"]
    assert record.climbs[1].at_s == pytest.approx(1045.0 + 5.5 + 180.0 + 200.0)


def test_without_the_bitwise_test_nan_costs_a_replay() -> None:
    faulty = fault(
        1035.0, Shows.NAN, symptom=Symptom.NAN_VALUE, detection="nan",
        found_by=("bitwise", "replay"),
    )  # fmt: skip
    record = only(run(faulty, choices=Choices(bitwise=False)))
    assert "replay" in rungs(record)
    assert record.evicted == ("m4",)


def test_error_of_the_code_is_rolled_back_and_does_not_return() -> None:
    broken = fault(
        1035.0, Shows.WORDS, Cause.CODE, Symptom.CUDA_ERROR, "crash",
        words="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    )  # fmt: skip
    found = run(broken)
    assert rungs(only(found)) == ["rollback"]
    assert found.met[0].record.code_version == "earlier-2"


def test_wish_is_made_and_counts_as_an_update() -> None:
    wish = fault(1035.0, Shows.WISH, Cause.WISH, Symptom.CODE_DATA_ADJUSTMENT, detection="wish")
    found = run(wish)
    assert rungs(only(found)) == ["update"]
    spent = ledger.totals(ledger.ledger(found.steps, found.records, 0.0, found.to_s))
    assert spent[Spent.UPDATE] > 0
    assert figures(found).table_4 == {("hot_update", "manual"): 100.0}


def test_group_goes_is_tested_and_its_innocent_come_back() -> None:
    hang = fault(
        1035.0, Shows.HANG, symptom=Symptom.JOB_HANG, detection="hang", slots=(5,),
        found_by=("gpu",), by_group=True,
    )  # fmt: skip
    found = run(hang)
    record = only(found)
    # Slots 4 to 7 are one pipeline; two standbys are there, and the tests give back two more.
    assert set(record.evicted) == {"m5", "m6", "m7", "m8"}
    assert record.returned == ("m5", "m7", "m8")
    assert record.replacements[:2] == ("m17", "m18")
    assert {*record.replacements[2:]} == {"m5", "m7"}
    evict = record.climbs[0]
    # Two looks, the time between, and the stop.
    assert evict.at_s == pytest.approx(1635.0 + 0.5 + 2 * 3.0 + 2.0 + 5.0)
    begun_s = evict.at_s + 100.0 + 40.0 + 2 * 20.0 + 7.0 + 30.0
    assert record.first_step_at_s == pytest.approx(begun_s + STEP_S)
    assert figures(found).false_evictions == 0


def test_one_machine_of_a_group_is_a_guess() -> None:
    hang = fault(
        1035.0, Shows.HANG, symptom=Symptom.JOB_HANG, detection="hang", slots=(5,),
        by_group=True, returns_s=20.0,
    )  # fmt: skip
    found = run(hang, choices=Choices(group=False))
    evictions = [climb for climb in only(found).climbs if climb.rung is Rung.EVICT]
    assert [len(climb.machines) for climb in evictions] == [1] * len(evictions)
    assert {*evictions[0].machines} < {"m5", "m6", "m7", "m8"}
    assert figures(found).false_evictions > 0, "the first guess is wrong with this seed"


def test_culprit_that_came_back_is_evicted_again_and_for_good() -> None:
    """Its tests cannot see what it has: a second eviction must not be barred by the first."""
    hang = fault(
        1035.0, Shows.HANG, symptom=Symptom.JOB_HANG, detection="hang", slots=(4,), by_group=True,
        returns_s=20.0,
    )  # fmt: skip
    record = only(run(hang))
    assert Counter(record.evicted)["m5"] == 2
    assert Counter(record.returned)["m5"] == 1
    assert set(rungs(record)) == {"evict"}


def test_machine_is_waited_for_where_no_standby_is_left() -> None:
    faults = [fault(1035.0 + 100 * n, slots=(n,), number=n + 1) for n in range(3)]
    found = run(*faults)
    last = found.met[-1].record
    held = [mark for mark in last.marks if mark.spent is Spent.HELD]
    first_gone_s = found.met[0].record.climbs[0].at_s
    assert len(held) == 1
    assert last.marks[-1].at_s == pytest.approx(first_gone_s + 700.0)


def test_step_comes_from_storage_where_both_copies_are_gone() -> None:
    # Slots 0 and 9 keep each other's copies.
    record = only(run(fault(4000.0, Shows.LOST, slots=(0, 9))))
    assert record.evicted == ("m1", "m10")
    # Storage has the step of 3,600 s.
    assert record.restored_step == int((3600.0 - 30.0) / STEP_S)
    assert record.lost_steps == record.failed_step - record.restored_step  # type: ignore[operator]


@pytest.mark.parametrize(("num_lost", "stop_s"), [(15, 5.0), (16, 0.0)])
def test_nobody_is_told_to_stop_where_all_machines_are_gone(num_lost: int, stop_s: float) -> None:
    lost = fault(3600.0, Shows.LOST, slots=tuple(range(num_lost)))
    [met] = simulate(setting_of(), (lost,)).met
    # So many are evicted only when a person says so: after the evidence, and the stop.
    [asked] = [mark for mark in met.record.marks[:3] if mark.spent is Spent.HELD]
    assert asked.at_s == pytest.approx(met.record.fault_at_s + 0.5 + stop_s)


def test_an_incident_that_another_failure_closes_has_missed_nothing() -> None:
    """Two machines fail within a minute: the first is gone when the second is noticed."""
    found = run(fault(1_035.0), fault(1_110.0, slots=(7,), number=2))
    assert [one.record.evicted for one in found.met] == [("m4",), ("m8",)]
    first, second = (one.record for one in found.met)
    assert first.closed_at_s is not None
    assert first.closed_at_s >= second.fault_at_s, "closed for the other one"
    assert found.missed == 0


def test_what_would_be_done_after_the_days_are_over_is_not_told() -> None:
    """All machines go, so that a person is asked: who answers an hour later."""
    lost = fault(1_000.0, Shows.LOST, slots=(*range(16),))
    begun = only(run(lost, days=0.02))
    assert begun.outcome is Outcome.HELD
    assert not begun.climbs
    assert not begun.evicted
    assert begun.closed_at_s is None
    assert figures(run(lost, days=0.02)).right_evictions == 0
    naive = only(run(fault(1_000.0), choices=Choices("naive", Method.REQUEUE), days=0.02))
    assert naive.outcome is Outcome.OPEN
    assert naive.restored_step is None


def test_what_never_ends_ends_with_the_days() -> None:
    """No stream of a file has it: a wish that no code can fulfil."""
    found = run(fault(1_000.0, Shows.WISH, detection="wish", returns_s=0.0))
    assert only(found).outcome is Outcome.OPEN
    assert only(found).climbs[-1].at_s <= found.to_s


def test_nothing_is_fetched_from_storage_where_nothing_was_saved() -> None:
    """The first save is after half an hour; all copies of two ranks go before."""
    record = only(run(fault(1_035.0, Shows.LOST, slots=(0, 9))))
    assert record.restored_step == 0
    last = record.climbs[-1].at_s
    # Both standbys take over at once; one start, and one step.
    assert record.first_step_at_s == pytest.approx(last + 30.0 + STEP_S)


def test_who_comes_back_after_tests_brings_what_it_had_in_memory() -> None:
    """A pipeline of all machines: without them no copy is left anywhere."""
    parallelism = {"tp": 2, "pp": 16, "dp": 1, "order": "tp-pp-dp"}
    changed = {"parallelism": parallelism, "standby": {"count": 0}}
    whole = SPEC.model_validate({**SPEC.model_dump(), **changed})
    hang = fault(
        1_035.0, Shows.HANG, symptom=Symptom.JOB_HANG, detection="hang", found_by=("gpu",),
        by_group=True,
    )  # fmt: skip
    record = only(simulate(setting_of(days=1.0, spec=whole), (hang,)))
    assert len(record.evicted) == 16
    assert len(record.returned) == 16
    assert record.restored_step == record.failed_step == 100


def test_sparse_checkpoints_cost_steps() -> None:
    record = only(run(fault(1035.0), choices=Choices(checkpoint_every_steps=30)))
    assert (record.failed_step, record.restored_step, record.lost_steps) == (100, 90, 10)


def test_suspect_that_goes_at_once_costs_no_test() -> None:
    faulty = fault(1035.0, Shows.WORDS, symptom=Symptom.CUDA_ERROR, detection="crash", words=CRASH)
    found = run(faulty, choices=Choices(evict_suspects=True))
    record = only(found)
    assert rungs(record) == ["evict"]
    assert record.first_step_at_s == pytest.approx(1036.0 + 0.5 + 5.0 + 7.0 + 30.0 + STEP_S)
    assert resolved_by(found.met[0]) == "direct_eviction"


def test_retry_first_does_what_it_says() -> None:
    record = only(run(fault(1035.0), choices=Choices(retry_first=True)))
    assert rungs(record) == ["reattempt", "evict"]


def test_naive_peers_do_not_know_who_it_was() -> None:
    faulty = fault(1035.0, found_by=("gpu",))
    requeued = run(faulty, choices=Choices(method=Method.REQUEUE))
    # Twice in vain, then a person looks.
    assert [rungs(one.record)[0] for one in requeued.met] == ["reattempt", "reattempt", "page"]
    assert requeued.met[0].record.fault_at_s == 1635.0, "by a time-out"
    tested = run(faulty, choices=Choices(method=Method.STRESS_TEST))
    assert rungs(only(tested)) == ["checks", "evict"]
    own = run(faulty)
    ettrs = [figures(one).ettr for one in (own, tested, requeued)]
    assert ettrs == sorted(ettrs, reverse=True)


def test_incidents_outlive_no_hour_more_than_an_hour() -> None:
    found = figures(run(fault(1035.0)))
    assert found.longest_unproductive_s == pytest.approx(30.0 + 5.0 + 10.0 + 5.5 + 37.0)


# --- Faults and chance ----------------------------------------------------------------------------

WAYS = (
    Way(Symptom.CUDA_ERROR, 3.0, Cause.MACHINE, Shows.SENSED, "gpu", found={"gpu": 0.7}),
    Way(Symptom.CPU_OOM, 1.0, Cause.PASSING, Shows.OUT_OF_MEMORY, "crash"),
)


def test_faults_come_as_often_and_as_mixed_as_asked_for() -> None:
    faults = list(draw_faults(WAYS, 600.0, 16, 90.0, seed=3))
    expected = 90 * 86_400 / 600
    assert len(faults) == pytest.approx(expected, rel=4 / expected**0.5)
    cuda = [one for one in faults if one.symptom is Symptom.CUDA_ERROR]
    assert len(cuda) / len(faults) == pytest.approx(0.75, abs=0.02)
    seen = sum(one.found_by == ("gpu",) for one in cuda) / len(cuda)
    assert seen == pytest.approx(0.7, abs=0.02)
    assert {one.slots[0] for one in faults} == set(range(16))
    assert [one.at_s for one in faults] == sorted(one.at_s for one in faults)


def test_switch_takes_neighbours_that_share_it() -> None:
    way = Way(Symptom.INFINIBAND_ERROR, 1.0, Cause.MACHINE, Shows.LOST, "gpu", machines=4)
    for one in draw_faults((way,), 600.0, 16, 1.0, seed=1):
        assert len(one.slots) == 4
        assert one.slots[0] % 4 == 0
        assert one.slots[-1] == one.slots[0] + 3


def test_one_seed_gives_one_run_to_the_digit() -> None:
    def once(seed: int) -> object:
        faults = draw_faults(WAYS, 3600.0, 16, 10.0, seed)
        return figures(simulate(setting_of(days=10.0, seed=seed), faults))

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_policies_meet_the_same_faults_in_whatever_order_they_ask() -> None:
    chance = Chance(1)
    first = chance.of("a", 1).random(), chance.of("b", 2).random()
    again = Chance(1)
    assert (again.of("b", 2).random(), again.of("a", 1).random()) == first[::-1]
    assert Chance(2).of("a", 1).random() != first[0]


@pytest.mark.parametrize(
    ("spread", "least", "most", "mean"),
    [
        (Spread.fixed(3.0), 3.0, 3.0, 3.0),
        (Spread(Shape.UNIFORM, (2.0, 4.0)), 2.0, 4.0, 3.0),
        (Spread(Shape.EXPONENTIAL, (3.0, 100.0)), 0.0, 100.0, 3.0),
        (Spread(Shape.ANY_OF, (1.0, 5.0)), 1.0, 5.0, 3.0),
    ],
)
def test_spreads_are_what_they_say(spread: Spread, least: float, most: float, mean: float) -> None:
    drawn = [spread.draw(Chance(1).of("x", number)) for number in range(4000)]
    assert least <= min(drawn)
    assert max(drawn) <= most
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.06)


# --- Pieces ---------------------------------------------------------------------------------------


def test_intervals_are_students() -> None:
    # By hand: mean 2, standard deviation 1, t(2) = 4.303, half width 4.303 / sqrt(3).
    found = compare.interval([1.0, 2.0, 3.0])
    assert (found.low, found.high) == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-3)
    assert found.holds(0.0) is True
    assert found.holds(4.5) is False
    with pytest.raises(ValueError, match="no values"):
        compare.interval([])


def test_one_seed_tells_no_interval() -> None:
    found = compare.interval([5.0])
    assert (found.mean, found.low, found.high) == (5.0, None, None)
    assert found.holds(5.0) is None
    assert found.within(0.0, 1.0) == found


def test_an_interval_of_ettr_ends_where_ettr_does() -> None:
    """By hand: 0.5 and 1.0 have a half width of 12.706 * 0.3536 / sqrt(2) = 3.18."""
    one = figures(run(fault(1035.0)))
    found = compare.ettr([replace(one, ettr=0.5), replace(one, ettr=1.0)])
    assert (found.mean, found.low, found.high) == (0.75, 0.0, 1.0)


def test_ranks_of_a_machine_count_as_one_only_where_nothing_tells_them_apart() -> None:
    whole = SPEC.layout()
    small = one_rank_a_machine(whole)
    assert (small.gpus_per_machine, small.num_machines) == (1, whole.num_machines)
    for slot in range(16):
        assert small.machines_of(small.group("pp", slot)) == whole.machines_of(
            whole.group("pp", whole.ranks_of(slot)[0])
        )
    wider = Layout(2, tp=4, pp=2, order=("tp", "pp"))
    assert one_rank_a_machine(wider) is wider


@pytest.mark.parametrize(("machines", "rounds"), [(1, 0), (2, 1), (3, 3), (4, 2), (1200, 2)])
def test_neighbours_meet_in_as_many_rounds_as_the_links_test_has(
    machines: int, rounds: int
) -> None:
    assert ring_rounds(machines) == rounds


def test_every_check_has_a_time() -> None:
    assert set(setting_of().durations.check) == set(Check)


def test_rungs_of_the_small_job_are_all_there() -> None:
    assert setting_of().unavailable == {}
    assert Rung.REPLAY not in SPEC.unavailable_rungs()
