"""What a DP group has in common is cut into parts, one a rank, and comes back from them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from everstep.checkpoint import rebuilding
from everstep.checkpoint.checksums import digest_of
from everstep.checkpoint.tree import FlatTree
from everstep.core.errors import PermanentError
from everstep.core.groups import Layout
from everstep.core.leaves import is_equal_on, leaves_of
from everstep.core.parts import Part, Replicated, Span, cut, note_from_json
from everstep.core.save_plan import plan_save
from everstep.core.shard import ALIGNMENT_BYTES, aligned

MODEL = Replicated(("model",), group_size=2)


def spans_of(sizes: list[tuple[int, int]]) -> list[Span]:
    spans: list[Span] = []
    for rows, row_bytes in sizes:
        offset = aligned(spans[-1].end) if spans else 0
        spans.append(Span(offset, rows, row_bytes))
    return spans


def test_cuts_are_at_rows_nearest_to_equal_shares() -> None:
    # 10 rows of 128 B, a scalar of 4 B, 6 rows of 64 B: 1280 + 64 + 384 B.
    spans = spans_of([(10, 128), (1, 4), (6, 64)])
    assert [span.offset for span in spans] == [0, 1280, 1344]
    assert cut(spans, 1) == (0, 1728)
    # 864 is 6.75 rows.
    assert cut(spans, 2) == (0, 896, 1728)
    part = Part(1, cut(spans, 2))
    assert [part.rows_of(span) for span in spans] == [(7, 10), (0, 1), (0, 6)]
    assert part.pieces_of(0, 1280) == [(0, 0, 896), (1, 0, 384)]
    assert part.pieces_of(1344, 384) == [(1, 448, 832)]


def test_a_tensor_of_one_row_is_not_cut() -> None:
    assert cut(spans_of([(1, 1000), (1, 100)]), 3) == (0, 0, 1024, 1124)


def test_rows_that_fill_no_cache_line_are_cut_where_some_of_them_do() -> None:
    # 16 rows of 12 B are 3 lines.
    assert cut(spans_of([(100, 12)]), 2) == (0, 576, 1200)


def test_nothing_is_cut_into_nothing() -> None:
    assert cut([], 3) == (0, 0, 0, 0)


sizes_of_tensors = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 300)), max_size=12)


@given(sizes_of_tensors, st.integers(1, 9))
def test_parts_cover_every_row_once_and_are_balanced(
    sizes: list[tuple[int, int]], num_parts: int
) -> None:
    spans = spans_of(sizes)
    bounds = cut(spans, num_parts)
    assert len(bounds) == num_parts + 1
    assert all(one <= other for one, other in itertools.pairwise(bounds))
    assert all(bound % ALIGNMENT_BYTES == 0 or bound == bounds[-1] for bound in bounds)
    parts = [Part(index, bounds) for index in range(num_parts)]
    for span in spans:
        rows = [part.rows_of(span) for part in parts]
        covered = [row for first, last in rows for row in range(first, last)]
        assert covered == list(range(span.rows))
        for part, (first, last) in zip(parts, rows, strict=True):
            if first < last:
                assert part.begin <= span.offset + first * span.row_bytes
                assert span.offset + last * span.row_bytes <= part.bounds[part.index + 1]
    # A cut is off by half of what cannot be cut, at most: a run of rows that ends on a line.
    largest = max((min(64 * r, aligned(n * r)) for n, r in sizes), default=0)
    for index, bound in enumerate(bounds[:-1]):
        assert abs(bound - bounds[-1] * index // num_parts) <= largest + ALIGNMENT_BYTES


@given(sizes_of_tensors, st.integers(1, 5), st.data())
def test_pieces_are_where_the_parts_have_them(
    sizes: list[tuple[int, int]], num_parts: int, data: st.DataObject
) -> None:
    spans = spans_of(sizes or [(1, 1)])
    bounds = cut(spans, num_parts)
    whole = bytes(index % 251 for index in range(bounds[-1]))
    parts = [whole[begin:end] for begin, end in itertools.pairwise(bounds)]
    span = data.draw(st.sampled_from(spans))
    size_bytes = span.end - span.offset
    pieces = Part(0, bounds).pieces_of(span.offset, size_bytes)
    joined = b"".join(parts[index][begin:end] for index, begin, end in pieces)
    assert joined == whole[span.offset : span.end]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"index": 2, "bounds": [0, 1, 2], "start": 0, "whole": 1},
        {"index": 0, "bounds": [1, 0], "start": 0, "whole": 1},
        {"index": 0, "bounds": "x", "start": 0, "whole": 1},
    ],
)
def test_what_describes_no_part_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(PermanentError, match="part"):
        note_from_json(content)


def test_groups_follow_from_their_size_and_stride() -> None:
    layout = Layout(2, tp=2, pp=2, dp=3, order=("tp", "pp", "dp"))
    replicated = Replicated(("model",), layout.dp, layout.strides["dp"])
    for rank in range(layout.world_size):
        group = replicated.group_of(rank)
        assert tuple(group) == layout.group("dp", rank)
        assert group[replicated.index_of(rank)] == rank


# --- States ---------------------------------------------------------------------------------------


def written(flat: FlatTree) -> tuple[bytes, memoryview]:
    payload = memoryview(bytearray(aligned(flat.payload_bytes, 4096)))[: flat.payload_bytes]
    flat.write(payload)
    flat.check_unchanged()
    return flat.metadata, payload


def part_of(flat: FlatTree, payload: memoryview) -> memoryview:
    return payload[len(payload) - flat.part_bytes :]


def state_of(rank: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(33, 7, generator=generator)
    return {
        "model": {
            "weight": weight,
            "tied": weight,
            "bias": torch.randn(7, generator=generator, dtype=torch.float64),
            "scale": torch.tensor(2.5),
            "large": torch.randn(600, 100, generator=generator),
            "image": torch.randn(5, 3, 4, 4, generator=generator).contiguous(
                memory_format=torch.channels_last
            ),
            "columns": torch.randn(6, 50, generator=generator).t(),
            "bits": torch.arange(13) % 2 == 0,
            "empty": torch.zeros(0, 4),
            "rate": 0.1,
        },
        "rng": torch.full((11,), rank),
        "rank": rank,
    }


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        mapping: dict[Any, Any] = one  # pyright: ignore[reportUnknownVariableType] - one is Any
        assert mapping.keys() == other.keys()
        for key, value in mapping.items():
            assert_same(value, other[key])
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("size", [2, 3, 8])
def test_states_come_back_from_the_parts_of_all_ranks(size: int) -> None:
    replicated = Replicated(("model",), size)
    flats = [FlatTree(state_of(rank), replicated, rank) for rank in range(size)]
    for flat in flats:
        flat.take_part()
    assert len({flat.part.whole for flat in flats if flat.part is not None}) == 1
    bodies = [written(flat) for flat in flats]
    parts = [part_of(flat, payload) for flat, (_, payload) in zip(flats, bodies, strict=True)]
    for rank, (metadata, payload) in enumerate(bodies):
        state = rebuilding.rebuild(metadata, payload, parts)
        assert_same(state_of(rank), state)
        assert state["model"]["weight"] is state["model"]["tied"]
        assert state["model"]["image"].is_contiguous(memory_format=torch.channels_last)
    # 240 kB of weights, and what little is each rank's own.
    alone = FlatTree(state_of(0)).payload_bytes
    assert max(len(payload) for _, payload in bodies) < alone / size + 3000


def test_a_state_that_takes_parts_is_refused_without_them() -> None:
    flats = [FlatTree(state_of(rank), MODEL, rank) for rank in range(2)]
    for flat in flats:
        flat.take_part()
    (metadata, payload), (_, other) = map(written, flats)
    with pytest.raises(PermanentError, match="parts of"):
        rebuilding.rebuild(metadata, payload)
    with pytest.raises(PermanentError, match="parts of"):
        rebuilding.rebuild(
            metadata, payload, [part_of(flats[0], payload), part_of(flats[1], other)[1:]]
        )


def test_a_state_taken_whole_needs_nobody() -> None:
    flat = FlatTree(state_of(1), MODEL, 1)
    flat.copy_small()
    flat.take_whole()
    assert flat.part_bytes == 0
    assert_same(state_of(1), rebuilding.rebuild(*written(flat)))


def test_small_tensors_may_change_at_once_and_large_ones_not() -> None:
    for large in (False, True):
        state = state_of(0)
        flat = FlatTree(state, MODEL, 0)
        flat.take_part()
        flat.copy_small()
        state["model"]["large" if large else "scale"].add_(1)
        if large:
            with pytest.raises(PermanentError, match=r"\['large'\] was changed"):
                flat.check_unchanged()
        else:
            flat.check_unchanged()


def test_what_nobody_has_in_common_is_no_part() -> None:
    for replicated in (Replicated(("model",), 1), Replicated((), 2), Replicated(("other",), 2)):
        flat = FlatTree(state_of(0), replicated)
        assert (flat.composition, flat.metadata) == (0, FlatTree(state_of(0)).metadata)


def test_deeper_keys_are_named_with_dots() -> None:
    deep = {"train": {"model": {"w": torch.ones(4)}, "models": torch.ones(4)}}
    flat = FlatTree(deep, Replicated(("train.model",), 2))
    assert len(flat.common) == 1


def test_digests_tell_every_changed_byte_apart() -> None:
    tensors = [value for value in state_of(0)["model"].values() if isinstance(value, torch.Tensor)]
    seen = {digest_of(tensors)}
    assert digest_of([tensor.clone() for tensor in tensors]) in seen
    for at, tensor in enumerate(tensors):
        for place in (0, -1):
            if tensor.numel() == 0:
                continue
            changed = [one.clone() for one in tensors]
            flat = changed[at].reshape(-1).view(torch.uint8)
            flat[place] = flat[place] ^ 1
            changed[at] = flat.view(tensor.dtype).view(tensor.shape)
            seen.add(digest_of(changed))
    assert len(seen) == 1 + 2 * sum(tensor.numel() > 0 for tensor in tensors)


# --- Sharded tensors, and storage -----------------------------------------------------------------


def description(mesh: Any, *placements: list[Any]) -> list[Any]:
    return ["cpu", mesh, None, list(placements), [8, 4], [4, 1]]


@pytest.mark.parametrize(
    ("mesh", "placements", "equal"),
    [
        # Over tp alone: the others of the group are in meshes of their own.
        ([0, 1], [["Shard", 0]], True),
        # Over dp: fully sharded, or replicated.
        ([0, 2], [["Shard", 0]], False),
        ([0, 2], [["Replicate"]], True),
        # dp by tp.
        ([[0, 1], [2, 3]], [["Shard", 0], ["Shard", 1]], False),
        ([[0, 1], [2, 3]], [["Replicate"], ["Shard", 1]], True),
        # The rank itself is not there.
        ([1, 3], [["Replicate"]], False),
    ],
)
def test_sharded_tensors_are_equal_where_no_other_rank_has_another_part(
    mesh: Any, placements: list[list[Any]], equal: bool
) -> None:
    assert is_equal_on(description(mesh, *placements), 0, [0, 2]) is equal


@settings(deadline=None)
@given(st.integers(2, 5), st.integers(1, 2))
def test_storage_sees_parts_as_pieces_of_whole_tensors(dp: int, tp: int) -> None:
    layout = Layout(1, tp=tp, dp=dp, order=("tp", "dp"))
    held: dict[int, list[Any]] = {}
    for rank in range(layout.world_size):
        at = layout.coordinates(rank)
        state = {"model": {"w": torch.full((64, 3), at["tp"]), "s": torch.tensor(1)}, "r": rank}
        flat = FlatTree(state, Replicated(("model",), dp, layout.strides["dp"]), rank)
        flat.take_part()
        metadata, payload = written(flat)
        held[rank] = []
        for leaf in leaves_of(metadata.decode(), rank):
            size_bytes = leaf.numel * 8
            data = bytes(payload[leaf.offset :][:size_bytes])
            held[rank].append((leaf, data.hex() if leaf.kind == "tensor" else str(leaf.node)))
    plan = plan_save(held, layout)
    assert plan.naming["model.w"].kinds == (("tp",) if tp > 1 else ())
    assert plan.naming["model.s"].kinds == ()
    assert plan.naming["model.w"].whole
    rows = {
        (key, offsets): next(
            leaf.shape[0]
            for leaf, _ in held[rank]
            if leaf.name == "model.w" and leaf.piece is not None and leaf.piece.offsets == offsets
        )
        for (key, offsets), rank in plan.writer.items()
        if key.endswith("model.w")
    }
    assert sum(rows.values()) == 64 * tp
