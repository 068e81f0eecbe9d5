"""From what the programs of a check said, or how they ended, to a verdict."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from everstep.core.checks import (
    Answer,
    Ending,
    ProgramSettings,
    began,
    judge,
    judge_twice,
    reference_sizes,
    slower_than_peers,
)
from everstep.core.dcgm import judge_toolkit
from everstep.core.model import MachineInfo
from everstep.core.orders import CheckOrder, CheckResult
from everstep.core.vocabulary import Check, Verdict

ORDER = CheckOrder(3, Check.GPU, 60.0)
GOOD = Answer(Verdict.HEALTHY, "fine", figures={"speed": 2.0})


def ending(
    answer: Answer | None = GOOD,
    device: str = "cpu",
    exit_code: int | None = 0,
    number: int | None = None,
    timed_out: bool = False,
    rank: int = 0,
) -> Ending:
    lines = ([began(device)] if device else []) + ([answer.line()] if answer else [])
    return Ending(rank, tuple(lines), exit_code, number, timed_out, "last words")


UNTOLD = [
    # Before torch is loaded nothing is known of the machine's arithmetic.
    (ending(None, "", 1), Verdict.UNOBSERVABLE, "before torch was loaded ended with status 1"),
    (ending(None, "", None, 9, True), Verdict.UNOBSERVABLE, "did not return in time"),
    # A GPU that never returns is broken; a starved CPU is not.
    (ending(None, "cuda", None, 9, True), Verdict.FAULTY, "on cuda did not return in time"),
    (ending(None, "cpu", None, 9, True), Verdict.UNOBSERVABLE, "did not return in time"),
    (ending(None, "cpu", None, signal.SIGKILL), Verdict.UNOBSERVABLE, "SIGKILL"),
    (ending(None, "cuda", None, signal.SIGKILL), Verdict.UNOBSERVABLE, "SIGKILL"),
    (ending(None, "cpu", None, signal.SIGBUS), Verdict.FAULTY, "SIGBUS; its last line: last words"),
    (ending(None, "cuda", None, signal.SIGABRT), Verdict.FAULTY, "SIGABRT"),
    (ending(None, "cpu", None, signal.SIGABRT), Verdict.UNOBSERVABLE, "SIGABRT"),
    (ending(None, "cuda", 1), Verdict.UNOBSERVABLE, "status 1 and no answer"),
]


@pytest.mark.parametrize(("end", "verdict", "told"), UNTOLD)
def test_an_end_without_an_answer_is_healthy_never(
    end: Ending, verdict: Verdict, told: str
) -> None:
    result = judge(ORDER, "m1", [end], 1.0)
    assert result.verdict is verdict
    assert told in result.detail


def test_a_line_that_was_cut_short_is_no_answer() -> None:
    cut = replace(ending(), lines=(began("cpu"), GOOD.line()[:20]))
    assert judge(ORDER, "m1", [cut], 1.0).verdict is Verdict.UNOBSERVABLE


def test_the_worst_program_decides_and_is_named() -> None:
    bad = Answer(Verdict.FAULTY, "wrong product", figures={"speed": 1.0})
    lost = Answer(Verdict.UNOBSERVABLE, "no idea")
    result = judge(ORDER, "m1", [ending(), ending(lost, rank=1), ending(bad, rank=2)], 1.5)
    assert (result.verdict, result.detail) == (Verdict.FAULTY, "local rank 2: wrong product")
    assert (result.machine, result.check, result.took_s) == ("m1", Check.GPU, 1.5)
    assert result.figures == (("speed", 1.0),)
    assert result.device == "cpu"
    assert judge(ORDER, "m1", [ending(), ending(lost, rank=1)], 1.0).verdict is Verdict.UNOBSERVABLE
    assert judge(ORDER, "m1", [ending(), ending(rank=1)], 1.0).detail == "fine"
    assert judge(ORDER, "m1", [], 1.0).verdict is Verdict.UNOBSERVABLE


def test_a_digest_is_whole_and_of_all_ranks_in_order() -> None:
    one, other = (replace(GOOD, digest=digest) for digest in ("aa", "bb"))

    def digest(*answers: Answer) -> str:
        ends = [ending(answer, rank=rank) for rank, answer in enumerate(answers)]
        return judge(ORDER, "m1", ends, 1.0).digest

    assert digest(one, other) == digest(one, other) != ""
    assert digest(one, other) != digest(other, one)
    assert digest(one, GOOD) == ""


def test_a_machine_alone_must_repeat_itself() -> None:
    one = CheckResult("m1", Check.BITWISE, Verdict.HEALTHY, "one step", "aa")
    lost = replace(one, verdict=Verdict.UNOBSERVABLE)
    assert judge_twice(one, one).detail == "one step: the same bits twice"
    assert judge_twice(one, replace(one, digest="bb")).verdict is Verdict.FAULTY
    assert judge_twice(one, lost) == judge_twice(lost, one) == lost


def test_links_that_never_return_accuse_all_the_others() -> None:
    peers = tuple(MachineInfo(name, "h", 1, 2, 3, 0.0) for name in ("m1", "m2"))
    order = replace(ORDER, check=Check.LINKS, peers=peers)
    hung = judge(order, "m1", [ending(None, "cuda", None, 9, True)], 1.0)
    assert (hung.verdict, hung.peers) == (Verdict.FAULTY, ("m2",))
    told = Answer(Verdict.FAULTY, "wrong content", peers=("m2",))
    assert judge(order, "m1", [ending(told)], 1.0).peers == ("m2",)


@pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        (1, (1, 1, 1)), (2, (2, 1, 1)), (3, (1, 1, 3)), (4, (2, 2, 1)), (6, (2, 1, 3)),
        (8, (2, 2, 2)), (16, (2, 2, 4)),
    ],
)  # fmt: skip
def test_the_reference_model_fits_the_machine(ranks: int, sizes: tuple[int, int, int]) -> None:
    assert reference_sizes(ranks) == sizes


def result_of(machine: str, speed: float, device: str = "cuda") -> CheckResult:
    figures = (("gb_per_s", speed),)
    return CheckResult(machine, Check.GPU, Verdict.HEALTHY, "", device=device, figures=figures)


def test_a_machine_is_slow_by_the_others_median() -> None:
    fleet = [result_of(f"m{i}", speed) for i, speed in enumerate((100, 104, 69, 98, 102))]
    told = "gb_per_s is 69, 68% of the other machines' median"
    assert slower_than_peers(fleet) == {"m2": told}
    assert slower_than_peers([*fleet[:2], result_of("m2", 72), *fleet[3:]]) == {}
    # Two others are no measure, and neither is another kind of machine.
    assert slower_than_peers(fleet[:3]) == {}
    assert slower_than_peers([*fleet[:2], *fleet[3:], result_of("m9", 1, "cpu")]) == {}


def report(*results: dict[str, object], name: str = "DCGM Diagnostic") -> str:
    tests = [{"name": "Memory", "results": list(results)}]
    return json.dumps({name: {"test_categories": [{"category": "Hardware", "tests": tests}]}})


def test_the_toolkits_report_is_read_in_both_forms() -> None:
    passed = report({"entity_group": "GPU", "entity_id": 0, "status": "Pass"})
    assert judge_toolkit(f"Starting ...\n{passed}\n").verdict is Verdict.HEALTHY
    old = report(
        {"gpu_ids": "0,1", "status": "PASS"},
        {"gpu_ids": "2", "status": "FAIL", "warnings": "bad bits"},
        name="DCGM GPU Diagnostic",
    )
    assert judge_toolkit(old) == Answer(Verdict.FAULTY, "dcgmi: Memory failed on GPU 2 (bad bits)")
    new = report({"entity_id": 3, "status": "Fail", "warnings": [{"warning": "ECC"}]})
    assert judge_toolkit(new).detail == "dcgmi: Memory failed on GPU 3 (ECC)"
    warned = report({"entity_id": 0, "status": "Warn"}, {"entity_id": 1, "status": "Pass"})
    assert judge_toolkit(warned).detail == "dcgmi: 2 results, none failed, warnings by Memory"


@pytest.mark.parametrize(
    "text", ["", "Error: unable to connect to host engine", "{}", '{"a": {}}', '{"error": "x"}',
             report({"entity_id": 0, "status": "Skip"}), report({"entity_id": 0})],
)  # fmt: skip
def test_a_report_that_says_nothing_is_never_healthy(text: str) -> None:
    assert judge_toolkit(text).verdict is Verdict.UNOBSERVABLE


def test_settings_survive_a_command_line() -> None:
    settings = ProgramSettings(Check.LINKS, "m1", 1, 2, 3, ("m0", "m1"), "k", "h:1", 4.5, "moe")
    assert ProgramSettings.parse(settings.text()) == settings
