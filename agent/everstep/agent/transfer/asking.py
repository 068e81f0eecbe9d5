"""Questions to another machine's transfer server, one connection each."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from everstep.agent.link import connect
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.protocol import accepted, read_shard, receive_body
from everstep.core import wire
from everstep.core.errors import PermanentError, TransientError
from everstep.core.model import MachineInfo
from everstep.core.orders import Pull
from everstep.core.shard import Shard


def pull(order: Pull, step: int, store: ShardStore, secret: bytes, job: str) -> None:
    """Fetch a shard from another machine's memory into this one's, unless it is here.

    Args:
        order: Which rank's, and from where.
        step: The step that is wanted.
        store: Where to put it.
        secret: The job's secret.
        job: The job's name.

    Raises:
        TransientError: The machine cannot be reached, or there is no memory for the shard.
        PermanentError: It does not have that step, or not any longer.
        StaleAttempt: A newer order came meanwhile.
    """
    if store.holds(order.rank, step):
        return
    link = connect(order.host, order.port, secret, job)
    with contextlib.closing(link):
        try:
            link.send({"get": {"rank": order.rank, "step": step}})
            answer = accepted(link.receive())
            shard = read_shard(answer.get("shard"))
            if (shard.rank, shard.step) != (order.rank, step):
                raise PermanentError(f"{order.machine} answered with {shard}")
            store.put_back(shard, lambda body: receive_body(link, body))
        except (OSError, EOFError) as error:
            raise TransientError(f"pull from {order.machine} broke off: {error}") from error


def doubt(rank: int, step: int, holder: MachineInfo, secret: bytes, job: str) -> None:
    """Have a machine read a shard again that was damaged when it was got from there.

    Raises:
        TransientError, PermanentError: It cannot be asked.
    """
    _ask(holder, {"doubt": {"rank": rank, "step": step}}, secret, job)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a machine's memory holds.

    Attributes:
        machine: Its name.
        own: Ranks that run there.
        shards: All committed shards, own and others'.
        shelf: Own shards that are kept because somebody asked for their step.
    """

    machine: str
    own: tuple[int, ...]
    shards: tuple[Shard, ...]
    shelf: tuple[Shard, ...]


def list_contents(machine: MachineInfo, secret: bytes, job: str) -> Contents:
    """What a machine's memory holds now.

    Raises:
        TransientError, PermanentError: It cannot be asked.
    """
    answer = _ask(machine, {"list": {}}, secret, job)
    try:
        return Contents(
            str(answer["machine"]),
            tuple(int(rank) for rank in answer["own"]),
            tuple(map(read_shard, answer["shards"])),
            tuple(map(read_shard, answer["shelf"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PermanentError(f"{machine.machine} answers {answer!r:.100}") from error


def ask_to_keep(machine: MachineInfo, step: int, secret: bytes, job: str) -> None:
    """Have a machine keep its ranks' shards of a coming step for a while.

    Raises:
        TransientError, PermanentError: It cannot be asked.
    """
    _ask(machine, {"keep": {"step": step}}, secret, job)


def _ask(machine: MachineInfo, request: wire.Header, secret: bytes, job: str) -> wire.Header:
    with contextlib.closing(connect(machine.host, machine.transfer_port, secret, job)) as link:
        try:
            link.send(request)
            return accepted(link.receive())
        except (OSError, EOFError) as error:
            raise TransientError(f"machine {machine.machine} does not answer: {error}") from error
