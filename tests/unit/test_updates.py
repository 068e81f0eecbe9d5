"""Changes of code and arguments: merged in order, and put into a command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.memory import CodeVersion
from everstep.core.updates import (
    Settings,
    Update,
    UpdateState,
    applied,
    cancelled,
    command_with,
    merged,
    next_due_s,
    objection,
    outcome,
    pending,
    rolled_back,
    variables_of,
)


def update(
    number: int, version: str = "", settings: Settings = (), due_at_s: float = 9.0
) -> Update:
    directory = f"/code/{version}" if version else ""
    return Update(number, version, directory, settings, "ada", f"why {number}", 1.0, due_at_s)


RUNNING = CodeVersion("v1", "/code/v1", proven=True)


def test_newest_code_and_newest_value_win() -> None:
    updates = [
        update(1, "v2", (("lr", "1"), ("seed", "7"))),
        update(2, settings=(("lr", "2"),)),
        update(3, "v3"),
    ]
    target = merged(RUNNING, updates)
    assert (target.code, target.directory) == ("v3", "/code/v3")
    assert target.settings == (("seed", "7"), ("lr", "2"))
    assert target.version.startswith("v3+")
    assert (target.proven, target.reason) == (False, "why 1; why 2; why 3")


def test_settings_alone_keep_the_code_and_make_another_version() -> None:
    once = merged(RUNNING, [update(1, settings=(("lr", "1"),))])
    twice = merged(once, [update(2, settings=(("wd", "0"),))])
    assert (once.directory, twice.directory) == ("/code/v1", "/code/v1")
    assert twice.settings == (("lr", "1"), ("wd", "0"))
    assert len({"v1", once.version, twice.version}) == 3


def test_what_comes_to_the_same_is_the_same_version() -> None:
    one = merged(RUNNING, [update(1, settings=(("a", "1"), ("b", "2")))])
    other = merged(RUNNING, [update(1, settings=(("b", "2"),)), update(2, settings=(("a", "1"),))])
    assert one.version == other.version
    assert merged(one, [update(3, "v1", (("a", "2"),))]).version != one.version


def test_code_without_settings_is_its_own_version() -> None:
    assert merged(RUNNING, [update(1, "v2")]).version == "v2"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((("lr", "3e-4"),), "python train.py --lr 3e-4 --wd=0.1 --fast"),
        ((("wd", "0"),), "python train.py --lr 1 --wd=0 --fast"),
        ((("steps", "9"),), "python train.py --lr 1 --wd=0.1 --fast --steps 9"),
        ((("fast", "no"),), "python train.py --lr 1 --wd=0.1 --fast no"),
        ((("NCCL_DEBUG", "INFO"),), "python train.py --lr 1 --wd=0.1 --fast"),
        ((("lr", "2"), ("lr", "3")), "python train.py --lr 3 --wd=0.1 --fast"),
    ],
)
def test_command(settings: Settings, expected: str) -> None:
    command = ["python", "train.py", "--lr", "1", "--wd=0.1", "--fast"]
    assert " ".join(command_with(command, settings)) == expected


def test_an_option_without_a_value_gets_one_and_nothing_else_moves() -> None:
    assert command_with(["x", "--a", "--b", "1"], (("a", "2"),)) == ("x", "--a", "2", "--b", "1")


def test_capitals_are_variables() -> None:
    settings = (("NCCL_DEBUG", "INFO"), ("lr", "1"))
    assert variables_of(settings) == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "3"), ("EVERSTEP_JOB", "x"), ("", "x"), ("a b", "x"), ("lr", "1\0"), ("--lr", "1")],
)
def test_what_cannot_be_set(name: str, value: str) -> None:
    assert repr(name) in objection({name: value})


def test_what_can_be_set() -> None:
    assert objection({"lr": "1", "data.path": "/x y", "NCCL_DEBUG": ""}) == ""


def test_only_what_waits_is_due() -> None:
    updates = [update(1, "v2", due_at_s=5.0), update(2, "v3", due_at_s=7.0)]
    assert next_due_s(updates) == 5.0
    updates = cancelled(updates, 1)
    assert (next_due_s(updates), updates[0].state) == (7.0, UpdateState.CANCELLED)
    updates = applied(updates, (2,), "v3")
    assert (next_due_s(updates), pending(updates), updates[1].became) == (None, (), "v3")


def test_urgent_is_due_at_once() -> None:
    assert update(1, "v2", due_at_s=1.0).urgent
    assert not update(1, "v2").urgent


def test_what_became_of_it_is_told_in_words() -> None:
    made = Update(1, "v2", "/v2", (), "ada", "", 1.0, 1.0, UpdateState.APPLIED, "v2")
    waits = replace(made, state=UpdateState.PENDING, became="")
    gone = replace(made, state=UpdateState.CANCELLED, became="")
    codes = [CodeVersion("v2", "/v2")]
    broken = [CodeVersion("v2", "/v2", failed="no first step")]
    assert [outcome(one, codes, ()) for one in (waits, gone, made)] == [
        "waits for a restart",
        "withdrawn",
        "made, as v2",
    ]
    assert outcome(made, broken, [made]) == "rolled back: no first step"


def test_updates_of_one_restart_are_rolled_back_together_and_each_says_how_to_ask_again() -> None:
    waiting = [update(1, settings=(("lr", "1"), ("note", "a b"))), update(2, "v2"), update(3, "v3")]
    made = applied(applied(waiting, (1, 2), "v2+1"), (3,), "v3+1")
    undone = rolled_back(made, ("v2+1",), "no such option: note")
    first, second, third = (outcome(one, [], undone) for one in undone)
    assert first.startswith("rolled back together with update 2, ")
    assert "no such option: note" in first
    assert first.endswith("alone: everstep hot-update --set lr=1 --set 'note=a b'")
    assert second.startswith("rolled back together with update 1, ")
    assert second.endswith("alone: everstep hot-update --code /code/v2")
    assert third == "made, as v3+1"
    alone = rolled_back(made, ("v3+1",), "it crashed")
    assert outcome(alone[2], [], alone) == "rolled back: it crashed"
    older = [CodeVersion("v2+1", "/code/v2", failed="it crashed")]
    assert "together with update 2" in outcome(made[0], older, made)
