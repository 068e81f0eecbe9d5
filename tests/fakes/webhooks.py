"""Where notices go: a real HTTP server that keeps what it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def webhook(*answers: int) -> Generator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives these answers in turn, the last one for ever; what it was sent.

    Each body is given with the request's key as `key`, which some formats have no place for.
    """
    posts: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            key = self.headers["Idempotency-Key"]
            assert body.get("key", key) == key
            posts.append(body | {"key": key})
            self.send_response(answers[min(len(posts), len(answers)) - 1])
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-path", posts
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
