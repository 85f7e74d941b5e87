"""Heads of answers: the strict reading of what an upstream sends, and the lines of it that the client gets.

Field by field as in `head`, with the same memory of known lines. Hop-by-hop fields stay here (RFC 9110, 7.6.1); how the
body ends is told by `length`, and the exchange writes the framing that fits the client.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from breakloop.errors import UpstreamError
from breakloop.gateway.head import BODYLESS, CHUNKED, FIELD_LINE
from breakloop.policy.recent import Remembered

UNTIL_CLOSE: Final = -2  # `AnswerHead.length` of a body that only the end of the connection ends
HEAD_BYTES: Final = 128 * 1024
_FIELDS: Final = 500
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: ([\t -~\x80-\xff]*))?")
_FRAMING: Final = frozenset(("content-length", "transfer-encoding"))
_HOP_BY_HOP: Final = _FRAMING | {
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "te", "upgrade",
}  # fmt: skip
_KNOWN: Final = _HOP_BY_HOP | {"content-type", "content-encoding"}
_PLAIN_CONNECTIONS: Final = frozenset((b"keep-alive", b"close"))
# What an answer cannot do without: a Connection line that names one of these must not take it away.
_PROTECTED: Final = frozenset(("content-type", "content-encoding", "set-cookie", "retry-after", "x-should-retry"))


class Known(bytes):
    """A line that means something here, as the client gets it: whole, or not at all."""

    name: str
    value: bytes


class AnswerHead(msgspec.Struct, gc=False):
    """One head."""

    status: int
    line: bytes  # the status line for the client, ending in CRLF
    lines: bytes  # the end-to-end fields as sent, each ending in CRLF, without framing
    headers: dict[str, bytes]  # what means something here, by lower-case name; the last value of a name
    length: int  # of the body: bytes, CHUNKED or UNTIL_CLOSE
    announced: bytes  # the Content-Length line of an answer that carries no body (HEAD, 304), or empty
    keeps: bool  # the connection can be used again after it


class AnswerHeads:
    """Reads heads; one per server."""

    __slots__ = ("_field", "_status_lines")

    def __init__(self) -> None:
        self._status_lines = Remembered(_status_line)
        self._field = Remembered(_field).__getitem__

    def parse(self, head: bytes, method: str) -> AnswerHead:
        """Read one head, ending in its empty line. Raises `UpstreamError` for what is no plain answer."""
        lines = head.split(b"\r\n")
        status, is_1_1, line = self._status_lines[lines[0]]
        if len(lines) > _FIELDS:
            raise UpstreamError("answered with too many header fields")
        fields = list(map(self._field, lines[1:-2]))
        kept = b"".join(fields)
        known = [field for field in fields if type(field) is Known]
        headers = {field.name: field.value for field in known}
        length = _length(status, headers, known, method, is_1_1=is_1_1)
        keeps, announced = is_1_1, b""
        options = headers.get("connection")
        if options is not None:
            if len(headers) != len(known):  # it may have come more than once
                options = b",".join([field.value for field in known if field.name == "connection"])
            options = options.lower()
            if options not in _PLAIN_CONNECTIONS:
                kept = _without_named(fields, options)
            keeps = (keeps or b"keep-alive" in options) and b"close" not in options
        if length == 0 and "content-length" in headers and (method == "HEAD" or status == 304):
            announced = b"content-length: %b\r\n" % headers["content-length"]
        return AnswerHead(status, line, kept, headers, length, announced, keeps and length != UNTIL_CLOSE)


def _length(status: int, headers: dict[str, bytes], known: list[Known], method: str, *, is_1_1: bool) -> int:
    if len(headers) != len(known):
        names = [field.name for field in known]
        if any(names.count(name) > 1 for name in _FRAMING):
            raise UpstreamError("answered with two lengths")
    coding, size = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and (size is not None or coding.lower() != b"chunked" or not is_1_1):
        raise UpstreamError("sent an answer whose length can be read in two ways")
    if size is not None and not (size.isdigit() and len(size) <= 18):
        raise UpstreamError("sent an answer whose length is no number")
    if method == "HEAD" or status in BODYLESS or status < 200:
        return 0
    if coding is not None:
        return CHUNKED
    return UNTIL_CLOSE if size is None else int(size)


def _without_named(fields: list[bytes], options: bytes) -> bytes:
    named = {option.strip(b" \t").decode("latin-1") for option in options.split(b",")} - _PROTECTED
    return b"".join(field for field in fields if field.partition(b":")[0].lower().decode("latin-1") not in named)


def _status_line(line: bytes) -> tuple[int, bool, bytes]:
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise UpstreamError("sent something that is no HTTP/1.1")
    minor, status, phrase = found.groups()
    return int(status), minor == b"1", b"HTTP/1.1 %b %b\r\n" % (status, phrase or b"")


def _field(line: bytes) -> bytes:
    """The line as the client gets it, CRLF included; nothing of one that is between neighbours."""
    found = FIELD_LINE.fullmatch(line)
    if found is None:
        raise UpstreamError("sent a malformed header field")
    name = found[1].lower().decode("latin-1")
    if name not in _KNOWN:
        return line + b"\r\n"
    known = Known(b"" if name in _HOP_BY_HOP else line + b"\r\n")
    known.name, known.value = name, found[2].strip(b" \t")
    return known
