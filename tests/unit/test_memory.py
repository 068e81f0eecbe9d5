from __future__ import annotations

from everstep.core import memory
from everstep.core.memory import CodeVersion, MachineHistory


def test_machine_evicted_twice_is_barred_until_a_person_admits_it() -> None:
    known: list[MachineHistory] = []
    known = memory.after_eviction(known, "m1", 10.0, "GPU lost")
    assert not memory.barred(memory.history_of(known, "m1"))
    known = memory.after_eviction(known, "m1", 20.0, "GPU lost again")
    history = memory.history_of(known, "m1")
    assert memory.barred(history)
    assert (history.evictions, history.last_evicted_s) == (2, 20.0)
    known = memory.after_admission(known, "m1")
    assert not memory.barred(memory.history_of(known, "m1"))
    assert not memory.barred(memory.history_of(known, "m2"))
    known = memory.after_eviction(known, "m1", 30.0, "")
    known = memory.after_eviction(known, "m1", 40.0, "")
    assert memory.barred(memory.history_of(known, "m1"))


def test_machine_that_only_shared_a_group_is_not_barred_for_that() -> None:
    known: list[MachineHistory] = []
    for at_s in (10.0, 20.0, 30.0):
        known = memory.after_eviction(known, "m1", at_s, "its group hung")
        known = memory.after_tests(known, "m1", True, "it passed")
    history = memory.history_of(known, "m1")
    assert (history.evictions, history.cleared, history.finding) == (3, 3, "it passed")
    assert not memory.barred(history)
    # One that stood out with the others, or failed its tests, is counted.
    for at_s in (40.0, 50.0):
        known = memory.after_eviction(known, "m1", at_s, "its group hung")
        known = memory.after_tests(known, "m1", False, "gpu test failed")
    assert memory.barred(memory.history_of(known, "m1"))
    known = memory.after_admission(known, "m1")
    known = memory.after_eviction(known, "m1", 60.0, "GPU lost")
    assert not memory.barred(memory.history_of(known, "m1"))
    known = memory.after_eviction(known, "m1", 70.0, "GPU lost")
    assert memory.barred(memory.history_of(known, "m1"))


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    known: list[MachineHistory] = []
    for number in range(memory.MAX_MACHINES + 10):
        known = memory.after_eviction(known, f"m{number}", 0.0, "")
    assert len(known) == memory.MAX_MACHINES
    assert known[0].machine == "m10"
    versions: list[CodeVersion] = []
    for number in range(memory.MAX_VERSIONS + 10):
        versions = memory.with_version(versions, f"v{number}", "")
    assert versions[0].version == "v10"


def versions(*names: str) -> list[CodeVersion]:
    known: list[CodeVersion] = []
    for name in names:
        known = memory.with_version(known, name, f"/code/{name}")
    return known


def target(known: list[CodeVersion], running: str) -> str | None:
    found = memory.rollback_target(known, running)
    return None if found is None else found.version


def test_rollback_goes_to_the_newest_version_that_worked() -> None:
    known = versions("v1", "v2", "v3")
    assert target(known, "v3") == "v2"
    assert target(memory.proven(known, "v1"), "v3") == "v1"
    assert target(memory.failed(known, "v2", "NaN"), "v3") == "v1"
    assert target(known, "v1") is None
    assert target(memory.failed(versions("v1", "v2"), "v1", "x"), "v2") is None


def test_version_that_comes_again_keeps_what_is_known_of_it() -> None:
    known = memory.failed(versions("v1", "v2"), "v1", "NaN")
    known = memory.with_version(known, "v1", "/elsewhere")
    assert [code.version for code in known] == ["v2", "v1"]
    assert known[1] == CodeVersion("v1", "/elsewhere", False, "NaN")


def test_machine_that_was_refused_is_remembered_with_the_finding() -> None:
    known = memory.after_refusal([], "m7", 10.0, "gpu test: wrong product")
    history = memory.history_of(known, "m7")
    assert (history.evictions, history.finding) == (1, "gpu test: wrong product")
    assert not memory.barred(history)
    assert memory.barred(memory.after_refusal(known, "m7", 20.0, "gpu test: again")[0])


def test_failures_are_counted_without_those_that_only_shared_a_group() -> None:
    known = memory.after_eviction([], "m1", 10.0, "its group hung")
    known = memory.after_tests(known, "m1", True, "it passed")
    known = memory.after_eviction(known, "m2", 20.0, "GPU lost")
    known = memory.after_eviction(known, "m2", 30.0, "GPU lost")
    assert memory.num_failures(known) == 2


def test_a_rollback_takes_back_what_it_passes_over() -> None:
    known = versions("v1", "v2", "v3", "v4")
    assert memory.given_up(known, "v3") == ("v3",)
    known = memory.proven(known, "v1")
    assert memory.given_up(known, "v3") == ("v2", "v3")
    assert memory.given_up(memory.failed(known, "v2", "NaN"), "v3") == ("v2", "v3")
    assert memory.given_up(versions("v1"), "unknown") == ("unknown",)
