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

import contextlib
import logging
import mmap
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import cast

from everstep.agent.link import Link, Pace, accept, connect
from everstep.agent.shards import ShardStore, SharedRegion
from everstep.core import wire
from everstep.core.errors import EverstepError, PermanentError, TransientError
from everstep.core.faultpoint import reached
from everstep.core.model import MachineInfo
from everstep.core.orders import Pull
from everstep.core.shard import Shard

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""More than a machine has peers, and few enough threads whatever strangers do."""

_ACCEPT_POLL_S = 0.2


class TransferServer:
    """Takes in backups and hands out shards to authenticated peers.

    Args:
        host: Address to listen on: loopback or the machine's own.
        store: Where shards lie.
        secret: The job's secret.
        job: The job's name.
    """

    def __init__(self, host: str, store: ShardStore, secret: bytes, job: str) -> None:
        self._store = store
        self._secret = secret
        self._job = job
        self._listener = socket.create_server((host, 0))
        # accept() would not notice that the listener was closed by another thread.
        self._listener.settimeout(_ACCEPT_POLL_S)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = False
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._listen, name="transfer-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, end all connections."""
        self._closing = True
        self._thread.join()
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while not self._closing:
            try:
                sock, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                # Out of descriptors, or the peer is gone already: neither ends the service.
                logger.warning("transfer port: %s", error)
                continue
            peer = f"{address[0]}:{address[1]}"
            with self._lock:
                full = len(self._open) >= MAX_CONNECTIONS
                if not full:
                    self._open.add(sock)
            if full:
                logger.warning("refused %s: %d connections are open", peer, MAX_CONNECTIONS)
                sock.close()
                continue
            threading.Thread(
                target=self._serve, args=(sock, peer), name=f"transfer-{peer}", daemon=True
            ).start()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            link = accept(sock, peer, self._secret, self._job)
            while True:
                self._answer(link, link.receive())
        except EOFError:
            logger.debug("%s closed its connection", peer)
        except EverstepError as error:
            logger.warning("refused %s: %s", peer, error)
        except OSError as error:
            logger.warning("connection of %s broke: %s", peer, error)
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _answer(self, link: Link, request: wire.Header) -> None:
        if "put" in request:
            self._take(link, request)
        elif "get" in request:
            self._give(link, request)
        elif "doubt" in request:
            doubted = _object(request["doubt"])
            self._store.drop_damaged(wire.number(doubted, "rank"), wire.number(doubted, "step"))
            link.send({"ok": True})
        elif "list" in request:
            link.send(self._show_all())
        elif "keep" in request:
            self._store.shelf.want(wire.number(_object(request["keep"]), "step"))
            link.send({"ok": True})
        else:
            raise PermanentError(f"none of put, get, doubt, list, keep: {sorted(request)}")

    def _show_all(self) -> wire.Header:
        return {
            "machine": self._store.machine,
            "own": sorted(self._store.own_ranks),
            "shards": [_show_shard(shard) for shard in self._store.committed()],
            "shelf": [_show_shard(shard) for shard in self._store.shelf.shards()],
        }

    def _take(self, link: Link, request: wire.Header) -> None:
        def fill(body: memoryview) -> None:
            link.send({"go": True})
            receive_body(link, body)

        try:
            self._store.take_in(read_shard(request["put"]), fill)
        except EverstepError as error:
            logger.warning("refused a shard from %s: %s", link.peer, error)
            link.send(wire.refusal(str(error)))
        else:
            reached("before_ack")
            link.send({"ok": True})

    def _give(self, link: Link, request: wire.Header) -> None:
        wanted = _object(request["get"])
        rank, step = wire.number(wanted, "rank"), wire.number(wanted, "step")
        part = wanted.get("part") is True
        kept = None if part else self._store.shelf.find(rank, step)
        if kept is not None:
            link.send({"shard": _show_shard(kept.shard), "payload_bytes": kept.shard.body_bytes})
            memory = mmap.mmap(kept.fd, kept.shard.body_bytes)
            with contextlib.closing(memory), memoryview(memory) as body:
                link.send_payload(body)
            link.send({"whole": True})
            return
        region = self._store.region(rank)
        found = None if region is None else region.view.find(step)
        if region is None or found is None:
            reason = f"machine {self._store.machine} has no step {step} of rank {rank}"
            link.send(wire.refusal(reason))
            return
        slot, shard = found
        body = region.view.body(slot)[shard.part_start if part else 0 : shard.body_bytes]
        link.send({"shard": _show_shard(shard), "payload_bytes": len(body)})
        link.send_payload(body)
        link.send(_after_body(region, slot, shard))


class BackupSender:
    """Puts shards of this machine's ranks to the machines that hold their backups.

    One thread and one connection a holder. Safe to use from several threads.

    Args:
        store: Where the shards lie.
        secret: The job's secret.
        job: The job's name.
        bytes_per_s: How much to send to all holders together, > 0, or None for no limit. A limit
            leaves the network to training; a step's backup still has to be done within a step.
    """

    def __init__(
        self, store: ShardStore, secret: bytes, job: str, bytes_per_s: float | None = None
    ) -> None:
        self._store = store
        self._secret = secret
        self._job = job
        self._pace = None if bytes_per_s is None else Pace(bytes_per_s)
        self._lanes: dict[str, _Lane] = {}
        self._lock = threading.Lock()

    def send(self, rank: int, step: int, holder: MachineInfo) -> Future[None]:
        """Send a committed shard.

        Returns:
            Done when the holder has committed it. Fails with a `TransientError` when the holder
            cannot be reached or a later step of the rank overtook this one, and with a
            `PermanentError` when the holder refuses it.
        """
        with self._lock:
            lane = self._lanes.get(holder.machine)
            if lane is None or lane.holder != holder:
                if lane is not None:
                    lane.close()
                lane = _Lane(holder, self._store, self._secret, self._job, self._pace)
                self._lanes[holder.machine] = lane
            return lane.put(rank, step)

    def fetch(self, rank: int, step: int, holder: MachineInfo) -> None:
        """Get a shard of this machine's rank back, in place of a damaged one; blocks.

        Raises:
            TransientError, PermanentError, StaleAttempt: As for `pull`.
        """
        order = Pull(rank, holder.machine, holder.host, holder.transfer_port)
        pull(order, step, self._store, self._secret, self._job)

    def doubt(self, rank: int, step: int, holder: MachineInfo) -> None:
        """Have the holder read its copy again, and drop it if it is damaged; blocks.

        Raises:
            TransientError, PermanentError: As for `doubt`.
        """
        doubt(rank, step, holder, self._secret, self._job)

    def close(self) -> None:
        """End all connections; what was not sent yet fails."""
        with self._lock:
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()


class _Lane:
    """The way to one holder."""

    def __init__(
        self, holder: MachineInfo, store: ShardStore, secret: bytes, job: str, pace: Pace | None
    ) -> None:
        self.holder = holder
        self._pace = pace
        self._store = store
        self._secret = secret
        self._job = job
        self._link: Link | None = None
        self._waiting: dict[int, tuple[int, Future[None]]] = {}
        self._news = threading.Condition()
        self._closing = False
        threading.Thread(target=self._run, name=f"backup-{holder.machine}", daemon=True).start()

    def put(self, rank: int, step: int) -> Future[None]:
        future: Future[None] = Future()
        with self._news:
            overtaken = self._waiting.pop(rank, None)
            self._waiting[rank] = (step, future)
            self._news.notify()
        if overtaken is not None:
            overtaken[1].set_exception(TransientError(f"overtaken by step {step}"))
        return future

    def close(self) -> None:
        with self._news:
            self._closing = True
            self._news.notify()
            # The thread may be waiting for the holder.
            if self._link is not None:
                self._link.close()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            rank, step, future = task
            try:
                self._deliver(rank, step)
            except EverstepError as error:
                self._drop_link()
                future.set_exception(error)
            else:
                future.set_result(None)
        self._drop_link()
        for _, future in self._waiting.values():
            future.set_exception(TransientError(f"{self.holder.machine} holds no backup any more"))

    def _next(self) -> tuple[int, int, Future[None]] | None:
        with self._news:
            while not self._waiting and not self._closing:
                self._news.wait()
            if self._closing:
                return None
            rank = next(iter(self._waiting))
            return rank, *self._waiting.pop(rank)

    def _deliver(self, rank: int, step: int) -> None:
        # A connection may have died of old age since the last step: that is not a failure yet.
        try:
            self._put_shard(rank, step)
        except (OSError, EOFError) as error:
            logger.info("connection to %s broke (%s); trying again", self.holder.machine, error)
            self._drop_link()
            try:
                self._put_shard(rank, step)
            except (OSError, EOFError) as again:
                raise TransientError(
                    f"connection to {self.holder.machine} broke: {again}"
                ) from again

    def _put_shard(self, rank: int, step: int) -> None:
        region = self._store.region(rank)
        found = None if region is None else region.view.find(step)
        if region is None or found is None:
            raise PermanentError(f"step {step} of rank {rank} is no longer in memory")
        slot, shard = found
        link = self._connected()
        reached("before_send")
        link.send({"put": _show_shard(shard)})
        answer = accepted(link.receive())
        if "go" in answer:
            link.send_payload(region.view.body(slot)[: shard.body_bytes], self._pace)
            reached("after_send")
            link.send(_after_body(region, slot, shard))
            accepted(link.receive())

    def _connected(self) -> Link:
        if self._link is None:
            link = connect(self.holder.host, self.holder.transfer_port, self._secret, self._job)
            with self._news:
                if self._closing:
                    link.close()
                    raise TransientError(f"{self.holder.machine} holds no backup any more")
                link.give_way()
                self._link = link
        return self._link

    def _drop_link(self) -> None:
        with self._news:
            if self._link is not None:
                self._link.close()
                self._link = None


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


def _after_body(region: SharedRegion, slot: int, shard: Shard) -> wire.Header:
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


def _show_shard(shard: Shard) -> wire.Header:
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
    fields = _object(value)
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


def _object(value: object) -> wire.Header:
    if not isinstance(value, dict):
        raise PermanentError(f"{value!r:.100} where an object belongs")
    return cast("wire.Header", value)
