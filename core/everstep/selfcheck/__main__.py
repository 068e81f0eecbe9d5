"""One program of a check: does its part, says what it found in one line, and ends."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from everstep.core import names
from everstep.core.checks import Answer, ProgramSettings, began
from everstep.core.vocabulary import Check, Verdict

PARTS = {
    Check.GPU: "everstep.selfcheck.gpu",
    Check.MACHINE: "everstep.selfcheck.exchange",
    Check.LINKS: "everstep.selfcheck.exchange",
    Check.BITWISE: "everstep.selfcheck.bitwise",
}


def main() -> int:
    """Say what was found, or why nothing could be."""
    settings = ProgramSettings.parse(sys.argv[1])
    result_fd = int(os.environ[names.ENV_RESULT_FD])
    answer = _answer(settings, result_fd)
    os.write(result_fd, answer.line().encode())
    return 0


def _answer(settings: ProgramSettings, result_fd: int) -> Answer:
    # Read by libraries when they load.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        device = importlib.import_module("everstep.selfcheck.device")
        part = importlib.import_module(PARTS[settings.check])
    except ImportError as error:
        return Answer(Verdict.UNOBSERVABLE, f"torch cannot be loaded: {error}")
    try:
        where = device.choose(settings)
    except device.NoDeviceError as error:
        return Answer(error.verdict, str(error))
    os.write(result_fd, began(where.type).encode())
    try:
        answer: Answer = part.check(settings, where)
    except Exception as error:  # noqa: BLE001 - whatever it was, the machine must be judged by it
        traceback.print_exc()
        answer = device.judge_error(error, where)
    return answer


if __name__ == "__main__":
    sys.exit(main())
