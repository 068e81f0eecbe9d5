"""Names that cross a process are compatibility data: changing one is a migration."""

from __future__ import annotations

import inspect
from abc import ABC

from everstep.activities import (
    analysis,
    archive,
    checks,
    local_cluster,
    machine,
    stacks,
    trace,
    webhook,
)
from everstep.activities.kube import cluster
from everstep.core import names
from everstep.workflows import ports, story
from everstep.workflows.incident import ResolveIncident
from everstep.workflows.job import RunJob
from everstep.workflows.order_machines import OrderMachines

IMPLEMENTATIONS: list[tuple[type, type]] = [
    (ports.MachinePort, machine.MachineActivities),
    (ports.TracePort, trace.TraceActivities),
    (ports.StackPort, stacks.StackJudge),
    (ports.CheckPort, checks.CheckActivities),
    (ports.ClusterPort, local_cluster.LocalCluster),
    (ports.ClusterPort, cluster.KubernetesCluster),
    (ports.AnalysisPort, analysis.AnalysisActivities),
    (ports.ArchivePort, archive.FileArchive),
    (ports.NotifyPort, webhook.Webhook),
]


def activity_names(owner: type) -> dict[str, str]:
    """Method name to activity name."""
    found: dict[str, str] = {}
    for method, function in inspect.getmembers(owner, inspect.isfunction):
        definition = getattr(function, "__temporal_activity_definition", None)
        if definition is not None:
            found[method] = definition.name
    return found


def test_every_port_is_implemented_under_its_own_names() -> None:
    declared = [
        port
        for _, port in inspect.getmembers(ports, inspect.isclass)
        if issubclass(port, ABC) and port.__module__ == ports.__name__
    ]
    assert set(declared) == {port for port, _ in IMPLEMENTATIONS}
    for port, implementation in IMPLEMENTATIONS:
        assert issubclass(implementation, port)
        assert activity_names(implementation) == activity_names(port) != {}


def test_activity_names_are_pinned() -> None:
    found = sorted({n for port, _ in IMPLEMENTATIONS for n in activity_names(port).values()})
    assert found == [
        "analysis.await_step",
        "archive.save_incident",
        "cluster.claim",
        "cluster.evict",
        "cluster.give_slots",
        "cluster.list_machines",
        "cluster.quarantine",
        "cluster.release",
        "cluster.request_machines",
        "machine.check",
        "machine.look_at_storage",
        "machine.prepare",
        "machine.replay",
        "machine.restore",
        "machine.start",
        "machine.stop",
        "machine.trace",
        "notify.page",
        "stacks.judge",
    ]


def test_every_activity_says_what_a_caller_must_know() -> None:
    for _, implementation in IMPLEMENTATIONS:
        for method in activity_names(implementation):
            text = inspect.getdoc(getattr(implementation, method)) or ""
            for heading in ("Effect:", "Idempotent by:", "Heartbeats:", "Gives up when:"):
                assert heading in text, f"{implementation.__name__}.{method} lacks {heading}"


def test_workflow_signal_and_query_names_are_pinned() -> None:
    def handlers(owner: type) -> dict[str, list[str]]:
        definition = getattr(owner, "__temporal_workflow_definition")
        return {
            "name": [definition.name],
            "signals": sorted(definition.signals),
            "queries": sorted(definition.queries),
            "updates": sorted(definition.updates),
        }

    assert handlers(RunJob) == {
        "name": ["RunJob"],
        "signals": [
            "admit",
            "assigned",
            "copy_damaged",
            "incident_closed",
            "machine_evicted",
            "machine_joined",
            "machine_tested",
            "push_update",
            "ranks_finished",
            "report_alerts",
            "standby_refused",
            "updates_heard",
            "updates_made",
            "updates_undone",
        ],
        "queries": ["status"],
        "updates": ["cancel_update", "hot_update"],
    }
    assert handlers(OrderMachines) == {
        "name": ["OrderMachines"],
        "signals": ["give_up"],
        "queries": [],
        "updates": [],
    }
    assert handlers(ResolveIncident) == {
        "name": ["ResolveIncident"],
        "signals": [
            "alerts",
            "approve",
            "copy_damaged",
            "deny",
            "job_finished",
            "machine_joined",
            "updates",
        ],
        "queries": ["record"],
        "updates": ["decide"],
    }


def test_queue_and_workflow_ids_are_pinned() -> None:
    assert names.CONTROLLER_QUEUE == "everstep.controller"
    assert names.machine_queue("j", "m1") == "everstep.machine.j.m1"
    assert names.analyzer_queue("j") == "everstep.analyzer.j"
    assert names.job_workflow_id("j") == "job/j"
    assert names.incident_workflow_id("j", 2) == "incident/j/2"
    assert names.stacks_workflow_id("j", "a") == "stacks/j/a"
    assert names.batch_workflow_id("job/j", "stop-1a", 2) == "job/j/stop-1a/2"
    assert story.ALL_KEYS == {
        "EverstepJob": "Keyword",
        "EverstepSymptom": "Keyword",
        "EverstepRung": "Keyword",
        "EverstepOutcome": "Keyword",
        "EverstepMachine": "KeywordList",
    }
