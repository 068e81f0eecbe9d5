from __future__ import annotations

import pytest

from everstep.core.errors import InputError
from everstep.workers.local.faults import Fault, FaultKind, FaultPlan, parse

MACHINES = ["m0", "m1", "m2"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rank_killed@20:5", Fault(FaultKind.RANK_KILLED, 20, 0.0, "5")),
        ("machine_lost@3+0.25:m2", Fault(FaultKind.MACHINE_LOST, 3, 0.25, "m2")),
        ("machine_lost@3:2", Fault(FaultKind.MACHINE_LOST, 3, 0.0, "m2")),
        ("controller_killed@7+1", Fault(FaultKind.CONTROLLER_KILLED, 7, 1.0, "")),
    ],
)
def test_fault_is_read_and_written_back(text: str, fault: Fault) -> None:
    assert parse(text, 6, MACHINES) == fault
    assert parse(str(fault), 6, MACHINES) == fault


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank_killed@20", "needs a target"),
        ("rank_killed@20:6", "there is no rank 6"),
        ("rank_killed@20:m1", "there is no rank m1"),
        ("machine_lost@20:m7", "there is no machine m7"),
        ("server_killed@20:m1", "takes no target"),
        ("meteor@20:m1", "not understood"),
        ("rank_killed@x:1", "not understood"),
        ("", "not understood"),
    ],
)
def test_wrong_fault_is_told_with_its_fix(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        parse(text, 6, MACHINES)
    assert raised.value.fix


def test_plan_fires_each_fault_once_when_its_step_is_reached() -> None:
    fired: list[str] = []
    faults = [parse(t, 6, MACHINES) for t in ("rank_killed@5:1", "rank_killed@3:0")]
    plan = FaultPlan(faults, lambda fault: fired.append(str(fault)))
    plan.reached(2)
    assert fired == []
    plan.reached(4)
    plan.reached(4)
    assert fired == ["rank_killed@3:0"]
    plan.reached(9)
    assert fired == ["rank_killed@3:0", "rank_killed@5:1"]
    assert plan.waiting == ()
