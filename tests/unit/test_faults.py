from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from everstep.core.errors import InputError
from everstep.selfcheck.faults import InjectedFault, claim, read_faults
from everstep.workers.local.code import take_broken
from everstep.workers.local.faults import (
    BROKEN,
    Fault,
    FaultKind,
    FaultPlan,
    break_machines,
    faults_directory,
    parse,
    told,
)

MACHINES = ["m0", "m1", "m2"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rank_killed@20:5", Fault(FaultKind.RANK_KILLED, 20, 0.0, "5")),
        ("machine_lost@3+0.25:m2", Fault(FaultKind.MACHINE_LOST, 3, 0.25, "m2")),
        ("machine_lost@3:2", Fault(FaultKind.MACHINE_LOST, 3, 0.0, "m2")),
        ("controller_killed@7+1", Fault(FaultKind.CONTROLLER_KILLED, 7, 1.0, "")),
        ("code_error@9", Fault(FaultKind.CODE_ERROR, 9, 0.0, "")),
        ("sdc@9:1,p=0.5,hidden", Fault(FaultKind.SDC, 9, 0.0, "m1", ("p=0.5", "hidden"))),
        ("hang@9:m1,how=native", Fault(FaultKind.HANG, 9, 0.0, "m1", ("how=native",))),
        ("link_bad@9:0-m2", Fault(FaultKind.LINK_BAD, 9, 0.0, "m0-m2")),
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
        ("meteor@20:m1", "there is no kind 'meteor'. Kinds are: rank_killed, "),
        ("rank_killed@x:1", "step 'x' is no whole number from 0. Write KIND@STEP"),
        ("rank_killed@-5:1", "step '-5' is no whole number from 0. Write KIND@STEP"),
        ("rank_killed@5+-1:1", "'-1' is no number of seconds from 0"),
        ("rank_killed", "says no step"),
        ("", "says no step"),
        ("rank_killed@5:", "rank_killed needs a target"),
        ("code_error@20:m1", "takes no target"),
        ("nan@20", "needs a target"),
        ("nan@20:m1-m2", "needs one machine"),
        ("link_bad@20:m1", "needs two machines"),
        ("link_bad@20:m1-m1", "needs two machines"),
        ("link_bad@20:m1-m9", "there is no machine m9"),
        ("link_bad@20:m1-m2,once", "link_bad has no option once"),
        ("nan@20:m1,hidden", "nan has no option hidden. Options of nan are: once, p=0.5."),
        ("machine_lost@20:m1,once", "machine_lost has no option once"),
        ("nan@20:m1,", "option '' is not understood"),
        ("nan@20:m1,p", "option 'p' is not understood. Options are: once, p=0.5, "),
        ("hang@20:m1,how", "option 'how' is not understood"),
        ("hang@20:m1,how=deep", "option 'how=deep' is not understood"),
        ("nan@20:m1,how=stop", "nan has no option how"),
        ("nan@20:m1,p=0", "option p=0 is out of range. Give a number above 0 and at most 1."),
        ("sdc@20:m1,bit=32", "option bit=32 is out of range"),
        ("slow@20:m1,times=0.5", "option times=0.5 is out of range"),
        ("slow@20:m1,times", "option 'times' is not understood"),
    ],
)
def test_wrong_fault_is_told_with_its_fix(text: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as raised:
        parse(text, 6, MACHINES)
    assert raised.value.fix


def on(text: str, machine: str) -> InjectedFault:
    return parse(text, 6, MACHINES).on(machine)


def test_broken_machine_is_told_what_is_wrong_with_it() -> None:
    assert on("sdc@9:m1", "m1") == InjectedFault("sdc-9-m1", "sdc", seen_by=("bitwise",))
    assert on("sdc@9:m1,hidden", "m1").seen_by == ()
    assert on("sdc@9:m1,gross,bit=3,p=0.25", "m1") == InjectedFault(
        "sdc-9-m1-gross-bit-3-p-0-25", "sdc", probability=0.25, bit=3, seen_by=("bitwise", "gpu")
    )
    assert on("slow@9:m1,by=2", "m1").slow_s == 2.0
    slowed = on("slow@9:m1,times=1.3", "m1")
    assert (slowed.slow_times, slowed.slow_s) == (1.3, 0.0)
    assert [on(f"hang@9:m1{how}", "m1").how for how in ("", ",how=skip")] == ["python", "skip"]
    assert on("transient@9:m1", "m1").once
    assert not on("nan@9:m1", "m1").once
    assert on("nan@9:m1,once", "m1").once
    assert [on("link_bad@9:m0-m2", name).peer for name in ("m0", "m2")] == ["m2", "m0"]


def test_fault_that_shows_once_is_claimed_by_one(tmp_path: Path) -> None:
    fault = parse("nan@9:m0,once", 6, MACHINES)
    break_machines(fault, tmp_path)
    for name in fault.machines:
        [found] = read_faults(faults_directory(tmp_path / name))
        assert found == fault.on(name)
        assert [claim(faults_directory(tmp_path / name), found) for _ in range(3)] == [
            True, False, False,
        ]  # fmt: skip
        assert read_faults(faults_directory(tmp_path / name)) == []


def test_code_that_fails_is_a_version_of_its_own(tmp_path: Path) -> None:
    good, store = tmp_path / "good", tmp_path / "store"
    good.mkdir()
    store.mkdir()
    (good / "train.py").write_text("pass\n")
    version, directory = take_broken(good, store, 20)
    assert directory == store / version
    assert json.loads((directory / "code_error.json").read_text()) == {"step": 21}
    assert (directory / "train.py").read_text() == "pass\n"
    assert [entry.name for entry in good.iterdir()] == ["train.py"]
    assert take_broken(good, store, 20) == (version, directory)


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


def test_the_help_names_checks_for_those_faults_alone_that_a_check_sees() -> None:
    """Checks look at `sdc` and `link_bad`; what else breaks shows in the job and its replay."""
    assert {
        kind for kind, what in BROKEN.items() if "sees it" in what and "no check" not in what
    } == {
        FaultKind.SDC,
        FaultKind.LINK_BAD,
    }
    assert "every step; no check sees it, only replay does; transient" in told()
    assert "in checks where that is said" in told()
