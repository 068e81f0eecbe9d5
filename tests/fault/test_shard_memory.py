"""The memory of shards: given back when it is not needed, and never more than there is."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from everstep.agent.shards import ShardStore, free_memory_bytes
from everstep.core.errors import TransientError


def open_descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_memory_is_given_back() -> None:
    store = ShardStore("m0")
    before = open_descriptors()
    store.region_for(0, 1000)
    region = store.region_for(1, 1000)
    assert store.region_for(1, 500) is region
    assert store.memory_bytes == 2 * region.size_bytes
    store.keep_only([1], [])
    assert store.memory_bytes == region.size_bytes
    store.keep_only([], [])
    assert store.region(1) is None
    del region
    assert open_descriptors() == before


def test_a_shared_region_cannot_be_cut_short() -> None:
    store = ShardStore("m0")
    region = store.region_for(0, 1000)
    with pytest.raises(PermissionError):
        os.truncate(region.fd, 0)


def test_the_memory_limit_of_a_cgroup_counts(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8000 kB\n")
    (proc / "self/cgroup").write_text("0::/pods/pod1\n")
    pod = cgroups / "pods/pod1"
    pod.mkdir(parents=True)
    assert free_memory_bytes(proc, cgroups) == 8000 * 1024
    (pod / "memory.max").write_text("max\n")
    assert free_memory_bytes(proc, cgroups) == 8000 * 1024
    (pod.parent / "memory.max").write_text("5000\n")
    (pod.parent / "memory.current").write_text("4000\n")
    (pod.parent / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    assert free_memory_bytes(proc, cgroups) == 1300


def test_a_real_machine_has_memory() -> None:
    store = ShardStore("m0")
    store.region_for(0, 1000)
    with pytest.raises(TransientError, match="no memory for rank 1's shard"):
        store.region_for(1, 2**60)


def test_memory_that_the_kernel_refuses_is_said_and_taken_by_nobody() -> None:
    store = ShardStore("m0")
    before = open_descriptors()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old = resource.getrlimit(resource.RLIMIT_AS)
    limit_bytes = pages * resource.getpagesize() + 16 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, old[1]))
    try:
        with pytest.raises(TransientError, match=r"m0: no memory for rank 0's shard.*allocate"):
            store.region_for(0, 64 * 2**20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)
    assert open_descriptors() == before
    assert store.memory_bytes == 0
    assert store.region_for(0, 64 * 2**20).size_bytes > 64 * 2**20
