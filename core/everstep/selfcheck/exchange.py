"""Content and speed between the ranks of a machine (all-to-all), or of machines (all-gather)."""

# torch is loosely typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from everstep.core import names
from everstep.core.checks import CUDA, Answer, ProgramSettings
from everstep.core.vocabulary import Check, Verdict
from everstep.selfcheck.faults import of_kind, read_faults
from everstep.selfcheck.meeting import AbsentError, Meeting

ROUNDS = 4
CHUNK_BYTES_CPU = 2**20
CHUNK_BYTES_CUDA = 2**26


def check(settings: ProgramSettings, device: torch.device) -> Answer:
    """Faulty if something arrived wrong; between machines, also if somebody was not reached."""
    alone = len(settings.machines) * settings.local_size == 1
    if alone:
        return Answer(Verdict.HEALTHY, "there is nobody else on the machine")
    between = settings.check is Check.LINKS
    try:
        meeting = Meeting(settings, device)
    except AbsentError as error:
        # Whose own programs are late cannot tell who else is.
        if not between or settings.machine in error.machines:
            return Answer(Verdict.UNOBSERVABLE, str(error))
        return Answer(Verdict.FAULTY, str(error), peers=error.machines)
    except RuntimeError as error:
        return _broken(settings, error)
    try:
        return _exchange(settings, meeting, device)
    except RuntimeError as error:
        return _broken(settings, error)
    finally:
        meeting.leave()


def _broken(settings: ProgramSettings, error: RuntimeError) -> Answer:
    if settings.check is not Check.LINKS:
        raise error
    others = tuple(sorted({*settings.machines} - {settings.machine}))
    told = str(error).strip().splitlines()[0]
    detail = f"the exchange with {', '.join(others)} failed: {told}"
    return Answer(Verdict.FAULTY, detail, peers=others)


def _exchange(settings: ProgramSettings, meeting: Meeting, device: torch.device) -> Answer:
    words = (CHUNK_BYTES_CUDA if device.type == CUDA else CHUNK_BYTES_CPU) // 4
    ranks = range(meeting.world_size)
    together = settings.check is Check.LINKS
    wrong: dict[str, int] = {}
    fastest_s = float("inf")
    for number in range(ROUNDS):
        own = [content(settings.rank, 0 if together else to, number, words) for to in ranks]
        start_s = time.perf_counter()
        received = _send(own[:1] if together else own, meeting.world_size, device, meeting.left())
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
        _spoil(received, meeting)
        for rank in ranks:
            expected = content(rank, 0 if together else settings.rank, number, words)
            if not torch.equal(received[rank], expected):
                sender = meeting.machine_of(rank)
                wrong[sender] = wrong.get(sender, 0) + 1
    figures = {"exchange_gb_per_s": 4 * words * (meeting.world_size - 1) / fastest_s / 1e9}
    if wrong:
        told = ", ".join(f"{count} messages from {who}" for who, count in sorted(wrong.items()))
        peers = tuple(sorted({*wrong} - {settings.machine})) if together else ()
        return Answer(Verdict.FAULTY, f"arrived with other content: {told}", "", peers, figures)
    return Answer(Verdict.HEALTHY, "all content arrived as it was sent", figures=figures)


def _send(
    own: list[Tensor], world_size: int, device: torch.device, limit: timedelta
) -> list[Tensor]:
    """Give every rank its message, the same to all if there is one; what came, by sender."""
    source = torch.cat(own).to(device)
    target = source.new_empty(world_size * len(own[0]))
    # The newer name of the first came in 2.12.
    collective: Any = (
        dist.all_gather_into_tensor  # pyright: ignore[reportDeprecated]
        if len(own) == 1
        else dist.all_to_all_single
    )
    collective(target, source, async_op=True).wait(limit)
    return list(target.cpu().chunk(world_size))


def content(sender: int, receiver: int, number: int, words: int) -> Tensor:
    """What `sender` sends to `receiver` in a round: no two messages agree in any place."""
    start = ((sender * 4099 + receiver) * 4099 + number) * 2_654_435_761
    return torch.arange(start, start + words).mul_(40_503).to(torch.int32)


def _spoil(received: list[Tensor], meeting: Meeting) -> None:
    """What a broken link of this machine does, in a run that asked for one."""
    if (directory := os.environ.get(names.ENV_FAULTS)) is None:
        return
    bad = {fault.peer for fault in of_kind(read_faults(directory), "link_bad")}
    for rank, message in enumerate(received):
        if meeting.machine_of(rank) in bad:
            message[0] ^= 1
