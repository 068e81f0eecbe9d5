"""What a check works on, and what its errors say about it."""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import torch

from everstep.core.checks import CUDA, Answer, ProgramSettings
from everstep.core.vocabulary import Verdict


class NoDeviceError(Exception):
    """There is not what should be checked.

    Args:
        verdict: What that says about the machine.
        detail: One sentence.
    """

    def __init__(self, verdict: Verdict, detail: str) -> None:
        super().__init__(verdict, detail)
        self.verdict = verdict
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


def choose(settings: ProgramSettings) -> torch.device:
    """The program's GPU, or the CPU; torch made deterministic, with one thread.

    Raises:
        NoDeviceError: There is no such GPU. Certain only if GPUs were asked for.
    """
    torch.set_num_threads(1)
    # use_deterministic_algorithms() would import the compiler: nearly two seconds.
    torch._C._set_deterministic_algorithms(True)  # pyright: ignore[reportPrivateUsage]
    available = settings.device != "cpu" and torch.cuda.is_available()
    if settings.device != CUDA and not available:
        return torch.device("cpu")
    if torch.version.cuda is None and torch.version.hip is None:
        raise NoDeviceError(Verdict.UNOBSERVABLE, "torch is built for the CPU alone")
    found = torch.cuda.device_count() if available else 0
    if found <= settings.local_rank:
        sure = settings.device == CUDA
        raise NoDeviceError(
            Verdict.FAULTY if sure else Verdict.UNOBSERVABLE,
            f"torch finds {found} GPUs of {settings.local_size}",
        )
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.cuda.set_device(settings.local_rank)
    return torch.device(CUDA, settings.local_rank)


def judge_error(error: Exception, device: torch.device) -> Answer:
    """What an error of a check says: on a GPU, that it is broken, unless memory was short."""
    told = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    short = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if device.type == CUDA and isinstance(error, RuntimeError) and not short:
        return Answer(Verdict.FAULTY, told)
    return Answer(Verdict.UNOBSERVABLE, told)
