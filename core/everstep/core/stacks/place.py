"""Where a thread stands: its stack without what differs between threads that stand alike.

Lines, addresses, folders, class names and native frames are left out, for they differ between
machines, versions of py-spy and turns of a waiting loop; and so are the innermost calls into the
standard library, which are the waiting itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.stacks.dump import Frame, Stack


class Stand(StrEnum):
    """What a thread is at, from the point of view of the other ranks."""

    WAITING = "waiting"
    """In a collective, a send or a receive, or waiting for a GPU or autograd that may be in one."""
    OUTSIDE = "outside"
    """Anywhere else: others may wait for it, it waits for none of them."""
    NOWHERE = "nowhere"
    """No frames."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread stands, comparable between ranks.

    Attributes:
        key: Its calls, outermost first, as "name (file)".
        stand: What it is at.
        at: The call that tells, for people.
    """

    key: tuple[str, ...]
    stand: Stand
    at: str

    def is_near(self, other: Place) -> bool:
        """Whether it may be the same place a moment later: one calls the other, or both are one."""
        short, long = sorted((self.key, other.key), key=len)
        return long[: len(short)] == short


_PYTHON_FILE = re.compile(r"\.pyx?$|^<.*>$")
_PARTS = re.compile(r"[\\/]")
# Its files lie in no folder of their own that a name could be told by: pip's packages do.
_STANDARD = re.compile(
    r"[\\/]lib(?:64)?[\\/]python3[.\d]*t?[\\/](?!site-packages|dist-packages)|^<frozen "
)
_STANDARD_FILES = frozenset(
    {
        "threading.py", "queue.py", "selectors.py", "socket.py", "ssl.py", "subprocess.py",
        "contextlib.py", "functools.py", "asyncio/base_events.py", "asyncio/runners.py",
        "multiprocessing/connection.py", "multiprocessing/queues.py", "multiprocessing/pool.py",
        "multiprocessing/popen_fork.py", "multiprocessing/synchronize.py",
        "multiprocessing/process.py", "concurrent/futures/_base.py", "futures/_base.py",
    }
)  # fmt: skip
_TRANSPARENT = re.compile(
    r"(^|/)(c10d_logger|_ops|_contextlib|eval_frame|nvtx|module|_monitor)\.py$|^torch/utils/_"
)
_ONLY_WAITS = re.compile(r"^_*(wait|synchronize|sync|wrapper|inner|poll|result|join)_*\w*$")

_OPERATIONS = (
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|batch_isend_irecv|barrier"
    r"|grad(?:ient)?s?_(?:sync|reduce)|(?:reduce|sync)_grad(?:ient)?s?"
)
# Names that nothing but a wait for other ranks has, wherever it is defined.
_COLLECTIVE = re.compile(rf"(^|_)({_OPERATIONS})|(^|_)i(send|recv)(_|$)", re.IGNORECASE)
# A wrapper says which neighbour it means; plain send and recv are anybody's.
_TRANSFER = re.compile(
    r"(^|_)(p2p|pp|pipe|tp|dp|cp|ep)_(send|recv|receive)|^_?(send|recv|receive)_(forward|backward|prev"
    r"|next|from_prev|to_next|obj|object)|^_?communicate(_shapes)?$|^_?p2p_"
)
_DISTRIBUTED_FILE = re.compile(
    r"(^|/)(distributed_c10d|_functional_collectives|p2p_communication|_p2p)\.py$"
    r"|deepspeed/comm/|(^|/)(comm|p2p|torch)/(comm|torch|p2p)\.py$"
)
_DEVICE = re.compile(r"^(synchronize|wait_stream|wait_event)$")
_DEVICE_FILE = re.compile(r"(^|/)(cuda|npu|xpu|hpu)/(__init__|streams)\.py$")
_LAUNCHER = re.compile(r"(^|/)agent/(program|zygote)\.py$|^<frozen runpy>$|(^|/)runpy\.py$")
_ENGINE = re.compile(r"^(_engine_run_backward|run_backward)$")
_NATIVE_WAIT = re.compile(
    r"c10d::|::Work::wait|gloo::|\bnccl[A-Z]|\bncclx?::|rccl|"
    r"(cuda|cu|hip)(Stream|Event|Device|Ctx)Synchronize|\bMPI_[A-Z]"
)


def place_of(stack: Stack) -> Place:
    """Where a thread with this stack stands."""
    python = [frame for frame in stack.frames if _is_python(frame)]
    # Who started the program is the same everywhere.
    while len(python) > 1 and _LAUNCHER.search(short_file(python[-1])):
        python.pop()
    if not python:
        native = _native_wait(stack.frames)
        if native is None:
            names = tuple(
                frame.name for frame in stack.frames[:1] if not frame.name.startswith("0x")
            )
            stand = Stand.OUTSIDE if stack.frames else Stand.NOWHERE
            return Place(names, stand, names[0] if names else "no frame that says anything")
        return Place((native,), Stand.WAITING, native)
    inner = _without_waiting(python)
    key = tuple(_text(frame) for frame in reversed(inner))
    for frame in _telling(python):
        if _waits_for_others(frame):
            return Place(key, Stand.WAITING, _text(frame))
    native = _native_wait(stack.frames[: len(stack.frames) - len(python) + 1])
    if native is not None and not _is_python(stack.frames[0]):
        return Place(key, Stand.WAITING, f"{native}, called by {_text(inner[0])}")
    return Place(key, Stand.OUTSIDE, _text(inner[0]))


def short_name(frame: Frame) -> str:
    """The function's own name; older versions of py-spy give no more."""
    return frame.name.rpartition(".")[2]


def short_file(frame: Frame) -> str:
    """The file with its folder; where a package lies differs between machines."""
    return "/".join(_PARTS.split(frame.file)[-2:])


def _text(frame: Frame) -> str:
    return f"{short_name(frame)} ({short_file(frame).rpartition('/')[2]})"


def _is_python(frame: Frame) -> bool:
    if _PYTHON_FILE.search(frame.file):
        return True
    # A file without an ending is a script; what has no line comes from a library of the system.
    return frame.line > 0 and not re.search(r"\.so\b|\.(c|cc|cpp|cu|h|hpp|rs)$", frame.file)


def _is_standard(frame: Frame) -> bool:
    if _STANDARD.search(frame.file):
        return True
    file = frame.file.removeprefix("./")
    return file in _STANDARD_FILES


def _without_waiting(frames: list[Frame]) -> list[Frame]:
    """The frames, innermost first, from the one by which a wait was called."""
    for index, frame in enumerate(frames):
        if not _is_standard(frame):
            return frames[index:]
    return frames[-1:]


def _telling(frames: list[Frame]) -> list[Frame]:
    """Frames that tell what the innermost one is about: those that only pass on, and one more."""
    found: list[Frame] = []
    for frame in frames:
        found.append(frame)
        passes = _is_standard(frame) or _TRANSPARENT.search(short_file(frame))
        if not passes and not _ONLY_WAITS.match(short_name(frame)):
            break
    return found


def _waits_for_others(frame: Frame) -> bool:
    if _is_standard(frame):
        # Barriers of threads, and what pipes and sockets send and receive, are of one rank.
        return False
    name, file = short_name(frame), short_file(frame)
    if _DISTRIBUTED_FILE.search(file) or _COLLECTIVE.search(name) or _TRANSFER.search(name):
        return True
    return bool(_DEVICE.match(name) and _DEVICE_FILE.search(file)) or is_engine(frame)


def is_engine(frame: Frame) -> bool:
    """Whether this call waits for autograd's own threads, which run what a backward pass calls."""
    return bool(_ENGINE.match(short_name(frame)))


def _native_wait(frames: tuple[Frame, ...]) -> str | None:
    for frame in frames:
        if not _is_python(frame) and (found := _NATIVE_WAIT.search(frame.name)) is not None:
            start = frame.name.rfind(" ", 0, found.start()) + 1
            return re.split(r"[(<]", frame.name[start:])[0] or found[0]
    return None
