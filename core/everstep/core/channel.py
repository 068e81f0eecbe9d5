"""What a rank and its agent say to each other over the local channel.

A stream socket pair that the rank inherits (`names.ENV_CHANNEL_FD`). Each message is 4 bytes of
length and a JSON object. The rank asks, the agent answers; `Report`, `Entered` and `Replayed` are
not answered, and the answer to `Saved` may come any time later, or never. File descriptors of
shared memory travel beside an answer's first byte.

    rank                        agent
    Hello                       Welcome
    Restore                     Restored, with the region's descriptor unless there is nothing in it
    Damaged                     Restored, once another machine's copy has come
    Borrow                      Lent, with a descriptor of the memory
    DamagedPart                 Lent, once it has come again
    Reserve                     Reserved, with the region's descriptor
    Saved                       Protected, once the backup holder has it or could not get it
    Report                      -
    Entered                     -
    Replayed                    -
    any                         Failed
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast, get_args, get_origin, get_type_hints

from everstep.core.errors import PermanentError

MESSAGE_LIMIT_BYTES = 64 * 1024

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Hello:
    """The rank is there."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Who the rank is.

    Attributes:
        machine: Name of the machine.
        rank: Global rank.
        attempt: Attempt that the rank belongs to.
        job: Name of the job.
        layout: The job's layout.
        backup_timeout_s: How long a step may wait for its backup.
        storage_every_steps: Which steps go to storage: those that this divides; 0 for none.
        storage_every_s: After how much time a step goes to storage; 0 for never.
        storage_due_s: In how much time the first one does.
        replicated: Keys of what is equal on all ranks of a DP group, and kept once in it.
        group_size: Ranks in a DP group.
        group_stride: By how much their numbers differ from one to the next.
    """

    machine: str
    rank: int
    attempt: int
    job: str
    layout: str
    backup_timeout_s: float
    storage_every_steps: int = 0
    storage_every_s: float = 0.0
    storage_due_s: float = 0.0
    replicated: list[str] = field(default_factory=list[str])
    group_size: int = 1
    group_stride: int = 1


@dataclass(frozen=True, slots=True)
class Restore:
    """Where do I start?"""


@dataclass(frozen=True, slots=True)
class Restored:
    """Where to start.

    Attributes:
        step: The step; None: from the beginning.
        stored: The checkpoint's folder in storage, if it has to be turned into another layout.
    """

    step: int | None
    stored: str = ""


@dataclass(frozen=True, slots=True)
class Damaged:
    """What was to be restored does not have its checksum: is there another copy of it?"""

    step: int


@dataclass(frozen=True, slots=True)
class Borrow:
    """Another rank's part of what the DP group has in common at that step, please."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """That part does not have its checksum: please get it again."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Lent:
    """A part, until the rank saves its first step.

    Attributes:
        rank: Who keeps it.
        offset: Where it begins in the memory.
        size_bytes: How large it is.
        checksum: Of the part.
        whole: Fingerprint of what it is a part of.
    """

    rank: int
    offset: int
    size_bytes: int
    checksum: int
    whole: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory for bodies of that many bytes, please; what is there already stays."""

    slot_bytes: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The region to use from now on."""

    slot_bytes: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The step is committed to that slot.

    Attributes:
        step: Which one.
        slot: Where.
        to_storage: Whether all ranks send this step to storage.
        stalled_s: How long the rank has stood still for checkpoints since it began.
    """

    step: int
    slot: int
    to_storage: bool = False
    stalled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Protected:
    """What became of the backup.

    Attributes:
        step: Step that was saved.
        ok: Whether all is as the job wants it: the holder has the step, or there is no holder.
        reason: Why not, or empty.
    """

    step: int
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The rank finished this step, and knows these figures of it; NaN is one, None is not known.

    `waited_s` is how long it has been in collectives since it began, `stalled_s` how long it has
    stood still for checkpoints.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    mfu: float | None = None
    waited_s: float | None = None
    stalled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Entered:
    """The rank is in this phase from now on; a word of `core.vocabulary.Phase`."""

    phase: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The rank of a replay did all its steps once, and ended in a state with this digest."""

    digest: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The agent could not do what it was asked for."""

    reason: str


Message = (
    Hello
    | Welcome
    | Restore
    | Restored
    | Damaged
    | Borrow
    | DamagedPart
    | Lent
    | Reserve
    | Reserved
    | Saved
    | Protected
    | Report
    | Entered
    | Replayed
    | Failed
)

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}
_TYPES = {name: get_type_hints(kind) for name, kind in _KINDS.items()}


def encode(message: Message) -> bytes:
    """The message as it goes over the channel."""
    data = json.dumps({"kind": type(message).__name__, **asdict(message)}).encode()
    return _LENGTH.pack(len(data)) + data


class Decoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take in bytes, give the messages that are complete now.

        Raises:
            PermanentError: The bytes are not messages; the channel is of no more use.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MESSAGE_LIMIT_BYTES:
                raise PermanentError(f"channel message of {length} B")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            text = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _decode(text)


def _fits(value: object, expected: Any) -> bool:
    if get_origin(expected) is list:
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        return all(isinstance(item, get_args(expected)) for item in items)
    return isinstance(value, expected)


def _decode(text: bytes) -> Message:
    try:
        fields = json.loads(text)
        kind = fields.pop("kind")
        types = _TYPES[kind]
        if fields.keys() != types.keys():
            raise TypeError(f"fields {sorted(fields)} of {kind}")
        for name, expected in types.items():
            if not _fits(fields[name], expected):
                raise TypeError(f"{name} is {fields[name]!r}")
        return _KINDS[kind](**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PermanentError(f"unreadable channel message: {error!r}") from error
