"""What a client gets after a thought that repeats itself, with `retry_thoughts`: the thought is ended, the model is
asked once more with a note, and its second response becomes the rest of the stream that the client is reading.

How a dialect ends a thought and numbers what follows, `Dialect.resume_stream` defines. `Exchange` sends and receives.
"""

from __future__ import annotations

from typing import Final

from breakloop.dialects.answers import Rewrite, event_fields, named_event, sse_event
from breakloop.dialects.framing import STREAM, SseParser, form_of
from breakloop.gateway.framing import ChunkBoundary
from breakloop.gateway.http_response import LAST_CHUNK, RECHUNKED, UNTIL_CLOSE, ResponseHead, final_bytes

NOTE: Final = "Your last thought repeated itself ({}) and was ended. Think briefly, and answer now."


class SecondAnswer:
    """The rest of one stream. `closing` are the bytes that end the thought, `ending` those that end the response
    instead, if there is no second one."""

    __slots__ = ("_events", "_line_end", "_rewrite", "closing", "ending", "framing")

    def __init__(
        self,
        thought: tuple[bytes, Rewrite],
        line_end: bytes,
        *,
        ending: bytes,
        framing: int,
        boundary: ChunkBoundary | None,
    ) -> None:
        closing, self._rewrite = thought  # of `Dialect.resume_stream`
        self._events = SseParser()
        self._line_end = line_end
        self.framing = UNTIL_CLOSE if framing == UNTIL_CLOSE else RECHUNKED
        framed = final_bytes(closing.replace(b"\n", line_end), framing, boundary)
        self.closing = framed if framing == UNTIL_CLOSE else framed.removesuffix(LAST_CHUNK)
        self.ending = final_bytes(ending, framing, boundary)

    def accepts(self, head: ResponseHead) -> bool:
        """Return whether a response can continue the stream."""
        fields = head.headers
        streams = form_of(fields.get("content-type", b""), streamed=True) == STREAM
        return head.status < 400 and streams and not fields.get("content-encoding")

    def content(self, content: list[bytes]) -> list[bytes]:
        """Return content of the second response as the client gets it."""
        events = [self._event(payload) for piece in content for payload in self._events.feed(piece)]
        return [b"".join(events).replace(b"\n", self._line_end)]

    def _event(self, payload: bytes) -> bytes:
        fields = event_fields(payload)
        if not fields:  # the end mark
            return b"data: " + payload + b"\n\n"
        changed = self._rewrite(fields)
        if changed is None:
            return b""
        return named_event(changed) if "type" in changed else sse_event(changed)
