"""What a recorded answer is: the bytes as they came, and what is to be read in them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from breakloop.model.call import Answer

SSE = b"text/event-stream; charset=utf-8"
JSON = b"application/json"
LINES = b"application/x-ndjson"
AWS = b"application/vnd.amazon.eventstream"


class Recorded(NamedTuple):
    dialect: str
    content_type: bytes
    body: bytes
    answer: Answer


def dump(value: Any) -> bytes:
    """As the providers write it: compact, and UTF-8 as it is."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def events(*payloads: Any) -> bytes:
    """One `data` line each; bytes stand as they are."""
    return b"".join([b"data: " + (one if isinstance(one, bytes) else dump(one)) + b"\n\n" for one in payloads])


def named(*payloads: Any) -> bytes:
    """The same with the name of each event before it, which is its type."""
    return b"".join([b"event: %s\ndata: %s\n\n" % (one["type"].encode(), dump(one)) for one in payloads])
