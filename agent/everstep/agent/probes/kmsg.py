"""The kernel log as a stream: /dev/kmsg, or journald where that may not be read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from everstep.core.errors import UnobservableError
from everstep.core.senses.kmsg import KernelRecord, SequenceGaps, parse_journal, parse_record

logger = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")

RECORD_BYTES = 16_384
"""The kernel gives one record a read and refuses a buffer that is too small for it."""

LAST_BOOT_LINES = 1_000
"""Of the boot before this one: a crash and its trace are at its end."""

RECORDS_AT_ONCE = 500
"""Between two turns of the event loop, so that a storm of lines does not hold it up."""


class KmsgReader:
    """Reads /dev/kmsg record by record.

    Args:
        path: The device.
        from_boot: Whether to begin at the oldest record kept instead of at the next one.

    Raises:
        UnobservableError: It cannot be read, with the reason.
    """

    def __init__(self, path: Path = KMSG, from_boot: bool = False) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self.fd, 0, os.SEEK_SET if from_boot else os.SEEK_END)
        except OSError as error:
            raise UnobservableError(f"{path}: {error.strerror}") from error
        self._gaps = SequenceGaps()

    @property
    def lost(self) -> int:
        """Records that were overwritten before they could be read."""
        return self._gaps.lost

    def read(self) -> list[KernelRecord]:
        """The records that are there now, at most RECORDS_AT_ONCE.

        Raises:
            UnobservableError: The log cannot be read any more.
        """
        records: list[KernelRecord] = []
        while len(records) < RECORDS_AT_ONCE:
            try:
                raw = os.read(self.fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overrun: the next read begins at the oldest record that is left
                raise UnobservableError(f"kernel log: {error.strerror}") from error
            if not raw:
                break
            if (record := parse_record(raw)) is not None:
                self._gaps.note(record)
                records.append(record)
        return records

    def close(self) -> None:
        """Let go of the device."""
        os.close(self.fd)


async def follow(reader: KmsgReader, on_records: Callable[[list[KernelRecord]], None]) -> None:
    """Hand over records as they come, for ever.

    Raises:
        UnobservableError: The log cannot be read any more.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(reader.fd, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            while records := reader.read():
                on_records(records)
                await asyncio.sleep(0)
    finally:
        loop.remove_reader(reader.fd)


async def follow_journal(on_records: Callable[[list[KernelRecord]], None]) -> None:
    """Hand over what journald has of the kernel log as it comes, until journald ends.

    Raises:
        UnobservableError: There is no journald, or it ended, with the reason.
    """
    try:
        async with contextlib.aclosing(_journal("--follow", "--lines=0")) as lines:
            async for line in lines:
                if (record := parse_journal(line)) is not None:
                    on_records([record])
    except OSError as error:
        raise UnobservableError(f"journalctl: {error.strerror}") from error
    raise UnobservableError("journalctl ended")


async def since_boot(path: Path = KMSG) -> list[KernelRecord]:
    """All records of this boot that are still kept.

    Raises:
        UnobservableError: Neither the device nor journald can be read.
    """
    try:
        reader = KmsgReader(path, from_boot=True)
    except UnobservableError as error:
        try:
            return await _journal_records("--boot", "--quiet")
        except UnobservableError as other:
            raise UnobservableError(f"{error}; {other}") from other
    records: list[KernelRecord] = []
    try:
        while more := reader.read():
            records += more
    finally:
        reader.close()
    return records


async def last_boot() -> list[KernelRecord]:
    """The end of what journald has of the kernel log of the boot before this one.

    Raises:
        UnobservableError: There is no journald, or it kept nothing of it.
    """
    return await _journal_records("--boot=-1", f"--lines={LAST_BOOT_LINES}", "--quiet")


async def _journal_records(*options: str) -> list[KernelRecord]:
    records: list[KernelRecord] = []
    try:
        async with contextlib.aclosing(_journal(*options)) as lines:
            async for line in lines:
                if (record := parse_journal(line)) is not None:
                    records.append(record)
    except OSError as error:
        raise UnobservableError(f"journalctl: {error.strerror}") from error
    if not records:
        raise UnobservableError("journalctl shows no kernel log")
    return records


async def _journal(*options: str) -> AsyncGenerator[bytes]:
    process = await asyncio.create_subprocess_exec(
        "journalctl",
        "--dmesg",
        "--output=json",
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=1 << 20,
    )
    assert process.stdout is not None  # noqa: S101 - it was asked for
    try:
        while line := await process.stdout.readline():
            yield line
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
