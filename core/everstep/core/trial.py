"""One trial of a replay: what a group of machines is told, and what their reports come to.

The incident workflow makes orders of the groups that `core.replay` asks for, and hands the outcomes
back to it; agents carry the orders out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.core.groups import Layout
from everstep.core.model import MachineInfo
from everstep.core.suspicion import Group, Trial, TrialOutcome
from everstep.core.vocabulary import Verdict

FEWEST_COMPARED = 3
"""Groups whose states tell which of them is wrong; two that differ accuse each other."""


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """Run the job, made small, on a group of machines, to see whether its failure shows again.

    Attributes:
        attempt: The attempt that was stopped.
        number: Tells apart trials of one attempt; 0, 1, ...
        machines: The group, this machine included, in the order of their ranks; the first one hosts
            the store in which they meet.
        parallelism: Sizes and order for the ranks' environment, as in the job but for a smaller dp.
        steps: How many steps to run, each time from the beginning.
        repeats: How often to run them; the first failure ends the trial.
        layers: How many layers to build; 0: as many as the script itself does.
        seed: For weights and data: the same on all groups, so that their states can be compared.
        deadline_s: How long all repeats together may take, > 0; whatever runs then is killed.
        code_directory: Where the code version lies on the machine.
        settings: Arguments and variables of the code version, beside the spec's.
    """

    attempt: int
    number: int
    machines: tuple[MachineInfo, ...]
    parallelism: str
    steps: int
    repeats: int
    layers: int
    seed: int
    deadline_s: float
    code_directory: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """How a trial went on one machine.

    Attributes:
        machine: Who reports.
        verdict: Faulty: the group failed here, as the incident does or by crashing. It accuses the
            group, not the machine. Could-not-tell where the trial could not run to its end.
        detail: One sentence with what decided.
        digest: SHA-256 over the states after the last step; empty where the script gives none.
        took_s: How long it took.
    """

    machine: str
    verdict: Verdict
    detail: str
    digest: str = ""
    took_s: float = 0.0


def parallelism_of(layout: Layout, machines: int) -> str:
    """The sizes of a job on this many machines, every dimension but dp kept: for the environment.

    Raises:
        ValueError: The machines do not fill whole copies of the model.
    """
    per_copy = layout.world_size // layout.sizes["dp"]
    copies, over = divmod(machines * layout.gpus_per_machine, per_copy)
    if over or not copies:
        raise ValueError(f"{machines} machines do not fill whole copies of {per_copy} ranks")
    order = layout.order if "dp" in layout.order or copies == 1 else (*layout.order, "dp")
    sizes = ",".join(f"{k}={copies if k == 'dp' else layout.sizes[k]}" for k in order)
    return f"{sizes};order={'-'.join(order)}"


def outcomes(groups: Sequence[Group], reports: Sequence[Mapping[int, ReplayReport]]) -> list[Trial]:
    """What the reports of one round come to, group by group.

    A group fails when the incident's failure shows on any of its machines, or when its state after
    the last step differs from that of most groups of its size: all ran the same steps on the same
    data. Where states differ and no majority agrees, none of these groups has passed: could not
    tell. A group of which a machine could not tell, or did not answer, was not tested, unless
    another one of it failed.

    Paper: Algorithm 1, lines 9-11, by symptom alone. The comparison of states is ours; it needs
    more than half of at least three groups to agree, since two that differ accuse each other.

    Args:
        groups: The round's groups.
        reports: For each group, the reports that came, by machine number.
    """
    told = [_of_reports(group, given) for group, given in zip(groups, reports, strict=True)]
    trials: list[Trial] = []
    for group, (outcome, state) in zip(groups, told, strict=True):
        alike = [
            other_state
            for other, (other_outcome, other_state) in zip(groups, told, strict=True)
            if other_outcome is TrialOutcome.PASSED
            and len(other.machines) == len(group.machines)
            and other_state
        ]
        if outcome is TrialOutcome.PASSED and state:
            outcome = _compared(state, alike)
        trials.append(Trial(group, outcome))
    return trials


def _of_reports(group: Group, reports: Mapping[int, ReplayReport]) -> tuple[TrialOutcome, str]:
    given = [reports[machine] for machine in group.machines if machine in reports]
    if any(report.verdict is Verdict.FAULTY for report in given):
        return TrialOutcome.FAILED, ""
    healthy = [report for report in given if report.verdict is Verdict.HEALTHY]
    if len(healthy) < len(group.machines):
        return TrialOutcome.COULD_NOT_TELL, ""
    digests = [report.digest for report in healthy]
    return TrialOutcome.PASSED, "/".join(digests) if all(digests) else ""


def _compared(state: str, alike: Sequence[str]) -> TrialOutcome:
    (most, votes), *_ = Counter(alike).most_common(1)
    if votes == len(alike):
        return TrialOutcome.PASSED
    if len(alike) < FEWEST_COMPARED or votes * 2 <= len(alike):
        return TrialOutcome.COULD_NOT_TELL
    return TrialOutcome.PASSED if state == most else TrialOutcome.FAILED
