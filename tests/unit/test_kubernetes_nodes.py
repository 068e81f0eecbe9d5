"""Nodes in quarantine, and what others say of them: plain objects in, patches out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fakes.kube.patches import merged, strategically_merged

from everstep.core.kubernetes import quarantine
from everstep.core.kubernetes.nodes import is_quarantined, readiness, remarks_of
from everstep.core.kubernetes.quarantine import Mark, marks_of
from everstep.core.kubernetes_names import ANNOTATION_QUARANTINED_BY, CONDITION_QUARANTINED
from everstep.core.vocabulary import Verdict

Json = dict[str, Any]
GPU_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
FIRST = Mark("gpt", 1, "agent lost", "2026-01-01T00:00:00Z")
OTHER = Mark("moe", 7, "slow", "2026-01-02T00:00:00Z")


def node(**spec: object) -> Json:
    return {
        "metadata": {"name": "n0", "resourceVersion": "5", "labels": {}},
        "spec": {"taints": [GPU_TAINT], **spec},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def take(item: Json, mark: Mark) -> Json:
    patch = quarantine.quarantined(item, mark)
    return item if patch is None else merged(item, patch)


def give(item: Json, job: str) -> Json:
    patch = quarantine.released(item, job)
    return item if patch is None else merged(item, patch)


def test_a_node_is_marked_and_given_back_as_it_was() -> None:
    taken = take(node(), FIRST)
    assert taken["spec"]["unschedulable"] is True
    assert taken["spec"]["taints"] == [
        GPU_TAINT,
        {"key": "everstep.dev/quarantine", "value": "gpt.1", "effect": "NoSchedule"},
    ]
    (said,) = json.loads(taken["metadata"]["annotations"][ANNOTATION_QUARANTINED_BY])
    assert said == {
        "job": "gpt",
        "incident": 1,
        "reason": "agent lost",
        "at": "2026-01-01T00:00:00Z",
        "cordoned": True,
    }
    back = give(taken, "gpt")
    assert back["spec"] == node()["spec"]
    assert back["metadata"]["annotations"] == {}


def test_a_second_call_changes_nothing() -> None:
    taken = take(node(), FIRST)
    again = Mark("gpt", 1, "agent lost", "2026-01-01T00:09:00Z")
    assert quarantine.quarantined(taken, again) is None
    assert quarantine.released(give(taken, "gpt"), "gpt") is None
    assert quarantine.released(node(), "gpt") is None


def test_a_patch_holds_for_the_version_that_it_was_made_from() -> None:
    for patch in (
        quarantine.quarantined(node(), FIRST),
        quarantine.released(take(node(), FIRST), "gpt"),
    ):
        assert patch is not None
        assert patch["metadata"]["resourceVersion"] == "5"


def test_somebody_elses_cordon_stays() -> None:
    taken = take(node(unschedulable=True), FIRST)
    assert [mark.cordoned for mark in marks_of(taken)] == [False]
    assert give(taken, "gpt")["spec"]["unschedulable"] is True


def test_what_was_uncordoned_by_hand_is_taken_out_again() -> None:
    taken = take(node(unschedulable=True), FIRST)
    del taken["spec"]["unschedulable"]
    again = take(taken, FIRST)
    assert again["spec"]["unschedulable"] is True
    assert "unschedulable" not in give(again, "gpt")["spec"]


def test_a_node_that_others_hold_stays_cordoned() -> None:
    taken = take(node(), FIRST)
    taken["metadata"]["labels"]["dgxc.nvidia.com/nvsentinel-state"] = "quarantined"
    back = give(taken, "gpt")
    assert back["spec"]["unschedulable"] is True
    assert not is_quarantined(back)


def test_two_jobs_hold_a_node_until_the_last_one_leaves() -> None:
    both = take(take(node(), FIRST), OTHER)
    assert [mark.job for mark in marks_of(both)] == ["gpt", "moe"]
    one = give(both, "gpt")
    assert [(m.job, m.cordoned) for m in marks_of(one)] == [("moe", True)]
    assert [t.get("value") for t in one["spec"]["taints"]] == [None, "moe.7"]
    assert one["spec"]["unschedulable"] is True
    assert give(one, "moe")["spec"] == node()["spec"]


def test_an_annotation_that_nobody_can_read_uncordons_nothing() -> None:
    odd = node(unschedulable=True)
    odd["metadata"]["annotations"] = {ANNOTATION_QUARANTINED_BY: "{"}
    assert marks_of(odd) == ()
    assert give(take(odd, FIRST), "gpt")["spec"]["unschedulable"] is True


def test_the_condition_tells_who_and_why() -> None:
    item = node()
    patch = quarantine.condition(item, [FIRST, OTHER], "2026-01-03T00:00:00Z")
    assert patch is not None
    taken = strategically_merged(item, patch)
    ready, ours = taken["status"]["conditions"]
    assert ready["type"] == "Ready"
    assert (ours["type"], ours["status"]) == (CONDITION_QUARANTINED, "True")
    assert ours["message"] == "gpt, incident 1: agent lost; moe, incident 7: slow"
    assert quarantine.condition(taken, [FIRST, OTHER], "2026-01-04T00:00:00Z") is None
    freed = strategically_merged(
        taken, quarantine.condition(taken, [], "2026-01-05T00:00:00Z") or {}
    )
    assert [c["status"] for c in freed["status"]["conditions"]] == ["True", "False"]
    assert quarantine.condition(node(), [], "2026-01-05T00:00:00Z") is None


@pytest.mark.parametrize(
    ("changes", "said", "certain"),
    [
        ({"labels": {"dgxc.nvidia.com/nvsentinel-state": "draining"}}, "NVSentinel says", True),
        (
            {"labels": {"sagemaker.amazonaws.com/node-health-status": "Unschedulable"}},
            "HyperPod says Unschedulable",
            False,
        ),
        (
            {
                "labels": {
                    "sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReplacement"
                }
            },
            "HyperPod says",
            True,
        ),
        ({"condition": "KernelDeadlock"}, "KernelDeadlock", True),
        ({"condition": "MemoryPressure"}, "MemoryPressure", False),
        ({"unschedulable": True}, "cordoned by somebody else", False),
        ({"taint": "ToBeDeletedByClusterAutoscaler"}, "tainted", True),
    ],
)
def test_what_others_say(changes: Json, said: str, certain: bool) -> None:
    item = node()
    item["metadata"]["labels"] |= changes.get("labels", {})
    if "condition" in changes:
        item["status"]["conditions"].append({"type": changes["condition"], "status": "True"})
    if "unschedulable" in changes:
        item["spec"]["unschedulable"] = True
    if "taint" in changes:
        item["spec"]["taints"].append({"key": changes["taint"], "effect": "NoSchedule"})
    (remark,) = remarks_of(item)
    assert remark.text.startswith(said)
    assert remark.certain is certain


def test_a_healthy_node_has_no_remarks() -> None:
    item = node()
    item["metadata"]["labels"] = {
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        "dgxc.nvidia.com/nvsentinel-state": "remediation-succeeded",
    }
    item["status"]["conditions"].append({"type": "KernelDeadlock", "status": "False"})
    assert remarks_of(item) == []
    assert remarks_of(take(item, FIRST)) == []
    assert readiness(item) is Verdict.HEALTHY


def test_a_kubelet_that_says_nothing_could_not_tell() -> None:
    item = node()
    item["status"]["conditions"][0]["status"] = "Unknown"
    assert readiness(item) is Verdict.UNOBSERVABLE
    item["status"] = {}
    assert readiness(item) is Verdict.UNOBSERVABLE
