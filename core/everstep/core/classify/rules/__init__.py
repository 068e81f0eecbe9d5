"""All rules. A line belongs to the first that matches, so families go from telling to general."""

from __future__ import annotations

from everstep.core.classify.rule import Rule
from everstep.core.classify.rules import (
    checkpoint,
    cuda,
    data,
    disk,
    gpu,
    harmless,
    kernel,
    memory,
    nccl,
    network,
    numerics,
    peers,
    process,
    python,
    remote,
    scheduler,
    stacks,
    storage,
    sxid,
    verbs,
    xid,
)

RULES: tuple[Rule, ...] = (
    *harmless.RULES,
    *xid.RULES,
    *sxid.RULES,
    *gpu.RULES,
    *memory.RULES,
    *kernel.RULES,
    *disk.RULES,
    *network.RULES,
    *verbs.RULES,
    *nccl.RULES,
    *peers.RULES,
    *cuda.RULES,
    *checkpoint.RULES,
    *data.RULES,
    *remote.RULES,
    *storage.RULES,
    *numerics.RULES,
    *scheduler.RULES,
    *process.RULES,
    *stacks.RULES,
    *python.RULES,
)
