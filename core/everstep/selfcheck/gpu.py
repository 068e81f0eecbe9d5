"""One GPU, or the CPU: products with a known result, memory, bandwidth and clocks."""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch
from torch import Tensor

from everstep.core.checks import CUDA, Answer, ProgramSettings
from everstep.core.vocabulary import Check, Verdict
from everstep.selfcheck import weights
from everstep.selfcheck.flips import products_of_this_machine

REPEATS = 8
SIZE_CPU = 128
SIZE_CUDA = 4096

LARGEST = 8
"""Whole numbers up to this have products and sums that float32 holds exactly, in any order."""

MEMORY_BYTES_CPU = 16 * 2**20
MEMORY_SHARE_CUDA = 0.8
CHUNK_BYTES = 2**30
PATTERNS = (0x55555555, -0x55555556, 0, -1)
"""Alternating bits, both ways round, none, and all."""

COPIES = 5


def check(settings: ProgramSettings, device: torch.device) -> Answer:
    """Faulty at the first wrong bit; else what was measured."""
    with products_of_this_machine(Check.GPU, settings.local_rank):
        for part in (wrong_product, wrong_memory):
            if wrong := part(device):
                return Answer(Verdict.FAULTY, wrong)
        figures = measure(device)
    return Answer(Verdict.HEALTHY, "products and memory are right to the bit", figures=figures)


def wrong_product(device: torch.device) -> str:
    """How a product differs from what it must be, or empty.

    Whole numbers have one right result in float32 and in bfloat16, whatever the order of sums;
    fractions are held against float64, and all against their own repetitions.
    """
    size = SIZE_CUDA if device.type == CUDA else SIZE_CPU
    a, b = (weights.whole_numbers(name, LARGEST, size, size).to(device) for name in "ab")
    exact = a.double() @ b.double()
    x, y = a / 7, b / 11
    near = x.double() @ y.double()
    for dtype in (torch.float32, torch.bfloat16):
        if not torch.equal(a.to(dtype) @ b.to(dtype), exact.to(dtype)):
            return f"a {dtype} product of whole numbers is wrong"
        left, right = x.to(dtype), y.to(dtype)
        first = left @ right
        if any(not torch.equal(left @ right, first) for _ in range(REPEATS)):
            return f"a {dtype} product differs from its repetition"
        tolerance = 2.0**-6 if dtype == torch.bfloat16 else 2.0**-9
        if not torch.allclose(first.double(), near, rtol=tolerance, atol=tolerance * size**0.5):
            return f"a {dtype} product is far from its float64 value"
    return ""


def wrong_memory(device: torch.device) -> str:
    """Where memory does not hold what was written to it, or empty."""
    chunks = [torch.empty(words, dtype=torch.int32, device=device) for words in _chunks(device)]
    for pattern in PATTERNS:
        for chunk in chunks:
            chunk.fill_(pattern)
        wrong = sum(int(torch.count_nonzero(chunk != pattern)) for chunk in chunks)
        if wrong:
            return f"{wrong} words of memory lost the pattern {pattern & 0xFFFFFFFF:#010x}"
    for number, chunk in enumerate(chunks):
        # Each word its own address: finds lines that are shorted to others.
        address = torch.arange(len(chunk), dtype=torch.int32, device=device) ^ number
        chunk.copy_(address)
        del address
    for number, chunk in enumerate(chunks):
        address = torch.arange(len(chunk), dtype=torch.int32, device=device) ^ number
        if wrong := int(torch.count_nonzero(chunk != address)):
            return f"{wrong} words of memory hold another word's content"
    return ""


def _chunks(device: torch.device) -> list[int]:
    if device.type != CUDA:
        return [MEMORY_BYTES_CPU // 4]
    free_bytes, _ = torch.cuda.mem_get_info(device)
    # A comparison needs a chunk's room again, twice.
    num = int(free_bytes * MEMORY_SHARE_CUDA) // CHUNK_BYTES - 2
    return [CHUNK_BYTES // 4] * max(1, num)


def measure(device: torch.device) -> dict[str, float]:
    """How fast it is."""
    size = SIZE_CUDA if device.type == CUDA else SIZE_CPU
    dtype = torch.bfloat16 if device.type == CUDA else torch.float32
    a = weights.whole_numbers("a", LARGEST, size, size).to(device, dtype)
    product_s = _best_s(lambda: a @ a, device)
    source = torch.ones(MEMORY_BYTES_CPU // 4, device=device)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device)
    figures = {
        "product_tflops": 2 * size**3 / product_s / 1e12,
        "memory_gb_per_s": 2 * source.nbytes / copy_s / 1e9,
    }
    if device.type == CUDA:
        host = torch.empty(source.shape, pin_memory=True)
        figures["to_host_gb_per_s"] = (
            source.nbytes / _best_s(lambda: host.copy_(source), device) / 1e9
        )
        figures["from_host_gb_per_s"] = (
            source.nbytes / _best_s(lambda: target.copy_(host), device) / 1e9
        )
        # Needs pynvml, which need not be there.
        with contextlib.suppress(Exception):
            figures["clock_mhz"] = float(torch.cuda.clock_rate(device))
    return figures


def _best_s(work: Callable[[], Tensor], device: torch.device) -> float:
    best_s = float("inf")
    for _ in range(COPIES):
        _settle(device)
        start_s = time.perf_counter()
        work()
        _settle(device)
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s


def _settle(device: torch.device) -> None:
    if device.type == CUDA:
        torch.cuda.synchronize(device)
