"""Whether bytes are a log, and in which form, told from the first of them."""

from __future__ import annotations

from enum import StrEnum

MAX_CONTROL_RATIO = 0.05
"""Of control characters in a text; pickles, archives and programs hold several times as many."""
_GZIP = b"\x1f\x8b"
_CONTROLS = bytes({*range(1, 32), 127} - set(b"\t\n\v\f\r\b\x1b"))


class Form(StrEnum):
    """How a log lies in its bytes; the values of texts are names of Python codecs."""

    PLAIN = "utf-8"
    UTF_16 = "utf-16"
    UTF_16_LE = "utf-16-le"
    UTF_16_BE = "utf-16-be"
    GZIP = "gzip"
    BINARY = "binary"


def form_of(head: bytes) -> Form:
    """Say in which form a log is.

    Args:
        head: Its first bytes; a few kilobytes are enough. Runs of zeros, as a machine leaves them
            in its log when it loses power, do not make it binary.
    """
    if head.startswith(_GZIP):
        return Form.GZIP
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Form.UTF_16
    for form, zeros, letters in (
        (Form.UTF_16_LE, head[1::2], head[0::2]),
        (Form.UTF_16_BE, head[0::2], head[1::2]),
    ):
        if zeros.count(0) > len(zeros) * 0.8 and letters.count(0) < len(letters) * 0.2:
            return form
    text = head.replace(b"\0", b"")
    controls = len(text) - len(text.translate(None, _CONTROLS))
    return Form.BINARY if controls > len(text) * MAX_CONTROL_RATIO else Form.PLAIN
