"""What stacks add to an incident's finding, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit import stack_texts as texts
from tests.unit.stack_texts import PAPER, dump, everywhere, fig_7, judged, snapshot

from everstep.core import hang
from everstep.core.groups import Layout
from everstep.core.hang import JudgedStacks
from everstep.core.model import Alert, RankExit
from everstep.core.record import Finding, StackRecord
from everstep.core.stacks import picture
from everstep.core.stacks.verdict import Judgement
from everstep.core.vocabulary import Observer, Symptom

NAMES = [f"m{slot}" for slot in range(16)]
SILENT = Finding(Symptom.JOB_HANG, (), (), False, "no sign of life for 10.1 s")


def alert(symptom: Symptom, **fields: Any) -> Alert:
    return replace(Alert(Observer.ANALYZER, symptom, 5.0, "because", attempt=1), **fields)


def record(judgement: Judgement) -> StackRecord:
    judged = JudgedStacks(judgement, "memory://x", "grid", "svg")
    return hang.stack_record(judged, NAMES, PAPER, 9.0, 1)


HANG = alert(Symptom.JOB_HANG, step=7)


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        ((), True),
        ((alert(Symptom.INFINIBAND_ERROR, subject="NIC", machine="m1"),), True),
        ((alert(Symptom.GPU_UNAVAILABLE, confident=True, machine="m1"),), False),
        ((alert(Symptom.AGENT_LOST, machine="m1"),), False),
        ((alert(Symptom.PROCESS_CRASH, rank_exit=RankExit(0, "m0", 1, 1, None, 4.0, 7)),), False),
    ],
)
def test_stacks_are_asked_for_where_nothing_tells_more(
    others: tuple[Alert, ...], wanted: bool
) -> None:
    assert hang.wants_stacks([*others, HANG]) is wanted
    assert not hang.wants_stacks(others)


def test_the_step_of_a_hang_is_its_observer_s() -> None:
    assert hang.hung_after([HANG, alert(Symptom.NAN_VALUE, step=9)]) == 7
    assert hang.hung_after([alert(Symptom.JOB_HANG)]) is None


def test_a_suspect_s_machine_goes_for_good_and_alone() -> None:
    stacks = record(judged({**everywhere(texts.GRAD_SYNC), 13: dump(texts.USER_LOCK, 13)}))
    assert (stacks.verdict, stacks.machines, stacks.group_only) == ("evict", ("m6",), ())
    found = hang.sharpened(SILENT, stacks)
    assert (found.machines, found.ranks, found.group_only) == (("m6",), (13,), ())
    assert found.reason.startswith("the job hangs: rank 13 is outside any collective")
    assert hang.told(stacks).splitlines()[0] == "stacks: evict m6 (tp), suspected: rank 13"


def test_of_a_group_that_stands_apart_nobody_is_guilty_by_itself() -> None:
    stacks = record(judged(fig_7()))
    group = ("m12", "m13", "m14", "m15")
    assert (stacks.machines, stacks.group_only, stacks.kind) == (group, group, "pp")
    assert hang.sharpened(SILENT, stacks).group_only == group


def test_only_who_was_not_suspected_is_in_the_group_alone() -> None:
    # Machines 12 and 14 are stuck, of the pipeline group on machines 12-15.
    stuck = {rank: dump(texts.USER_LOCK, rank) for rank in (24, 25, 28, 29)}
    stacks = record(judged({**everywhere(texts.GRAD_SYNC), **stuck}))
    assert stacks.machines == ("m12", "m13", "m14", "m15")
    assert stacks.group_only == ("m13", "m15")
    assert "m13, m15 for the group alone" in hang.told(stacks)


def test_certain_evidence_stays_what_it_is() -> None:
    stacks = record(judged(fig_7()))
    for known in (replace(SILENT, confident=True), replace(SILENT, killed=True)):
        assert hang.sharpened(known, stacks) == known
    assert hang.sharpened(SILENT, None) == SILENT


def test_a_machine_that_does_not_stop_goes_beside_who_held_the_job_up() -> None:
    gone = replace(SILENT, symptom=Symptom.AGENT_LOST, machines=("m3", "m13"), confident=True)
    found = hang.sharpened(gone, record(judged(fig_7())))
    assert (found.symptom, found.confident) == (Symptom.AGENT_LOST, True)
    assert found.machines == ("m12", "m13", "m14", "m15", "m3")
    assert found.group_only == ("m12", "m14", "m15")


def test_who_ended_after_the_hang_only_saw_its_consequence() -> None:
    ended = Finding(Symptom.PROCESS_CRASH, ("m0",), (0,), False, "timed out waiting")
    found = hang.sharpened(ended, record(judged(fig_7())))
    assert (found.symptom, found.machines[0]) == (Symptom.JOB_HANG, "m12")
    assert hang.sharpened(ended, record(judged(everywhere(texts.GRAD_SYNC)))) == ended


def test_what_stacks_do_not_tell_is_said_and_accuses_no_machine() -> None:
    alike = hang.sharpened(SILENT, record(judged(everywhere(texts.GRAD_SYNC))))
    assert (alike.machines, alike.first_action) == ((), "")
    assert "stacks do not tell who: all ranks stand alike" in alike.reason
    program = hang.sharpened(SILENT, record(judged(everywhere(texts.USER_LOCK))))
    assert (program.machines, program.first_action) == ((), "rollback_code")


def test_answers_that_came_another_way_are_a_doubt() -> None:
    note = (
        b'{"answer": "answered", "detail": "by its fault handler; py-spy: not found", "threads": '
    )
    ranks = everywhere(texts.GRAD_SYNC)
    assert hang.hearing_doubts(snapshot(ranks)) == ()
    ranks |= {rank: note + ranks[rank] + b"}" for rank in (3, 4)}
    assert hang.hearing_doubts(snapshot(ranks)) == (
        "Doubt: ranks 3-4 answered by its fault handler; py-spy: not found",
    )


def test_the_grid_of_a_large_job_shows_where_somebody_is_marked() -> None:
    large = Layout(gpus_per_machine=8, tp=8, pp=8, dp=150, order=("tp", "pp", "dp"))
    ranks = everywhere(texts.GRAD_SYNC, large) | {70: dump(texts.USER_LOCK, 70)}
    judgement = judged(ranks, layout=large)
    lines = picture.text(large, judgement, [9000]).splitlines()
    assert [line[:6] for line in lines] == ["      ", "dp 1  ", "dp 140", "148 ot", "! susp"]
    assert "64~ 65~ 66~ 67~ 68~ 69~ 70! 71~" in lines[1]
    assert "9000?" in lines[2]
