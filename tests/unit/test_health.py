"""What a probe is told of a process."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator

import pytest

from everstep.core.errors import InputError
from everstep.workers.health import Health

HOST = "127.0.0.1"


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    def now() -> tuple[int, str]:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()
        finally:
            connection.close()

    return await asyncio.to_thread(now)


@pytest.fixture
async def health() -> AsyncIterator[Health]:
    health = Health()
    yield health
    health.close()


async def listening(health: Health) -> int:
    port = await health.listen(HOST, 0)
    assert port is not None
    return port


async def test_alive_from_the_start_and_ready_when_it_serves(health: Health) -> None:
    port = await listening(health)
    assert await ask(port, "/healthz") == (200, "alive")
    assert await ask(port, "/readyz") == (503, "starting")

    async def ready() -> str:
        return ""

    health.ready = ready
    assert await ask(port, "/readyz") == (200, "ready")

    async def away() -> str:
        return "the Temporal server does not answer"

    health.ready = away
    assert await ask(port, "/readyz") == (503, "the Temporal server does not answer")
    assert await ask(port, "/healthz") == (200, "alive")


async def test_answers_nothing_else(health: Health) -> None:
    port = await listening(health)
    assert (await ask(port, "/metrics"))[0] == 404
    assert (await ask(port, "/healthz", "POST"))[0] == 405


async def test_whoever_sends_no_request_harms_nobody(health: Health) -> None:
    port = await listening(health)
    for sent in (b"", b"\r\n\r\n", b"nonsense\r\n\r\n", b"x" * 100_000):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent)
        writer.close()
    assert await ask(port, "/healthz") == (200, "alive")


async def test_a_port_that_is_taken_is_named(health: Health) -> None:
    port = await listening(health)
    with pytest.raises(InputError, match=f"EVERSTEP_HEALTH_PORT {port}"):
        await Health().listen(HOST, port)


async def test_without_a_port_nobody_listens() -> None:
    assert await Health().listen(HOST, None) is None
