"""One step of a small model of the job's kind, hashed: a machine whose digest is another is broken.

Weights and input are fixed, and everything is deterministic, so that nothing but a machine's
arithmetic is in the digest. Paper: ByteRobust, section 4.3 ("bit-wise alignment"), TP=2 PP=2 DP=2
for dense models and EP=2 PP=2 DP=2 for MoE; on machines of fewer GPUs the layout is cut
(`core.checks.reference_sizes`).
"""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable

import torch
from torch import Tensor

from everstep.core.checks import Answer, ProgramSettings
from everstep.core.vocabulary import Check, Verdict
from everstep.selfcheck.flips import products_of_this_machine
from everstep.selfcheck.meeting import AbsentError, Meeting
from everstep.selfcheck.reference import ReferenceModel


def check(settings: ProgramSettings, device: torch.device) -> Answer:
    """The digest of this rank's outputs and gradients; judged by whoever has all machines'."""
    # Which algorithm is the fastest is another question on every machine.
    os.environ |= {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    try:
        meeting = Meeting(settings, device)
    except AbsentError as error:
        return Answer(Verdict.UNOBSERVABLE, str(error))
    with products_of_this_machine(Check.BITWISE, settings.local_rank):
        model = ReferenceModel(settings.model, settings.rank, meeting.world_size, device)
        hashed = digest(model.step())
    meeting.leave()
    return Answer(Verdict.HEALTHY, f"{settings.model} reference model, one step", hashed)


def digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over the bits of tensors."""
    sha = hashlib.sha256()
    for tensor in tensors:
        host = tensor.detach().cpu().contiguous()
        sha.update(ctypes.string_at(host.data_ptr(), host.nbytes))
    return sha.hexdigest()
