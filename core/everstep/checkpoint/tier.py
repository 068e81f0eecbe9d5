"""What an agent starts to work with the storage tier.

Run as `python -m everstep.checkpoint.tier FD`, where FD is one end of a `storage.parcel` socket. It
loads torch, and carries out one order after the other: a filesystem may hang it or kill it, and
nothing else suffers. Orders are `save`, `decline`, `fill`, `fill_parts` and `check`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import mmap
import os
import select
import socket
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import torch

from everstep.checkpoint.retrieving import Retrieval
from everstep.checkpoint.storing import HeldShard, Save, SaveOrder, number_of, retain, text_of
from everstep.core.errors import PermanentError
from everstep.core.shard import body_bytes
from everstep.core.stored import failed_name
from everstep.storage import parcel
from everstep.storage.folder import Checkpoint, describe

logger = logging.getLogger(__name__)

_NICENESS = 5


class Worker:
    """Carries out orders.

    Args:
        sock: To the agent.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._phase = ""

    def serve(self) -> None:
        """Answer orders until the agent is gone."""
        while (packet := parcel.receive(self._sock)) is not None:
            self._phase = ""
            self._answer(packet[0])

    def _answer(self, order: dict[str, Any]) -> None:
        kinds: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "save": self._save,
            "decline": self._decline,
            "fill": self._fill,
            "fill_parts": self._fill_parts,
            "check": self._check,
        }
        try:
            done = kinds[order["do"]](order)
        except Exception as error:
            logger.warning("%s failed", order["do"], exc_info=True)
            answer: dict[str, Any] = {"failed": text_of(error), "number": number_of(error)}
        else:
            answer = {"done": done}
        parcel.send(self._sock, answer)

    def _save(self, order: dict[str, Any]) -> dict[str, Any]:
        shards = [self._take_shard() for _ in range(order["shards"])]
        given = SaveOrder(**{field.name: order[field.name] for field in fields(SaveOrder)})
        Save(given, shards, self._tell_phase).run()
        if given.slot == 0 and order["keep"]:
            name = given.url.rpartition("/")[2]
            try:
                retain(order["folder"], given.job, name, order["keep"])
            except Exception as error:
                logger.warning("retention failed", exc_info=True)
                return {"not_removed": text_of(error), "number": number_of(error)}
        return {}

    def _decline(self, order: dict[str, Any]) -> dict[str, Any]:
        for one in order["declined"]:
            checkpoint = Checkpoint(one["url"])
            checkpoint.make()
            checkpoint.write_json(failed_name(one["slot"]), {"reason": one["reason"]})
        return {}

    def _take_shard(self) -> HeldShard:
        shard, fd = self._next()
        with contextlib.closing(_Descriptor(fd)):
            size_bytes = body_bytes(shard["metadata_bytes"], shard["payload_bytes"])
            body = memoryview(mmap.mmap(fd, size_bytes))
        return HeldShard(shard["rank"], body, shard["metadata_bytes"], shard["checksum"])

    def _fill(self, order: dict[str, Any]) -> dict[str, Any]:
        memory = [self._next() for _ in order["ranks"]]
        retrieval = Retrieval(describe(Checkpoint(order["url"])))
        return {"filled": [asdict(retrieval.fill(one["rank"], fd)) for one, fd in memory]}

    def _fill_parts(self, order: dict[str, Any]) -> dict[str, Any]:
        memory = [self._next() for _ in order["ranks"]]
        retrieval = Retrieval(describe(Checkpoint(order["url"])))
        filled: list[dict[str, Any]] = []
        for one, fd in memory:
            with contextlib.closing(_Descriptor(fd)):
                filled.append(asdict(retrieval.fill_part(one["rank"], fd)))
        return {"filled": filled}

    def _check(self, order: dict[str, Any]) -> dict[str, Any]:
        Retrieval(describe(Checkpoint(order["url"]))).check(order["share"], order["shares"])
        return {}

    def _next(self) -> tuple[dict[str, Any], int]:
        packet = parcel.receive(self._sock)
        if packet is None or packet[1] is None:
            raise PermanentError("the agent sent less than it had announced")
        return packet[0], packet[1]

    def _tell_phase(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            parcel.send(self._sock, {"phase": phase})


class _Descriptor:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)


def end_with_agent(sock: socket.socket) -> None:
    """End as soon as the agent is gone: nobody would know of this process any more."""

    def watch() -> None:
        poll = select.poll()
        poll.register(sock, select.POLLHUP)
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="watch-agent", daemon=True).start()


def main() -> None:
    """Serve the agent at the other end of a descriptor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fd", type=int, help="one end of a pair of SEQPACKET sockets")
    sock = socket.socket(fileno=parser.parse_args().fd)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # torch's own, about its own: a checkpoint is written by several processes on purpose.
    warnings.filterwarnings("ignore", module="torch")
    # Training has the cores.
    torch.set_num_threads(1)
    os.nice(_NICENESS)
    end_with_agent(sock)
    parcel.send(sock, {"phase": "ready"})
    Worker(sock).serve()


if __name__ == "__main__":
    main()
