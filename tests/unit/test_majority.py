from __future__ import annotations

from everstep.core.majority import judge_digests
from everstep.core.orders import CheckResult
from everstep.core.vocabulary import Check, Verdict

HEALTHY, FAULTY, UNTOLD = Verdict.HEALTHY, Verdict.FAULTY, Verdict.UNOBSERVABLE


def verdicts(digests: dict[str, str], **devices: str) -> dict[str, Verdict]:
    """Verdicts by machine; "" is a machine that answered without a digest, "-" one that did not."""
    results = [
        CheckResult(machine, Check.BITWISE, HEALTHY, "", digest, device=devices.get(machine, ""))
        for machine, digest in digests.items()
        if digest != "-"
    ]
    return {r.machine: r.verdict for r in judge_digests(list(digests), results)}


def test_minority_is_isolated() -> None:
    found = verdicts({"a": "x", "b": "x", "c": "y", "d": "x"})
    assert found == {"a": HEALTHY, "b": HEALTHY, "c": FAULTY, "d": HEALTHY}


def test_several_different_minorities_are_isolated() -> None:
    found = verdicts({"a": "x", "b": "z", "c": "y", "d": "x", "e": "x"})
    assert [m for m, v in found.items() if v is FAULTY] == ["b", "c"]


def test_without_a_majority_nobody_is_accused_and_nobody_cleared() -> None:
    assert set(verdicts({"a": "x", "b": "y"}).values()) == {UNTOLD}
    assert set(verdicts({"a": "x", "b": "x", "c": "y", "d": "y"}).values()) == {UNTOLD}
    assert set(verdicts({"a": "x"}).values()) == {UNTOLD}


def test_missing_answers_are_unobservable_and_do_not_vote() -> None:
    found = verdicts({"a": "x", "b": "x", "c": "-", "d": "", "e": "y"})
    assert found == {"a": HEALTHY, "b": HEALTHY, "c": UNTOLD, "d": UNTOLD, "e": FAULTY}


def test_digests_of_different_devices_are_not_compared() -> None:
    found = verdicts({"a": "x", "b": "x", "c": "y"}, c="cuda")
    assert found == {"a": HEALTHY, "b": HEALTHY, "c": UNTOLD}


def test_a_machine_whose_test_failed_stays_faulty() -> None:
    crashed = CheckResult("c", Check.BITWISE, FAULTY, "SIGSEGV")
    fine = [CheckResult(m, Check.BITWISE, HEALTHY, "", "x") for m in ("a", "b")]
    assert [r.verdict for r in judge_digests(["a", "b", "c"], [*fine, crashed])] == [
        HEALTHY,
        HEALTHY,
        FAULTY,
    ]
