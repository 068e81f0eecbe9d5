"""All rules. A line belongs to the first that matches, so families go from telling to general."""

from __future__ import annotations

from everstep.core.classify.rule import Rule
from everstep.core.classify.rules import (
    cuda,
    gpu,
    harmless,
    kernel,
    nccl,
    network,
    numerics,
    process,
    python,
    stacks,
    storage,
    xid,
)

RULES: tuple[Rule, ...] = (
    *harmless.RULES,
    *xid.RULES,
    *gpu.RULES,
    *kernel.RULES,
    *network.RULES,
    *nccl.RULES,
    *cuda.RULES,
    *storage.RULES,
    *numerics.RULES,
    *process.RULES,
    *stacks.RULES,
    *python.RULES,
)
