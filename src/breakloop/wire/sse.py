"""Server-Sent Events, split as they pass: bytes in, the `data` of complete events out. However the bytes are cut into
pieces, the events are the same. What an event says is the dialects' business; event names are not kept, because every
dialect that has them repeats them inside its JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# An event that is longer (SPEC Y-2) is passed over and counted. Images travel in events of some megabytes.
EVENT_MAX_BYTES: Final = 4 * 1024 * 1024
_LF: Final = 10  # as numbers, because looking for one of these in bytes is three times as quick
_CR: Final = 13
_BOM: Final = b"\xef\xbb\xbf"
_COMMENT: Final = b":"


class Events:
    """Splits one stream. Holds at most one unfinished event, and of that no more than `max_bytes`."""

    __slots__ = ("_after_cr", "_between", "_lines", "_max_bytes", "_partial", "_raw", "_size", "_skipping", "skipped")

    def __init__(self, max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._between = True  # nothing is held: the next byte begins an event
        self._partial = bytearray()  # a line without its end
        self._lines: list[bytes] = []  # data of the event that is not at its end
        self._size = 0  # of these, with their field names
        self._raw = False  # this event is a JSON object without any field name
        self._skipping = False  # this event is too long
        self._after_cr = False  # the next line feed belongs to the line end before it
        self.skipped = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Take the next bytes; return the data of the events that they complete."""
        # Nearly every piece is one event: a line of data, and the event's name before it in some dialects.
        if self._between and data.endswith(b"\n\n") and _CR not in data and len(data) <= self._max_bytes:
            start = 0 if data.startswith(b"data: ") else data.find(b"\n") + 1 if data.startswith(b"event: ") else -1
            if start == 0 or (start > 0 and data.startswith(b"data: ", start)):
                payload = data[start + 6 : -2]
                if payload and _LF not in payload:
                    return (payload,)
        return self._split(data)

    def finish(self) -> Sequence[bytes]:
        """Return the event that lacks nothing but the empty line at its end, if there is one."""
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
            partial[:] = _COMMENT  # so that the rest of this line is taken for nothing else
        self._between = not (partial or self._size or self._skipping or self._after_cr)
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
        """Take complete lines one by one: an empty one ends an event."""
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
            # Servers that fail in the middle of a stream forget that it is one.
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
