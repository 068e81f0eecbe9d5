"""Sends backups: one thread and one connection for each machine that holds some."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from everstep.agent.link import Link, Pace, connect
from everstep.agent.shards import ShardStore
from everstep.agent.transfer.asking import doubt, pull
from everstep.agent.transfer.protocol import accepted, after_body, show_shard
from everstep.core.errors import EverstepError, PermanentError, TransientError
from everstep.core.faultpoint import reached
from everstep.core.model import MachineInfo
from everstep.core.orders import Pull

logger = logging.getLogger(__name__)


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
        link.send({"put": show_shard(shard)})
        answer = accepted(link.receive())
        if "go" in answer:
            link.send_payload(region.view.body(slot)[: shard.body_bytes], self._pace)
            reached("after_send")
            link.send(after_body(region, slot, shard))
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
