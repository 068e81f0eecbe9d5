from __future__ import annotations

from everstep.core.liveness import AgentWatch


def watch() -> AgentWatch:
    return AgentWatch(lost_after_s=3.0, reconnect_grace_s=0.3)


def test_closed_connection_is_a_loss_after_the_grace() -> None:
    w = watch()
    w.heard("m1", 100.0)
    w.closed("m1", 101.0)
    assert w.take_lost(101.29) == []
    assert [lost.machine for lost in w.take_lost(101.31)] == ["m1"]
    assert w.take_lost(200.0) == []


def test_agent_that_comes_back_within_the_grace_is_not_lost() -> None:
    w = watch()
    w.heard("m1", 100.0)
    w.closed("m1", 101.0)
    w.heard("m1", 101.2)
    assert w.take_lost(103.0) == []


def test_silence_on_an_open_connection_is_a_loss() -> None:
    w = watch()
    w.heard("m1", 100.0)
    w.heard("m2", 102.0)
    assert w.next_due_s() == 103.0
    lost = w.take_lost(103.0)
    assert [one.machine for one in lost] == ["m1"]
    assert "no heartbeat for 3.0 s" in lost[0].reason
    assert w.machines() == ["m2"]


def test_farewell_is_no_loss_even_when_the_connection_closes_after_it() -> None:
    w = watch()
    w.heard("m1", 100.0)
    w.farewell("m1")
    w.closed("m1", 100.1)
    assert w.take_lost(1000.0) == []


def test_expected_machine_that_never_connects_is_lost() -> None:
    w = watch()
    w.expect("m1", 100.0)
    w.heard("m2", 100.0)
    w.expect("m2", 0.0)
    w.heard("m2", 102.9)
    assert [one.machine for one in w.take_lost(103.1)] == ["m1"]


def test_nobody_watched_is_never_due() -> None:
    assert watch().next_due_s() is None


def test_time_in_which_nobody_listened_is_not_held_against_agents() -> None:
    w = watch()
    w.heard("m1", 100.0)
    w.excuse(10.0)
    assert w.take_lost(112.9) == []
    assert [one.machine for one in w.take_lost(113.0)] == ["m1"]
