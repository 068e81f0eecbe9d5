"""Saving from a real GPU: what is stored is what training left there, whatever it does meanwhile.

Skipped where there is none. `torch.cuda._sleep` keeps a stream busy for a while, so that what must
wait for it shows.
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import mmap
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.fault.test_checkpoint import Machine

from everstep import checkpoint
from everstep.agent.channel import RankChannel
from everstep.checkpoint.copying import CudaCopier, copier_for
from everstep.checkpoint.tree import FlatTree
from everstep.core import names
from everstep.core.shard import format_region, region_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PATIENCE_S = 60.0
LARGE = 4_000_000

Connect = Callable[..., checkpoint.Session]
# Parts of it are not annotated.
cuda: Any = torch.cuda


@pytest.fixture
def here() -> Iterator[Machine]:
    machine = Machine("m0")
    yield machine
    machine.close()


@pytest.fixture
def connect(here: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Opens the session of an attempt of rank 0; closed at the end, with its channel."""
    with contextlib.ExitStack() as stack:

        def connect(restore_step: int = 0, attempt: int = 1) -> checkpoint.Session:
            ours, theirs = socket.socketpair()
            channel = RankChannel(
                0, attempt, ours, here.store, here.sender, None, restore_step,
                lambda rank, step: None, PATIENCE_S,
            )  # fmt: skip
            channel.start()
            stack.callback(channel.close)
            monkeypatch.setenv(names.ENV_CHANNEL_FD, str(theirs.detach()))
            session = checkpoint.connect()
            stack.callback(session.close)
            return session

        yield connect


def sleep_on_gpu(duration_s: float) -> None:
    """Keep the current stream busy."""
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    cycles_per_s = 10_000_000 / (begin.elapsed_time(end) / 1e3)
    cuda._sleep(int(duration_s * cycles_per_s))


def restored(connect: Connect, step: int) -> dict[Any, Any]:
    found = connect(step, attempt=2).restore()
    assert found is not None
    assert found.step == step
    return found.state


def test_a_state_of_all_kinds_is_restored_to_the_bit(connect: Connect) -> None:
    torch.manual_seed(0)
    state = {
        "bf16": torch.randn(1000, 1000, device="cuda", dtype=torch.bfloat16),
        "fp8": torch.randn(1000, device="cuda").to(torch.float8_e4m3fn),
        "bool": torch.randn(1000, device="cuda") > 0,
        "int64": torch.randint(2**40, (100_000,), device="cuda"),
        "transposed": torch.randn(300, 500, device="cuda").t(),
        "strided": torch.randn(2000, 100, device="cuda")[::2, ::3],
        "channels last": torch.randn(8, 16, 32, 32, device="cuda").to(
            memory_format=torch.channels_last
        ),
        "nan": torch.full((LARGE,), float("nan"), device="cuda"),
        "scalar": torch.tensor(3.0, device="cuda"),
        "empty": torch.empty(0, device="cuda"),
        "on the host": torch.randn(1000),
    }
    session = connect()
    session.save(1, state, blocking=True)
    session.close()
    found = restored(connect, 1)
    for name, tensor in state.items():
        expected = tensor.cpu().contiguous().view(-1).view(torch.uint8)
        assert torch.equal(found[name].contiguous().view(-1).view(torch.uint8), expected), name
        assert found[name].shape == tensor.shape


def test_an_optimizers_state_is_restored_to_the_bit_after_many_steps(connect: Connect) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    session = connect()
    session.protect(optimizer)
    for step in range(1, 21):
        optimizer.zero_grad()
        model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        session.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    session.close()
    found = restored(connect, 20)
    for name, tensor in model.state_dict().items():
        assert torch.equal(found["model"][name], tensor.cpu()), name
    for index, moments in optimizer.state_dict()["state"].items():
        for name, tensor in moments.items():
            assert torch.equal(found["optimizer"]["state"][index][name], tensor.cpu()), name


def test_the_copy_follows_the_training_stream_and_save_does_not_wait(connect: Connect) -> None:
    session = connect()
    tensor = torch.zeros(LARGE, device="cuda")
    session.save(1, {"x": tensor}, blocking=True)
    session.wait_before_update()
    training = cuda.Stream()
    training.wait_stream(cuda.current_stream())
    with cuda.stream(training):
        sleep_on_gpu(0.5)
        tensor.fill_(2.0)
        began_s = time.monotonic()
        session.save(2, {"x": tensor})
        assert time.monotonic() - began_s < 0.25, "save() waited for the GPU"
        session.wait_before_update()
        tensor.fill_(3.0)
    session.close()
    assert bool((restored(connect, 2)["x"] == 2.0).all())


def test_the_copy_waits_for_nothing_that_comes_after_it(connect: Connect) -> None:
    session = connect()
    tensor = torch.ones(LARGE, device="cuda")
    session.save(1, {"x": tensor}, blocking=True)
    session.wait_before_update()
    session.save(2, {"x": tensor})
    busy = cuda.Event()
    sleep_on_gpu(1.0)
    busy.record()
    session.wait_before_update()
    assert not busy.query(), "the update waited for the next step's kernels"
    session.close()


@pytest.mark.parametrize("count", [LARGE, 1000])
def test_memory_that_training_lets_go_of_is_not_used_again_too_early(
    connect: Connect, count: int
) -> None:
    session = connect()
    session.save(1, {"x": torch.zeros(count, device="cuda")}, blocking=True)
    session.wait_before_update()
    for step in range(2, 30):
        tensor = torch.full((count,), float(step), device="cuda")
        sleep_on_gpu(0.01)
        session.save(step, {"x": tensor})
        # The allocator gives out the same place at once, if nobody holds it.
        del tensor
        garbage = [torch.full((count,), -1.0, device="cuda") for _ in range(4)]
        session.wait_before_update()
        del garbage
    session.close()
    assert bool((restored(connect, 29)["x"] == 29.0).all())


def test_saving_blocks_a_tenth_of_a_copy_at_most(connect: Connect) -> None:
    session = connect()
    tensors = [torch.randn(2**24, device="cuda") for _ in range(4)]
    left = torch.randn(4096, 4096, device="cuda")
    session.save(1, {"x": tensors}, blocking=True)
    session.wait_before_update()
    copies = [torch.empty(2**24, pin_memory=True) for _ in tensors]

    def copy() -> None:
        for copied, tensor in zip(copies, tensors, strict=True):
            copied.copy_(tensor, non_blocking=True)
        cuda.synchronize()

    copy_s = min(_timed(copy) for _ in range(5))
    product = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, left, out=product)
        cuda.synchronize()

    product_s = min(_timed(multiply) for _ in range(5))
    blocked_s: list[float] = []
    for step in range(2, 22):
        for _ in range(max(1, round(3 * copy_s / product_s))):
            torch.mm(left, left, out=product)
        # A step's loss is looked at, as training does; only then is its update due.
        cuda.current_stream().synchronize()
        waited_s = _timed(session.wait_before_update)
        for tensor in tensors:
            tensor.add_(1.0)
        blocked_s.append(waited_s + _timed(lambda: session.save(step, {"x": tensors})))  # noqa: B023
    session.close()
    assert statistics.median(blocked_s) < copy_s / 10


def _timed(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def region_memory(slot_bytes: int) -> memoryview:
    """Memory of a region, on pages of its own."""
    return format_region(memoryview(mmap.mmap(-1, region_bytes(slot_bytes))), slot_bytes).memory


def is_registered(memory: memoryview) -> bool:
    """Asked of the driver; and unlike a second registration, no error that stays behind."""
    return torch.frombuffer(memory, dtype=torch.uint8).is_pinned()


def test_memory_is_registered_while_it_is_used_and_no_longer() -> None:
    copier = copier_for(FlatTree({"x": torch.zeros(LARGE, device="cuda")}))
    assert isinstance(copier, CudaCopier)
    first, second = region_memory(2**20), region_memory(2**21)
    for _ in range(2):
        copier.adopt(first)
        assert is_registered(first)
    copier.adopt(second)
    assert not is_registered(first)
    assert is_registered(second)
    for _ in range(2):
        copier.release()
        assert not is_registered(second)


def test_a_session_that_is_closed_leaves_nothing_registered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted: list[memoryview] = []
    adopt = CudaCopier.adopt

    def seen(self: CudaCopier, memory: memoryview) -> None:
        adopted.append(memory)
        adopt(self, memory)

    monkeypatch.setattr(CudaCopier, "adopt", seen)
    session = connect()
    for step, count in ((1, LARGE), (2, 2 * LARGE)):
        session.save(step, {"x": torch.ones(count, device="cuda")}, blocking=True)
    assert len({id(memory) for memory in adopted}) == 2
    assert is_registered(adopted[-1])
    session.close()
    assert not any(map(is_registered, adopted))


def test_a_state_that_moves_to_the_gpu_later_is_copied_from_there(connect: Connect) -> None:
    session = connect()
    tensor = torch.zeros(LARGE)
    session.save(1, {"x": tensor}, blocking=True)
    session.wait_before_update()
    on_gpu = tensor.cuda()
    sleep_on_gpu(0.2)
    on_gpu.fill_(2.0)
    session.save(2, {"x": on_gpu})
    session.wait_before_update()
    session.close()
    assert bool((restored(connect, 2)["x"] == 2.0).all())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_tensors_on_two_gpus_are_copied_after_both_of_their_kernels(connect: Connect) -> None:
    session = connect()
    tensors = [torch.zeros(LARGE, device=f"cuda:{index}") for index in range(2)]
    session.save(1, {"x": tensors}, blocking=True)
    session.wait_before_update()
    for index, tensor in enumerate(tensors):
        with cuda.device(index):
            sleep_on_gpu(0.2)
            tensor.fill_(2.0)
    session.save(2, {"x": tensors})
    session.wait_before_update()
    session.close()
    assert all(bool((tensor == 2.0).all()) for tensor in restored(connect, 2)["x"])
