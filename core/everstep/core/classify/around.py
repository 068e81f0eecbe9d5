"""What a line means beside the other lines: the rules that one line alone cannot decide.

Each function takes all matches and gives them back, some of them read anew. They run in the order
of `REFINEMENTS`, before the leading line is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from everstep.core.classify.around_kernel import KERNEL_REFINEMENTS
from everstep.core.classify.evidence import Context, Match
from everstep.core.classify.lines import gpu_of
from everstep.core.classify.matches import Matches, Refinement, of, reread
from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Standing

_SM = re.compile(r"gpc \d+, tpc \d+(?:, sm \d+)?", re.IGNORECASE)
_PID = re.compile(r"\bpid[ :=]+(\d+)", re.IGNORECASE)
_PORT = re.compile(
    r"\b(mlx\d_\w+|mlx5_core [0-9a-f:.]+|ib\w*\d+|ens?p?\w*np\d|roce\w*|bnxt\w*|irdma\w*)", re.I
)
_SCALE = re.compile(
    r"(?:reducing(?: loss scale)? to|loss scale(?: to)?:?) *(\d+(?:\.\d*)?(?:e[+-]?\d+)?)",
    re.IGNORECASE,
)
_OTHERS_MEMORY = re.compile(r"process (\d+) has ([\d.]+) ([gm])i?b memory in use", re.IGNORECASE)
_CAPACITY = re.compile(r"total capacity of ([\d.]+) ([gm])i?b", re.IGNORECASE)

_PROGRAM = Reading(Symptom.CUDA_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.6)
_SUSPECT_SM = Reading(Symptom.CUDA_ERROR, Label.GPU_HARDWARE, Action.CHECK, 0.6)
_NVLINK = Reading(Symptom.JOB_HANG, Label.INFRASTRUCTURE, Action.EVICT, 0.65)
_FLAPS = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.EVICT, 0.75)
_SHM = Reading(Symptom.PROCESS_CRASH, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.7)
_BUILD = Reading(Symptom.PROCESS_CRASH, Label.USER_CODE, Action.ROLLBACK, 0.5)
_DONE = Reading(Symptom.NONE, Label.INFRASTRUCTURE, Action.NONE, 0.7)
_SEARCHING = Reading(Symptom.NONE, Label.TRANSIENT, Action.NONE, 0.75)
_DIVERGES = Reading(Symptom.NAN, Label.USER_CODE, Action.ROLLBACK, 0.6)
_LEFT_OVER = Reading(Symptom.CUDA_OOM, Label.INFRASTRUCTURE, Action.RETRY, 0.6)

SMALLEST_HEALTHY_SCALE = 64.0
"""Dynamic loss scaling that ends below this has not found a range, it has lost the numbers."""
ONE_EVENT_S = 2.0
"""Lines of one port within this time tell of one event."""


def refine(matches: Sequence[Match], context: Context) -> Matches:
    """Read every match anew in the light of the others."""
    refined = list(matches)
    for step in REFINEMENTS:
        refined = step(refined, context)
    return refined


def _engine_exceptions(matches: Matches, _: Context) -> Matches:
    """Xid 13: always the same multiprocessor is a suspect, many are the program."""
    found = of(matches, "xid 13")
    places = {(gpu_of(m.text), sm[0].lower()) for m in found if (sm := _SM.search(m.text))}
    if len(places) == 1:
        return reread(matches, ["xid 13"], Standing.SIGN, _SUSPECT_SM)
    return matches


def _page_faults(matches: Matches, _: Context) -> Matches:
    """Xids 13, 31 and 43 on several GPUs are the program's: hardware fails one at a time."""
    found = of(matches, "xid 13", "xid 31", "xid 43")
    if len({gpu_of(m.text) for m in found}) > 1:
        return reread(matches, ["xid 13", "xid 31"], Standing.CAUSE, _PROGRAM)
    return matches


def _fabric_privilege(matches: Matches, _: Context) -> Matches:
    """Xid 137 together with the link's own Xids: the link, not the program."""
    if of(matches, "xid 137") and of(matches, "xid nvlink5 nonfatal", "xid nvlink5 fatal"):
        names = ["xid 137", "xid nvlink5 nonfatal"]
        return reread(matches, names, Standing.PROOF, _NVLINK)
    return matches


def _flaps(matches: Matches, _: Context) -> Matches:
    """The second alert of one port points at its machine."""
    down = of(matches, "fabric port down", "port event")
    events: dict[str, list[Match]] = {}
    again: set[str] = set()
    for match in down:
        port = _PORT.search(match.text)
        if port is None:
            continue
        before = events.setdefault(port[1].lower(), [])
        if any(_apart(match, other) for other in before):
            again.add(port[1].lower())
        before.append(match)
    return [
        replace(m, standing=Standing.CAUSE, reading=_FLAPS)
        if m in down and (port := _PORT.search(m.text)) and port[1].lower() in again
        else m
        for m in matches
    ]


def _apart(one: Match, other: Match) -> bool:
    """Whether two lines about a port tell of two events: by their times, else by how they begin."""
    if one.clock_s is not None and other.clock_s is not None:
        return abs(one.clock_s - other.clock_s) > ONE_EVENT_S
    return one.text.split()[:2] == other.text.split()[:2]


def _num_processes(matches: Matches) -> int:
    """How many ranks or processes the lines name; a launcher names its children by pid."""
    ranks = {m.rank for m in matches if m.rank is not None}
    pids = {pid[1] for m in matches if (pid := _PID.search(m.text))}
    return max(len(ranks), len(pids))


def _bus_errors(matches: Matches, context: Context) -> Matches:
    """SIGBUS of several ranks at once is /dev/shm; of one, a cut file or broken memory."""
    if _num_processes(of(matches, "sigbus")) > 1 or context.all_ranks:
        return reread(matches, ["sigbus"], Standing.CAUSE, _SHM)
    return matches


def _after_success(matches: Matches, _: Context) -> Matches:
    """A crash, a lost peer or a time-out after the work was done concerns nobody."""
    done = [m for m in matches if m.rule.name == "finished"]
    telling = [m for m in matches if m.standing > Standing.CONTEXT]
    if not done or any(m.standing >= Standing.CAUSE for m in telling):
        return matches
    if any((m.source, m.line) < (done[0].source, done[0].line) for m in telling):
        return matches
    return [
        replace(m, standing=Standing.CONTEXT, reading=_DONE) if m in telling else m for m in matches
    ]


def _segfaults(matches: Matches, context: Context) -> Matches:
    """In the launcher's last barrier: after success. In several ranks alike: the program."""
    if of(matches, "launcher leaving"):
        return reread(matches, ["sigsegv", "sigabrt", "traceback"], Standing.SIGN, _DONE)
    if _num_processes(of(matches, "sigsegv")) > 1 or context.all_ranks:
        return reread(matches, ["sigsegv"], Standing.SIGN, _BUILD)
    return matches


def _loss_scale(matches: Matches, _: Context) -> Matches:
    """Skipped steps are the search for a scale, until the scale gets too small to matter."""
    overflows = of(matches, "overflow")
    scales = [float(s[1]) for m in overflows if (s := _SCALE.search(m.text))]
    if not overflows:
        return matches
    if scales and min(scales) < SMALLEST_HEALTHY_SCALE:
        return reread(matches, ["overflow"], Standing.SIGN, _DIVERGES)
    return reread(matches, ["overflow"], Standing.CONTEXT, _SEARCHING)


def _left_over(matches: Matches, _: Context) -> Matches:
    """Device memory that another process holds was left by an earlier attempt."""

    def held_by_another(match: Match) -> bool:
        others = _OTHERS_MEMORY.findall(match.text)
        capacity = _CAPACITY.search(match.text)
        if len(others) != 1 or capacity is None:
            return False
        held, total = float(others[0][1]), float(capacity[1])
        return others[0][2].lower() == capacity[2].lower() and held > total / 2

    return [
        replace(m, reading=_LEFT_OVER)
        if m.rule.name == "device memory full" and held_by_another(m)
        else m
        for m in matches
    ]


REFINEMENTS: tuple[Refinement, ...] = (
    *KERNEL_REFINEMENTS,
    _engine_exceptions,
    _page_faults,
    _fabric_privilege,
    _flaps,
    _bus_errors,
    _segfaults,
    _after_success,
    _loss_scale,
    _left_over,
)
