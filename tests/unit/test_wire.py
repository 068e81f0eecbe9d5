"""Who may talk, and where messages end: between machines and between a rank and its agent."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, strategies as st

from everstep.core import channel, wire
from everstep.core.errors import PermanentError

SECRET = b"a secret of the job"
NONCE_A, NONCE_B, NONCE_C = (bytes([i]) * wire.NONCE_BYTES for i in (1, 2, 3))


def client(secret: bytes = SECRET, job: str = "job") -> wire.ClientHandshake:
    return wire.ClientHandshake(secret, job, NONCE_A)


def server(nonce: bytes = NONCE_B) -> wire.ServerHandshake:
    return wire.ServerHandshake(SECRET, "job", nonce)


def test_both_sides_of_a_job_prove_themselves() -> None:
    greeter, doorman = client(), server()
    greeter.finish(doorman.admit(greeter.prove(doorman.challenge(greeter.greeting()))))


@pytest.mark.parametrize("stranger", [client(secret=b"guess"), client(job="another job")])
def test_a_stranger_takes_the_server_for_one_and_cannot_prove_itself(
    stranger: wire.ClientHandshake,
) -> None:
    doorman = server()
    challenge = doorman.challenge(stranger.greeting())
    with pytest.raises(PermanentError, match="does not know the secret"):
        stranger.prove(challenge)
    with pytest.raises(PermanentError, match="does not know the secret"):
        doorman.admit({"proof": "00" * wire.NONCE_BYTES})


def test_a_recorded_client_is_refused() -> None:
    greeter, doorman = client(), server()
    greeting = greeter.greeting()
    answer = greeter.prove(doorman.challenge(greeting))
    later = server(nonce=NONCE_C)
    later.challenge(greeting)
    with pytest.raises(PermanentError, match="does not know the secret"):
        later.admit(answer)


def test_the_servers_own_proof_sent_back_is_refused() -> None:
    doorman = server()
    challenge = doorman.challenge({"nonce": NONCE_B.hex()})
    with pytest.raises(PermanentError, match="does not know the secret"):
        doorman.admit({"proof": challenge["proof"]})


@pytest.mark.parametrize(
    "message", [{}, {"nonce": 5}, {"nonce": "xy"}, {"nonce": "00"}, {"nonce": ["00" * 32]}]
)
def test_a_malformed_greeting_is_refused(message: dict[str, object]) -> None:
    with pytest.raises(PermanentError):
        server().challenge(message)


def test_a_refusal_reaches_the_client_in_words() -> None:
    with pytest.raises(PermanentError, match="full up"):
        client().prove(wire.refusal("full up"))
    with pytest.raises(PermanentError, match="full up"):
        client().finish(wire.refusal("full up"))


def test_an_empty_secret_is_no_secret() -> None:
    with pytest.raises(ValueError, match="never empty"):
        client(secret=b"")


def test_a_frame_comes_back() -> None:
    data = wire.encode_frame({"put": 1, "text": "\u00fc"})
    length = wire.header_length(data[: wire.PREFIX_BYTES])
    assert len(data) == wire.PREFIX_BYTES + length
    assert wire.decode_header(data[wire.PREFIX_BYTES :]) == {"put": 1, "text": "\u00fc"}


def test_sizes_are_bounded_in_both_directions() -> None:
    with pytest.raises(ValueError, match="frame header"):
        wire.encode_frame({"text": "x" * wire.HEADER_LIMIT_BYTES})
    with pytest.raises(PermanentError, match="not a frame"):
        wire.header_length(struct.pack("<I", wire.HEADER_LIMIT_BYTES + 1))
    with pytest.raises(PermanentError, match="not a frame"):
        wire.header_length(struct.pack("<I", 2000), wire.GREETING_LIMIT_BYTES)


@given(st.binary(max_size=200))
def test_garbage_is_a_header_or_a_permanent_error(data: bytes) -> None:
    try:
        header = wire.decode_header(data)
    except PermanentError:
        return
    assert isinstance(json.loads(data), dict)
    assert header == json.loads(data)


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(PermanentError, match="not a frame"):
        wire.decode_header(b'{"a":' + b"[" * 60_000)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, 2**63])
def test_a_number_is_a_count(value: object) -> None:
    with pytest.raises(PermanentError, match="size is"):
        wire.number({"size": value}, "size")


def test_a_number_may_have_a_default() -> None:
    assert wire.number({}, "size", default=0) == 0
    with pytest.raises(PermanentError, match="size is None"):
        wire.number({}, "size")


MESSAGES: list[channel.Message] = [
    channel.Hello(),
    channel.Welcome("m1", 3, 2, "gpt", "tp=2;order=tp", 70.0),
    channel.Restore(),
    channel.Restored(None),
    channel.Restored(12),
    channel.Reserve(2**40),
    channel.Reserved(2**40),
    channel.Saved(12, 1),
    channel.Protected(12, ok=False, reason="gone"),
    channel.Report(13),
    channel.Failed("no memory"),
]


@given(st.integers(1, 40))
def test_channel_messages_survive_any_cutting_of_the_stream(chunk_bytes: int) -> None:
    stream = b"".join(map(channel.encode, MESSAGES))
    decoder = channel.Decoder()
    decoded = [
        message
        for start in range(0, len(stream), chunk_bytes)
        for message in decoder.feed(stream[start : start + chunk_bytes])
    ]
    assert decoded == MESSAGES


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"kind": "Exec"}',
        b'{"kind": ["Saved"]}',
        b'{"kind": "Saved", "step": 1}',
        b'{"kind": "Saved", "step": "1", "slot": 0}',
        b'{"kind": "Saved", "step": 1, "slot": 0, "more": 1}',
        b"\xff\xfe",
    ],
)
def test_an_unreadable_channel_message_is_refused(text: bytes) -> None:
    with pytest.raises(PermanentError, match="unreadable"):
        list(channel.Decoder().feed(struct.pack("<I", len(text)) + text))


def test_an_endless_channel_message_is_refused_at_once() -> None:
    with pytest.raises(PermanentError, match="channel message of"):
        list(channel.Decoder().feed(struct.pack("<I", 2**31)))
