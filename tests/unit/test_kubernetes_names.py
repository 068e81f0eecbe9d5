"""Words on Kubernetes objects: manifests, people and older versions of us know them."""

from __future__ import annotations

import pytest

from everstep.core import kubernetes_names as names


def test_words_are_pinned() -> None:
    assert {name: value for name, value in vars(names).items() if name.isupper()} == {
        "PREFIX": "everstep.dev",
        "LABEL_JOB": "everstep.dev/job",
        "LABEL_ROLE": "everstep.dev/role",
        "LABEL_SLOT": "everstep.dev/slot",
        "LABEL_MACHINE": "everstep.dev/machine",
        "ANNOTATION_INCIDENT": "everstep.dev/incident",
        "ROLE_TRAINING": "training",
        "ROLE_STANDBY": "standby",
        "ROLE_EVICTED": "evicted",
        "TAINT_QUARANTINE": "everstep.dev/quarantine",
        "TAINT_EFFECT": "NoSchedule",
        "CONDITION_QUARANTINED": "EverstepQuarantined",
        "ANNOTATION_QUARANTINED_BY": "everstep.dev/quarantined-by",
        "TOPOLOGY_RACK": "topology.kubernetes.io/rack",
        "MAX_VALUE_CHARS": 63,
    }


def test_the_taint_says_job_and_incident() -> None:
    assert names.taint_value("gpt", 12) == "gpt.12"
    long = names.taint_value("j" * 63, 123)
    assert len(long) == names.MAX_VALUE_CHARS
    assert long.endswith("j.123")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("topology.kubernetes.io/rack", True),
        ("rack", True),
        ("a/b/c", False),
        ("a b", False),
        ("", False),
        ("/rack", False),
        ("r" * 64, False),
    ],
)
def test_what_can_name_a_label(text: str, fits: bool) -> None:
    assert names.is_label_key(text) is fits
