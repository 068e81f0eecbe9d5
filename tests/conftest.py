"""Fixtures that several kinds of tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everstep.workers.local import ports
from tests.fakes.servers import HOST, dev_server


def free_port() -> int:
    return ports.free_port(HOST)


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Temporal server, configured as a local run's, for the whole session."""
    with dev_server(tmp_path_factory.mktemp("temporal")) as address:
        yield address
