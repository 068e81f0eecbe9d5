"""What simulated machines answer to the workflows' orders, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.simulated import DURATIONS, setting_of

from everstep.core.orders import StopOrder
from everstep.core.simulation.chance import Shape, Spread
from everstep.core.simulation.world import World
from everstep.workers.simulation.machines import Machines


def test_an_incident_that_is_left_a_hang_looks_as_the_counted_engine_does() -> None:
    """The one before has looked, and stopped the ranks, before it knew that it is another."""
    times = replace(DURATIONS, look=Spread(Shape.UNIFORM, (10.0, 50.0)))
    world = World(replace(setting_of(), durations=times), ())
    machines = Machines(world)

    def both(from_s: float) -> tuple[float, float]:
        first_s = machines.looked_s(from_s)
        second_s = machines.looked_s(first_s + 5.0)
        return first_s - from_s, second_s - first_s - 5.0

    as_counted = pytest.approx([world.takes_s("look", times.look, number) for number in range(2)])
    assert both(100.0) == as_counted
    machines.stop(StopOrder(1), 300.0)
    assert both(400.0) == as_counted
