"""Whom a node's own senses tell."""

from __future__ import annotations

from everstep.agent.probes.monitor import Part
from everstep.core.model import Alert
from everstep.core.vocabulary import Observer, Symptom
from everstep.workers.node import NodeDesk, job_of, monitor_config, selection
from everstep.workers.settings import NodeSettings

ALERT = Alert(Observer.AGENT, Symptom.OS_KERNEL_PANIC, 1.0, "kernel: Oops", machine="node-7")


class Jobs:
    """Which jobs run on a node, and what each was told."""

    def __init__(self) -> None:
        self.here: set[str] | None = None
        self.told: list[tuple[str, Alert]] = []
        self.desk = NodeDesk(lambda: self.here, lambda job, alert: self.told.append((job, alert)))


def test_every_job_of_the_node_is_told_once() -> None:
    jobs = Jobs()
    jobs.here = {"gpt", "bert"}
    jobs.desk.take(ALERT)
    jobs.desk.hand_out()
    assert jobs.told == [("bert", ALERT), ("gpt", ALERT)]


def test_an_alert_waits_until_it_is_known_who_is_here() -> None:
    jobs = Jobs()
    jobs.desk.take(ALERT)
    assert jobs.told == []
    jobs.here = {"gpt"}
    jobs.desk.hand_out()
    assert jobs.told == [("gpt", ALERT)]


def test_a_fault_before_a_job_came_is_not_its_own() -> None:
    jobs = Jobs()
    jobs.here = set()
    jobs.desk.take(ALERT)
    jobs.here = {"gpt"}
    jobs.desk.hand_out()
    assert jobs.told == []


def test_a_pod_says_which_job_it_is_of() -> None:
    pod = {"metadata": {"uid": "u1", "labels": {"everstep.dev/job": "gpt"}}}
    assert job_of(pod) == ("u1", "gpt")
    assert selection("node-7") == {
        "fieldSelector": "spec.nodeName=node-7",
        "labelSelector": "everstep.dev/job,everstep.dev/node-senses=true",
    }


def test_it_looks_at_what_no_pod_sees() -> None:
    config = monitor_config(NodeSettings(machine="node-7", host="10.0.0.7"))
    assert config.parts == {Part.KERNEL_LOG, Part.NETWORK}
    assert config.machine == "node-7"
