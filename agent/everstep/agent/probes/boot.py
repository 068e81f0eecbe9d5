"""Whether the kernel crashed before this boot: firmware's own log first, else journald's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from everstep.agent.probes import kmsg
from everstep.agent.probes.host import PSTORES, look_at_last_boot
from everstep.core.errors import UnobservableError
from everstep.core.senses.host import judge_last_boot
from everstep.core.senses.inspection import Inspection, unobservable
from everstep.core.vocabulary import Verdict

JOURNAL = "journal of the last boot"


async def look(stores: Sequence[Path] = PSTORES) -> Inspection:
    """What firmware kept of a crash; where it keeps nothing, what journald has of the last boot.

    A journal without a crash is no proof of health: most panics never reach the disk.

    Args:
        stores: Where firmware's log may lie.
    """
    firmware = look_at_last_boot(stores)
    if firmware.verdict is not Verdict.UNOBSERVABLE:
        return firmware
    try:
        records = await kmsg.last_boot()
    except UnobservableError as error:
        return unobservable(firmware.item, firmware.subject, f"{firmware.detail}; {error}")
    text = "\n".join(record.text for record in records)
    seen = judge_last_boot([(JOURNAL, time.clock_gettime(time.CLOCK_BOOTTIME), text)])
    if seen.verdict is Verdict.FAULTY:
        return seen
    detail = f"{firmware.detail}; the {JOURNAL} shows no crash, and need not"
    return unobservable(firmware.item, firmware.subject, detail)
