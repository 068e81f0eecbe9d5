"""Sharded tensors (DTensor, as FSDP2 uses them): their local part, and where it belongs.

Apart from the trees, as only a script that uses DTensor has loaded what it takes.
"""

# torch.distributed.tensor is loosely typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import torch.distributed as dist

from everstep.core.errors import PermanentError

_MODULE = "torch.distributed.tensor"

Description = list[Any]
"""JSON: kind of device, mesh, names of its dimensions, placements, whole shape, whole strides."""


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether it is one; a script that has none does not have to load their module."""
    module: Any = sys.modules.get(_MODULE)
    return module is not None and isinstance(tensor, module.DTensor)


def take_apart(tensor: Any) -> tuple[torch.Tensor, Description]:
    """This rank's part, and the rest.

    Raises:
        TypeError: It is placed in a way that is not known here.
    """
    mesh = tensor.device_mesh
    description: Description = [
        mesh.device_type,
        mesh.mesh.tolist(),
        None if mesh.mesh_dim_names is None else list(mesh.mesh_dim_names),
        [_describe(placement) for placement in tensor.placements],
        list(tensor.shape),
        list(tensor.stride()),
    ]
    return tensor.detach().to_local(), description


def put_together(local: torch.Tensor, description: Description) -> torch.Tensor:
    """The sharded tensor, on the same mesh; no rank is talked to.

    Raises:
        PermanentError: The script has not joined the process group yet.
    """
    device_type, ranks, names, placements, shape, strides = description
    if not dist.is_initialized():
        raise PermanentError("sharded tensors are restored after init_process_group()")
    module: Any = importlib.import_module(_MODULE)
    mesh = module.DeviceMesh(
        device_type,
        torch.tensor(ranks, dtype=torch.int),
        mesh_dim_names=None if names is None else tuple(names),
        # It is equal to the script's own, whose process groups are there already.
        _init_backend=False,
    )
    whole: torch.Tensor = module.DTensor.from_local(
        local.to(device_type),
        mesh,
        [_placement(*parts) for parts in placements],
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(strides),
    )
    return whole


def _describe(placement: Any) -> list[Any]:
    kind = type(placement).__name__
    match kind:
        case "Replicate":
            return [kind]
        case "Shard":
            return [kind, placement.dim]
        case "_StridedShard":
            return [kind, placement.dim, placement.split_factor]
        case "Partial":
            return [kind, placement.reduce_op]
        case _:
            raise TypeError(f"cannot checkpoint a tensor that is placed as {placement}")


def _placement(kind: str, *arguments: Any) -> Any:
    types: Any = importlib.import_module(f"{_MODULE}.placement_types")
    match kind:
        case "Replicate" | "Shard" | "Partial":
            return getattr(types, kind)(*arguments)
        case "_StridedShard":
            dim, split_factor = arguments
            return types._StridedShard(dim, split_factor=split_factor)
        case _:
            raise ValueError(f"a placement of kind {kind!r}")
