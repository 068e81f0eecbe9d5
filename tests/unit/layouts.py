"""Layouts of every shape and order, small enough to check by counting."""

from __future__ import annotations

from hypothesis import strategies as st

from everstep.core.groups import KINDS, Layout

PAPER_ORDER = ("tp", "pp", "dp")

FIG_7 = Layout(gpus_per_machine=2, tp=2, pp=4, dp=4, order=PAPER_ORDER)
FIG_9 = Layout(gpus_per_machine=2, tp=2, pp=4, dp=2, order=PAPER_ORDER)
FIG_9_MEGATRON = Layout(gpus_per_machine=2, tp=2, pp=4, dp=2)
PRODUCTION = Layout(gpus_per_machine=8, tp=8, pp=8, dp=150, order=PAPER_ORDER)


@st.composite
def layouts(draw: st.DrawFn, min_machines: int = 1) -> Layout:
    """Up to about a hundred ranks; machines may straddle dimensions in any way."""
    order = tuple(draw(st.permutations(KINDS)))
    sizes = {kind: draw(st.integers(1, 4 if kind in PAPER_ORDER else 2)) for kind in KINDS}
    # Larger worlds add nothing but time.
    while _world(sizes) > 96:
        sizes[max(sizes, key=lambda kind: sizes[kind])] -= 1
    world = _world(sizes)
    fitting = [gpus for gpus in range(1, 17) if world % gpus == 0]
    fitting = [gpus for gpus in fitting if world // gpus >= min_machines]
    if not fitting:
        sizes["dp"] *= min_machines
        fitting = [1]
    return Layout(draw(st.sampled_from(fitting)), **sizes, order=order)


def _world(sizes: dict[str, int]) -> int:
    world = 1
    for size in sizes.values():
        world *= size
    return world
