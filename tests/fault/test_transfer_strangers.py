"""Who reaches for the shards of a machine and is refused; and who speaks to it otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from tests.fault.transferring import (
    HOST,
    JOB,
    PATIENCE_S,
    SECRET,
    Machine,
    dial,
    machine,
    no_thread_left,
    put_request,
    save,
    send,
    shard_of,
    steps,
    wait_until,
)

from everstep.agent import link
from everstep.core import wire
from everstep.core.errors import PermanentError, TransientError


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    with no_thread_left():
        yield


@pytest.fixture
def source() -> Iterator[Machine]:
    with machine("m0") as made:
        yield made


@pytest.fixture
def holder() -> Iterator[Machine]:
    with machine("m1") as made:
        yield made


@pytest.mark.parametrize(("secret", "job"), [(b"guess", JOB), (SECRET, "another job")])
def test_a_stranger_is_refused_in_both_directions(
    holder: Machine, secret: bytes, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PermanentError, match="does not know the secret"):
        dial(holder.server.port, secret, job)
    # One who does not mind who the server is gets no further.
    with socket.create_connection((HOST, holder.server.port)) as sock:
        peer = link.Link(sock, "server")
        peer.send({"nonce": "11" * 32})
        peer.receive()
        peer.send({"proof": "22" * 32})
        assert "does not know the secret" in peer.receive()["refused"]
        with pytest.raises(EOFError):
            peer.receive()
        address = "{}:{}".format(*sock.getsockname())
    wait_until(lambda: f"refused {address}" in caplog.text)


@pytest.mark.parametrize(
    "garbage",
    [
        hashlib.shake_128(b"garbage").digest(5000),
        struct.pack("<I", 2**32 - 1) + b"x" * 100,
        struct.pack("<I", 10) + b"not json!!",
        struct.pack("<I", 2) + b"[]",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<I", 1000) + b"[" * 1000,
    ],
)
def test_garbage_is_refused_and_harms_nobody(
    source: Machine, holder: Machine, garbage: bytes
) -> None:
    with (
        socket.create_connection((HOST, holder.server.port), timeout=PATIENCE_S) as sock,
        contextlib.suppress(OSError),
    ):
        # The server may hang up before it has read everything.
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
    save(source.store, 4, 1)
    send(source, holder.info, 4, 1)
    assert steps(holder.store, 4) == (1,)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"put": 4},
        {"put": {"rank": -1}},
        {"put": {**put_request(shard_of(4, 2))["put"], "tensor_bytes": 2**62}},
        {"put": {**put_request(shard_of(4, 2))["put"], "checksum": "0"}},
        {"get": None},
        {"get": {"rank": 4, "step": 99}},
    ],
)
def test_senseless_requests_of_a_peer_are_refused(
    holder: Machine, request_: dict[str, object]
) -> None:
    save(holder.store, 4, 1)
    with contextlib.closing(dial(holder.server.port)) as peer:
        peer.send(request_)
        with contextlib.suppress(EOFError):
            assert "refused" in peer.receive()
    assert steps(holder.store, 4) == (1,)
    dial(holder.server.port).close()


def test_a_recorded_handshake_is_worth_nothing(holder: Machine) -> None:
    greeter = wire.ClientHandshake(SECRET, JOB, b"n" * wire.NONCE_BYTES)
    with socket.create_connection((HOST, holder.server.port)) as sock:
        peer = link.Link(sock, "server")
        peer.send(greeter.greeting())
        proof = greeter.prove(peer.receive())
        peer.send(proof)
        assert peer.receive() == {"ok": True}
    with socket.create_connection((HOST, holder.server.port)) as sock:
        peer = link.Link(sock, "server")
        peer.send(greeter.greeting())
        peer.receive()
        peer.send(proof)
        assert "refused" in peer.receive()


def test_a_peer_that_says_nothing_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(TransientError, match="left during the handshake"):
        link.accept(ours, "mute", SECRET, JOB, timeout_s=0.05)


def test_a_peer_that_drips_its_bytes_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    done = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(struct.pack("<I", 500))
            while not done.wait(0.02):
                theirs.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    began_s = time.monotonic()
    with pytest.raises(TransientError, match="left during the handshake"):
        link.accept(ours, "slow", SECRET, JOB, timeout_s=0.2)
    assert time.monotonic() - began_s < 2
    done.set()
    thread.join()
    theirs.close()


async def test_event_loops_speak_the_same(holder: Machine) -> None:
    save(holder.store, 4, 1)
    peer = await link.open_link(HOST, holder.server.port, SECRET, JOB)
    await peer.send({"get": {"rank": 9, "step": 1}})
    assert "refused" in await peer.receive()
    await peer.send({"get": {"rank": 4, "step": 1}})
    with pytest.raises(PermanentError, match="payload"):
        await peer.receive()
    peer.close()
    with pytest.raises(PermanentError, match="does not know the secret"):
        await link.open_link(HOST, holder.server.port, b"guess", JOB)


async def test_an_event_loop_serves_links() -> None:
    refusals: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = await link.serve_link(reader, writer, SECRET, JOB, timeout_s=0.2)
        except (PermanentError, TransientError) as error:
            refusals.append(str(error))
            return
        await peer.send(await peer.receive())
        peer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        peer = await link.open_link(HOST, port, SECRET, JOB)
        await peer.send({"echo": [1, 2]})
        assert await peer.receive() == {"echo": [1, 2]}
        with pytest.raises(asyncio.IncompleteReadError):
            await peer.receive()
        peer.close()
        with pytest.raises(PermanentError):
            await link.open_link(HOST, port, SECRET, "another job")
        _, mute = await asyncio.open_connection(HOST, port)
        while len(refusals) < 2:
            await asyncio.sleep(0.01)
        mute.close()
    assert "left during the handshake" in refusals[1]
