"""What `everstep status` says of standbys."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from everstep.cli.status import standby_text
from everstep.workflows.messages import StandbyStatus


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, ""),
        (StandbyStatus(2, None, 0, 0.0, (), 0), " (of 2 wanted)"),
        (
            StandbyStatus(3, 0.00224, 1, 4.25, ("m7", "m8"), 1),
            " (of 3 wanted, at 0.00224 failures a machine and day; own history: 1 in 4.25"
            " machine-days); being tested: m7, m8; asked the cluster for 1",
        ),
    ],
)
def test_standbys_in_words(status: StandbyStatus | None, text: str) -> None:
    plan = None if status is None else asdict(status)
    assert standby_text({"standby_plan": plan}) == text
