"""The rules that random incidents are held to: each one can be broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.soak.incidents import Seen, Trouble, Wrong, hold_to_the_rules

from everstep.core.record import Climb, Finding, IncidentRecord
from everstep.core.vocabulary import ClimbOutcome, Outcome, Rung, Symptom

TROUBLE = Trouble(Wrong.MACHINE, Seen.GPU, guilty=("m1",))
FOUND = Climb(Rung.CHECKS, "gpu test", ("m1",), 1, 0.0, ClimbOutcome.FOUND)
EVICTED = Climb(Rung.EVICT, "gpu test", ("m1",), 1, 0.0)
PASSED = Climb(Rung.CHECKS, "all passed", (), 1, 0.0, ClimbOutcome.PASSED)
GOOD = IncidentRecord(
    1, "soak", 0.0, 0.0, Outcome.RECOVERED, Finding(Symptom.NAN_VALUE, (), (), False, "NaN"),
    (FOUND, EVICTED), evicted=("m1",),
)  # fmt: skip


def test_an_incident_that_went_well_passes() -> None:
    hold_to_the_rules(GOOD, TROUBLE)


@pytest.mark.parametrize(
    "record",
    [
        replace(GOOD, outcome=Outcome.HELD),
        replace(GOOD, evicted=("m1", "m2")),
        replace(GOOD, evicted=("m1", "m1")),
        replace(GOOD, climbs=(PASSED, *GOOD.climbs)),
        replace(GOOD, climbs=(replace(PASSED, machines=("m1",)), EVICTED)),
        replace(GOOD, climbs=(PASSED,), evicted=()),
    ],
    ids=["no end", "innocent", "twice", "rung again", "named though passed", "not found"],
)
def test_one_that_did_not_does_not(record: IncidentRecord) -> None:
    with pytest.raises(AssertionError):
        hold_to_the_rules(record, TROUBLE)
