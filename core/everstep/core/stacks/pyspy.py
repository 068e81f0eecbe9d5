"""Reads stacks in the form of `py-spy dump --json`, of any version, and the tracer's notes.

    [{"pid": 7, "thread_name": "MainThread", "os_thread_id": 7, "frames": [{"name": ...}]}, ...]
    {"answer": "stopped", "detail": "...", "threads": [...], "silent_children": [...]}

The first form is py-spy's own; threads of children may follow the rank's, told by their `pid`. The
second is what the tracer writes for a rank that was not simply read. A text that is cut off or
holds no thread is no answer: whoever was asked did not finish.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from everstep.core.stacks.dump import Answer, Frame, RankDump, Stack, Thread
from everstep.core.stacks.numbers import whole_number
from everstep.core.stacks.words import printable

_NO_ANSWERS = frozenset(Answer) - {Answer.ANSWERED}
_FRAMES = b'"frames": ['
_FRAMES_END = b"\n    ]"
_HEAD = re.compile(
    rb'(?:"process": "(?P<process>[^"\\]*)",\s+)?"pid": (?P<pid>\d+),\s+"thread_id": \d+,'
    rb'\s+"thread_name": (?:null|"(?P<name>[^"\\]*)"),\s+"os_thread_id": (?P<number>null|\d+),'
)


class Reader:
    """Reads the dumps of many ranks; stacks with the same text become the same object.

    Almost all ranks of a large job stand in the same few places, so the text of a thread's frames
    is looked up before it is parsed.
    """

    def __init__(self) -> None:
        self._by_text: dict[bytes, Stack] = {}
        self._by_frames: dict[tuple[Frame, ...], Stack] = {}

    def read(self, text: bytes) -> RankDump:
        """What one rank's file says; never raises for what it holds."""
        text = text.strip()
        threads = self._read_known(text)
        if threads is not None:
            return _answered(threads)
        try:
            # A file may hold millions of brackets.
            value = json.loads(text)
        except (ValueError, RecursionError):
            return RankDump(Answer.NO_ANSWER, detail=_why_unreadable(text))
        if isinstance(value, list):
            threads = self._threads(cast("list[object]", value))
            self._remember(text, threads)
            return _answered(threads)
        if isinstance(value, dict):
            return self._noted(cast("dict[str, Any]", value))
        return RankDump(Answer.NO_ANSWER, detail="its dump holds no threads")

    def _noted(self, value: dict[str, Any]) -> RankDump:
        threads = self._threads(_list(value.get("threads")))
        said = str(value.get("answer", ""))
        children = tuple(printable(child) for child in _list(value.get("silent_children")))
        detail = printable(value.get("detail") or value.get("error") or "")
        if said in _NO_ANSWERS:
            return RankDump(Answer(said), threads, detail, children)
        heard = _answered(threads)
        return RankDump(heard.answer, threads, detail or heard.detail, children)

    def _threads(self, items: Iterable[object]) -> tuple[Thread, ...]:
        found: list[Thread] = []
        for item in items:
            if not isinstance(item, dict):
                continue
            head = cast("dict[str, Any]", item)
            number = head.get("os_thread_id")
            found.append(
                Thread(
                    pid=whole_number(head.get("pid")) or 0,
                    os_thread_id=whole_number(number),
                    name=printable(head.get("thread_name") or ""),
                    stack=self._stack(_list(head.get("frames"))),
                    process=printable(head.get("process") or ""),
                )
            )
        return tuple(found)

    def _stack(self, items: Iterable[object]) -> Stack:
        frames = tuple(
            _frame(cast("dict[str, Any]", item)) for item in items if isinstance(item, dict)
        )
        return self._by_frames.setdefault(frames, Stack(frames))

    def _remember(self, text: bytes, threads: tuple[Thread, ...]) -> None:
        pieces = text.split(_FRAMES)[1:]
        if len(pieces) == len(threads):
            for piece, thread in zip(pieces, threads, strict=True):
                frames, end, _ = piece.partition(_FRAMES_END)
                if end:
                    self._by_text[frames] = thread.stack

    def _read_known(self, text: bytes) -> tuple[Thread, ...] | None:
        """The threads of a text in which nothing but the heads of threads is new."""
        if not (text.startswith(b"[") and text.endswith(b"}\n]")):
            return None
        head, *pieces = text.split(_FRAMES)
        found: list[Thread] = []
        for piece in pieces:
            frames, end, next_head = piece.partition(_FRAMES_END)
            stack = self._by_text.get(frames)
            parts = _HEAD.search(head)
            if stack is None or parts is None or not end:
                return None
            process, pid, name, number = parts.groups(b"")
            found.append(
                Thread(
                    pid=int(pid),
                    os_thread_id=None if number == b"null" else int(number),
                    name=name.decode(errors="replace"),
                    stack=stack,
                    process=process.decode(errors="replace"),
                )
            )
            head = next_head
        return tuple(found) or None


def _answered(threads: tuple[Thread, ...]) -> RankDump:
    if any(thread.stack.frames for thread in threads):
        return RankDump(Answer.ANSWERED, threads)
    return RankDump(Answer.NO_ANSWER, detail="its dump holds no frames")


def _frame(item: Mapping[str, Any]) -> Frame:
    file = item.get("filename") or item.get("short_filename") or item.get("module") or ""
    return Frame(
        printable(item.get("name") or ""), printable(file), whole_number(item.get("line")) or 0
    )


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _why_unreadable(text: bytes) -> str:
    return "its dump is empty" if not text else "its dump is cut off or no JSON"
