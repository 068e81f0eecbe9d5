"""What a cluster is given: well-formed, of one source, and in step with the processes that run it.

Not shown here, since there is no cluster: that a real API server admits it, that pods are
scheduled, that images are there, that a network plugin keeps its policies.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs] - it has none
import pytest
import yaml

from everstep.core import kubernetes_names as words
from everstep.workers import controller_metrics
from everstep.workers.cluster import install, job_objects, places, pod
from everstep.workers.cluster.submit import Target, submission
from everstep.workers.local import server
from everstep.workers.settings import (
    PREFIX,
    ControllerSettings,
    NodeSettings,
    ProcessSettings,
    WorkerSettings,
)
from everstep.workflows import story

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
VERSION = "1.36"
KINDS: dict[str, type[ProcessSettings]] = {"controller": ControllerSettings, "node": NodeSettings}
UNVALIDATED = {"JobSet", "PodMonitor"}
"""Kinds of other people's: no schema of theirs is at hand."""


@pytest.fixture(scope="module")
def kubectl() -> str:
    beside_python = Path(sys.executable).parent / "kubectl"
    found = shutil.which("kubectl") or (str(beside_python) if beside_python.exists() else None)
    if found is None:
        said = "NO KUBECTL, SO THAT NO OVERLAY IS CHECKED: run deploy/kubectl.sh .venv/bin"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    return found


def rendered(kubectl: str, folder: str) -> list[Object]:
    done = subprocess.run(
        [kubectl, "kustomize", str(DEPLOY / folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def job(kind: str, tmp_path: Path, **pods: object) -> list[Object]:
    """Everything of the example's job."""
    spec = yaml.safe_load((ROOT / "examples/gpt/job.yaml").read_text())
    spec["code"] = {"directory": str(ROOT / "examples/gpt")}
    spec["pods"] = {"kind": kind, "image": "train:1", "pod_monitor": True, **pods}
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(spec))
    given = submission(file, Target("training", "controller:1"))
    return job_objects.objects(given, b"secret", "token")


def jobs_within(found: Object) -> Iterator[Object]:
    for one in found["spec"]["replicatedJobs"]:
        yield {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": one["name"]},
            **one["template"],
        }


def validate(found: list[Object]) -> None:
    for one in found:
        for inner in jobs_within(one) if one["kind"] == "JobSet" else [one]:
            if inner["kind"] in UNVALIDATED:
                continue
            kubernetes_validate.validate(inner, VERSION, strict=True)


@pytest.mark.parametrize("folder", ["base", "overlays/dev", "overlays/production"])
def test_what_kustomize_makes_is_valid(kubectl: str, folder: str) -> None:
    found = rendered(kubectl, folder)
    validate(found)
    assert {"Deployment", "ClusterRole", "NetworkPolicy"} <= {one["kind"] for one in found}


@pytest.mark.parametrize("kind", ["jobset", "statefulset"])
def test_what_a_job_is_made_of_is_valid(kind: str, tmp_path: Path) -> None:
    pods = {
        "user": 0,
        "runtime_class": "nvidia",
        "node_selector": {"pool": "h200"},
        "tolerations": [
            {"key": "nvidia.com/gpu"},
            {"key": "a", "value": "b", "effect": "NoExecute"},
        ],
        "pull_secrets": ["registry"],
        "service_account": "trainer",
        "shared_memory": "64Gi",
    }
    validate(job(kind, tmp_path, **pods))
    validate(job(kind, tmp_path))


def test_a_mistake_is_found(tmp_path: Path) -> None:
    found = job("jobset", tmp_path)
    next(one for one in found if one["kind"] == "JobSet")["spec"]["replicatedJobs"][0]["template"][
        "spec"
    ]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        validate(found)


def test_the_command_prints_what_kustomize_makes(kubectl: str) -> None:
    def by_name(found: list[Object]) -> dict[tuple[str, str], Object]:
        return {(one["kind"], one["metadata"]["name"]): one for one in found}

    assert by_name(install.manifests(install.Installation())) == by_name(rendered(kubectl, "base"))


def test_another_namespace_is_another_installation() -> None:
    wanted = install.Installation("llm", "registry/c:2", "temporal:7233", "llm")
    found = install.manifests(wanted)
    validate(found)
    for one in found:
        if one["kind"] not in install.OF_THE_CLUSTER:
            assert one["metadata"]["namespace"] == "llm", one["metadata"]["name"]
        for subject in one.get("subjects", []):
            assert subject["namespace"] == "llm"
    bindings = [one for one in found if one["kind"] == "ClusterRoleBinding"]
    assert [one["metadata"]["name"] for one in bindings] != [], "as that of namespace everstep"
    assert all(one["metadata"]["name"].endswith("-llm") for one in bindings)
    assert install.controller_image(wanted) == "registry/c:2"
    told = next(one for one in found if one["metadata"]["name"] == places.TEMPORAL)["data"]
    assert (told["TEMPORAL_ADDRESS"], told["TEMPORAL_NAMESPACE"]) == ("temporal:7233", "llm")


def test_no_job_is_called_as_a_part_of_the_installation_is() -> None:
    made = install.manifests(install.Installation())
    parts = {one["metadata"]["name"].removeprefix("everstep-") for one in made}
    # What a person may put beside them.
    parts |= {places.TEMPORAL.removeprefix("everstep-"), "secrets"}
    assert parts - {"everstep"} == set(places.RESERVED)


def test_a_wheel_brings_the_manifests_along(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        for file in (DEPLOY / "base").iterdir():
            name = f"everstep/workers/cluster/manifests/{file.name}"
            assert name in names
            assert opened.read(name) == file.read_bytes()


def containers(found: list[Object]) -> Iterator[Object]:
    for one in found:
        for inner in jobs_within(one) if one["kind"] == "JobSet" else [one]:
            template = inner.get("spec", {}).get("template", {}).get("spec", {})
            yield from (*template.get("containers", []), *template.get("initContainers", []))


def own(found: list[Object]) -> list[Object]:
    return [c for c in containers(found) if "everstep.workers" in " ".join(c.get("command", []))]


@pytest.fixture(params=["jobset", "statefulset"], scope="module")
def everything(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    """What a namespace and one job are made of; read only."""
    folder = tmp_path_factory.mktemp("job")
    return [*install.manifests(install.Installation()), *job(request.param, folder)]


def test_every_variable_is_a_setting_and_every_program_is_there(everything: list[Object]) -> None:
    seen: set[str] = set()
    for container in own(everything):
        module = container["command"][2]
        assert importlib.util.find_spec(module) is not None
        seen.add(module)
        kind = KINDS.get(module.rpartition(".")[2], WorkerSettings)
        known = {f"{PREFIX}{name.upper()}" for name in kind.model_fields} | {"EVERSTEP_MACHINE"}
        assert {entry["name"] for entry in container.get("env", [])} <= known
    assert {"controller", "analyzer", "node", "agent", "parcel"} <= {
        m.rpartition(".")[2] for m in seen
    }


def test_what_is_mounted_is_a_volume_and_what_is_named_is_made(everything: list[Object]) -> None:
    made = {(one["kind"], one["metadata"]["name"]) for one in everything}
    for one in everything:
        for inner in jobs_within(one) if one["kind"] == "JobSet" else [one]:
            spec = inner.get("spec", {}).get("template", {}).get("spec")
            if not spec:
                continue
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            for container in (*spec["containers"], *spec.get("initContainers", [])):
                assert {m["name"] for m in container["volumeMounts"]} <= set(volumes)
                for source in container.get("envFrom", []):
                    assert ("ConfigMap", source["configMapRef"]["name"]) in made
            for volume in volumes.values():
                if (secret := volume.get("secret")) and not secret.get("optional"):
                    assert ("Secret", secret["secretName"]) in made
                if config := volume.get("configMap"):
                    assert ("ConfigMap", config["name"]) in made
                if claim := volume.get("persistentVolumeClaim"):
                    assert ("PersistentVolumeClaim", claim["claimName"]) in made


def test_base_and_jobs_mean_the_same_places(everything: list[Object]) -> None:
    (controller,) = [c for c in own(everything) if c["name"] == "controller"]
    told = {entry["name"]: entry.get("value") for entry in controller["env"]}
    assert told["EVERSTEP_RUNS_DIRECTORY"] == places.JOBS
    assert told["EVERSTEP_EVIDENCE"] == places.EVIDENCE
    assert told["EVERSTEP_HEALTH_PORT"] == str(places.HEALTH_PORT)
    mounts = {mount["name"]: mount["mountPath"] for mount in controller["volumeMounts"]}
    assert (mounts["runs"], mounts["temporal"]) == (places.VOLUME, places.TEMPORAL_FILES)
    (deployment,) = [
        one
        for one in everything
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "everstep-controller"
    ]
    user = deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert user == pod.CONTROLLER_USER


def templates(found: list[Object]) -> Iterator[Object]:
    for one in found:
        for inner in jobs_within(one) if one["kind"] == "JobSet" else [one]:
            if "template" in inner.get("spec", {}):
                yield inner["spec"]["template"]


def matches(selector: Object, labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items()
    chosen = [labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", [])]
    return wanted <= labels.items() and all(chosen)


def test_a_job_never_waits_for_a_pod_that_hangs_nor_gives_up(tmp_path: Path) -> None:
    """With a podFailurePolicy, or this replacement policy, only what has ended is replaced."""
    (job_set,) = [one for one in job("jobset", tmp_path) if one["kind"] == "JobSet"]
    for inner in jobs_within(job_set):
        assert "podFailurePolicy" not in inner["spec"]
        assert inner["spec"].get("podReplacementPolicy") != "Failed"
        for limit in ("backoffLimit", "backoffLimitPerIndex"):
            assert inner["spec"][limit] == job_objects.NEVER


def test_each_machine_and_controller_has_one_budget(everything: list[Object]) -> None:
    """Two would make every eviction fail, for good."""
    budgets = [one["spec"] for one in everything if one["kind"] == "PodDisruptionBudget"]
    assert all(isinstance(budget["minAvailable"], int) for budget in budgets)
    for template in templates(everything):
        labels = template["metadata"]["labels"]
        num = sum(matches(budget["selector"], labels) for budget in budgets)
        assert num == (0 if labels[places.COMPONENT] in ("analyzer", "node") else 1), labels


def test_no_set_selects_by_what_changes(everything: list[Object]) -> None:
    for one in everything:
        chosen = one.get("spec", {}).get("selector", {})
        if one["kind"] in ("StatefulSet", "Deployment"):
            assert not {words.LABEL_ROLE, words.LABEL_SLOT} & set(chosen["matchLabels"])
            assert matches(chosen, one["spec"]["template"]["metadata"]["labels"])


def test_everybody_is_denied_who_is_not_let_in(everything: list[Object]) -> None:
    rules = [one["spec"] for one in everything if one["kind"] == "NetworkPolicy"]
    for template in templates(everything):
        labels = template["metadata"]["labels"]
        if template["spec"].get("hostNetwork"):
            # Policies do not hold there; it listens on loopback alone.
            assert labels[places.COMPONENT] == "node"
            continue
        applied = [rule for rule in rules if matches(rule["podSelector"], labels)]
        assert len(applied) >= 2, "the general denial, and its own"
        allowed = [peer for rule in applied for peer in rule.get("ingress", [])]
        assert all(peer.get("from") for peer in allowed), "an open door"


def test_nobody_is_privileged_but_who_reads_the_kernel_log(everything: list[Object]) -> None:
    for template in templates(everything):
        spec = template["spec"]
        if template["metadata"]["labels"][places.COMPONENT] == "node":
            assert spec["containers"][0]["securityContext"]["privileged"]
            continue
        if template["metadata"]["labels"][places.COMPONENT] == "machine":
            assert spec["automountServiceAccountToken"] is False
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]


def test_temporals_settings_are_those_that_were_measured() -> None:
    server_of = yaml.safe_load_all((DEPLOY / "overlays/dev/temporal.yaml").read_text())
    given = next(server_of)["spec"]["template"]["spec"]["containers"][0]["args"]
    dynamic = [a.partition("=")[2] for a in given if a.startswith("--dynamic-config-value=")]
    assert dynamic == [f"{key}={json.dumps(value)}" for key, value in server.DYNAMIC_CONFIG.items()]
    keys = [a.partition("=")[2] for a in given if a.startswith("--search-attribute=")]
    assert keys == [f"{name}={kind}" for name, kind in story.ALL_KEYS.items()]
    chart = yaml.safe_load((DEPLOY / "temporal/values.yaml").read_text())["server"]
    values = {key: entry[0]["value"] for key, entry in chart["dynamicConfig"].items()}
    assert values == server.DYNAMIC_CONFIG
    assert chart["config"]["namespaces"]["namespace"][0]["retention"] == "365d"


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


SDK_METRICS = {
    # As Temporal's SDK names them; seen of a worker whose workflow and activity failed.
    "temporal_activity_execution_failed_total",
    "temporal_workflow_task_execution_failed_total",
}


def asks_sdk(expression: str) -> bool:
    """Whether an expression asks for what Temporal's SDK counts, by names that it has."""
    used = set(re.findall(r"temporal_[a-z_]+", expression))
    assert used <= SDK_METRICS, expression
    return bool(used)


def test_prometheus_is_told_of_controllers_as_they_are() -> None:
    made = install.manifests(install.Installation())
    (controller,) = [one for one in made if one["kind"] == "Deployment"]
    labels = controller["spec"]["template"]["metadata"]["labels"]
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    given = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert given["EVERSTEP_METRICS_PORT"] == str(ports["metrics"]) == str(places.METRICS_PORT)

    monitor = yaml.safe_load((DEPLOY / "prometheus/controllers.yaml").read_text())["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert matches(monitor["selector"], labels)
    assert endpoint["port"] in ports
    assert endpoint["authorization"]["credentials"]["key"] == controller_metrics.TOKEN_VARIABLE

    (scraped, _) = yaml.safe_load((DEPLOY / "prometheus/scrape.yaml").read_text())["scrape_configs"]
    (found,) = scraped["dns_sd_configs"]
    (service,) = [one for one in made if one["kind"] == "Service"]
    assert matches({"matchLabels": service["spec"]["selector"]}, labels)
    assert found["names"][0].startswith(f"{service['metadata']['name']}.everstep.svc.")
    assert found["port"] == ports["metrics"]
    token = f"{given['EVERSTEP_RUNS_DIRECTORY']}/{controller_metrics.TOKEN_FILE}"
    assert scraped["authorization"]["credentials_file"] == token

    rules = [one["spec"] for one in made if one["kind"] == "NetworkPolicy"]
    (rule,) = [r for r in rules if matches(r["podSelector"], labels) and r.get("ingress")]
    assert [port["port"] for entry in rule["ingress"] for port in entry["ports"]] == [
        ports["metrics"]
    ]


def test_alerts_and_dashboard_ask_for_metrics_that_are_served() -> None:
    source = (ROOT / "workers/everstep/workers/metrics.py").read_text()
    served = set(re.findall(r"everstep_[a-z_]+", source))
    served |= {f"everstep_{name}" for name in re.findall(r'_of_ranks\(\s*"([a-z_]+)"', source)}
    # A counter's name gets an end of its own.
    served |= {f"{name}_total" for name in served}
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana/everstep-job.json").read_text())["panels"]
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in asked:
        used = set(re.findall(r"everstep_[a-z_]+", expression)) - {"everstep_job"}
        assert used <= served, expression
        assert used or asks_sdk(expression) or "kube_" in expression or "up{" in expression
    for rule in rules:
        assert (ROOT / rule["annotations"]["runbook"]).exists(), rule["alert"]
