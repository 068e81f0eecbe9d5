from __future__ import annotations

import pickle

import pytest

from everstep.core.classify.encoding import Form, form_of

TEXT = "10:00:01 step 1 | loss 7.1\n" * 50


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (b"", Form.PLAIN),
        (b"a", Form.PLAIN),
        (TEXT.encode(), Form.PLAIN),
        (TEXT.replace("\n", "\r\n").encode(), Form.PLAIN),
        ("шаг 1: потеря 7,1\n".encode(), Form.PLAIN),
        (b"\x1b[32mstep\x1b[0m 1\n" * 9, Form.PLAIN),
        (b"\0" * 4096 + TEXT.encode(), Form.PLAIN),
        (b"\0" * 4096, Form.PLAIN),
        (TEXT.encode("utf-16"), Form.UTF_16),
        (TEXT.encode("utf-16-le"), Form.UTF_16_LE),
        (TEXT.encode("utf-16-be"), Form.UTF_16_BE),
        (b"\x1f\x8b\x08\0", Form.GZIP),
        (pickle.dumps({"entries": [{"seq": n, "state": "sent"} for n in range(99)]}), Form.BINARY),
        (bytes(range(256)) * 9, Form.BINARY),
    ],
)
def test_form(head: bytes, form: Form) -> None:
    assert form_of(head) is form
