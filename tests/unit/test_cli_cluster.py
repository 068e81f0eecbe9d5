"""Commands for a cluster, as a person types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.unit.test_submit import write


def everstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everstep.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


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
        (("install", "--print", "--image", ""), "--image: '' is no image"),
        (("install", "--print", "--temporal-address", "http://x:1"), "--temporal-address"),
        (("install", "--print", "--temporal-namespace", ""), "--temporal-namespace: it is empty"),
        (("doctor", "--namespace", ""), "--namespace"),
        (("doctor", "nowhere.yaml"), "nowhere.yaml: there is no such file"),
        (("submit", "SPEC"), "--cluster"),
        (("submit", "SPEC", "--cluster", "--print", "--namespace", "a b"), "--namespace"),
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
