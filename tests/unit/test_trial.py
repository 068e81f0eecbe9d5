from __future__ import annotations

import pytest

from everstep.core.groups import Layout
from everstep.core.suspicion import Group, TrialOutcome
from everstep.core.trial import ReplayReport, outcomes, parallelism_of
from everstep.core.vocabulary import Verdict

GROUPS = [Group((0, 1)), Group((2, 3)), Group((4, 5)), Group((6, 7))]
FAILED, PASSED, UNTOLD = TrialOutcome.FAILED, TrialOutcome.PASSED, TrialOutcome.COULD_NOT_TELL


def told(*groups: str) -> list[TrialOutcome]:
    """Outcomes of groups of two machines, a letter each: h, f, u, or - for no report.

    A digit after the letters is the state that both machines end in.
    """
    verdicts = {"h": Verdict.HEALTHY, "f": Verdict.FAULTY, "u": Verdict.UNOBSERVABLE}
    reports = [
        {
            machine: ReplayReport(f"m{machine}", verdicts[letter], "", text[2:])
            for machine, letter in zip(group.machines, text, strict=False)
            if letter != "-"
        }
        for group, text in zip(GROUPS, groups, strict=False)
    ]
    return [t.outcome for t in outcomes(GROUPS[: len(groups)], reports)]


def test_one_failure_is_enough_and_a_pass_takes_all() -> None:
    assert told("hh", "hf", "hu", "h-") == [PASSED, FAILED, UNTOLD, UNTOLD]
    assert told("uf") == [FAILED]


def test_group_whose_state_differs_from_most_fails() -> None:
    assert told("hh1", "hh1", "hh2", "hh1") == [PASSED, PASSED, FAILED, PASSED]
    assert told("hh1", "hh1", "hh2", "ff1") == [PASSED, PASSED, FAILED, FAILED]


def test_states_without_a_majority_accuse_nobody_and_clear_nobody() -> None:
    assert told("hh1", "hh2") == [UNTOLD, UNTOLD]
    assert told("hh1", "hh1", "hh2", "hh2") == [UNTOLD] * 4
    assert told("hh1", "hh", "hh2") == [UNTOLD, PASSED, UNTOLD]
    assert told("hh1", "hh", "hh1") == [PASSED] * 3


def test_only_dp_shrinks() -> None:
    layout = Layout(2, tp=2, pp=4, dp=6, order=("tp", "pp", "dp"))
    assert parallelism_of(layout, 4) == "tp=2,pp=4,dp=1;order=tp-pp-dp"
    assert parallelism_of(layout, 8) == "tp=2,pp=4,dp=2;order=tp-pp-dp"
    with pytest.raises(ValueError, match="whole copies"):
        parallelism_of(layout, 3)
