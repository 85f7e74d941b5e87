"""Opens a recording, plain or gzipped, finds its format by its first record, and hands every record to that format's
reader. A record that cannot be read is counted and passed over: logs end in the middle of a line."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, Protocol

from breakloop.errors import BreakloopError
from breakloop.replay.readers import litellm_log, otel, own, request_log
from breakloop.replay.sessions import Piece

_GZIP: Final = b"\x1f\x8b"
_WHOLE_MAX_BYTES: Final = 512 * 1024 * 1024  # of a file that is one JSON document
_SHOWN: Final = 5


class RecordingError(BreakloopError):
    """A file that is no recording in a format we know."""


class Reader(Protocol):
    """One format."""

    def take(self, record: Mapping[str, Any]) -> Sequence[Piece]:
        """Read one record; ValueError says why it cannot be read."""
        ...


class _Format(Protocol):
    def __call__(self, name: str) -> Reader: ...

    def fits(self, record: Mapping[str, Any]) -> bool: ...


# In the order in which they are asked; the last one takes whatever holds a request body.
FORMATS: Final[tuple[tuple[str, _Format], ...]] = (
    (own.FORMAT, own.OwnReader),
    (otel.FORMAT, otel.OtelReader),
    (litellm_log.FORMAT, litellm_log.LitellmReader),
    (request_log.FORMAT, request_log.RequestLogReader),
)


class Recording:
    """One file. After reading, `skipped` tells what was passed over."""

    def __init__(self, file: IO[bytes], name: str, progress: Callable[[int], None] | None = None) -> None:
        self._file = file
        self._name = name
        self._progress = progress
        self.format = ""
        self.records = 0
        self.skipped = 0
        self.problems: list[str] = []  # the first of them, with their lines

    def pieces(self) -> Iterator[Piece]:
        """Read everything; raises `RecordingError` when the file is none of the formats."""
        reader: Reader | None = None
        for number, record in self._records():
            if reader is None:
                reader = self._reader(record)
                if reader is None:
                    self._skip(number, "is no record of a format that replay knows")
                    continue
            try:
                found = reader.take(record)
            except (ValueError, TypeError, RecursionError) as error:
                self._skip(number, str(error))
                continue
            self.records += 1
            yield from found
        if not self.records:
            first = f" ({self.problems[0]})" if self.problems else ""
            raise RecordingError(f"{self._name}: holds no recorded session or request{first}")

    def _reader(self, record: Mapping[str, Any]) -> Reader | None:
        for name, kind in FORMATS:
            if kind.fits(record):
                self.format = name
                return kind(self._name)
        return None

    def _records(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        lines = self._lines()
        for number, line in lines:
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                if self.records or self.skipped:
                    self._skip(number, "is no JSON")
                    continue
                found = self._document(line, lines)  # perhaps one document over many lines
            for one in found if isinstance(found, list) else [found]:
                if isinstance(one, dict):
                    yield number, one
                else:
                    self._skip(number, "is no JSON object")

    def _document(self, begun: bytes, lines: Iterator[tuple[int, bytes]]) -> Any:
        text = io.BytesIO()
        text.write(begun)
        if begun.lstrip()[:1] in (b"{", b"["):
            for _, line in lines:
                text.write(line)
                if text.tell() > _WHOLE_MAX_BYTES:
                    break
        try:
            return json.loads(text.getvalue())
        except (ValueError, RecursionError):
            raise RecordingError(f"{self._name}: is neither JSON Lines nor a JSON document") from None

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        start = self._file.peek(2)[:2] if isinstance(self._file, io.BufferedReader) else b""
        source = gzip.GzipFile(fileobj=self._file) if start == _GZIP else self._file
        try:
            for number, line in enumerate(source, 1):
                yield number, line
                if self._progress is not None and self._file.seekable():
                    self._progress(self._file.tell())
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._skip(0, f"the file ends early: {error}")
        except OSError as error:
            raise RecordingError(f"{self._name}: cannot be read: {error.strerror or error}") from None

    def _skip(self, number: int, why: str) -> None:
        self.skipped += 1
        if len(self.problems) < _SHOWN:
            self.problems.append(f"line {number}: {why}" if number else why)
