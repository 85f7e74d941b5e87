"""Saying what to answer: the words that make an `Answer`, and the script that decides which request gets which."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from breakloop.model.answer import Usage
from breakloop.testing.answer import Answer, Body, Failure, Place
from breakloop.testing.http import SeenRequest

Respond = Callable[[SeenRequest], Answer | None]
When = Callable[[SeenRequest], bool]

DEFAULT_TEXT: Final = "This is a stand-in, not a model."
NONSENSE: Final = b"\x16\x03\x01 this is no HTTP\r\n\r\n"
_WORDS: Final = re.compile(r"\s*\S+\s*$|\s*\S+")


def say(text: str = "", *, chunks: Iterable[str] | None = None, finish: str = "", usage: Usage | None = None) -> Answer:
    """Answer with a text. Streamed, it comes word by word, or in the given chunks."""
    pieces = tuple(_WORDS.findall(text) or ([text] if text else [])) if chunks is None else tuple(chunks)
    return Answer(chunks=pieces, finish=finish, usage=usage)


def call_tool(
    name: str, arguments: Mapping[str, Any] | str | None = None, *, text: str = "", tool_id: str = ""
) -> Answer:
    """Want a tool called, after some text if there is any; `with_tool` adds further calls."""
    return say(text).with_tool(name, arguments, tool_id=tool_id)


def tool_failed(text: str) -> Answer:
    """MCP: the tool ran and failed, which the model may read."""
    return replace(say(text), tool_error=True)


def fail(
    status: int = 500,
    message: str = "",
    *,
    kind: str = "",
    code: str = "",
    retry_after: int | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Answer with an error, in the shape of the dialect that was spoken."""
    fields = tuple((headers or {}).items())
    if retry_after is not None:
        fields = (("Retry-After", str(retry_after)), *fields)
    failure = Failure(message or f"stand-in error {status}", kind, code)
    return Answer(status=status, failure=failure).with_headers(*fields)


def body(content: bytes | Sequence[bytes], *, content_type: str = "application/json", status: int = 200) -> Answer:
    """Answer with this body, sent in one piece or in the given ones, framed properly."""
    pieces = (content,) if isinstance(content, bytes) else tuple(content)
    return Answer(status=status, body=Body(pieces, content_type))


def sized(size_bytes: int, *, chunks: int = 1) -> Answer:
    """Answer with a body of exactly so many bytes; streamed, with a text of about that, in so many chunks."""
    each, more = divmod(max(size_bytes, 0), max(chunks, 1))
    pieces = [filler(each + (1 if index < more else 0)) for index in range(max(chunks, 1))]
    return replace(say(chunks=pieces), size_bytes=size_bytes)


def raw(data: bytes | Sequence[bytes], *, close: bool = True) -> Answer:
    """Send exactly these bytes for an answer, head and all, and close (or leave the connection open)."""
    return Answer(raw=(data,) if isinstance(data, bytes) else tuple(data)).sent(close=close)


def nonsense(data: bytes = NONSENSE) -> Answer:
    """Answer with what is no HTTP at all."""
    return raw(data)


def stall(at: Place = "start", *, for_s: float | None = None) -> Answer:
    """Say nothing: no head at all, unless `at` says otherwise."""
    return say(DEFAULT_TEXT).stall(at, for_s=for_s)


def cut(at: Place = "start", *, after_bytes: int | None = None, mid_chunk: bool = False, reset: bool = False) -> Answer:
    """Take the request and end the connection: before the head, unless told otherwise."""
    return say(DEFAULT_TEXT).cut(at, after_bytes=after_bytes, mid_chunk=mid_chunk, reset=reset)


def filler(size: int) -> str:
    """Return so many characters of plain text, no two lines alike: it must not be taken for a loop."""
    line = "the quick brown fox jumps over the lazy dog"
    return "".join([f"{number} {line} " for number in range(1, size // len(line) + 2)])[:size]


class Script:
    """Which request gets which answer: those queued first, then what `respond` says, then the default."""

    def __init__(self, default: Answer | None = None, respond: Respond | None = None) -> None:
        self.default = default
        self.respond = respond
        self._queue: deque[tuple[Answer, When | None]] = deque()

    @property
    def left(self) -> int:
        """How many queued answers nobody has asked for yet."""
        return len(self._queue)

    def next(self, *answers: Answer, when: When | None = None) -> None:
        """Queue answers, each for one request; with `when`, for requests that it holds for."""
        self._queue.extend((answer, when) for answer in answers)

    def early(self, seen: SeenRequest) -> Answer | None:
        """Take the queued answer that is meant to go before the body has come, if there is one for this request."""
        for index, (answer, when) in enumerate(tuple(self._queue)):
            if self._fits(seen, when):
                if not answer.manner.early:
                    return None
                del self._queue[index]
                return answer
        return None

    def take(self, seen: SeenRequest) -> Answer | None:
        """Take the answer for a complete request; None where the stand-in answers as it sees fit."""
        for index, (answer, when) in enumerate(tuple(self._queue)):
            if self._fits(seen, when):
                del self._queue[index]
                return answer
        if seen.is_housekeeping:
            return None
        answer_now = None if self.respond is None else self.respond(seen)
        return self.default if answer_now is None else answer_now

    @staticmethod
    def _fits(seen: SeenRequest, when: When | None) -> bool:
        return not seen.is_housekeeping if when is None else when(seen)
