"""A training state survives as bytes: every dtype, shape and nesting, bit for bit."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import given, strategies as st

from everstep.checkpoint.rebuilding import rebuild
from everstep.checkpoint.tree import FlatTree
from everstep.core.errors import PermanentError

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]


INT4: torch.dtype = getattr(torch, "int4")  # noqa: B009 - torch does not declare it
with warnings.catch_warnings(action="ignore"):
    # Both kinds are on their way out of torch.
    QUANTIZED = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    NESTED = cast("Any", torch.nested).nested_tensor([torch.ones(2), torch.ones(3)])


def through_bytes(state: Any) -> Any:
    flat = FlatTree(state)
    payload = bytearray(flat.payload_bytes)
    flat.write(memoryview(payload))
    return rebuild(flat.metadata, memoryview(payload))


def raw(tensor: torch.Tensor) -> list[int]:
    flat = tensor.detach().resolve_conj().contiguous().flatten()
    as_bytes = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
    return cast("list[int]", cast("Any", as_bytes).tolist())


def assert_same(expected: Any, actual: Any) -> None:
    assert type(expected) is type(actual)
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
        assert raw(expected) == raw(actual)
    elif isinstance(expected, dict):
        keys = list(cast("Iterable[Any]", expected))
        assert keys == list(actual)
        assert list(map(type, keys)) == list(map(type, actual))
        for key in keys:
            assert_same(expected[key], actual[key])
    elif type(expected) in (list, tuple):
        for one, other in zip(expected, actual, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(actual)
    else:
        assert expected == actual


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = math.prod(shape)
    if dtype is torch.bool:
        base = torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        return base.to(torch.bool).view(shape)
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    base = torch.tensor(list(data), dtype=torch.uint8).view(dtype).view(shape)
    if base.dim() >= 2 and draw(st.booleans()):
        base = base.transpose(0, -1)
    return base


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers(allow_nan=False)
    | st.text(max_size=10)
    | st.binary(max_size=10)
)
trees = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(st.dictionaries(st.text(max_size=5) | st.integers(), trees, max_size=4))
def test_any_state_survives(state: dict[Any, Any]) -> None:
    assert_same(state, through_bytes(state))


def test_views_come_back_as_what_they_show() -> None:
    base = torch.arange(24.0).view(2, 3, 4)
    state = {
        "sliced": base[:, ::2, 1:],
        "expanded": torch.tensor([1.0]).expand(5),
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "negated": torch.tensor([1 + 2j]).conj().imag,
    }
    back = through_bytes(state)
    for name, tensor in state.items():
        assert torch.equal(tensor, back[name]), name


def test_the_memory_format_of_dense_tensors_is_kept() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert through_bytes({"x": tensor})["x"].stride() == tensor.stride()


def test_a_parameter_comes_back_as_its_data() -> None:
    parameter = torch.nn.Parameter(torch.randn(3))
    back = through_bytes({"w": parameter})["w"]
    assert type(back) is torch.Tensor
    assert not back.requires_grad
    assert torch.equal(back, parameter)


def test_the_result_shares_no_memory_with_the_bytes() -> None:
    flat = FlatTree({"x": torch.ones(4)})
    payload = bytearray(flat.payload_bytes)
    flat.write(memoryview(payload))
    back = rebuild(flat.metadata, memoryview(payload))
    payload[:] = bytes(len(payload))
    assert torch.equal(back["x"], torch.ones(4))


def test_tensors_begin_at_cache_lines() -> None:
    flat = FlatTree({"a": torch.ones(1), "b": torch.ones(1)})
    assert flat.payload_bytes == 64 + 4


def test_a_real_models_and_optimizers_state_survives() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(8, 4)).sum().backward()
    cast("Any", optimizer).step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    back = through_bytes(state)
    assert_same(state, back)
    optimizer.load_state_dict(back["optimizer"])
    model.load_state_dict(back["model"])


class Marked(torch.Tensor):
    pass


class Point(NamedTuple):
    x: int
    y: int


def test_named_tuples_keep_their_names() -> None:
    back = through_bytes({"a": Point(1, 2), "b": [Point(3, 4)]})
    assert back == {"a": (1, 2), "b": [(3, 4)]}
    assert (back["a"].x, back["a"].y) == (1, 2)
    assert type(back["a"]) is type(back["b"][0])


def test_tied_tensors_are_stored_once_and_stay_tied() -> None:
    weight = torch.randn(1000)
    state = {"in": weight, "out": torch.nn.Parameter(weight), "part": weight[:10]}
    flat = FlatTree(state)
    assert flat.payload_bytes < 1.5 * weight.nbytes
    back = through_bytes(state)
    assert back["in"] is back["out"]
    assert torch.equal(back["part"], weight[:10])
    empty = torch.empty(0)
    back = through_bytes({"a": empty, "b": empty})
    assert back["a"] is not back["b"]


def test_what_only_looks_like_a_tied_tensor_is_stored_by_itself() -> None:
    class MadeWhenAsked(Mapping[str, torch.Tensor]):
        """Tensors that are gone soon, so that later ones get their memory; a copy needs less."""

        def __getitem__(self, key: str) -> torch.Tensor:
            return torch.full((16_000,), float(key))[:1]

        def __iter__(self) -> Iterator[str]:
            return iter("0123456789")

        def __len__(self) -> int:
            return 10

    back = through_bytes({"made": MadeWhenAsked()})["made"]
    assert {key: tensor[0].item() for key, tensor in back.items()} == {str(i): i for i in range(10)}


def test_random_number_generators_go_on() -> None:
    states = {"python": random.getstate(), "torch": torch.get_rng_state()}
    expected = random.random(), torch.rand(3)  # noqa: S311 - no secret
    back = through_bytes(states)
    random.setstate(back["python"])
    torch.set_rng_state(back["torch"])
    assert random.random() == expected[0]  # noqa: S311 - no secret
    assert torch.equal(torch.rand(3), expected[1])


# Some of them are loosely typed.
Kinds: Any = torch.optim.lr_scheduler
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: Kinds.LambdaLR(o, [lambda_of_epoch]),
    "multi-step": lambda o: Kinds.MultiStepLR(o, [1, 3, 3]),
    "cosine": lambda o: Kinds.CosineAnnealingLR(o, 4),
    "one cycle": lambda o: Kinds.OneCycleLR(o, 0.1, total_steps=9),
    "cyclic": lambda o: Kinds.CyclicLR(o, 0.1, 0.2),
    "warm-up": lambda o: Kinds.SequentialLR(o, [Kinds.LinearLR(o), Kinds.ConstantLR(o)], [2]),
    "plateau": lambda o: Kinds.ReduceLROnPlateau(o, patience=0),
}


def lambda_of_epoch(epoch: int) -> float:
    return 0.9**epoch


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_kind_of_scheduler_goes_on(name: str) -> None:
    def go_on(scheduler: Any, optimizer: Any, steps: int) -> list[float]:
        rates: list[float] = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if name == "plateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    def new() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([torch.ones(2)], lr=0.1, momentum=0.9)
        return SCHEDULERS[name](optimizer), optimizer

    scheduler, optimizer = new()
    go_on(scheduler, optimizer, 2)
    back = through_bytes({"scheduler": scheduler.state_dict(), "optimizer": optimizer.state_dict()})
    restored, its_optimizer = new()
    its_optimizer.load_state_dict(back["optimizer"])
    restored.load_state_dict(back["scheduler"])
    assert go_on(restored, its_optimizer, 4) == go_on(scheduler, optimizer, 4)


def test_values_that_json_does_not_know_come_back_as_they_were() -> None:
    state = {"milestones": Counter({3: 2, 5: 1}), "huge": 7**9000, "negative": -(2**64)}
    back = through_bytes(state)
    assert back == state
    assert type(back["milestones"]) is Counter


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            {"a": [1, {"b": object()}]},
            r"state\['a'\]\[1\]\['b'\]: cannot checkpoint a builtins.object",
        ),
        ({"a": {1.5: 0}}, r"state\['a'\]: key 1.5: .*keys are str or int"),
        ({True: 0}, "key True"),
        ({"a": {1, 2}}, r"state\['a'\]: .*set"),
        ({"a": torch.Generator()}, r"state\['a'\]: .*get_state\(\) of a generator"),
        ({"a": torch.ones(2).numpy()}, r"state\['a'\]: .*numpy.ndarray.*torch.from_numpy"),
        ({"a": torch.eye(2).to_sparse()}, r"state\['a'\]: .*Tensor; it is torch.sparse_coo: give"),
        ({"a": torch.empty(2, device="meta")}, r"state\['a'\]: .*meta device, without data"),
        ({"a": torch.empty(2, dtype=INT4)}, r"state\['a'\]: .*torch.int4, which torch"),
        ({"a": QUANTIZED}, r"state\['a'\]: .*quantized: give int_repr\(\)"),
        ({"a": NESTED}, r"state\['a'\]: .*nested: give its parts"),
        ({"a": torch.ones(2).as_subclass(Marked)}, r"state\['a'\]: .*Marked; give the plain"),
        ({"a": torch.nn.UninitializedParameter()}, r"state\['a'\]: .*UninitializedParameter"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_path(state: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        FlatTree(state)


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"{}",
        b'["exec", "x"]',
        b'["tensor", "float32", [4], [1], 1000]',
        b'["tensor", "nn", [4], [1], 0]',
        b'["tensor", "float32", [-4], [1], 0]',
        b'["dict", [[1], 2]]',
        b'["named tuple", "x", ["__import__"], 1]',
        b'["named tuple", "x y", ["a"], 1]',
        b'["dtensor", 1, []]',
        b"[" * 100_000,
    ],
)
def test_a_bad_description_is_refused(metadata: bytes) -> None:
    with pytest.raises(PermanentError, match="unreadable state"):
        rebuild(metadata, memoryview(bytearray(64)))
