"""Fills a state from a stored checkpoint that was saved in another layout."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.distributed.checkpoint import state_dict_loader

from everstep.checkpoint import dcp, rebuilding, storing, tree
from everstep.core.errors import PermanentError
from everstep.core.leaves import Leaf, leaves_of
from everstep.core.save_plan import Item, SavePlan, SeenLeaf
from everstep.storage.folder import Checkpoint, Description, Located, describe

_MOST_NAMED = 5


def load(url: str, into: Mapping[Any, Any], rank: int) -> dict[Any, Any]:
    """Fill a state's tensors in place, and take over its plain values.

    Only what all ranks that had it agreed on can go into another layout: sharded tensors, and
    whatever was the same everywhere. No rank is talked to.

    Args:
        url: The checkpoint's folder.
        into: The state as this rank would save it.
        rank: This rank.

    Returns:
        The state: the same tensors, and the stored values.

    Raises:
        TypeError: The state contains something that cannot be stored.
        PermanentError: Something in it cannot be had from the checkpoint; all such are named.
    """
    try:
        description = describe(Checkpoint(url))
        everything = _see_all(description)
        located: dict[Item, Located] = {}
        for slot in range(description.num_slots):
            located |= description.wrote(slot)
    except OSError as error:
        raise PermanentError(f"{url} cannot be read: {error}") from error
    leaves = leaves_of(tree.FlatTree(into).metadata.decode(), rank)
    objects = list(_objects(into))
    stored = _stored(everything)
    _refuse(description, leaves, objects, description.plan, stored)
    tensors = {
        leaf.name: value
        for leaf, value in zip(leaves, objects, strict=True)
        if leaf.kind == "tensor"
    }
    contents = storing.contents_of(description.plan, everything, description.layout)
    reader = dcp.Reader(url, dcp.metadata_of(contents, located))
    with warnings.catch_warnings():
        # That each rank reads for itself is meant so.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        state_dict_loader.load(tensors, storage_reader=reader, no_dist=True)
    names = iter(leaves)

    def take(value: Any) -> Any:
        leaf = next(names)
        return value if leaf.kind == "tensor" else rebuilding.rebuild_value(stored[leaf.name].node)

    return cast("dict[Any, Any]", _replace(into, take))


def _see_all(description: Description) -> dict[int, list[SeenLeaf]]:
    everything: dict[int, list[SeenLeaf]] = {}
    for slot in range(description.num_slots):
        for rank, one in description.seen(slot).items():
            found = leaves_of(one["metadata"], rank)
            everything[rank] = list(zip(found, one["digests"], strict=True))
    return everything


def _stored(everything: Mapping[int, list[SeenLeaf]]) -> dict[str, Leaf]:
    """Some rank's leaf of each name."""
    found: dict[str, Leaf] = {}
    for rank in sorted(everything):
        for leaf, _ in everything[rank]:
            found.setdefault(leaf.name, leaf)
    return found


def _refuse(
    description: Description,
    leaves: list[Leaf],
    objects: list[Any],
    plan: SavePlan,
    stored: Mapping[str, Leaf],
) -> None:
    problems: list[str] = []
    for leaf, value in zip(leaves, objects, strict=True):
        problem = _problem(leaf, value, plan, stored)
        if problem:
            problems.append(f"{leaf.name} {problem}")
    if problems:
        more = len(problems) - _MOST_NAMED
        raise PermanentError(
            f"step {description.summary['step']} was saved in layout"
            f" {description.summary['parallelism']} and cannot be turned into this one: "
            + "; ".join(problems[:_MOST_NAMED])
            + (f"; and {more} more" if more > 0 else "")
        )


def _problem(leaf: Leaf, value: Any, plan: SavePlan, stored: Mapping[str, Leaf]) -> str:
    naming, there = plan.naming.get(leaf.name), stored.get(leaf.name)
    if naming is None or there is None:
        return "is not in the checkpoint"
    if naming.kinds:
        return f"differs between the ranks of its {', '.join(naming.kinds)} groups"
    if not naming.whole:
        return "was sharded in a way that has no whole"
    if leaf.kind != there.kind:
        return f"is a {there.kind} in the checkpoint and a {leaf.kind} here"
    if leaf.kind == "value":
        return ""
    whole = there.shape if there.piece is None else there.piece.whole
    if tuple(value.shape) != whole:
        return f"has shape {whole} in the checkpoint and {tuple(value.shape)} here"
    if leaf.dtype != there.dtype:
        return f"is {there.dtype} in the checkpoint and {leaf.dtype} here"
    return ""


def _objects(state: Any) -> Any:
    """The leaves of a state, in the order of its description."""
    if isinstance(state, Mapping):
        for item in state.values():
            yield from _objects(item)
    elif isinstance(state, list | tuple) and not _is_value(state):
        for item in state:
            yield from _objects(item)
    else:
        yield state


def _replace(state: Any, replace: Any) -> Any:
    """The state with each leaf replaced, in the same order."""
    if isinstance(state, Mapping):
        made = {key: _replace(item, replace) for key, item in state.items()}
        mapping_type: Any = type(state)
        return made if mapping_type is dict else mapping_type(made)
    if _is_value(state):
        return replace(state)
    if isinstance(state, list):
        return [_replace(item, replace) for item in state]
    if isinstance(state, tuple):
        parts = [_replace(item, replace) for item in state]
        kind: Any = type(state)
        return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
    return replace(state)


def _is_value(state: Any) -> bool:
    """As `core.leaves` has it: a leaf, or a list of plain values."""
    if isinstance(state, list | tuple):
        return all(_is_value(item) for item in state)
    return not isinstance(state, Mapping | torch.Tensor)
