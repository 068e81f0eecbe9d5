"""The corpus' stack dumps and recorders as whole jobs, each with a trap for the obvious reading.

Only the words of the reports were kept, so the files are made anew from what they say: who stood
where, in which collective, at which number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit import stack_texts as texts
from tests.unit.stack_texts import dump, judged, recorder

from everstep.core.groups import Layout
from everstep.core.stacks.judge import judge
from everstep.core.stacks.verdict import NextStep, StackVerdict

CORPUS = Path(__file__).parent.parent / "data" / "corpus" / "cases.jsonl"


def case(name: str) -> dict[str, Any]:
    with CORPUS.open() as file:
        found: list[dict[str, Any]] = [json.loads(line) for line in file]
    return next(item for item in found if item["id"] == name)


def test_bloom_the_majority_is_ahead_and_odd_ranks_are_on_every_machine() -> None:
    """Obvious and wrong: six of eight stand alike, so the two in broadcast are at fault.

    The six have left the step; nobody knows which side is stuck, and both are on every machine.
    """
    told = case("bloom-hang-aggregate-loss-320gpu")
    assert "_aggregate_total_loss" in told["evidence"]
    layout = Layout(gpus_per_machine=8, tp=4, pp=10, dp=8, order=("tp", "pp", "dp"))
    ahead = [("train", "megatron/training.py"), ("pretrain", "megatron/training.py")]
    behind = [
        ("broadcast", "torch/distributed/distributed_c10d.py"),
        ("_aggregate_total_loss", "deepspeed/runtime/pipe/engine.py"),
        ("train_batch", "deepspeed/runtime/pipe/engine.py"),
        *ahead,
    ]
    ranks = {r: dump(behind if r % 8 in (3, 6) else ahead, r) for r in range(layout.world_size)}
    found = judged(ranks, layout=layout)
    assert found.verdict is StackVerdict.UNOBSERVABLE
    assert found.evict_machines == ()
    # Ranks that do not answer are missing evidence, not healthy: here they are the evidence.
    del ranks[100], ranks[101]
    assert judged(ranks, layout=layout).evict_machines == (12,)


def test_pytorch_rank_0_is_ahead_in_another_operation() -> None:
    """Obvious and wrong: the lowest sequence number is at fault, so ranks 1 and 2 are."""
    told = case("pytorch-rank0-allgather-vs-broadcast")
    assert told["culprit_rank"].startswith("0")
    assert "SeqNum=532341, OpType=_ALLGATHER_BASE, NumelIn=513" in told["evidence"]
    layout = Layout(gpus_per_machine=1, dp=3)
    world = "[0, 1, 2]"
    behind = recorder({"0": (532339, 532338, world)}, {"0": (532339, "broadcast", 5164000)})
    ahead = recorder({"0": (532341, 532340, world)}, {"0": (532341, "_all_gather_base", 513)})
    stacks = {rank: dump(texts.TP_REDUCE, rank) for rank in range(3)}
    found = judged(stacks, {0: ahead, 1: behind, 2: behind}, layout)
    assert found.suspect_ranks == (0,)
    assert "ahead" in found.reasons[0]
    assert "_all_gather_base of 513 elements" in found.reasons[0]


def test_sync_buffers_neither_the_majority_nor_the_missing_are_at_fault() -> None:
    """Obvious and wrong: ranks 3-7 are missing; or, they are five of eight, so 0-2 are at fault.

    Ranks took different ways through the model, which no machine explains.
    """
    told = case("fr-missing-ranks-sync-buffers")
    assert "missing ranks: {3, 4, 5, 6, 7}" in told["evidence"]
    layout = Layout(gpus_per_machine=1, dp=8)
    world = str(list(range(8)))
    came = recorder({"0": (31117, 31116, world)}, {"0": (31117, "all_reduce", 1571911)})
    missing = recorder({"0": (31116, 31116, world)})
    calls = [("synchronize", "torch/cuda/__init__.py"), *texts.MAIN]
    stacks = {rank: dump(calls, rank) for rank in range(8)}
    found = judged(stacks, {rank: came if rank < 3 else missing for rank in range(8)}, layout)
    assert (found.verdict, found.evict_machines) == (StackVerdict.UNOBSERVABLE, ())
    assert found.next_step is NextStep.PERSON
    assert any("took different ways" in reason for reason in found.reasons)


def test_mixed_modality_the_odd_ranks_are_others_each_time() -> None:
    """Obvious and wrong: the rank that does not gather parameters has a broken machine.

    Whose batch holds no image changes from step to step, as the odd rank does.
    """
    told = case("deepspeed-zero3-mixed-modality")
    assert "last enqueued work: 1118, last completed work: 1115" in told["evidence"]
    layout = Layout(gpus_per_machine=1, dp=8)
    world = str(list(range(8)))
    came = recorder({"1": (1118, 1115, world)}, {"1": (1116, "_all_gather_base", 64)})
    text_only = recorder({"1": (1115, 1115, world)})
    calls = [("synchronize", "torch/cuda/__init__.py"), *texts.MAIN]
    stacks = {rank: dump(calls, rank) for rank in range(8)}

    def at(odd: int) -> Any:
        recorders = {rank: text_only if rank == odd else came for rank in range(8)}
        return texts.snapshot(stacks, recorders)

    assert judge(layout, [at(5)]).suspect_ranks == (5,)
    found = judge(layout, [at(5), at(2)])
    assert (found.verdict, found.evict_machines) == (StackVerdict.MOVING, ())
