"""One alert a fault, hysteresis before the next, and what the job does with it."""

from __future__ import annotations

import signal

from everstep.core.evidence import calls_for_action, classify
from everstep.core.model import Alert, RankExit
from everstep.core.senses import thresholds
from everstep.core.senses.faults import FaultBook
from everstep.core.senses.inspection import faulty, healthy, unobservable
from everstep.core.vocabulary import Observer, Symptom

GONE, SLOW = Symptom.GPU_UNAVAILABLE, Symptom.MFU_DECLINE
LOST = faulty("gpu.present", "GPU 1", GONE, "lost", confident=True)
FOUND = healthy("gpu.present", "GPU 1", "answers")
HOT = faulty("gpu.temperature", "GPU 1", SLOW, "93 C")


def test_a_fault_is_raised_once_however_many_senses_see_it() -> None:
    book = FaultBook()
    xid = faulty("gpu.xid", "GPU 1", GONE, "Xid 79", confident=True)
    assert [book.note(i, float(n)) for n, i in enumerate((xid, LOST, LOST, xid))] == [
        True,
        False,
        False,
        False,
    ]
    other = faulty("gpu.present", "GPU 2", GONE, "lost", confident=True)
    assert book.note(other, 9.0)


def test_a_fault_has_to_be_gone_for_a_while_before_it_can_come_again() -> None:
    book = FaultBook()
    assert book.note(LOST, 0.0)
    book.note(FOUND, 10.0)
    assert not book.note(LOST, 20.0)
    book.note(FOUND, 30.0)
    book.note(FOUND, 30.0 + thresholds.patience("gpu.present").clear_after_s)
    assert book.standing() == []
    assert book.note(LOST, 200.0)


def test_one_hot_look_is_no_fault_and_three_in_a_row_are() -> None:
    book = FaultBook()
    cool = healthy("gpu.temperature", "GPU 1", "60 C")
    raised = [book.note(i, n * 10.0) for n, i in enumerate((HOT, HOT, cool, HOT, HOT, HOT, HOT))]
    assert raised == [False, False, False, False, False, True, False]


def test_could_not_tell_neither_raises_nor_clears() -> None:
    book = FaultBook()
    blind = unobservable("gpu.present", "GPU 1", "no permission")
    assert not book.note(blind, 0.0)
    book.note(LOST, 1.0)
    for at_s in range(10, 1000, 10):
        assert not book.note(blind, float(at_s))
    assert book.standing() == [(GONE, "GPU 1")]
    assert book.latest() == [blind]


def test_an_event_is_over_after_a_quiet_time_and_not_by_a_harmless_line() -> None:
    book = FaultBook()
    fatal = faulty("gpu.xid", "GPU 1", GONE, "Xid 79", confident=True)
    harmless = healthy("gpu.xid", "GPU 1", "Xid 45")
    book.note(fatal, 0.0)
    book.note(harmless, 1.0)
    book.expire(thresholds.EVENT_CLEARS_S - 1)
    assert book.latest() == [fatal]
    assert not book.note(fatal, thresholds.EVENT_CLEARS_S - 1)
    book.expire(3 * thresholds.EVENT_CLEARS_S)
    assert (book.latest(), book.standing()) == ([], [])


def test_a_suspicion_that_becomes_certain_is_raised_again() -> None:
    book = FaultBook()
    down = faulty("network.port", "eth1", Symptom.INFINIBAND_ERROR, "down")
    surely = faulty("network.port", "eth1", Symptom.INFINIBAND_ERROR, "down", confident=True)
    assert [book.note(i, 0.0) for i in (down, down, surely, surely)] == [True, False, True, False]


def sensed(machine: str, confident: bool, symptom: Symptom = GONE, at_s: float = 10.0) -> Alert:
    return Alert(
        Observer.AGENT,
        symptom,
        at_s,
        "GPU 1: lost",
        machine=machine,
        subject="GPU 1",
        confident=confident,
    )


KILLED = RankExit(0, "m0", 1, None, signal.SIGABRT, 9.0, 7)


def test_what_a_machine_is_certain_of_leads_what_ranks_died_of() -> None:
    found = classify([sensed("m3", True)], [KILLED], [])
    assert (found.symptom, found.machines, found.confident) == (GONE, ("m3",), True)


def test_a_machine_gone_and_another_faulty_go_together() -> None:
    found = classify([sensed("m3", True)], [], ["m1"])
    assert (found.symptom, found.machines) == (Symptom.AGENT_LOST, ("m1", "m3"))


def test_a_suspicion_does_not_lead_and_does_not_call_for_action() -> None:
    soft = sensed("m3", False)
    assert not calls_for_action(soft)
    assert calls_for_action(sensed("m3", True))
    assert calls_for_action(Alert(Observer.ANALYZER, Symptom.AGENT_LOST, 1.0, "", machine="m1"))
    assert classify([soft], [KILLED], []).machines == ("m0",)


def test_each_fault_of_a_machine_stands_for_itself() -> None:
    one, again = sensed("m3", True, at_s=10.0), sensed("m3", True, at_s=500.0)
    assert one.key == sensed("m3", True, at_s=10.0).key
    assert one.key != again.key
    assert "/m3/" in one.key
