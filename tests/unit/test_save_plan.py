"""Leaves of states, their places in whole tensors, their names, and who writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.core.errors import PermanentError
from everstep.core.groups import Layout
from everstep.core.leaves import Piece, leaves_of, piece_of
from everstep.core.save_plan import Naming, SeenLeaf, plan_from_json, plan_save

LAYOUT = Layout(gpus_per_machine=2, tp=2, pp=2, dp=2, order=("tp", "pp", "dp"))


def tensor(offset: int = 0, shape: tuple[int, ...] = (4,)) -> list[Any]:
    return ["tensor", "float32", list(shape), [1] * len(shape), offset]


def dtensor(mesh: Any, placements: Any, whole: list[int], local: tuple[int, ...]) -> list[Any]:
    return ["dtensor", tensor(0, local), ["cpu", mesh, None, placements, whole, [1] * len(whole)]]


def seen(tree: dict[str, Any], rank: int, digests: dict[str, str]) -> list[SeenLeaf]:
    node = ["dict", *([key, value] for key, value in tree.items())]
    return [(leaf, digests[leaf.name]) for leaf in leaves_of(json.dumps(node), rank)]


def test_leaves_are_named_as_torch_names_them() -> None:
    node = [
        "dict",
        ["model", ["ordered dict", ["a.b", tensor()], [3, tensor(64)]]],
        ["groups", ["list", ["dict", ["betas", ["tuple", ["float", "0x1p-1"], 2]]], tensor(128)]],
        ["point", ["named tuple", "Point", ["x", "y"], 1, 2]],
        ["nothing", ["dict"]],
    ]
    leaves = leaves_of(json.dumps(node), 0)
    assert [(leaf.name, leaf.kind) for leaf in leaves] == [
        ("model.a.b", "tensor"),
        ("model.3", "tensor"),
        ("groups.0.betas", "value"),
        ("groups.1", "tensor"),
        ("point", "value"),
    ]
    assert leaves[3].path == ("groups", 1)
    assert leaves[4].node == ["tuple", 1, 2]


def test_paths_that_read_the_same_get_names_of_their_own() -> None:
    node = ["dict", ["a.b", 1], ["a", ["dict", ["b", 2]]]]
    assert [leaf.name for leaf in leaves_of(json.dumps(node), 0)] == ["a.b", "a.b#2"]


def test_what_describes_no_state_is_refused() -> None:
    for text in ("", '["dict", [1]]', '["tensor", "float32"]'):
        with pytest.raises(PermanentError):
            leaves_of(text, 0)


@pytest.mark.parametrize(
    ("mesh", "placements", "whole", "local", "rank", "offsets"),
    [
        ([0, 1], [["Shard", 0]], [5, 2], (3, 2), 0, (0, 0)),
        ([0, 1], [["Shard", 0]], [5, 2], (2, 2), 1, (3, 0)),
        # torch.chunk gives the last ranks nothing.
        ([0, 1, 2, 3], [["Shard", 0]], [5], (0,), 3, (0,)),
        ([[0, 1], [2, 3]], [["Replicate"], ["Shard", 1]], [2, 4], (2, 2), 3, (0, 2)),
        # FSDP2 over TP: rows are first cut by the second dimension of the mesh.
        ([[0, 1], [2, 3]], [["_StridedShard", 0, 2], ["Shard", 0]], [8], (2,), 1, (4,)),
        ([[0, 1], [2, 3]], [["_StridedShard", 0, 2], ["Shard", 0]], [8], (2,), 2, (2,)),
    ],
)
def test_where_a_part_belongs(
    mesh: Any, placements: list[Any], whole: list[int], local: tuple[int, ...], rank: int,
    offsets: tuple[int, ...],
) -> None:  # fmt: skip
    description = ["cpu", mesh, None, placements, whole, []]
    assert piece_of(description, local, rank) == Piece(tuple(whole), offsets)


@pytest.mark.parametrize(
    ("mesh", "placements", "local", "rank"),
    [
        # Rows 0, 1, 4 and 5.
        ([0, 1], [["_StridedShard", 0, 2]], (4,), 0),
        ([0, 1], [["Partial", "sum"]], (8,), 0),
        ([0, 1], [["Shard", 0]], (4,), 7),
        ([0, 1], [["Shard", 0]], (3,), 0),
    ],
)
def test_what_is_no_box_of_a_whole(
    mesh: Any, placements: list[Any], local: tuple[int, ...], rank: int
) -> None:
    assert piece_of(["cpu", mesh, None, placements, [8], []], local, rank) is None


def test_names_tell_of_the_fewest_coordinates_that_matter() -> None:
    held: dict[int, list[SeenLeaf]] = {}
    for rank in range(8):
        at = LAYOUT.coordinates(rank)
        tree: dict[str, Any] = {"same": tensor(), "step": 7, "w": tensor(64), "rng": tensor(128)}
        tree[f"layer{at['pp']}"] = tensor(192)
        digests = {
            "same": "s", "step": "7", "w": f"w{at['tp']}{at['pp']}", "rng": f"r{rank}",
            "layer0": f"l{at['tp']}", "layer1": "all",
        }  # fmt: skip
        held[rank] = seen(tree, rank, digests)
    plan = plan_save(held, LAYOUT)
    assert plan.naming == {
        "same": Naming((), True),
        "step": Naming((), True),
        "w": Naming(("tp", "pp"), True),
        "rng": Naming(("tp", "pp", "dp"), True),
        "layer0": Naming(("tp",), True),
        "layer1": Naming((), True),
    }
    keys = sorted(key for key, _ in plan.writer)
    assert len(keys) == 2 + 4 + 8 + 2 + 1
    assert {"@tp1,pp0.w", "@tp1,pp1,dp0.rng", "@tp0.layer0", "layer1"} <= set(keys)
    # Only holders write, and all of them do something.
    for (key, _), rank in plan.writer.items():
        leaf = next(leaf for leaf, _ in held[rank] if key.endswith(leaf.name))
        assert plan.item(leaf, rank, LAYOUT)[0] == key
    assert set(plan.writer.values()) == set(range(8))
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_parts_of_a_sharded_tensor_make_a_whole_once() -> None:
    layout = Layout(gpus_per_machine=1, dp=4)
    mesh = [[0, 1], [2, 3]]
    held = {
        rank: seen(
            {"w": dtensor(mesh, [["Replicate"], ["Shard", 0]], [4], (2,))}, rank,
            {"w": f"part{rank % 2}"},
        )
        for rank in range(4)
    }  # fmt: skip
    plan = plan_save(held, layout)
    assert plan.naming == {"w": Naming((), True)}
    assert sorted(plan.writer) == [("w", (0,)), ("w", (2,))]


def test_replicas_that_drifted_apart_are_all_kept() -> None:
    layout = Layout(gpus_per_machine=1, dp=2)
    whole = [["Replicate"]]
    held = {
        rank: seen({"w": dtensor([0, 1], whole, [4], (4,))}, rank, {"w": f"of{rank}"})
        for rank in range(2)
    }
    plan = plan_save(held, layout)
    assert plan.naming == {"w": Naming(("dp",), True)}
    assert len(plan.writer) == 2


def test_parts_without_a_whole_are_stored_as_they_are() -> None:
    layout = Layout(gpus_per_machine=1, dp=2)
    shards = [["Shard", 0]]
    held = {
        # Rank 1's part is of another mesh, whose rest nobody has.
        0: seen({"w": dtensor([0, 5], shards, [4], (2,))}, 0, {"w": "a"}),
        1: seen({"w": dtensor([1, 6], shards, [4], (2,))}, 1, {"w": "b"}),
    }
    plan = plan_save(held, layout)
    assert plan.naming == {"w": Naming(("dp",), False)}
    assert sorted(plan.writer) == [("@dp0.w", None), ("@dp1.w", None)]
