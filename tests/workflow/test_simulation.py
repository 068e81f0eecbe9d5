"""One stream through both engines: the counted clock, and the real workflows on a server's.

The server's clock runs on by the time that workflows and activities really take, so durations agree
to within the time of the whole run; all parts of the model take far longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from everstep.core.record import IncidentRecord
from everstep.core.simulation.chance import Spread
from everstep.core.simulation.engine import Met, Run, simulate
from everstep.core.simulation.faults import DAY_S, Cause, Fault, Shows, draw_faults
from everstep.core.simulation.figures import figures
from everstep.core.simulation.setting import Setting
from everstep.core.vocabulary import Check, Symptom
from everstep.spec.job import JobSpec
from everstep.spec.load_simulation import load_durations, load_stream
from everstep.spec.simulation import StreamSpec, spec_for_workflows
from everstep.workers.simulation import parts
from everstep.workers.simulation.parts import INCIDENTS_PER_PART, Given, SoFar
from everstep.workers.simulation.run import MOST_LATE_S, simulate as simulate_with_workflows
from tests.unit.simulated import DURATIONS, SPEC, fault, setting_of

HOUR_S = 3603.0
"""No multiple of a step: which step is under way must not hang on a millisecond."""

LONG = replace(
    DURATIONS,
    stop=Spread.fixed(300.0),
    look=Spread.fixed(150.0),
    check={
        Check.GPU: Spread.fixed(250.0),
        Check.MACHINE: Spread.fixed(240.0),
        Check.LINKS: Spread.fixed(230.0),
        Check.BITWISE: Spread.fixed(260.0),
    },
    replay_round=Spread.fixed(2000.0),
    restore=Spread.fixed(200.0),
    start=Spread.fixed(1500.0),
    join=Spread.fixed(5000.0),
)

SEVERAL = (
    fault(1 * HOUR_S, number=1, slots=(3,)),
    fault(
        3 * HOUR_S, Shows.HANG, symptom=Symptom.JOB_HANG, detection="hang", slots=(5,),
        found_by=("gpu",), by_group=True, number=2,
    ),
    fault(
        7 * HOUR_S, Shows.WISH, Cause.WISH, Symptom.CODE_DATA_ADJUSTMENT, detection="wish",
        number=3,
    ),
    fault(
        9 * HOUR_S, Shows.WORDS, symptom=Symptom.CUDA_ERROR, detection="crash", slots=(6,),
        words="RuntimeError: CUDA error: unspecified launch failure", found_by=("replay",),
        number=4,
    ),
)  # fmt: skip

MORE = (
    fault(
        1 * HOUR_S, Shows.NAN, symptom=Symptom.NAN_VALUE, detection="nan", slots=(1,),
        found_by=("bitwise",), number=1,
    ),
    fault(3 * HOUR_S, Shows.KILLED, Cause.PASSING, Symptom.CPU_OVERLOAD, "crash", number=2),
    fault(
        13 * HOUR_S, Shows.WORDS, Cause.CODE, Symptom.CUDA_ERROR, "crash", number=5,
        words="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ),
    # Nobody is left to be told to stop.
    fault(18 * HOUR_S, Shows.LOST, detection="gpu", slots=(*range(16),), number=6),
)  # fmt: skip


SCARCE = (
    # Tests cannot see what it has: it comes back as a standby, and its fault with it.
    fault(
        1 * HOUR_S, Shows.HANG, symptom=Symptom.JOB_HANG, detection="hang", slots=(12,),
        by_group=True, returns_s=20.0, number=1,
    ),
    # Three machines and two standbys, then both copies of a rank, then a slow pipeline.
    fault(7 * HOUR_S, Shows.LOST, detection="gpu", slots=(4, 5, 6), number=2),
    fault(11 * HOUR_S, Shows.LOST, detection="gpu", slots=(0, 9), number=3),
    fault(
        16 * HOUR_S, Shows.SLOW, symptom=Symptom.MFU_DECLINE, detection="slow", slots=(10,),
        found_by=("gpu",), by_group=True, number=4,
    ),
)  # fmt: skip
"""More evictions than half of the machines within a day, so that a person is asked, too."""

AMID_TESTS = (
    fault(
        1 * HOUR_S, Shows.HANG, symptom=Symptom.JOB_HANG, detection="hang", slots=(12,),
        by_group=True, number=1,
    ),
    # The group is still being tested.
    fault(2.5 * HOUR_S, Shows.LOST, detection="gpu", slots=(0,), number=2),
    fault(9 * HOUR_S, Shows.LOST, detection="gpu", slots=(2,), number=3),
)  # fmt: skip

PLENTY = SPEC.model_copy(update={"standby": SPEC.standby.model_copy(update={"count": 6})})


def setting() -> Setting:
    return replace(setting_of(), durations=LONG)


async def with_workflows(
    faults: Sequence[Fault],
    kills: int = 0,
    given: Setting | None = None,
    part: int = INCIDENTS_PER_PART,
    spec: JobSpec = SPEC,
) -> tuple[Run, float]:
    """The run, and the real time that it took."""
    began_s = time.monotonic()
    told: list[SoFar] = []
    how = Given(
        spec_for_workflows(spec), incidents_per_part=part, kills=kills, progress=told.append
    )
    run = await simulate_with_workflows(given or setting(), faults, how)
    assert (told[-1].incidents, told[-1].kills) == (len(run.met), kills)
    return run, time.monotonic() - began_s


def hold_against(counted: Run, real: Run, took_s: float, each_s: float | None = None) -> None:
    """Both engines did the same, at the same times.

    Args:
        counted: By the clock that is only counted up.
        real: By the workflows.
        took_s: How long that really took: so much later may steps be made there.
        each_s: The same of one incident, where that is less.
    """
    assert len(counted.met) == len(real.met)
    for one, other in zip(counted.met, real.met, strict=True):
        _hold_against(one, other, took_s, took_s if each_s is None else each_s)
    mine, theirs = figures(counted), figures(real)
    assert mine.shares == theirs.shares
    assert mine.table_4 == theirs.table_4
    for figure in ("false_evictions", "right_evictions", "returned", "missed", "standbys_used"):
        assert getattr(mine, figure) == getattr(theirs, figure), figure
    assert mine.ettr == pytest.approx(theirs.ettr, abs=(LONG.step_s + 2 * took_s) / counted.to_s)


def _hold_against(one: Met, other: Met, took_s: float, each_s: float) -> None:
    mine, theirs = one.record, other.record
    told = "\n".join(entry.text for entry in theirs.timeline)
    assert _done(mine) == _done(theirs), told
    assert one.fault == other.fault
    step = (mine.restored_step or 0) - (theirs.restored_step or 0)
    # A moment later, and it is the next step that is under way.
    assert abs(step) <= 1 + took_s / LONG.step_s, told
    assert abs(mine.lost_steps - theirs.lost_steps) <= 1, told
    for was, really in zip(_times(mine), _times(theirs), strict=True):
        assert really == pytest.approx(was, abs=each_s), told


def _done(record: IncidentRecord) -> object:
    rungs = [(climb.rung, climb.outcome, climb.machines) for climb in record.climbs]
    return rungs, record.evicted, record.replacements, record.returned, record.code_version


def _times(record: IncidentRecord) -> list[float]:
    ends = [at_s for at_s in (record.first_step_at_s, record.closed_at_s) if at_s is not None]
    marks = [mark.at_s for mark in record.marks]
    return [record.fault_at_s, *(climb.at_s for climb in record.climbs), *marks, *ends]


@pytest.mark.server
@pytest.mark.slow
async def test_both_engines_do_the_same() -> None:
    real, took_s = await with_workflows(SEVERAL)
    hold_against(simulate(setting(), SEVERAL), real, took_s)


@pytest.mark.server
@pytest.mark.slow
async def test_both_engines_do_the_same_where_machines_and_copies_are_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And where the job goes on with a fresh server, as the counted engine is not told."""
    caplog.set_level(logging.INFO, parts.__name__)
    counted = simulate(setting(), SCARCE)
    back, lost, stored, slow = (one.record for one in counted.met)
    assert len(lost.evicted) == 3
    assert stored.lost_steps > 0
    assert len(slow.evicted) == 4
    assert len(back.evicted) > len({*back.evicted})
    real, took_s = await with_workflows(SCARCE, part=2)
    hold_against(counted, real, took_s)
    assert "goes on with a fresh server: incidents 1 to 2" in caplog.messages


@pytest.mark.server
@pytest.mark.slow
async def test_an_incident_ends_before_the_tests_that_it_has_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time, which a test under way holds, passes on."""
    monkeypatch.setattr(parts, "STALLED_S", 20.0)
    tests = dict.fromkeys(Check, Spread.fixed(6000.0))
    given = replace(setting_of(spec=PLENTY), durations=replace(LONG, check=tests))
    counted = simulate(given, AMID_TESTS)
    first, second, _ = (one.record for one in counted.met)
    assert len(first.evicted) == 4
    assert not first.returned
    assert first.closed_at_s == second.opened_at_s
    real, took_s = await with_workflows(AMID_TESTS, given=given, spec=PLENTY)
    hold_against(counted, real, took_s)


@pytest.mark.server
@pytest.mark.slow
async def test_an_incident_that_is_open_at_the_end_is_counted() -> None:
    """It has not even been held until then: its machines are being tested."""
    given = replace(setting(), days=1.2 * HOUR_S / DAY_S)
    counted = simulate(given, MORE[:1])
    assert [met.record.closed_at_s for met in counted.met] == [None]
    real = await simulate_with_workflows(given, MORE[:1], Given(spec_for_workflows(SPEC)))
    assert [met.record.opened_at_s for met in real.met] == [
        pytest.approx(met.record.opened_at_s, abs=MOST_LATE_S) for met in counted.met
    ]


@pytest.mark.soak
@pytest.mark.server
async def test_both_engines_do_the_same_about_everything_else() -> None:
    real, took_s = await with_workflows(MORE)
    hold_against(simulate(setting(), MORE), real, took_s)


@pytest.mark.server
@pytest.mark.slow
async def test_controllers_that_are_killed_change_nothing() -> None:
    real, took_s = await with_workflows(SEVERAL, kills=2)
    hold_against(simulate(setting(), SEVERAL), real, took_s)


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.timeout(3600)
async def test_a_hundred_killed_controllers_in_ninety_days_change_nothing() -> None:
    """The paper's faults and times, as often as it has them, of a job of sixteen machines."""
    given = replace(setting(), durations=load_durations("paper"), days=90.0)
    stream = load_stream("paper")
    assert isinstance(stream, StreamSpec)
    ways = [way.way() for way in stream.ways]
    faults = tuple(draw_faults(ways, stream.every_h * 3600.0, SPEC.machines, given.days, seed=1))
    real, took_s = await with_workflows(faults, kills=100, given=given)
    hold_against(simulate(given, faults), real, took_s, each_s=MOST_LATE_S)
