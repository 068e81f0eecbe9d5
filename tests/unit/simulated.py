"""A small job for simulations, with durations that a reader can add up."""

from __future__ import annotations

from everstep.core.simulation.chance import Spread
from everstep.core.simulation.faults import Cause, Fault, Shows
from everstep.core.simulation.setting import Choices, Durations, Setting
from everstep.core.vocabulary import Check, Symptom
from everstep.spec.job import JobSpec
from everstep.spec.simulation import setting

STEP_S = 10.0

SPEC = JobSpec.model_validate(
    {
        "name": "small",
        "command": ["python", "train.py"],
        "code": {"directory": "."},
        "machines": 16,
        "gpus_per_machine": 2,
        "parallelism": {"tp": 2, "pp": 4, "dp": 4, "order": "tp-pp-dp"},
        "standby": {"count": 2},
        "checkpoint": {"storage": {"path": "checkpoints", "every_s": 1800.0}},
        "ladder": {"probation_s": 600.0, "evidence_window_s": 0.5},
        "replay": {"steps": 1},
    }
)


def _fixed(seconds: float) -> Spread:
    return Spread.fixed(seconds)


DETECT = {
    "gpu": _fixed(10.0),
    "hang": _fixed(600.0),
    "crash": _fixed(1.0),
    "nan": _fixed(10.0),
    "slow": _fixed(50.0),
    "wish": _fixed(0.0),
}

DURATIONS = Durations(
    detect=DETECT,
    detect_by_timeout=DETECT | {"gpu": _fixed(600.0)},
    step_s=STEP_S,
    stop=_fixed(5.0),
    look=_fixed(3.0),
    check={
        Check.GPU: _fixed(100.0),
        Check.MACHINE: _fixed(40.0),
        Check.LINKS: _fixed(20.0),
        Check.BITWISE: _fixed(200.0),
    },
    replay_round=_fixed(300.0),
    restore=_fixed(7.0),
    restore_from_storage=_fixed(60.0),
    start=_fixed(30.0),
    join=_fixed(700.0),
    person=_fixed(3600.0),
    requeue=_fixed(500.0),
    reschedule=_fixed(200.0),
    stress={},
    stress_default=_fixed(400.0),
)


def fault(
    at_s: float,
    shows: Shows = Shows.SENSED,
    cause: Cause = Cause.MACHINE,
    symptom: Symptom = Symptom.GPU_UNAVAILABLE,
    detection: str = "gpu",
    slots: tuple[int, ...] = (3,),
    number: int = 1,
    words: str = "",
    found_by: tuple[str, ...] = (),
    by_group: bool = False,
    returns_s: float = 60.0,
) -> Fault:
    return Fault(
        number, at_s, symptom, cause, shows, detection, slots, words, found_by, by_group, returns_s
    )  # fmt: skip


def setting_of(
    choices: Choices | None = None, days: float = 1.0, spec: JobSpec = SPEC, seed: int = 1
) -> Setting:
    return setting(spec, DURATIONS, choices or Choices(), seed, days)
