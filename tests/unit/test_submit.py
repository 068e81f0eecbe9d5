"""What becomes of a spec on its way into a cluster, before anything is applied."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.core.errors import InputError
from everstep.core.kubernetes_names import standby_set
from everstep.spec.load import read_spec
from everstep.workers.cluster.job_objects import objects, submitted
from everstep.workers.cluster.submit import Target, job_input, submission

TARGET = Target("training", "controller:1")


def write(folder: Path, **changes: Any) -> Path:
    spec: dict[str, Any] = {
        "name": "gpt",
        "command": ["python", "train.py"],
        "code": {"directory": "code"},
        "machines": 4,
        "gpus_per_machine": 8,
        "parallelism": {"dp": 32},
        "standby": {"count": 2},
        "environment": {"WANDB_API_KEY": "hush"},
        "pods": {"image": "train:1"},
        **changes,
    }
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text("print(1)\n")
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(spec))  # pyright: ignore[reportUnknownMemberType]
    return file


def by_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == kind]


def test_the_spec_decides_how_many_pods_of_what(tmp_path: Path) -> None:
    found = objects(submission(write(tmp_path), TARGET), b"s", "t")
    (job_set,) = by_kind(found, "JobSet")
    sizes = {
        job["name"]: job["template"]["spec"]["parallelism"]
        for job in job_set["spec"]["replicatedJobs"]
    }
    assert sizes == {"training": 4, "standby": 2}
    template = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    (agent,) = template["spec"]["containers"]
    assert agent["image"] == "train:1"
    assert agent["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    (budget,) = by_kind(found, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 4


def test_without_standbys_a_set_of_them_waits_to_grow(tmp_path: Path) -> None:
    pods = {"image": "train:1", "kind": "statefulset"}
    given = submission(write(tmp_path, standby={"count": 0}, pods=pods), TARGET)
    sets = by_kind(objects(given, b"s", "t"), "StatefulSet")
    sizes = {one["metadata"]["name"]: one["spec"]["replicas"] for one in sets}
    assert sizes == {"everstep-gpt-training": 4, standby_set("gpt"): 0}


def test_resources_are_those_of_the_spec(tmp_path: Path) -> None:
    resources = {"nvidia.com/gpu": "0", "memory": "64Gi"}
    pods = {"image": "train:1", "kind": "statefulset", "resources": resources}
    given = submission(write(tmp_path, pods=pods), TARGET)
    for one in by_kind(objects(given, b"s", "t"), "StatefulSet"):
        (agent,) = one["spec"]["template"]["spec"]["containers"]
        assert agent["resources"] == {"limits": {"memory": "64Gi"}}


def test_what_pods_read_is_the_spec_with_the_code_where_they_have_it(tmp_path: Path) -> None:
    given = submission(write(tmp_path), TARGET)
    (secret,) = by_kind(objects(given, b"s", "t"), "Secret")
    file = tmp_path / "spec.yaml"
    file.write_bytes(base64.b64decode(secret["data"]["spec.yaml"]))
    spec = read_spec(file)
    assert spec.code.directory == f"/everstep/code/{given.version}"
    assert spec.environment == {"WANDB_API_KEY": "hush"}
    assert base64.b64decode(secret["data"]["secret"]) == b"s"


def test_what_is_in_the_history_holds_no_environment(tmp_path: Path) -> None:
    given = submission(write(tmp_path), TARGET)
    job = job_input(given, from_scratch=False)
    assert job.spec.environment == {}
    assert (job.code_version, job.code_directory) == (given.version, given.code_directory)
    everywhere = [one for one in objects(given, b"s", "t") if one["kind"] != "Secret"]
    assert "hush" not in str(everywhere)


def test_code_that_lies_there_already_is_not_sent(tmp_path: Path) -> None:
    given = submission(write(tmp_path), Target("training", "controller:1", "/opt/code"))
    assert (given.parcels, given.code_directory) == ((), "/opt/code")
    found = objects(given, b"s", "t")
    assert by_kind(found, "ConfigMap") == []
    other = submission(write(tmp_path), Target("training", "controller:1", "/opt/code", "train:2"))
    assert given.version != other.version, "another image may hold other code"


def write_before(folder: Path, script: str) -> Path:
    """A spec that names a version before."""
    (folder / "before").mkdir(exist_ok=True)
    (folder / "before" / "train.py").write_text(script)
    return write(folder, code={"directory": "code", "previous": "before"})


@pytest.mark.parametrize("code_at", ["", "/opt/code"])
def test_the_version_before_is_sent_along(code_at: str, tmp_path: Path) -> None:
    given = submission(
        write_before(tmp_path, "print(0)\n"), Target("training", "controller:1", code_at)
    )
    (earlier,) = job_input(given, from_scratch=False).earlier_code
    assert earlier.directory == f"/everstep/code/{earlier.version}"
    assert not earlier.proven
    found = objects(given, b"s", "t")
    names = {one["metadata"]["name"] for one in by_kind(found, "ConfigMap")}
    sent = {earlier.version} if code_at else {earlier.version, given.version}
    assert names == {f"everstep-gpt-code-{version}" for version in sent}
    (job_set,) = by_kind(found, "JobSet")
    template = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    unpacked = {
        one["command"][-1]: one["command"][-2] for one in template["spec"]["initContainers"]
    }
    assert unpacked == {version: f"/everstep/code/{version}" for version in sent}
    (tmp_path / "before" / "train.py").write_text("print(1.5)\n")
    other = submission(tmp_path / "job.yaml", Target("training", "controller:1", code_at))
    assert submitted(other) != submitted(given)


def test_the_same_code_is_no_version_before(tmp_path: Path) -> None:
    given = submission(write_before(tmp_path, "print(1)\n"), TARGET)
    assert job_input(given, from_scratch=False).earlier_code == ()
    assert len(given.parcels) == 1


def test_a_mistake_in_the_version_before_is_named_as_its(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"code\.previous: train\.py, line 1"):
        submission(write_before(tmp_path, "print(\n"), TARGET)


def test_what_prepares_a_version_reaches_the_agents(tmp_path: Path) -> None:
    source = {"directory": "code", "prepare": ["make"], "prepare_timeout_s": 9.0}
    given = submission(write(tmp_path, code=source), TARGET)
    (secret,) = by_kind(objects(given, b"s", "t"), "Secret")
    file = tmp_path / "spec.yaml"
    file.write_bytes(base64.b64decode(secret["data"]["spec.yaml"]))
    told = read_spec(file).code
    assert (told.prepare, told.prepare_timeout_s) == (("make",), 9.0)


def test_other_code_is_another_submission(tmp_path: Path) -> None:
    file = write(tmp_path)
    first = submission(file, TARGET)
    assert submitted(first) == submitted(submission(file, TARGET))
    (tmp_path / "code" / "train.py").write_text("print(2)\n")
    assert submitted(submission(file, TARGET)) != submitted(first)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pods": {}}, "pods.image"),
        ({"name": "x" * 32}, "shorter name"),
        ({"name": "temporal"}, "everstep-temporal is a part of the installation"),
        ({"code": {"directory": "nowhere"}}, "--code-at"),
        ({"command": ["python", "other.py"]}, "there is no other.py in it"),
        ({"checkpoint": {"storage": {"path": "ckpt", "every_s": 60}}}, "checkpoint.storage.path"),
        ({"code": {"directory": "code", "previous": "nowhere"}}, "code.previous"),
        ({"pods": {"image": "a", "resources": {"memory": "lots"}}}, "no quantity"),
        ({"pods": {"image": "a", "kind": "deployment"}}, "pods.kind"),
        ({"pods": {"image": "a b"}}, "pods.image: 'a b' is no image"),
        ({"pods": {"image": "a", "volume_claim": "Runs"}}, "pods.volume_claim: 'Runs' is no name"),
        ({"pods": {"image": "a", "pull_secrets": ["x/y"]}}, "pods.pull_secrets"),
        ({"pods": {"image": "a", "node_selector": {"a b": "c"}}}, "'a b' is no label"),
        ({"pods": {"image": "a", "tolerations": [{"key": ""}]}}, "'' is no label"),
        ({"pods": {"image": "a", "capabilities": ["sys"]}}, "'sys' is no capability"),
    ],
)
def test_what_means_nothing_in_a_cluster_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(InputError) as refused:
        submission(file, TARGET)
    assert said in str(refused.value)


def test_a_mistake_in_the_code_is_found_before_it_is_sent(tmp_path: Path) -> None:
    file = write(tmp_path)
    (tmp_path / "code" / "train.py").write_text("print(\n")
    with pytest.raises(InputError, match=r"train.py, line 1"):
        submission(file, TARGET)


def test_the_longest_name_fits_into_that_of_a_pod(tmp_path: Path) -> None:
    given = submission(write(tmp_path, name="x" * 31), TARGET)
    (job_set,) = by_kind(objects(given, b"s", "t"), "JobSet")
    names = [
        f"{job_set['metadata']['name']}-{j['name']}-0" for j in job_set["spec"]["replicatedJobs"]
    ]
    assert max(len(f"{name}-99999-abcde") for name in names) == 63
