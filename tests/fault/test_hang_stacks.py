"""From ranks that hang to a verdict, by the real tracer, store and judge, where asking is hard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment
from tests.fault.machines import Rig, config_of, until
from tests.unit import stack_texts as texts

from everstep.activities.evidence import EvidenceStore
from everstep.activities.stacks import StackJudge
from everstep.activities.trace import TraceActivities, Tracing
from everstep.agent import witness
from everstep.agent.probes.stacks import Asking
from everstep.agent.tracer import Target, trace
from everstep.core.groups import Layout
from everstep.core.orders import TraceOrder
from everstep.core.stacks.dump import Answer, RankTrace
from everstep.core.stacks.verdict import Judgement, StackVerdict
from everstep.workflows.effects import JudgeOrder, MachineStacks

RANKS, STUCK = 4, 2
TRAIN = """
    import os, threading, time

    def arrived():
        open(os.environ["EVERSTEP_OUTPUT_DIR"] + "/" + os.environ["RANK"], "w").close()
    def all_reduce():
        arrived()
        time.sleep(600)
    def stuck():
        lock = threading.Lock()
        lock.acquire()
        arrived()
        lock.acquire()

    (stuck if os.environ["RANK"] == "2" else all_reduce)()
"""


class Asked:
    """Ranks of a machine that are asked in one way."""

    def __init__(self, targets: dict[int, Target], how: Asking) -> None:
        self._targets, self._how = targets, how

    async def trace(self, order: TraceOrder) -> tuple[int, dict[int, RankTrace]]:
        return order.attempt or 1, await trace(self._targets, self._how)


class Said:
    """Ranks of a machine whose answers are known."""

    def __init__(self, answers: dict[int, bytes]) -> None:
        self._answers = answers

    async def trace(self, order: TraceOrder) -> tuple[int, dict[int, RankTrace]]:
        return order.attempt or 1, {
            rank: RankTrace(Answer.ANSWERED if text else Answer.NO_ANSWER, "", text)
            for rank, text in self._answers.items()
        }


async def judged(layout: Layout, machines: Sequence[Tracing], root: Path) -> Judgement:
    """Two looks at all machines, through both activities."""
    store, run = EvidenceStore(str(root / "evidence")), ActivityEnvironment().run
    activities = [TraceActivities(f"m{slot}", m, store) for slot, m in enumerate(machines)]
    looks: list[tuple[MachineStacks, ...]] = []
    for _ in range(2):
        reports = await asyncio.gather(*(run(each.trace, TraceOrder(1)) for each in activities))
        looks.append(tuple(MachineStacks(r.machine, r.evidence, r.manifest) for r in reports))
    said = await run(StackJudge(store).judge, JudgeOrder("test", layout, tuple(looks)))
    assert said == await run(StackJudge(store).judge, JudgeOrder("test", layout, tuple(looks)))
    assert store.get(said.picture).startswith(b"<svg")
    return said.judgement


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "No such file"),
        ("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2\nexit 1\n", "Permission"),
        ("#!/bin/sh\nexec sleep 600\n", "no answer to py-spy in 3 s"),
    ],
    ids=["missing", "refused", "hanging"],
)
async def test_the_culprit_is_found_without_py_spy(
    script: str | None, why: str, tmp_path: Path
) -> None:
    program = tmp_path / "py-spy"
    if script is not None:
        program.write_text(script)
        program.chmod(0o755)
    async with Rig(config_of(tmp_path, ("python", "train.py"))) as rig:
        rig.write(TRAIN)
        await rig.machine.start(rig.order(1, num_ranks=RANKS))
        out = rig.config.output_dir
        await until(lambda: all((out / str(rank)).exists() for rank in range(RANKS)))
        pids: list[int] = rig.effects("started")[-1]["pids"]
        how = Asking((str(program),), 3.0)
        machines = [
            Asked({rank: Target(pid, witness.stacks_file(rig.config, 1, rank))}, how)
            for rank, pid in enumerate(pids)
        ]
        found = await judged(Layout(1, dp=RANKS), machines, tmp_path)
    assert (found.verdict, found.evict_machines) == (StackVerdict.EVICT, (STUCK,)), found
    assert found.reasons[0] == f"rank {STUCK} is outside any collective, in stuck (train.py)"
    doubt = found.reasons[-1]
    assert doubt.startswith("Doubt: ranks 0-3 answered by its fault handler")
    assert why in doubt


async def test_one_rank_in_a_hundred_without_an_answer_is_a_doubt(tmp_path: Path) -> None:
    layout = Layout(gpus_per_machine=8, tp=8, pp=4, dp=16, order=("tp", "pp", "dp"))
    ranks = texts.everywhere(texts.GRAD_SYNC, layout)
    ranks |= {rank: texts.dump(texts.USER_LOCK, rank) for rank in range(104, 112)}
    ranks |= dict.fromkeys(range(50, layout.world_size, 100), b"")
    slots = range(layout.num_machines)
    machines = [Said({rank: ranks[rank] for rank in layout.ranks_of(slot)}) for slot in slots]
    found = await judged(layout, machines, tmp_path)
    assert (found.verdict, found.evict_machines) == (StackVerdict.EVICT, (13,)), found
    doubts = [reason for reason in found.reasons if reason.startswith("Doubt: ")]
    assert any("did not answer" in doubt for doubt in doubts), found.reasons
