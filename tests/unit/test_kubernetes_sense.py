"""From pods and nodes to alerts: what is gone is missed, and nothing is told twice."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.kubernetes.nodes import Remark
from everstep.core.kubernetes.pods import Pod
from everstep.core.kubernetes.sense import ClusterSense, Node
from everstep.core.model import Alert
from everstep.core.vocabulary import Observer, Symptom, Verdict


def pod(number: int, node: str | None = None, uid: str = "") -> Pod:
    return Pod(
        name=f"gpt-{number}",
        uid=uid or f"u{number}",
        node=f"n{number}" if node is None else node,
        machine=f"n{number}" if node is None else node,
        role="training",
        slot=str(number),
        ready=True,
        ended=False,
        why="",
        since_s=None,
    )


class World:
    """Three pods on three nodes, and what has been told of them."""

    def __init__(self) -> None:
        self.pods = {p.uid: p for p in (pod(0), pod(1), pod(2))}
        self.nodes = {f"n{i}": Node(f"n{i}", Verdict.HEALTHY, ()) for i in range(3)}
        self.heard = {"n0", "n1", "n2"}
        self.sense = ClusterSense(lambda machine: machine in self.heard)
        assert self.look() == []

    def look(self, now_s: float = 100.0) -> list[Alert]:
        return self.sense.look(self.pods, self.nodes, now_s)


def test_a_pod_that_is_gone_is_told_once() -> None:
    world = World()
    del world.pods["u1"]
    (alert,) = world.look(107.0)
    assert (alert.symptom, alert.machine, alert.at_s) == (Symptom.AGENT_LOST, "n1", 107.0)
    assert alert.observer is Observer.CLUSTER
    assert alert.detail == "pod gpt-1 on n1 is gone"
    assert world.look() == []


def test_a_pod_that_is_being_deleted_is_lost_since_it_was_asked_to_go() -> None:
    world = World()
    world.pods["u1"] = replace(
        pod(1), ended=True, why="is being deleted (EvictionByEvictionAPI)", since_s=90.0
    )
    (alert,) = world.look()
    assert (alert.machine, alert.at_s) == ("n1", 90.0)
    del world.pods["u1"]
    assert world.look() == []


def test_what_we_evicted_is_no_news() -> None:
    world = World()
    world.pods["u1"] = replace(pod(1), role="evicted")
    assert world.look() == []
    del world.pods["u1"]
    assert world.look() == []


def test_an_earlier_pod_says_nothing_of_a_later_one_on_its_node() -> None:
    world = World()
    world.pods["new"] = pod(1, uid="new")
    world.pods["u1"] = replace(pod(1), ended=True, why="is being deleted")
    assert world.look() == []


def test_a_pod_that_never_ran_anywhere_is_not_missed() -> None:
    world = World()
    world.pods["u3"] = pod(3, node="")
    assert world.look() == []
    del world.pods["u3"]
    assert world.look() == []


def test_a_node_that_left_the_cluster_is_lost() -> None:
    world = World()
    del world.nodes["n2"]
    (alert,) = world.look()
    assert (alert.symptom, alert.machine) == (Symptom.AGENT_LOST, "n2")
    assert world.look() == []


def test_a_silent_kubelet_is_noted_while_the_agent_is_heard() -> None:
    world = World()
    world.nodes["n0"] = Node("n0", Verdict.UNOBSERVABLE, ())
    (noted,) = world.look()
    assert (noted.symptom, noted.confident) == (Symptom.CONTAINER_ERROR, False)
    assert noted.subject
    world.heard.remove("n0")
    (lost,) = world.look()
    assert (lost.symptom, lost.machine) == (Symptom.AGENT_LOST, "n0")
    assert world.look() == []


def test_a_fault_that_passed_and_comes_again_is_told_again() -> None:
    world = World()
    well = world.nodes["n0"]
    world.heard.clear()
    world.nodes["n0"] = Node("n0", Verdict.FAULTY, ())
    assert len(world.look()) == 1
    world.nodes["n0"] = well
    assert world.look() == []
    world.nodes["n0"] = Node("n0", Verdict.FAULTY, ())
    assert len(world.look()) == 1


def test_what_others_say_of_a_node_is_evidence() -> None:
    world = World()
    doubt = Remark("cordon", "cordoned by somebody else", certain=False)
    sure = Remark("NVSentinel", "NVSentinel says quarantined", certain=True)
    world.nodes["n1"] = Node("n1", Verdict.HEALTHY, (doubt, sure))
    told = world.look()
    assert [(a.machine, a.confident) for a in told] == [("n1", False), ("n1", True)]
    assert {a.subject for a in told} == {"node, cordon", "node, NVSentinel"}
    assert world.look() == []


def test_nodes_without_a_pod_of_the_job_are_no_matter() -> None:
    world = World()
    world.nodes["other"] = Node("other", Verdict.FAULTY, (Remark("x", "y", certain=True),))
    assert world.look() == []


def test_pods_that_share_a_node_are_machines_of_their_own() -> None:
    world = World()
    world.pods["u1"] = replace(pod(1), node="n0", machine="gpt-1")
    world.pods["u2"] = replace(pod(2), node="n0", machine="gpt-2")
    assert world.look() == []
    del world.pods["u1"]
    (alert,) = world.look()
    assert (alert.machine, alert.detail) == ("gpt-1", "pod gpt-1 on n0 is gone")
    del world.nodes["n0"]
    assert [alert.machine for alert in world.look()] == ["gpt-2", "n0"]
