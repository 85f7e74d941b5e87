"""A stand-in for the admin API: answers by method and path as it is told, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.deadlines import DEADLINE_S

TOKEN = "token-of-ada"
Answer = Any  # a body for 200; (status, body); a list of streams, one for each time it is asked


@dataclass
class Admin:
    """What it says, and what it heard."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)  # "GET /status" -> answer
    asked: list[tuple[str, Any]] = field(default_factory=list)  # "GET /status?x=y", body
    headers: list[dict[str, str]] = field(default_factory=list)
    plane: str = "admin"  # what it says that it is; "": nothing
    met: list[dict[str, str]] = field(default_factory=list)  # header fields of the questions who it is

    @property
    def args(self) -> list[str]:
        """How a command is told where it is."""
        return ["--url", self.url, "--token", TOKEN]


class _Handler(BaseHTTPRequestHandler):
    admin: Admin

    def _answer(self) -> None:
        size = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        if self.path.endswith("/livez"):  # is asked before a token is shown
            self.admin.met.append({name.lower(): value for name, value in self.headers.items()})
            self._send(200, b"ok\n", plane=self.admin.plane)
            return
        path = self.path.removeprefix("/api/v1")
        self.admin.asked.append((f"{self.command} {path}", body))
        self.admin.headers.append({name.lower(): value for name, value in self.headers.items()})
        answer = self.admin.answers.get(f"{self.command} {path.partition('?')[0]}")
        if answer is None:
            answer = (404, {"error": {"code": "not_found", "message": "there is nothing here"}})
        if self.headers["accept"] == "text/event-stream" and isinstance(answer, list):
            self._send(200, answer.pop(0) if answer else b"")
            return
        status, content = answer if isinstance(answer, tuple) else (200, answer)
        self._send(status, content if isinstance(content, bytes) else json.dumps(content).encode())

    do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - names of the standard library

    def _send(self, status: int, body: bytes, *, plane: str = "") -> None:
        self.send_response(status)
        if plane:
            self.send_header("x-breakloop-plane", plane)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def fake_admin(**answers: Answer) -> Iterator[Admin]:
    """An admin API on a free port of this machine."""
    admin = Admin(answers=dict(answers))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (_Handler,), {"admin": admin}))
    admin.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield admin
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE_S)
