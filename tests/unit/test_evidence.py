from __future__ import annotations

import signal
import time
from dataclasses import replace

from everstep.core.evidence import blames_connection, classify, describe_exit, gathered
from everstep.core.model import Alert, RankExit
from everstep.core.vocabulary import Observer, Symptom

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
    assert (found.symptom, found.machines, found.ranks) == (Symptom.CODE_ERROR, (), (6,))
    assert found.first_action == "rollback_code"


def test_only_complaints_about_connections_still_name_the_earliest() -> None:
    exits = [ended(2, 10.1, 1, None, "Broken pipe"), ended(0, 10.0, 1, None, "Broken pipe")]
    assert classify([CRASH], exits, []).ranks == (0,)


def test_ranks_that_a_stop_tears_apart_do_not_hide_its_reason() -> None:
    update = Alert(Observer.PERSON, Symptom.CODE_DATA_ADJUSTMENT, 9.0, "update 1, urgent", 1)
    nan = Alert(Observer.ANALYZER, Symptom.NAN_VALUE, 9.0, "loss is NaN", 1)
    torn = [ended(7, 10.0, 1, None, "gloo: Connection closed by peer"), ended(4, 10.1, 0)]
    assert classify([CRASH, update], torn, []).symptom is Symptom.CODE_DATA_ADJUSTMENT
    assert classify([nan, CRASH], torn, []).reason == "loss is NaN"
    # Who ended for a reason of its own is another matter.
    own = [*torn, ended(2, 9.9, None, signal.SIGSEGV)]
    assert classify([CRASH, update], own, []).ranks == (2,)


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


def test_a_machine_s_fault_in_a_rank_s_own_words_leads_kills_and_lost_peers() -> None:
    exits = [
        ended(0, 10.00, None, signal.SIGKILL),
        ended(1, 10.01, 1, None, "RuntimeError: Connection closed by peer [10.0.0.2]:5"),
        ended(5, 10.30, 1, None, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ]
    found = classify([CRASH], exits, [])
    assert (found.symptom, found.machines, found.ranks) == (
        Symptom.GPU_MEMORY_ERROR,
        ("m2",),
        (5,),
    )
    assert found.confident
    assert found.first_action == "evict_machine"
    assert found.confidence > 0.8
    assert "uncorrectable ECC error encountered" in found.reason


def test_a_line_that_only_suggests_the_machine_evicts_nobody_at_once() -> None:
    crash = ended(3, 10.0, 1, None, "RuntimeError: CUDA error: unspecified launch failure")
    found = classify([CRASH], [crash], [])
    assert (found.symptom, found.machines, found.confident) == (
        Symptom.CUDA_ERROR,
        ("m1",),
        False,
    )
    assert found.first_action == "stop_time_checks"


def test_a_full_disk_accuses_no_machine() -> None:
    full = ended(3, 10.0, 1, None, "OSError: [Errno 28] No space left on device: '/ckpt/7'")
    found = classify([CRASH], [full], [])
    assert (found.symptom, found.machines) == (Symptom.DISK_SPACE, ())
    assert found.first_action == "retry"


def test_peers_that_waited_in_vain_do_not_hide_who_raised() -> None:
    watchdog = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"
    exits = [
        ended(0, 10.0, None, signal.SIGABRT, watchdog),
        ended(2, 9.0, 1, None, "[rank2]: KeyError: 'labels'"),
    ]
    found = classify([CRASH], exits, [])
    assert (found.symptom, found.ranks) == (Symptom.CODE_ERROR, (2,))


def test_an_earlier_kill_leads_what_was_said_after_it() -> None:
    exits = [ended(5, 9.0, None, signal.SIGKILL), ended(2, 9.5, 1, None, "KeyError: 'labels'")]
    assert classify([CRASH], exits, []).ranks == (5,)


def test_a_kill_for_memory_is_told_from_one_by_a_person() -> None:
    killed = replace(ended(5, 9.0, None, signal.SIGKILL), oom_killed=True)
    found = classify([CRASH], [ended(1, 8.9, None, signal.SIGKILL), killed], [])
    assert (found.symptom, found.machines, found.ranks) == (Symptom.CPU_OOM, ("m2",), (5,))
    assert not found.confident
    assert "for memory" in found.reason


def test_words_of_thousands_of_ranks_are_read_in_bounded_time() -> None:
    trace = tuple(
        f"frame #{n}: c10::f{n:x} + 0x{n * 7919:x} (0x7f{n:x} in a.so)" for n in range(19)
    )
    exits = [
        RankExit(r, f"m{r // 8}", 1, 1, None, 10 + r / 1e4, 7, (*trace, f"ValueError: {r:x}"))
        for r in range(4000)
    ]
    began = time.process_time()
    assert classify([CRASH], exits, []).ranks == (0,)
    assert time.process_time() - began < 1.5


def of_rank(rank: int, at_s: float) -> Alert:
    rank_exit = ended(rank, at_s)
    return replace(
        CRASH, at_s=at_s, rank=rank, machine=rank_exit.machine, detail=f"rank {rank} ended",
        rank_exit=rank_exit,
    )  # fmt: skip


def test_ranks_that_end_together_on_a_machine_are_one_alert_of_the_first() -> None:
    given = [of_rank(5, 10.2), of_rank(4, 10.1), LOST, of_rank(2, 10.3)]
    found = gathered(given)
    assert [(alert.machine, alert.rank) for alert in found] == [("m2", 4), ("m1", None), ("m1", 2)]
    assert [alert.detail for alert in found] == [
        "rank 4 ended, and 1 more rank there ended",
        "agent lost",
        "rank 2 ended",
    ]
    assert found[0].key == given[1].key


def test_ranks_of_different_attempts_are_not_gathered() -> None:
    later = replace(of_rank(5, 10.2), attempt=2)
    assert gathered([of_rank(4, 10.1), later]) == [of_rank(4, 10.1), later]


def test_hundreds_that_say_the_same_do_not_drown_the_one_that_knows() -> None:
    last = "RuntimeError: [rank{}] Connection closed by peer [10.0.0.{}]:12{:03d}"
    exits = [ended(r, 10.0 + r / 1000, 1, None, last.format(r, r, r)) for r in range(250)]
    exits.append(ended(251, 11.0, 1, None, "RuntimeError: CUDA error: uncorrectable ECC error"))
    found = classify([CRASH], exits, [])
    assert (found.machines, found.ranks) == (("m125",), (251,))
    assert "before" not in found.reason or "250 other ranks" in found.reason
