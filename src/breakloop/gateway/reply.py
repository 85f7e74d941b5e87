"""Answers as bytes: one `bytes` object per reply, from parts that are prepared once per status and second."""

from __future__ import annotations

import json
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from breakloop.gateway.head import BODYLESS, CLOSE, Reply

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_PREPARED: Final = 2048
_LENGTHS: Final = tuple(b"content-length: %d\r\n\r\n" % size for size in range(_PREPARED))
_CODES: Final = {
    400: "bad_request",
    408: "request_timeout",
    413: "body_too_large",
    414: "target_too_long",
    417: "expectation_failed",
    426: "upgrade_refused",
    431: "head_too_large",
    500: "internal_error",
    501: "method_not_implemented",
    503: "overloaded",
    505: "version_not_supported",
}
_JSON: Final = b"content-type: application/json\r\n"
# A 426 must name what to use instead; clients that try websockets first (Codex) take it as "use HTTP".
_USE_HTTP: Final = _JSON + b"upgrade: HTTP/1.1\r\nconnection: upgrade\r\n"


class StatusLines(dict[int, bytes]):
    """Status -> its status line with the Date line, made on demand and thrown away every second."""

    date = b""

    def renew(self, now: float) -> None:
        """Start a new second."""
        self.date = f"\r\ndate: {formatdate(now, usegmt=True)}\r\n".encode()
        self.clear()

    def __missing__(self, status: int) -> bytes:
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        line = self[status] = b"HTTP/1.1 %d %b%b" % (status, phrase.encode(), self.date)
        return line


def render(lines: StatusLines, reply: Reply, connection: bytes, method: str) -> bytes:
    """The whole answer to a request by `method`. `connection` is its Connection line or empty."""
    status = reply.status
    body = reply.body
    size = len(body)
    if size < _PREPARED and method != "HEAD" and status not in BODYLESS:
        return lines[status] + reply.head + connection + _LENGTHS[size] + body
    if status in BODYLESS:
        return lines[status] + reply.head + connection + b"\r\n"
    head = lines[status] + reply.head + connection + b"content-length: %d\r\n\r\n" % size
    return head if method == "HEAD" else head + body


def error_reply(status: int, message: str) -> Reply:
    """A refusal in the one shape that all errors have."""
    body = json.dumps({"detail": {"error": _CODES.get(status, "error"), "message": message}}).encode()
    return Reply(status, _USE_HTTP if status == 426 else _JSON, body)


def render_refusal(lines: StatusLines, status: int, message: str) -> bytes:
    """A refusal that ends the connection."""
    return render(lines, error_reply(status, message), CLOSE, "")
