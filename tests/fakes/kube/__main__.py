"""The stand-in as a process: `python -m tests.fakes.kube` prints its address and serves until its
input ends.
"""

from __future__ import annotations

import asyncio
import sys

from tests.fakes.kube.server import serving


async def main() -> None:
    async with serving() as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
