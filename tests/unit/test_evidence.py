from __future__ import annotations

import signal

from everstep.core.evidence import blames_connection, classify, describe_exit
from everstep.core.model import Alert, Observer, RankExit, Symptom

CRASH = Alert(Observer.AGENT, Symptom.PROCESS_CRASH, 10.0, "rank 4 ended", 1, "m2", 4)
LOST = Alert(Observer.ANALYZER, Symptom.AGENT_LOST, 10.3, "agent lost", machine="m1")


def ended(
    rank: int, at_s: float, code: int | None = 1, sig: int | None = None, last: str = ""
) -> RankExit:
    return RankExit(rank, f"m{rank // 2}", 1, code, sig, at_s, 7, (last,) if last else ())


def test_lost_agent_leads_whatever_ranks_said_before() -> None:
    found = classify([CRASH, LOST], [ended(4, 10.0, None, signal.SIGKILL)], [])
    assert (found.symptom, found.machines, found.confident) == (
        Symptom.AGENT_LOST,
        ("m1",),
        True,
    )


def test_machine_that_does_not_answer_is_gone_and_never_healthy() -> None:
    found = classify([CRASH], [], ["m3"])
    assert (found.symptom, found.machines) == (Symptom.AGENT_LOST, ("m3",))
    assert "m3 (no answer)" in found.reason


def test_death_by_signal_leads_exceptions_of_its_peers() -> None:
    exits = [
        ended(0, 10.01, 1, None, "RuntimeError: Connection closed by peer [127.0.0.1]:1"),
        ended(5, 10.02, None, signal.SIGKILL),
        ended(1, 10.00, 1, None, "RuntimeError: Connection closed by peer [127.0.0.1]:1"),
    ]
    found = classify([CRASH], exits, [])
    assert (found.machines, found.ranks, found.confident) == (("m2",), (5,), False)
    assert "SIGKILL" in found.reason


def test_own_error_leads_an_earlier_complaint_about_a_connection() -> None:
    exits = [
        ended(0, 10.00, 1, None, "RuntimeError: Connection reset by peer"),
        ended(6, 10.05, 1, None, "IndexError: list index out of range"),
    ]
    found = classify([CRASH], exits, [])
    assert (found.machines, found.ranks) == (("m3",), (6,))


def test_only_complaints_about_connections_still_name_the_earliest() -> None:
    exits = [ended(2, 10.1, 1, None, "Broken pipe"), ended(0, 10.0, 1, None, "Broken pipe")]
    assert classify([CRASH], exits, []).ranks == (0,)


def test_ranks_that_ended_well_are_no_evidence() -> None:
    found = classify([CRASH], [ended(0, 9.0, 0)], [])
    assert (found.symptom, found.machines, found.reason) == (
        Symptom.PROCESS_CRASH,
        ("m2",),
        "rank 4 ended",
    )


def test_exits_are_described_in_words() -> None:
    assert describe_exit(ended(0, 0, None, signal.SIGSEGV)) == "was killed by SIGSEGV after step 7"
    assert describe_exit(RankExit(0, "m0", 1, 3, None, 0, None)) == "ended with exit code 3"
    assert describe_exit(RankExit(0, "m0", 1, None, 99, 0, None)) == "was killed by signal 99"
    assert "nobody could tell" in describe_exit(RankExit(0, "m0", 1, None, None, 0, None))


def test_connection_words_are_found_in_any_case() -> None:
    assert blames_connection(ended(0, 0, 1, None, "gloo: CONNECTION CLOSED BY PEER"))
    assert not blames_connection(ended(0, 0, 1, None, "ValueError: bad"))


def test_own_error_before_any_step_accuses_the_code_and_no_machine() -> None:
    first = RankExit(0, "m0", 1, 1, None, 10.0, None, ("ModuleNotFoundError: no_such_module",))
    found = classify([CRASH], [first], [])
    assert (found.symptom, found.machines, found.ranks) == (Symptom.CODE_ERROR, (), (0,))
    killed = RankExit(0, "m0", 1, None, signal.SIGSEGV, 10.0, None)
    assert classify([CRASH], [killed], []).machines == ("m0",)
