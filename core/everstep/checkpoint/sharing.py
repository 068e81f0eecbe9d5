"""What a rank keeps for its DP group, where the job says that they have state in common.

The job's word is not taken for it. Before an attempt's first save, and from time to time after it,
the ranks of a group compare digests of all that is said to be equal; when it is not, each of them
keeps all of its own state from that step on. A comparison holds up an update until all ranks of the
group have come to the save, and reads as much as a save without a group would copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from everstep.checkpoint.agreement import Agreement
from everstep.checkpoint.copying import Copier
from everstep.checkpoint.tree import FlatTree
from everstep.core import channel
from everstep.core.parts import NOTHING_REPLICATED, Replicated

logger = logging.getLogger(__name__)

COMPARE_EVERY_SAVES = 100
"""Often enough to find a rank that strays, and a hundredth of the copying that is saved."""


class Sharing:
    """Takes states as they are to be saved.

    Args:
        me: Who the rank is, and what the job says.
    """

    def __init__(self, me: channel.Welcome) -> None:
        self._who = f"rank {me.rank} on {me.machine}"
        self._rank = me.rank
        self._replicated = replicated_of(me)
        self._composition: int | None = None
        self._saves_since_compared = 0

    @property
    def shared(self) -> bool:
        """Whether states may be taken in part."""
        return self._replicated.shared

    def take(self, state: Mapping[Any, Any]) -> FlatTree:
        """The state, ready to be saved; called by the training's thread.

        Raises:
            TypeError: It contains something that cannot be stored.
        """
        flat = FlatTree(state, self._replicated, self._rank)
        composition = flat.composition
        if composition != self._composition:
            self._warn_of_lacking(state)
        if not composition:
            self._composition = 0
        elif self._is_due(composition):
            self._composition, self._saves_since_compared = composition, 0
        else:
            self._saves_since_compared += 1
            flat.take_part()
        if composition:
            flat.copy_small()
        return flat

    def settle(
        self,
        step: int,
        flat: FlatTree,
        copier: Copier,
        agreement: Agreement,
        wait: Callable[[Callable[[], bool]], bool],
    ) -> bool:
        """Decide how to save a state that has to be compared first; called by the saver's thread.

        Args:
            step: The step after which it was taken.
            flat: The state.
            copier: What reads its tensors.
            agreement: With the other ranks.
            wait: Waits until something is so; False when it is no longer waited for.

        Returns:
            Whether to save it: not when nobody waits for that any more.

        Raises:
            PermanentError: The other ranks are gone.
        """
        if flat.part is not None or not flat.common:
            return True
        group = self._replicated.group_of(self._rank)
        digest = f"{flat.composition:x}-{copier.digest_common(flat)}"
        agreement.compare(step, group, digest)
        if not wait(lambda: agreement.are_equal(step, group) is not None):
            return False
        if agreement.are_equal(step, group):
            flat.take_part()
            return True
        flat.take_whole()
        logger.warning(
            "%s: what checkpoint.replicated names (%s) is not equal on ranks %s at step %d:"
            " each keeps its own from now on",
            self._who, ", ".join(self._replicated.names), list(group), step,
        )  # fmt: skip
        self._replicated = NOTHING_REPLICATED
        return True

    def _is_due(self, composition: int) -> bool:
        changed = composition != self._composition
        return changed or self._saves_since_compared + 1 >= COMPARE_EVERY_SAVES

    def _warn_of_lacking(self, state: Mapping[Any, Any]) -> None:
        lacking = [name for name in self._replicated.names if not _has(state, name)]
        if lacking and self._replicated.shared:
            logger.warning(
                "%s: checkpoint.replicated names %s, which the saved state (%s) does not have",
                self._who, ", ".join(lacking), ", ".join(map(str, state)),
            )  # fmt: skip


def replicated_of(me: channel.Welcome) -> Replicated:
    """What the agent says that the rank has in common with others."""
    return Replicated(tuple(me.replicated), me.group_size, me.group_stride)


def _has(state: Any, name: str) -> bool:
    at: Any = state
    for key in name.split("."):
        if not isinstance(at, Mapping) or key not in at:
            return False
        level: Mapping[Any, Any] = at  # pyright: ignore[reportUnknownVariableType] - of Any
        at = level[key]
    return True
