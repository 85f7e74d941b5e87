"""How a streamed answer is cut into events: Server-Sent Events, one JSON object a line, and the event stream of AWS
(`aws_events`). A parser takes bytes as they come and returns the payloads of complete events: the same ones, however
the bytes are cut into pieces. No input makes it fail, and it buffers at most one event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

Form = Literal["stream", "lines", "aws", "body"]
STREAM: Final = "stream"  # Server-Sent Events
LINES: Final = "lines"
AWS: Final = "aws"
BODY: Final = "body"  # not streamed

_FORMS: Final[dict[bytes, Form]] = {
    b"text/event-stream": STREAM,
    b"application/x-ndjson": LINES,
    b"application/jsonl": LINES,
    b"application/vnd.amazon.eventstream": AWS,
    b"application/json": BODY,
    b"text/json": BODY,
}


def form_of(content_type: bytes, *, streamed: bool = False) -> Form | None:
    """Return how an answer is cut into events, or `BODY`; None if there is nothing to read. `streamed` (requested)
    applies if no type is given."""
    found = _FORMS.get(content_type)  # as most are spelled
    if found is not None:
        return found
    kind = content_type.partition(b";")[0].strip().lower()
    found = _FORMS.get(kind)
    if found is not None:
        return found
    if not kind:
        return STREAM if streamed else BODY
    return BODY if kind.endswith(b"+json") else None


class EventParser(Protocol):
    """One stream being cut into events."""

    skipped: int  # events that were too long, or broken

    @property
    def between(self) -> bool:
        """Whether nothing is buffered: the next byte begins an event."""
        ...

    def feed(self, data: bytes) -> Sequence[bytes]: ...

    def finish(self) -> Sequence[bytes]: ...


def event_parser(form: Form, max_bytes: int) -> EventParser:
    """Return the parser of a stream of this form."""
    if form == AWS:
        from breakloop.dialects.aws_events import AwsEventParser  # noqa: PLC0415 - only Bedrock needs it

        return AwsEventParser(max_bytes)
    return JsonLinesParser(max_bytes) if form == LINES else SseParser(max_bytes)


# A longer event is skipped and counted. Images come in events of several megabytes.
EVENT_MAX_BYTES: Final = 4 * 1024 * 1024
_LF: Final = 10  # as numbers, because searching bytes for a number is three times as fast
_CR: Final = 13
_BOM: Final = b"\xef\xbb\xbf"
_COMMENT: Final = b":"


class SseParser:
    """Splits a stream of Server-Sent Events. Their names are dropped, because every dialect that has them repeats them
    inside its JSON."""

    __slots__ = ("_after_cr", "_lines", "_max_bytes", "_partial", "_raw", "_size", "_skipping", "between", "skipped")

    def __init__(self, max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.between = True  # nothing is buffered: the next byte begins an event
        self._partial = bytearray()  # an incomplete line
        self._lines: list[bytes] = []  # data lines of the incomplete event
        self._size = 0  # of these lines, with their field names
        self._raw = False  # this event is a JSON object without a field name
        self._skipping = False  # this event is too long
        self._after_cr = False  # the next line feed belongs to the line end before it
        self.skipped = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Parse the next bytes; return the data of the events that they complete."""
        # Nearly every piece is one event: a data line, in some dialects after the name of the event.
        if self.between and data.endswith(b"\n\n") and _CR not in data and len(data) <= self._max_bytes:
            start = 0 if data.startswith(b"data: ") else data.find(b"\n") + 1 if data.startswith(b"event: ") else -1
            if start == 0 or (start > 0 and data.startswith(b"data: ", start)):
                payload = data[start + 6 : -2]
                if payload and _LF not in payload:
                    return (payload,)
        return self._split(data)

    def finish(self) -> Sequence[bytes]:
        """Return the last event if only the empty line at its end is missing."""
        return self._split(b"\n\n")

    def _split(self, data: bytes) -> Sequence[bytes]:
        if self._after_cr or _CR in data:
            data = self._with_line_feeds(data)
        partial = self._partial
        found: list[bytes] = []
        if _LF in data:
            if partial:
                partial += data
                data = bytes(partial)
                partial.clear()
            lines = data.split(b"\n")
            partial += lines.pop()
            self._sort(lines, found)
        else:
            partial += data
        if len(partial) > self._max_bytes:
            self._skip()
            partial[:] = _COMMENT  # so that the rest of this line is ignored
        self.between = not (partial or self._size or self._skipping or self._after_cr)
        return found

    def _with_line_feeds(self, data: bytes) -> bytes:
        """CR LF, CR and LF all end a line, and a piece may end between CR and LF."""
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == _LF:
                data = data[1:]
        if data.endswith(b"\r"):
            self._after_cr = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if _CR in data else data

    def _sort(self, lines: list[bytes], found: list[bytes]) -> None:
        """Process complete lines. An empty line ends an event."""
        for line in lines:
            if not line:
                if self._size or self._skipping:
                    self._end(found)
            elif len(line) > self._max_bytes:
                self._skip()
            elif line.startswith(b"data:"):
                if self._raw:
                    self._end(found)
                self._keep(line)
            elif not line.startswith((b"event:", _COMMENT)):
                self._other(line.removeprefix(_BOM))

    def _other(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._keep(line)
        elif self._raw or (line.startswith(b"{") and not self._size):
            # Servers that fail in the middle of a stream may send a plain JSON object.
            self._raw = True
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        if self._skipping:
            return
        self._size += len(line)
        if self._size > self._max_bytes:
            self._skip()
        elif self._raw:
            self._lines.append(line)
        else:
            self._lines.append(line[6:] if line.startswith(b" ", 5) else line[5:])

    def _end(self, found: list[bytes]) -> None:
        lines = self._lines
        payload = lines[0] if len(lines) == 1 else b"\n".join(lines)
        if payload:
            found.append(payload)
        lines.clear()
        self._size = 0
        self._raw = self._skipping = False

    def _skip(self) -> None:
        if not self._skipping:
            self._skipping = True
            self.skipped += 1
        self._lines.clear()


class JsonLinesParser:
    """Splits a stream of lines, each a JSON object."""

    __slots__ = ("_max_bytes", "_partial", "_skipping", "skipped")

    def __init__(self, max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()
        self._skipping = False  # this line is too long
        self.skipped = 0

    @property
    def between(self) -> bool:
        return not (self._partial or self._skipping)

    def feed(self, data: bytes) -> Sequence[bytes]:
        *lines, rest = data.split(b"\n")
        found: list[bytes] = []
        for line in lines:
            self._add(line)
            if not self._skipping and (whole := bytes(self._partial).strip()):
                found.append(whole)
            self._partial.clear()
            self._skipping = False
        self._add(rest)
        return found

    def finish(self) -> Sequence[bytes]:
        """Return the last line, if only its end is missing."""
        return self.feed(b"\n")

    def _add(self, piece: bytes) -> None:
        if not self._skipping:
            self._partial += piece
            if len(self._partial) > self._max_bytes:
                self._skipping = True
                self.skipped += 1
                self._partial.clear()
