"""Commands for a cluster, as a person types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.conftest import free_port
from tests.unit.test_submit import write

from everstep.core.errors import InputError
from everstep.workers.cluster.install import Installation


def everstep(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everstep.cli.main", *arguments]
    return subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_install_prints_what_kubectl_applies() -> None:
    done = everstep("install", "--print", "--namespace", "llm", "--image", "registry/c:2")
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    (controller,) = [one for one in found if one["kind"] == "Deployment"]
    assert controller["metadata"]["namespace"] == "llm"
    assert controller["spec"]["template"]["spec"]["containers"][0]["image"] == "registry/c:2"


def test_submit_prints_a_job_and_says_that_nothing_is_done(tmp_path: Path) -> None:
    done = everstep("submit", str(write(tmp_path)), "--cluster", "--print")
    assert done.returncode == 0, done.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout)]
    assert kinds[0] == "Secret", "all others belong to it"
    assert "JobSet" in kinds
    assert "nothing is applied" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("install",), "--print"),
        (("install", "--print", "--namespace", "Bad_Name"), "--namespace: 'Bad_Name' is no name"),
        (("doctor", "nowhere.yaml"), "nowhere.yaml: there is no such file"),
        (("submit", "SPEC"), "--cluster"),
        (("submit", "SPEC", "--cluster", "--print", "--image", "a b"), "--image: 'a b' is no"),
        (("submit", "nowhere.yaml", "--cluster"), "nowhere.yaml: there is no such file"),
        (("submit", "SPEC", "--cluster", "--code-at", "code", "--print"), "not absolute"),
    ],
)
def test_wrong_input_is_named(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    file = str(write(tmp_path))
    done = everstep(*[file if part == "SPEC" else part for part in arguments])
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_does_not_answer_is_no_wrong_input(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = everstep("submit", str(write(tmp_path)), "--cluster", TEMPORAL_ADDRESS=address)
    assert done.returncode == 1
    assert f"no Temporal server answers at {address}" in done.stderr
    assert "Name the server that the cluster's controllers use: TEMPORAL_ADDRESS" in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"namespace": ""}, "--namespace: '' is no name"),
        ({"namespace": "a.b"}, "--namespace: 'a.b' is no name"),
        ({"image": ""}, "--image: '' is no image"),
        ({"temporal_address": "http://x:1"}, "--temporal-address: 'http://x:1' is no address"),
        ({"temporal_address": "x"}, "--temporal-address: 'x' is no address"),
        ({"temporal_namespace": ""}, "--temporal-namespace: it is empty"),
    ],
)
def test_an_installation_that_cannot_be_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as refused:
        Installation(**given)
    assert said in str(refused.value)


def test_an_address_may_be_that_of_a_host_of_any_kind() -> None:
    for address in ("temporal-frontend.temporal.svc:7233", "10.0.0.1:7233", "[fd00::1]:7233"):
        assert Installation(temporal_address=address).temporal_address == address
