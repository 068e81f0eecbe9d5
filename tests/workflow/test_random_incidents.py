"""Some random incidents in a row; `python -m tests.soak.incidents 10000` lets more happen."""

from __future__ import annotations

import pytest

from tests.soak.incidents import soak

pytestmark = [pytest.mark.server, pytest.mark.slow]

INCIDENTS = 6


async def test_random_incidents_end_by_the_rules(temporal_address: str) -> None:
    climbed = await soak(temporal_address, seed=20, number=INCIDENTS)
    assert climbed.total() == INCIDENTS
    assert len(climbed) > 2, "the seed meets but few kinds of incidents"
