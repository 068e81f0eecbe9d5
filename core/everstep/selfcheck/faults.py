"""Faults that a run asked for, as they lie in a machine's folder: one JSON file each.

A fault belongs to a machine: its ranks and its checks look into its folder, and once the machine is
evicted nobody does. Written by the local cluster, in no run that was not asked to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from everstep.core.vocabulary import Check


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault of a machine.

    Attributes:
        name: Its file's name, unique on the machine.
        kind: What happens, as `everstep run --fault` names it.
        once: Whether it is over when it has shown itself.
        probability: How often it shows itself at a step (`sdc`: at a product), in (0, 1].
        bit: For `sdc`: the bit of a float32 that flips.
        seen_by: Checks that it shows itself in.
        peer: For `link_bad`: the machine at the other end.
        slow_s: For `slow`: how much longer a step takes.
        slow_times: For `slow`: how many times as long the rank computes at a step, at least 1.
        how: For `hang`: in what the rank is stuck.
    """

    name: str
    kind: str
    once: bool = False
    probability: float = 1.0
    bit: int = 30
    seen_by: tuple[str, ...] = ()
    peer: str = ""
    slow_s: float = 0.5
    slow_times: float = 1.0
    how: str = ""

    def shows_in(self, check: Check) -> bool:
        """Whether a check can find it."""
        return check.value in self.seen_by


def write_fault(directory: Path, fault: InjectedFault) -> None:
    """Put a fault into a machine's folder, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{fault.name}"
    partial.write_text(json.dumps(asdict(fault)))
    partial.rename(directory / f"{fault.name}.json")


def read_faults(directory: str | Path) -> list[InjectedFault]:
    """All faults of a machine, by name; those that are over are gone."""
    found: list[InjectedFault] = []
    for path in sorted(Path(directory).glob("*.json")):
        try:
            fields = json.loads(path.read_text())
        except FileNotFoundError:
            # Another rank has just claimed it.
            continue
        fields["seen_by"] = tuple(fields["seen_by"])
        found.append(InjectedFault(**fields))
    return found


def claim(directory: str | Path, fault: InjectedFault) -> bool:
    """Let a fault show itself: true for all callers, or, if it shows once, for one of them."""
    if not fault.once:
        return True
    try:
        os.unlink(Path(directory) / f"{fault.name}.json")  # noqa: PTH108 - tells who was first
    except FileNotFoundError:
        return False
    return True


def of_kind(faults: Sequence[InjectedFault], *kinds: str) -> list[InjectedFault]:
    """Those of some kinds."""
    return [fault for fault in faults if fault.kind in kinds]
