"""Shards between machines: backups at every step, and pulls before a restart.

Every machine runs a `TransferServer`. A `BackupSender` puts its ranks' shards to the machines that
hold their backups; `pull` gets one back. All of it runs in threads of its own: the agent's event
loop never waits for a shard.

    put    {put: shard}           ->
                                  <-  {go} | {ok}: it is there already | {refused}
           body, {whole}          ->
                                  <-  {ok} | {refused}
    get    {get: {rank, step}}    ->
                                  <-  {shard, payload_bytes}, body, {whole} | {refused}
           with {part: true}, only the part of it that the rank keeps for its DP group
    doubt  {doubt: {rank, step}}  ->
                                  <-  {ok}: it was read again, and dropped if it is damaged
    list   {list: {}}             ->
                                  <-  {machine, own: ranks, shards, shelf: shards}
    keep   {keep: {step}}         ->
                                  <-  {ok}: its ranks' shards of that step will be kept for a while

What follows a body is {refused} when its rank began to overwrite it meanwhile. The agents do not
compute checksums: that would take longer than the transfer, at every step, and could not tell
damage in the memory of either machine from damage on the way. The ranks do, at both ends of it all:
when a state is saved, and when it is restored. A shard that is found damaged then is doubted.

A shard is {rank, step, attempt, metadata_bytes, tensor_bytes, checksum, job, layout}, and
{part_bytes, part_checksum, part_whole} if it has a part.
"""

from __future__ import annotations

from typing import cast

from everstep.agent.link import Link
from everstep.agent.shards import SharedRegion
from everstep.core import wire
from everstep.core.errors import PermanentError
from everstep.core.faultpoint import reached
from everstep.core.shard import Shard


def receive_body(link: Link, body: memoryview) -> None:
    """Fill memory with what comes.

    Raises:
        PermanentError: The other side says that it is of no use.
        OSError, EOFError: The connection broke.
    """
    while body:
        body = body[link.receive_some(body) :]
        reached("mid_receive")
    accepted(link.receive())


def after_body(region: SharedRegion, slot: int, shard: Shard) -> wire.Header:
    """What follows a body: whether it is still what was announced."""
    # A rank empties a slot before it writes to it: what reads the same as before was not touched.
    if region.view.read_slot(slot) == shard:
        return {"whole": True}
    return wire.refusal(f"step {shard.step} of rank {shard.rank} was overwritten meanwhile")


def accepted(answer: wire.Header) -> wire.Header:
    """An answer that is no refusal.

    Raises:
        PermanentError: It is one.
    """
    if "refused" in answer:
        raise PermanentError(f"refused by the other side: {answer['refused']}")
    return answer


def show_shard(shard: Shard) -> wire.Header:
    """A shard as `read_shard` reads it."""
    shown: wire.Header = {
        "rank": shard.rank,
        "step": shard.step,
        "attempt": shard.attempt,
        "metadata_bytes": shard.metadata_bytes,
        "tensor_bytes": shard.payload_bytes,
        "checksum": shard.checksum,
        "job": shard.job,
        "layout": shard.layout,
    }
    if shard.part_whole:
        shown |= {
            "part_bytes": shard.part_bytes,
            "part_checksum": shard.part_checksum,
            "part_whole": shard.part_whole,
        }
    return shown


def read_shard(value: object) -> Shard:
    """What another machine says of a shard.

    Raises:
        PermanentError: It describes none.
    """
    fields = as_object(value)
    shard = Shard(
        rank=wire.number(fields, "rank"),
        step=wire.number(fields, "step"),
        attempt=wire.number(fields, "attempt"),
        metadata_bytes=wire.number(fields, "metadata_bytes"),
        payload_bytes=wire.number(fields, "tensor_bytes"),
        checksum=wire.number(fields, "checksum"),
        job=wire.number(fields, "job"),
        layout=wire.number(fields, "layout"),
        part_bytes=wire.number(fields, "part_bytes", 0),
        part_checksum=wire.number(fields, "part_checksum", 0),
        part_whole=wire.number(fields, "part_whole", 0),
    )
    if shard.part_bytes > shard.payload_bytes:
        raise PermanentError(f"a part of {shard.part_bytes} B in {shard.payload_bytes} B")
    return shard


def as_object(value: object) -> wire.Header:
    """A part of a message that must be an object.

    Raises:
        PermanentError: It is none.
    """
    if not isinstance(value, dict):
        raise PermanentError(f"{value!r:.100} where an object belongs")
    return cast("wire.Header", value)
