"""Evicting a pod: what the API server decides by budgets. Works on the store alone."""

from __future__ import annotations

from everstep.core.kubernetes.objects import part
from tests.fakes.kube.patches import Json
from tests.fakes.kube.selectors import matches
from tests.fakes.kube.store import ApiError, Key, Store, now_text

POLICY = "/apis/policy/v1"
DEFAULT_GRACE_S = 30
RETRY_AFTER_S = 10


def evict(store: Store, key: Key, given: Json) -> None:
    """Let a pod go, as far as its budget allows.

    Raises:
        ApiError: 404; 409 for another pod of that name; 429 for a budget; 500 for two.
    """
    pod = store.get(key)
    options: Json = dict(part(given, "deleteOptions"))
    check_uid(key, pod, options)
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata:
        return
    if pod["status"].get("phase") == "Running":
        _ask_budget(store, pod)
    conditions = [c for c in pod["status"].get("conditions", []) if c["type"] != "DisruptionTarget"]
    told: Json = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": now_text(),
    }
    status = {**pod["status"], "conditions": [*conditions, told]}
    store.replace(key, {**pod, "status": status})
    delete_pod(store, key, options)


def delete_pod(store: Store, key: Key, options: Json) -> Json:
    """Delete a pod: a bound one only says that it goes, until its kubelet deletes it with grace 0.

    Raises:
        ApiError: 404, or 409 for another pod of that name.
    """
    pod = store.get(key)
    check_uid(key, pod, options)
    default_s = pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    grace_s = options.get("gracePeriodSeconds")
    grace_s = default_s if grace_s is None else grace_s
    if grace_s == 0 or not pod["spec"].get("nodeName"):
        return store.remove(key)
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata and metadata["deletionGracePeriodSeconds"] <= grace_s:
        return pod
    metadata = {
        **metadata, "deletionTimestamp": now_text(), "deletionGracePeriodSeconds": grace_s
    }  # fmt: skip
    return store.replace(key, {**pod, "metadata": metadata})


def check_uid(key: Key, item: Json, options: Json) -> None:
    wanted = part(options, "preconditions").get("uid")
    found = item["metadata"]["uid"]
    if wanted not in (None, found):
        text = f'{key.resource} "{key.name}": the UID in the precondition ({wanted}) does not match'
        raise ApiError(409, "Conflict", f"{text} the UID in record ({found})")


def _ask_budget(store: Store, pod: Json) -> None:
    namespace = pod["metadata"]["namespace"]
    budgets = [
        budget
        for budget in store.of(POLICY, "poddisruptionbudgets", namespace)
        if matches(pod, budget["spec"]["selector"])
    ]
    if len(budgets) > 1:
        raise ApiError(
            500, "InternalError", "This pod has more than one PodDisruptionBudget, which the"
            " eviction subresource does not support."
        )  # fmt: skip
    if not budgets:
        return
    budget = budgets[0]
    name, status = budget["metadata"]["name"], budget.get("status", {})
    if not is_ready(pod) and _lets_unready_go(budget["spec"], status):
        return
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        text = f"The disruption budget {name} is still being processed by the server."
        raise _too_many(text, RETRY_AFTER_S)
    if status.get("disruptionsAllowed", 0) <= 0:
        text = (
            f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods"
            f" and has {status.get('currentHealthy', 0)} currently"
        )
        raise _too_many(text, None)
    key = Key(POLICY, "poddisruptionbudgets", namespace, name)
    left = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1}
    store.replace(key, {**budget, "status": left})


def _lets_unready_go(spec: Json, status: Json) -> bool:
    if spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def is_ready(pod: Json) -> bool:
    conditions: list[Json] = pod["status"].get("conditions", [])
    true = {str(c["type"]) for c in conditions if c["status"] == "True"}
    return "Ready" in true


def _too_many(message: str, retry_after_s: int | None) -> ApiError:
    cause = {"reason": "DisruptionBudget", "message": message}
    text = "Cannot evict pod as it would violate the pod's disruption budget."
    return ApiError(429, "TooManyRequests", text, [cause], retry_after_s)
