"""What flight recorders add where stacks are equal or missing."""

from __future__ import annotations

from tests.unit import stack_texts as texts
from tests.unit.stack_texts import PAPER, everywhere, judged, recorder

from everstep.core.groups import Layout
from everstep.core.stacks.verdict import NextStep, StackVerdict

EVICT, UNOBSERVABLE = StackVerdict.EVICT, StackVerdict.UNOBSERVABLE
WORLD = str(list(range(PAPER.world_size)))
REDUCE = (41, "all_reduce", 1000)


def world(enqueued: int, completed: int, work: tuple[int, str, int] = REDUCE) -> bytes:
    return recorder({"0": (enqueued, completed, WORLD)}, {"0": work})


def all_of(common: bytes, **others: bytes) -> dict[int, bytes]:
    return {
        **dict.fromkeys(range(PAPER.world_size), common),
        **{int(key.removeprefix("r")): text for key, text in others.items()},
    }


def test_the_one_that_did_not_come_is_suspected_although_stacks_are_equal() -> None:
    # Asynchronous collectives leave every rank at the same synchronisation.
    calls = [("synchronize", "torch/cuda/__init__.py"), *texts.MAIN]
    found = judged(everywhere(calls), all_of(world(41, 40)))
    assert found.verdict is UNOBSERVABLE
    found = judged(everywhere(calls), all_of(world(41, 40), r9=world(40, 40)))
    assert (found.suspect_ranks, found.evict_machines) == ((9,), (4,))
    assert "did not come to collective 41" in found.reasons[0]
    # Where Python shows no wait at all, the recorder tells who is outside.
    idle = [("step", "train.py"), *texts.MAIN]
    found = judged(everywhere(idle), all_of(world(41, 40), r9=world(40, 40)))
    assert (found.suspect_ranks, found.evict_machines) == ((9,), (4,))


def test_another_size_or_operation_stands_out_although_stacks_are_equal() -> None:
    for work in ((41, "all_reduce", 999), (41, "broadcast", 1000)):
        found = judged(everywhere(texts.TP_REDUCE), all_of(world(41, 40), r9=world(41, 40, work)))
        assert (found.suspect_ranks, found.evict_machines) == ((9,), (4,))
        assert "came to collective 41 of group 0 with" in found.reasons[0]


def test_the_one_that_is_ahead_stands_out_not_those_with_the_lowest_number() -> None:
    ahead = world(43, 42, (43, "_allgather_base", 513))
    found = judged(everywhere(texts.TP_REDUCE), all_of(world(41, 40), r0=ahead))
    assert (found.suspect_ranks, found.evict_machines) == ((0,), (0,))
    assert "is ahead of collective 41" in found.reasons[0]


def test_the_one_that_is_not_done_with_what_others_are_done_with_stands_out() -> None:
    found = judged(everywhere(texts.TP_REDUCE), all_of(world(42, 41), r5=world(41, 40)))
    assert found.suspect_ranks == (5,)


def test_a_rank_that_is_absent_because_it_waits_elsewhere_is_excused() -> None:
    """Its peers miss it in the gradient sync, and it misses machine 15 in the pipeline."""

    def ranks_of(rank: int) -> bytes:
        at = PAPER.coordinates(rank)
        dp, pp = PAPER.group("dp", rank), PAPER.group("pp", rank)
        name = f"tp{at['tp']}"
        late = at["dp"] == 3
        culprit = rank in (30, 31)
        groups = {
            f"dp-{name}-pp{at['pp']}": (10, 10, str(list(dp))) if late else (11, 10, str(list(dp))),
            f"pp-{name}-dp{at['dp']}": (
                (20, 20, str(list(pp))) if culprit or not late else (21, 20, str(list(pp)))
            ),
        }
        return recorder(groups)

    recorders = {rank: ranks_of(rank) for rank in range(32)}
    calls = [("synchronize", "torch/cuda/__init__.py"), *texts.MAIN]
    assert judged(everywhere(calls)).verdict is UNOBSERVABLE
    found = judged(everywhere(calls), recorders)
    assert (found.suspect_ranks, found.evict_machines) == ((30, 31), (15,))


def test_one_group_that_came_together_and_does_not_end_is_the_fault_s_own() -> None:
    pair = recorder({"7": (21, 20, "[4, 5]")}, {"7": (21, "all_reduce", 64)})
    other = recorder({"9": (20, 20, "[0, 1]")})
    found = judged(everywhere(texts.TP_REDUCE), {4: pair, 5: pair, 0: other})
    assert (found.suspect_ranks, found.evict_machines) == ((4, 5), (2,))


def test_a_silent_rank_that_waits_by_its_recorder_is_a_doubt() -> None:
    stacks = texts.without(everywhere(texts.TP_REDUCE), [3])
    assert judged(stacks).suspect_ranks == (3,)
    found = judged(stacks, all_of(world(41, 40)))
    assert found.verdict is UNOBSERVABLE
    assert any("Doubt: rank 3" in reason for reason in found.reasons)


def test_recorders_alone_tell_too() -> None:
    found = judged({}, all_of(world(41, 40), r9=world(40, 40)))
    assert found.evict_machines == (4,)
    found = judged({}, all_of(world(40, 40)))
    assert (found.verdict, found.next_step) == (UNOBSERVABLE, NextStep.REPLAY)


def test_gloo_s_groups_are_told_by_their_description() -> None:
    layout = Layout(gpus_per_machine=1, tp=2, dp=2, order=("tp", "dp"))
    entry = (
        '{"pg_id": 1, "process_group": ["1", "tp"], "collective_seq_id": 7, "state": "scheduled",'
        ' "retired": false, "profiling_name": "gloo:all_reduce", "input_sizes": [[8]]}'
    )
    waits = f'{{"entries": [{entry}], "pg_config": {{"": {{"name": "", "ranks": "[]"}}}}}}'
    idle = waits.replace('"retired": false', '"retired": true').replace(": 7", ": 6")
    done = waits.replace('"retired": false', '"retired": true')
    recorders = {0: waits, 1: idle, 2: done, 3: done}
    texts_of = {rank: text.encode() for rank, text in recorders.items()}
    found = judged(everywhere(texts.TP_REDUCE, layout), texts_of, layout)
    assert (found.suspect_ranks, found.evict_machines) == ((1,), (1,))
    # It may as well wait in a receive, which gloo does not record and nobody has seen.
    assert judged({}, texts_of, layout).verdict is UNOBSERVABLE
