from __future__ import annotations

from collections.abc import Callable

import pytest

from everstep.core.links import (
    MAX_ROUNDS,
    LinksVerdict,
    Meeting,
    Pair,
    end_to_leave,
    meeting_of,
    next_pairs,
)
from everstep.core.orders import CheckResult
from everstep.core.vocabulary import Check, Verdict

HEALTHY, FAULTY, UNTOLD = Verdict.HEALTHY, Verdict.FAULTY, Verdict.UNOBSERVABLE


def machines(count: int) -> list[str]:
    return [f"m{i}" for i in range(count)]


def examine(
    names: list[str], verdict: Callable[[Pair], Verdict]
) -> tuple[LinksVerdict, list[list[Meeting]]]:
    rounds: list[list[Meeting]] = []
    while isinstance(pairs := next_pairs(names, rounds), tuple):
        assert len(rounds) < MAX_ROUNDS
        taken = [machine for pair in pairs for machine in pair]
        assert taken
        assert len(taken) == len(set(taken))
        rounds.append([Meeting(pair, verdict(pair)) for pair in pairs])
    return pairs, rounds


def fails_with(*bad: str) -> Callable[[Pair], Verdict]:
    return lambda pair: FAULTY if {*bad} & {*pair} else HEALTHY


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 31])
def test_everybody_meets_both_neighbours(count: int) -> None:
    names = machines(count)
    found, rounds = examine(names, lambda _: HEALTHY)
    assert found == LinksVerdict((), (), ())
    met = {frozenset(meeting.pair) for each in rounds for meeting in each}
    assert met == {frozenset((names[i], names[(i + 1) % count])) for i in range(count)}


@pytest.mark.parametrize("count", [4, 5, 8, 31])
def test_every_bad_machine_is_named(count: int) -> None:
    for bad in machines(count):
        found, _ = examine(machines(count), fails_with(bad))
        assert found == LinksVerdict((bad,), (), ())


def test_bad_neighbours_are_both_named() -> None:
    found, _ = examine(machines(8), fails_with("m2", "m3"))
    assert found == LinksVerdict(("m2", "m3"), (), ())


@pytest.mark.parametrize("count", [4, 5, 8])
def test_bad_link_is_told_from_its_ends(count: int) -> None:
    found, _ = examine(machines(count), lambda pair: FAULTY if {*pair} == {"m1", "m2"} else HEALTHY)
    assert found == LinksVerdict((), (("m1", "m2"),), ())
    assert end_to_leave(("m1", "m2"), ["m1"]) == "m1"
    assert end_to_leave(("m1", "m2"), ["m7"]) == "m2"


def test_two_machines_that_fail_with_each_other_accuse_nobody() -> None:
    found, _ = examine(machines(2), lambda _: FAULTY)
    assert found == LinksVerdict((), (), ("m0", "m1"))


def test_three_machines_name_the_one_that_fails_with_both() -> None:
    # With three, the two others pass with each other.
    found, _ = examine(machines(3), fails_with("m1"))
    assert found == LinksVerdict(("m1",), (), ())


def test_failure_everywhere_accuses_nobody() -> None:
    found, _ = examine(machines(8), lambda _: FAULTY)
    assert found.faulty == ()
    assert found.unobservable == tuple(machines(8))


def test_machine_that_gives_no_answer_is_not_healthy() -> None:
    found, _ = examine(machines(6), lambda pair: UNTOLD if "m4" in pair else HEALTHY)
    assert found == LinksVerdict((), (), ("m4",))


def test_a_meeting_passes_only_if_both_say_so() -> None:
    def said(machine: str, verdict: Verdict) -> CheckResult:
        return CheckResult(machine, Check.LINKS, verdict, "")

    pair = ("a", "b")
    assert meeting_of(pair, [said("a", HEALTHY), said("b", HEALTHY)]).verdict is HEALTHY
    assert meeting_of(pair, [said("a", HEALTHY)]).verdict is UNTOLD
    assert meeting_of(pair, [said("a", HEALTHY), said("b", UNTOLD)]).verdict is UNTOLD
    assert meeting_of(pair, [said("a", UNTOLD), said("b", FAULTY)]).verdict is FAULTY
