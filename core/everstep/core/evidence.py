"""From alerts and exits to one finding: what happened, and who stands out.

Called by the incident workflow after the ranks have been stopped, when every reachable machine has
told how its ranks ended. Ranks die in turn when one of them goes: the peers of a dead rank see
closed connections and exit, too. So exits are ordered by time, a death by signal leads a death by
exception, and an exit whose last words blame a connection is taken as a consequence whenever
another is at hand. What ranks said last is read by the classifier (`testimony`): a fault of the
machine in a rank's own words leads, then a kill for memory.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace

from everstep.core.classify.names import Action
from everstep.core.classify.rule import Standing
from everstep.core.model import Alert, RankExit
from everstep.core.record import Finding
from everstep.core.testimony import Testimony, hear
from everstep.core.vocabulary import Symptom

CONNECTION_WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "socket closed",
)
"""What gloo and NCCL print on the ranks that only lost a peer."""

SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM)
"""Signals that no program raises by a fault of its own or of its machine."""

WORDS_LINES = 10
WORDS_LINE_CHARS = 200
"""Enough for the end of a traceback; the record of an incident travels through histories."""


def classify(
    alerts: Sequence[Alert], exits: Iterable[RankExit], silent_machines: Iterable[str]
) -> Finding:
    """Say what the evidence of one failure means.

    Paper: section 4.1 (high-confidence, machine-specific events go straight to eviction). What a
    machine's own senses are certain of leads whatever its ranks said when they ended. Departs from
    the paper in that a machine that does not answer an order is evidence like a lost agent, never
    "healthy".

    Args:
        alerts: Everything that observers raised for this failure; at least one.
        exits: Ranks that ended by themselves, in any order.
        silent_machines: Machines that did not answer the stop order in time.

    Returns:
        The finding; its reason names the evidence that decided.
    """
    lost = {a.machine for a in alerts if a.symptom is Symptom.AGENT_LOST and a.machine is not None}
    gone = sorted(lost | set(silent_machines))
    certain = sorted((a for a in alerts if a.confident and a.machine), key=lambda a: a.at_s)
    faulty = {a.machine for a in certain if a.machine is not None}
    if gone:
        how = ", ".join(f"{m} ({'lost' if m in lost else 'no answer'})" for m in gone)
        reason = "; ".join([f"machine gone: {how}", *(_seen_by_senses(a) for a in certain)])
        return Finding(Symptom.AGENT_LOST, tuple(sorted({*gone, *faulty})), (), True, reason)
    if certain:
        reason = "; ".join(_seen_by_senses(a) for a in certain)
        return Finding(certain[0].symptom, tuple(sorted(faulty)), (), True, reason)
    failed = sorted((e for e in exits if not e.succeeded), key=lambda e: (e.at_s, e.rank))
    others = [alert for alert in alerts if alert.symptom is not Symptom.PROCESS_CRASH]
    if failed and not (others and all(blames_connection(e) for e in failed)):
        return _from_exits(failed)
    if failed:
        # Machines are stopped some moments apart: ranks that only lost a peer follow from the stop,
        # and that had another reason.
        alerts = others
    first = min(alerts, key=lambda a: a.at_s)
    machines = tuple(sorted({a.machine for a in alerts if a.machine is not None}))
    return Finding(first.symptom, machines, (), False, first.detail)


def calls_for_action(alert: Alert) -> bool:
    """Whether an alert is reason enough to stop the ranks.

    What a machine's senses only suspect is not: a job runs on with a warm GPU or a full disk, and
    with the first network alert of a machine (the second within five minutes is certain, see
    `senses.network`). If it is more than that, ranks end or fall silent, which is an alert too.
    """
    return not alert.subject or alert.confident


def gathered(alerts: Sequence[Alert]) -> list[Alert]:
    """The same evidence in few alerts: of ranks that ended on one machine, the first.

    The report of the stop order that follows has all of them.

    Args:
        alerts: What one observer raises at once.

    Returns:
        All others unchanged, in order.
    """
    ended = [alert for alert in alerts if alert.rank_exit is not None]
    together: dict[tuple[str | None, int], list[Alert]] = {}
    for alert in sorted(ended, key=lambda a: a.at_s):
        together.setdefault((alert.machine, alert.attempt), []).append(alert)
    firsts = {id(group[0]): len(group) - 1 for group in together.values()}
    return [
        alert if alert.rank_exit is None else _with_others(alert, firsts[id(alert)])
        for alert in alerts
        if alert.rank_exit is None or id(alert) in firsts
    ]


def _with_others(alert: Alert, others: int) -> Alert:
    if not others:
        return alert
    more = f", and {others} more rank{'s' if others > 1 else ''} there ended"
    return replace(alert, detail=alert.detail + more)


def _seen_by_senses(alert: Alert) -> str:
    return f"{alert.machine}: {alert.detail}"


def _from_exits(failed: Sequence[RankExit]) -> Finding:
    said = hear(failed)
    if said is not None and said.accuses_machine:
        return _from_words(said, failed)
    out_of_memory = next((e for e in failed if e.oom_killed), None)
    if out_of_memory is not None:
        reason = _how(out_of_memory, failed)
        where, who = (out_of_memory.machine,), (out_of_memory.rank,)
        return Finding(
            Symptom.CPU_OOM,
            where,
            who,
            False,
            reason,
            killed=True,
            first_action=Action.RETRY.value,
            confidence=0.9,
        )
    by_signal = [e for e in failed if e.signal is not None]
    if said is not None and said.standing >= Standing.SIGN and not _overtaken(said, by_signal):
        return _from_words(said, failed)
    on_their_own = [e for e in failed if not blames_connection(e)]
    first = (by_signal or on_their_own or list(failed))[0]
    reason = _how(first, failed)
    if first.signal is None and not first.step and not blames_connection(first):
        # An error of its own before any step: the code is accused, and no machine for running it.
        return Finding(Symptom.CODE_ERROR, (), (first.rank,), False, reason)
    killed = first.signal in SENT_BY_OTHERS
    return Finding(Symptom.PROCESS_CRASH, (first.machine,), (first.rank,), False, reason, killed)


def _from_words(said: Testimony, failed: Sequence[RankExit]) -> Finding:
    """What a telling line says: who did it, and whether the machine has anything to do with it."""
    speaker = said.rank_exit
    reason = f"{_how(speaker, failed)}; {said.quote}"
    action, confidence = said.reading.action.value, said.reading.confidence
    accused = said.reading.action is Action.ROLLBACK and not speaker.step
    symptom = Symptom.CODE_ERROR if accused and speaker.signal is None else said.symptom
    where = () if accused or said.clears_machine else (speaker.machine,)
    if symptom is Symptom.CODE_ERROR and where:
        # An exception without a known text, in the middle of a run, may come from anywhere.
        symptom = Symptom.PROCESS_CRASH
    return Finding(
        symptom,
        where,
        (speaker.rank,),
        said.is_certain,
        reason,
        first_action=action,
        confidence=confidence,
    )


def _overtaken(said: Testimony, by_signal: Sequence[RankExit]) -> bool:
    """Whether a death by signal leads what was said: it was earlier, or the words are vague."""
    others = [e for e in by_signal if e.rank != said.rank_exit.rank]
    earlier = any(e.at_s <= said.rank_exit.at_s for e in others)
    return bool(others) and (earlier or said.standing < Standing.CAUSE)


def _how(first: RankExit, failed: Sequence[RankExit]) -> str:
    reason = f"rank {first.rank} on {first.machine} {describe_exit(first)}"
    others = len(failed) - 1
    if others:
        reason += f", before {others} other rank{'s' if others > 1 else ''} ended"
    return reason


def blames_connection(rank_exit: RankExit) -> bool:
    """Whether a rank's last words say that a peer went away."""
    text = "\n".join(rank_exit.last_lines).lower()
    return any(word in text for word in CONNECTION_WORDS)


def describe_exit(rank_exit: RankExit) -> str:
    """How a rank ended, in words: "was killed by SIGKILL after step 12"."""
    if rank_exit.oom_killed:
        how = "was killed by the kernel for memory"
    elif rank_exit.signal is not None:
        how = f"was killed by {signal_name(rank_exit.signal)}"
    elif rank_exit.exit_code is not None:
        how = f"ended with exit code {rank_exit.exit_code}"
    else:
        how = "ended, nobody could tell how"
    return how if rank_exit.step is None else f"{how} after step {rank_exit.step}"


def last_words(finding: Finding, exits: Iterable[RankExit]) -> list[str]:
    """What the ranks that a finding points at printed last, a text each.

    None for silent ones, nor for those that SIGKILL ended: they were not asked.
    """
    return [
        "\n".join(
            [
                f"rank {e.rank} on {e.machine} printed last:",
                *(line[:WORDS_LINE_CHARS] for line in e.last_lines[-WORDS_LINES:]),
            ]
        )
        for e in exits
        if e.rank in finding.ranks and e.last_lines and e.signal != signal.SIGKILL
    ]


def signal_name(number: int) -> str:
    """Name of a signal, or "signal N" for one that Python does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def same_failure(one: Finding, other: Finding) -> bool:
    """Whether a failure after a recovery is the one that was recovered from, come back.

    The same symptom on the same machine, on the same rank wherever it runs now, or where nothing
    certain tells the two apart: which rank ends first in a crash says little. A machine's certain
    fault, or a rank that somebody killed, is of its own kind each time. A different failure is an
    incident of its own, with a ladder of its own.
    """
    if one.symptom is not other.symptom:
        return False
    if not any(finding.confident or finding.killed for finding in (one, other)):
        return True
    return bool({*one.machines} & {*other.machines} or {*one.ranks} & {*other.ranks})
