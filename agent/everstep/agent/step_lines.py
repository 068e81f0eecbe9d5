"""Reads new lines of a rank's log, for what they say of its steps."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from everstep.core.senses.step_lines import LINE_LIMIT_BYTES, StepLine, read_line

logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 20
"""Most that is read at a time; of what was written beyond it meanwhile, only the newest counts."""


class StepLines:
    """Follows one log.

    Args:
        log: The file; may not be there yet. Only added to.
        pattern: What to look for.
    """

    def __init__(self, log: Path, pattern: re.Pattern[str]) -> None:
        self._log = log
        self._pattern = pattern
        self._at_bytes = 0
        self._partial = b""

    def read(self) -> list[StepLine]:
        """What the lines say that were finished since the last time; nothing for no file."""
        try:
            size_bytes = self._log.stat().st_size
            if size_bytes <= self._at_bytes:
                return []
            with self._log.open("rb") as file:
                if size_bytes - self._at_bytes > MOST_BYTES:
                    self._at_bytes, self._partial = size_bytes - MOST_BYTES, b""
                file.seek(self._at_bytes)
                new = file.read(MOST_BYTES)
        except OSError as error:
            logger.debug("no steps from %s: %s", self._log, error)
            return []
        self._at_bytes += len(new)
        *lines, partial = (self._partial + new).split(b"\n")
        self._partial = partial[: 2 * LINE_LIMIT_BYTES]
        said = (read_line(self._pattern, line.decode(errors="replace")) for line in lines)
        return [one for one in said if one is not None]
