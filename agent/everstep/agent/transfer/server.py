"""Takes in backups and hands out shards: one a machine, its protocol in `protocol`."""

from __future__ import annotations

import contextlib
import logging
import mmap
import socket
import threading

from everstep.agent.link import Link, accept
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.protocol import (
    after_body,
    as_object,
    read_shard,
    receive_body,
    show_shard,
)
from everstep.core import wire
from everstep.core.errors import EverstepError, PermanentError
from everstep.core.faultpoint import reached

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
            doubted = as_object(request["doubt"])
            self._store.drop_damaged(wire.number(doubted, "rank"), wire.number(doubted, "step"))
            link.send({"ok": True})
        elif "list" in request:
            link.send(self._show_all())
        elif "keep" in request:
            self._store.shelf.want(wire.number(as_object(request["keep"]), "step"))
            link.send({"ok": True})
        else:
            raise PermanentError(f"none of put, get, doubt, list, keep: {sorted(request)}")

    def _show_all(self) -> wire.Header:
        return {
            "machine": self._store.machine,
            "own": sorted(self._store.own_ranks),
            "shards": [show_shard(shard) for shard in self._store.committed()],
            "shelf": [show_shard(shard) for shard in self._store.shelf.shards()],
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
        wanted = as_object(request["get"])
        rank, step = wire.number(wanted, "rank"), wire.number(wanted, "step")
        part = wanted.get("part") is True
        kept = None if part else self._store.shelf.find(rank, step)
        if kept is not None:
            link.send({"shard": show_shard(kept.shard), "payload_bytes": kept.shard.body_bytes})
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
        link.send({"shard": show_shard(shard), "payload_bytes": len(body)})
        link.send_payload(body)
        link.send(after_body(region, slot, shard))
