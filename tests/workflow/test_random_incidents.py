"""Random incidents of jobs side by side, half of which lose their controllers.

As many as take less than a minute on two cores: each is some forty orders and as many workflow
tasks, a second of processor time, most of it the server's. `python -m tests.soak.incidents 10000`
lets more happen.
"""

from __future__ import annotations

import pytest

from tests.soak.incidents import soak_side_by_side

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(500)]

INCIDENTS = 24


async def test_random_incidents_end_by_the_rules(temporal_address: str) -> None:
    climbed = await soak_side_by_side(temporal_address, seed=20, number=INCIDENTS)
    assert climbed.total() == INCIDENTS
    assert len(climbed) > 2, "the seed meets but few kinds of incidents"
