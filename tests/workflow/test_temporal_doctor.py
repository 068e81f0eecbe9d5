"""What a doctor says of Temporal servers that lack something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.workers.cluster.finding import Finding, State
from everstep.workers.cluster.temporal_doctor import look_at_temporal
from everstep.workers.local.server import keep_histories
from tests.conftest import free_port
from tests.fakes.servers import dev_server


async def look(address: str, monkeypatch: pytest.MonkeyPatch, namespace: str) -> dict[str, Finding]:
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", namespace)
    return {one.item: one for one in await look_at_temporal()}


@pytest.fixture
def own_address(tmp_path: Path) -> Iterator[str]:
    """That of a server whose namespace nobody else changes."""
    with dev_server(tmp_path) as address:
        yield address


async def test_a_days_retention_is_no_audit_trail(
    own_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Client.connect(own_address)
    found = await look(own_address, monkeypatch, "default")
    assert found["Temporal server"].state is State.OK
    assert found["search attributes"].state is State.OK
    retention = found["retention of default"]
    assert retention.state is State.MISSING
    assert "24 h" in retention.detail
    assert "--retention 365d" in retention.fix
    await keep_histories(client)
    found = await look(own_address, monkeypatch, "default")
    assert found["retention of default"].state is State.OK
    assert found["Temporal's limits"].state is State.UNCLEAR, "no server tells them"


async def test_a_namespace_that_is_not_there_is_named(
    temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await look(temporal_address, monkeypatch, "nobody")
    assert found["retention of nobody"].state is State.MISSING
    assert "namespace create -n nobody" in found["retention of nobody"].fix
    assert found["search attributes"].state is not State.OK


async def test_no_server_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.workers.cluster.temporal_doctor.PATIENCE_S", 0.5)
    found = await look(f"127.0.0.1:{free_port()}", monkeypatch, "default")
    assert [one.state for one in found.values()] == [State.MISSING]
