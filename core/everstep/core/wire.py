"""How machines of one job talk: who may, and where a message ends. No I/O happens here.

A connection begins with a mutual proof that both sides know the job's secret: each side chooses a
nonce, each answers with an HMAC-SHA256 over its role, both nonces and the job's name. A recorded
conversation is worth nothing (the nonces differ), nor is an echoed one (the roles differ), nor one
of another job. What follows is neither encrypted nor signed: the network between the machines is
trusted not to alter a stream, shards carry their own checksums, and nothing is ever unpickled.

    client                              server
    {nonce}                        ->
                                   <-   {nonce, proof}
    {proof}                        ->
                                   <-   {ok}

A frame is 4 bytes of length, a JSON object of at most 64 KiB, and then as many raw bytes as its
`payload_bytes` says, when it has that field.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Mapping
from typing import Any, Literal, cast

from everstep.core.errors import PermanentError

HEADER_LIMIT_BYTES = 64 * 1024
GREETING_LIMIT_BYTES = 1024
"""Largest frame that is read from somebody who has not proved anything yet."""

PREFIX_BYTES = 4
NONCE_BYTES = 32

_PREFIX = struct.Struct("<I")
_CONTEXT = b"everstep/1"

Header = dict[str, Any]
"""What a frame says: a JSON object."""


def encode_frame(header: Mapping[str, Any]) -> bytes:
    """A frame up to its payload, which is sent after it as it is.

    Raises:
        ValueError: The header is too large.
    """
    text = json.dumps(header).encode()
    if len(text) > HEADER_LIMIT_BYTES:
        raise ValueError(f"frame header of {len(text)} B")
    return _PREFIX.pack(len(text)) + text


def header_length(prefix: bytes, limit_bytes: int = HEADER_LIMIT_BYTES) -> int:
    """How many bytes of header follow a frame's first 4 bytes.

    Raises:
        PermanentError: More than the limit: whatever this is, it is not a frame.
    """
    (length,) = _PREFIX.unpack(prefix)
    if length > limit_bytes:
        raise PermanentError(f"not a frame: a header of {length} B")
    return int(length)


def decode_header(text: bytes) -> Header:
    """The JSON object that a frame carries.

    Raises:
        PermanentError: It is not one.
    """
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PermanentError(f"not a frame: {error}") from error
    if not isinstance(header, dict):
        raise PermanentError("not a frame: no JSON object")
    return cast("Header", header)


def number(header: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """A count or size, >= 0, from a header.

    Raises:
        PermanentError: The field is missing and has no default, or is anything else.
    """
    value = header.get(field, default)
    if type(value) is not int or not 0 <= value < 2**63:
        raise PermanentError(f"{field} is {value!r}")
    return value


class ClientHandshake:
    """The side that opened the connection.

    Args:
        secret: The job's secret, not empty.
        job: The job's name.
        nonce: 32 random bytes, never used before.
    """

    def __init__(self, secret: bytes, job: str, nonce: bytes) -> None:
        self._secret = _not_empty(secret)
        self._job = job
        self._nonce = _checked(nonce)

    def greeting(self) -> Header:
        """What to send first."""
        return {"nonce": self._nonce.hex()}

    def prove(self, challenge: Mapping[str, Any]) -> Header:
        """Answer the server's challenge, having checked its proof.

        Raises:
            PermanentError: The server does not know the secret, or serves another job.
        """
        if "refused" in challenge:
            raise PermanentError(f"refused by the other side: {challenge['refused']}")
        theirs = _field(challenge, "nonce")
        _check(self._secret, "server", self._nonce, theirs, self._job, challenge)
        return {"proof": _proof(self._secret, "client", self._nonce, theirs, self._job).hex()}

    def finish(self, verdict: Mapping[str, Any]) -> None:
        """Take in the server's verdict.

        Raises:
            PermanentError: It refuses.
        """
        if verdict.get("ok") is not True:
            raise PermanentError(f"refused by the other side: {verdict.get('refused')}")


class ServerHandshake:
    """The side that was connected to; the arguments are the client's."""

    def __init__(self, secret: bytes, job: str, nonce: bytes) -> None:
        self._secret = _not_empty(secret)
        self._job = job
        self._nonce = _checked(nonce)
        self._theirs = b""

    def challenge(self, greeting: Mapping[str, Any]) -> Header:
        """Answer a greeting.

        Raises:
            PermanentError: It is none.
        """
        self._theirs = _field(greeting, "nonce")
        proof = _proof(self._secret, "server", self._theirs, self._nonce, self._job)
        return {"nonce": self._nonce.hex(), "proof": proof.hex()}

    def admit(self, answer: Mapping[str, Any]) -> Header:
        """Check the client's proof; what to send when it is good.

        Raises:
            PermanentError: The client does not know the secret, or belongs to another job.
        """
        _check(self._secret, "client", self._theirs, self._nonce, self._job, answer)
        return {"ok": True}


def refusal(reason: str) -> Header:
    """What to send to a peer before hanging up on it."""
    return {"refused": reason[:200]}


def _proof(
    secret: bytes, role: Literal["client", "server"], client: bytes, server: bytes, job: str
) -> bytes:
    # Every part but the last has a fixed length or an end mark, so no two conversations agree.
    text = b"".join((_CONTEXT, role.encode(), b"\0", client, server, job.encode()))
    return hmac.digest(secret, text, "sha256")


def _check(
    secret: bytes,
    role: Literal["client", "server"],
    client: bytes,
    server: bytes,
    job: str,
    message: Mapping[str, Any],
) -> None:
    if not hmac.compare_digest(_proof(secret, role, client, server, job), _field(message, "proof")):
        raise PermanentError(f"the {role} does not know the secret of job {job!r}")


def _field(message: Mapping[str, Any], name: str) -> bytes:
    """A nonce or a proof: both have 32 bytes."""
    try:
        value = bytes.fromhex(message[name])
    except (KeyError, TypeError, ValueError) as error:
        raise PermanentError(f"no {name} in the handshake") from error
    return _checked(value)


def _not_empty(secret: bytes) -> bytes:
    if not secret:
        raise ValueError("a job's secret is never empty: everybody knows that one")
    return secret


def _checked(value: bytes) -> bytes:
    if len(value) != NONCE_BYTES:
        raise PermanentError(f"{len(value)} B where {NONCE_BYTES} belong")
    return value
