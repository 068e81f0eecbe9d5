"""Hangs with a known culprit: who is suspected, by which evidence, and what is evicted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit import stack_texts as texts
from tests.unit.stack_texts import PAPER, dump, everywhere, fig_7, judged, snapshot, without

from everstep.core.groups import Layout
from everstep.core.stacks.judge import judge
from everstep.core.stacks.verdict import NextStep, StackVerdict

EVICT, UNOBSERVABLE, MOVING = StackVerdict.EVICT, StackVerdict.UNOBSERVABLE, StackVerdict.MOVING


def test_fig_7_evicts_the_pipeline_group_that_all_outliers_share() -> None:
    found = judged(fig_7())
    assert found.verdict is EVICT
    assert found.suspect_ranks == tuple(range(24, 32))
    assert found.domain is not None
    assert (found.domain.kind, found.domain.ranks) == ("pp", tuple(range(24, 32)))
    assert found.evict_machines == (12, 13, 14, 15)


def test_fig_7_with_a_silent_rank_elsewhere_evicts_the_same_and_states_the_doubt() -> None:
    found = judged(without(fig_7(), [3]))
    assert found.evict_machines == (12, 13, 14, 15)
    assert any(reason.startswith("Doubt: rank 3 did not answer") for reason in found.reasons)


def test_a_rank_that_does_not_answer_is_suspected_and_its_machine_evicted_alone() -> None:
    found = judged(without(everywhere(texts.GRAD_SYNC), [13]))
    assert (found.suspect_ranks, found.evict_machines) == ((13,), (6,))
    assert found.domain is not None
    assert (found.domain.kind, found.domain.ranks) == ("tp", (12, 13))


@pytest.mark.parametrize("text", [b"", b"[", b"{}", b"[]", b"null", b"[{}]", b"\xff\xfe", b"Error"])
def test_a_dump_that_is_cut_off_is_no_answer(text: bytes) -> None:
    found = judged({**everywhere(texts.GRAD_SYNC), 13: text})
    assert (found.suspect_ranks, found.evict_machines) == ((13,), (6,))


def test_a_stopped_rank_is_suspected_although_its_stack_was_read() -> None:
    note = {"answer": "stopped", "detail": "T", "threads": texts.threads(texts.GRAD_SYNC, 13)}
    found = judged({**everywhere(texts.GRAD_SYNC), 13: json.dumps(note).encode()})
    assert found.suspect_ranks == (13,)
    assert "rank 13 is stopped: T" in found.reasons


def test_a_data_loader_that_is_stuck_puts_its_rank_outside_any_collective() -> None:
    worker = texts.threads(
        [("read", "dataset.py"), ("_worker_loop", "torch/utils/data/_utils/worker.py")],
        pid=777,
        os_thread_id=777,
        process="pt_data_worker",
    )
    text = json.dumps([*texts.threads(texts.LOADER, 9), *worker]).encode()
    found = judged({**everywhere(texts.GRAD_SYNC), 9: text})
    assert (found.suspect_ranks, found.evict_machines) == ((9,), (4,))
    assert (
        "_try_get_data (dataloader.py) (its data loader 777 in read (dataset.py))"
        in (found.reasons[0])
    )


def test_a_hang_that_spread_to_most_ranks_is_the_group_s_that_waits_for_nobody() -> None:
    # Machine 9's tensor group is in user code; its pipeline waits in transfers, its peers in dp.
    ranks = everywhere(texts.GRAD_SYNC)
    ranks |= {rank: dump(texts.IRECV, rank) for rank in range(16, 24)}
    ranks |= {rank: dump(texts.ISEND, rank) for rank in (2, 3, 10, 11, 26, 27)}
    ranks |= {rank: dump(texts.USER_LOCK, rank) for rank in (18, 19)}
    found = judged(ranks)
    assert (found.suspect_ranks, found.evict_machines) == ((18, 19), (9,))
    assert found.domain is not None
    assert (found.domain.kind, found.domain.ranks) == ("tp", (18, 19))


def test_two_root_groups_are_evicted_side_by_side_and_not_the_block_around_them() -> None:
    ranks = everywhere(texts.GRAD_SYNC)
    ranks |= {rank: dump(texts.USER_LOCK, rank) for rank in (4, 5, 18, 19)}
    found = judged(ranks)
    assert (found.suspect_ranks, found.evict_machines) == ((4, 5, 18, 19), (2, 9))
    assert found.domain is not None
    assert found.domain.ranks == (4, 5, 18, 19)


def test_equal_stacks_are_no_evidence() -> None:
    found = judged(everywhere(texts.GRAD_SYNC))
    assert (found.verdict, found.next_step) == (UNOBSERVABLE, NextStep.REPLAY)
    assert found.suspect_ranks == found.evict_machines == ()


def test_user_code_that_stands_everywhere_is_a_person_s() -> None:
    found = judged(everywhere(texts.USER_LOCK))
    assert (found.verdict, found.next_step) == (UNOBSERVABLE, NextStep.PERSON)
    assert found.suspect_ranks == ()


def test_nobody_who_answers_is_no_evidence_against_anybody() -> None:
    found = judged(dict.fromkeys(range(32), b""))
    assert (found.verdict, found.next_step) == (UNOBSERVABLE, NextStep.LOOK_AGAIN)
    assert found.suspect_ranks == ()


def test_silence_that_is_scattered_over_a_large_job_is_the_tracer_s() -> None:
    large = Layout(gpus_per_machine=8, tp=8, pp=8, dp=16, order=("tp", "pp", "dp"))
    ranks = without(everywhere(texts.GRAD_SYNC, large), range(0, large.world_size, 100))
    assert judged(ranks, layout=large).verdict is UNOBSERVABLE
    ranks |= {rank: dump(texts.USER_LOCK, rank) for rank in range(520, 528)}
    found = judged(ranks, layout=large)
    assert found.evict_machines == (65,)
    assert any(reason.startswith("Doubt:") for reason in found.reasons)


def test_silence_all_over_the_job_does_not_hide_the_group_that_stands_out() -> None:
    large = Layout(gpus_per_machine=8, tp=8, pp=8, dp=16, order=("tp", "pp", "dp"))
    stuck = {rank: dump(texts.IRECV, rank) for rank in range(128, 192)}
    ranks = everywhere(texts.GRAD_SYNC, large) | stuck
    found = judged(without(ranks, range(50, large.world_size, 100)), layout=large)
    assert found.evict_machines == tuple(range(16, 24))
    # One that is silent alone in it is the culprit for whom its replica waits.
    assert judged(without(ranks, [150]), layout=large).evict_machines == (18,)


def test_those_that_did_not_answer_are_not_said_to_stand_alike() -> None:
    found = judged(without(everywhere(texts.GRAD_SYNC), range(1, 32)))
    assert found.verdict is UNOBSERVABLE
    assert found.reasons[0].startswith("all ranks that answered (1) stand alike")


def test_a_machine_that_goes_alone_is_not_called_a_group() -> None:
    two = Layout(gpus_per_machine=1, tp=1, pp=1, dp=2, order=("tp", "pp", "dp"))
    found = judged({0: dump(texts.GRAD_SYNC), 1: dump(texts.USER_LOCK, 1)}, layout=two)
    assert found.evict_machines == (1,)
    assert found.reasons[1:] == (
        "1 other rank waits in one",
        "no group lies within the machine in slot 1, which goes alone",
    )


def test_a_stage_with_a_stack_of_its_own_does_not_stand_out() -> None:
    # The last stage is elsewhere in every replica; machine 14 is where no replica's is.
    ranks = everywhere(texts.GRAD_SYNC)
    ranks |= {r: dump(texts.ALL_GATHER, r) for r in range(32) if PAPER.machine_of(r) % 4 == 3}
    assert judged(ranks).verdict is UNOBSERVABLE
    ranks |= {rank: dump(texts.ISEND, rank) for rank in (28, 29)}
    assert judged(ranks).evict_machines == (14,)


def test_a_tie_of_two_halves_is_no_evidence() -> None:
    layout = Layout(gpus_per_machine=2, tp=2, pp=2, dp=2, order=("tp", "pp", "dp"))
    ranks = everywhere(texts.GRAD_SYNC, layout)
    ranks |= {rank: dump(texts.IRECV, rank) for rank in range(4, 8)}
    assert judged(ranks, layout=layout).verdict is UNOBSERVABLE
    # The same half in pieces: the largest place is ordinary although it is only half.
    ranks[6], ranks[7] = dump(texts.ISEND, 6), dump(texts.TP_REDUCE, 7)
    assert judged(ranks, layout=layout).evict_machines == (2, 3)


def test_odd_ranks_on_every_machine_are_no_machine_s_fault() -> None:
    layout = Layout(gpus_per_machine=8, tp=4, pp=2, dp=2, order=("tp", "pp", "dp"))
    ranks = everywhere(texts.GRAD_SYNC, layout)
    ranks |= {rank: dump(texts.USER_LOCK, rank) for rank in (0, 1, 8, 9)}
    found = judged(ranks, layout=layout)
    assert found.verdict is UNOBSERVABLE
    assert "too many to suspect each" in found.reasons[-2]


def test_an_odd_one_that_is_ahead_is_the_odd_one() -> None:
    """Everybody else waits in the collective that it has left; most are not where most stood."""
    ranks = {**everywhere(texts.GRAD_SYNC), 7: dump(texts.ALL_GATHER, 7)}
    assert judged(ranks).suspect_ranks == (7,)


def test_one_dump_counts_as_stuck_and_two_tell() -> None:
    first = {**everywhere(texts.GRAD_SYNC), 7: dump(texts.USER_LOCK, 7)}
    again = {**everywhere(texts.GRAD_SYNC), 7: dump(texts.USER_LOCK, 7, line=30)}
    found = judge(PAPER, [snapshot(first), snapshot(again)])
    assert (found.verdict, found.evict_machines) == (EVICT, (3,))
    elsewhere = {**first, 7: dump([("other", "user.py"), *texts.MAIN], 7)}
    found = judge(PAPER, [snapshot(first), snapshot(elsewhere)])
    assert (found.verdict, found.suspect_ranks, found.evict_machines) == (MOVING, (7,), ())


def test_the_odd_one_that_is_another_each_time_is_not_a_machine() -> None:
    one, other = everywhere(texts.GRAD_SYNC), everywhere(texts.GRAD_SYNC)
    one[7], other[20] = dump(texts.USER_LOCK, 7), dump(texts.USER_LOCK, 20)
    found = judge(PAPER, [snapshot(one), snapshot(other)])
    assert (found.verdict, found.evict_machines) == (MOVING, ())
    assert "rank 7; then rank 20" in found.reasons[0]


def test_a_job_that_goes_on_is_moving() -> None:
    one, other = everywhere(texts.GRAD_SYNC), everywhere(texts.TP_REDUCE)
    assert judge(PAPER, [snapshot(one), snapshot(other)]).verdict is MOVING


def test_a_stuck_rank_stays_suspected_in_a_second_dump() -> None:
    dumps = [snapshot(without(everywhere(texts.GRAD_SYNC), [13])) for _ in range(2)]
    assert judge(PAPER, dumps).evict_machines == (6,)


def test_a_writer_that_stands_where_no_other_s_does_is_the_last_evidence() -> None:
    def with_writer(rank: int, calls: texts.Calls) -> bytes:
        head: dict[str, Any] = {
            "pid": 5000 + rank,
            "os_thread_id": 5000 + rank,
            "process": "ckpt_writer",
        }
        return json.dumps(
            [*texts.threads(texts.GRAD_SYNC, rank), *texts.threads(calls, rank, **head)]
        ).encode()

    idle = [("_writer_loop", "writer.py")]
    ranks = {rank: with_writer(rank, idle) for rank in range(32)}
    assert judged(ranks).verdict is UNOBSERVABLE
    ranks[11] = with_writer(11, [("write", "storage.py"), *idle])
    found = judged(ranks)
    assert found.evict_machines == (5,)
    assert "checkpoint writer 5011 in write (storage.py)" in found.reasons[0]
