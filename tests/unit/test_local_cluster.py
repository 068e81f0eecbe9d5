"""Requests to the local cluster: files from which the run starts agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from everstep.activities.local_cluster import LocalCluster
from everstep.workflows.effects import MachineRequest

REQUEST = MachineRequest("job", "run-id", 3, count=2, total=6, reason="2 standbys are used")


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def test_request_made_twice_is_for_the_same_machines(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "evictions.jsonl", tmp_path)
    await cluster.request_machines(REQUEST)
    once = names(tmp_path)
    await cluster.request_machines(REQUEST)
    assert names(tmp_path) == once
    await cluster.request_machines(replace(REQUEST, number=4, count=1))
    assert (len(once), len(names(tmp_path))) == (2, 3)


async def test_folder_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "evictions.jsonl", tmp_path / "gone")
    with pytest.raises(Exception, match="cannot write") as refused:
        await cluster.request_machines(REQUEST)
    assert not getattr(refused.value, "non_retryable", True)
