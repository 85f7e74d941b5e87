"""Open a recording, plain or gzipped, detect its format by its first record, and read all records.

A record that cannot be read is counted and skipped: logs may end in the middle of a line.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final

from breakloop.dialects.content import load
from breakloop.errors import BreakloopError
from breakloop.replay.formats import claude_code, codex, openhands, otel, own, requests, swe_agent
from breakloop.replay.formats.base import FormatReader
from breakloop.replay.sessions import SessionSlice

_GZIP: Final = b"\x1f\x8b"
_WHOLE_MAX_BYTES: Final = 512 * 1024 * 1024  # size of a file that is one JSON document
_LINE_MAX_BYTES: Final = 128 * 1024 * 1024
_STRANGERS_MAX: Final = 200  # records without a known format before the file is rejected
_SHOWN: Final = 5


class RecordingError(BreakloopError):
    """The file is not a recording in a known format."""


class NotJsonError(RecordingError):
    """The file is not JSON: damaged, or something else."""


# In the order in which they are tried; the last one accepts any request body.
FORMATS: Final[tuple[type[FormatReader], ...]] = (
    own.OwnReader,
    otel.OtelReader,
    requests.LitellmReader,
    claude_code.ClaudeCodeReader,
    codex.CodexReader,
    openhands.OpenHandsReader,
    swe_agent.SweAgentReader,
    requests.ChatLogReader,
    requests.RequestLogReader,
)


class Recording:
    """One file. After reading, `skipped` counts the records that were skipped."""

    def __init__(self, file: IO[bytes], name: str, progress: Callable[[int], None] | None = None) -> None:
        self._file = file
        self._name = name
        self._progress = progress
        self.format = ""
        self.records = 0
        self.skipped = 0
        self.problems: list[str] = []  # the first of them, with their lines

    def pieces(self) -> Iterator[SessionSlice]:
        """Read everything. Raises `RecordingError` if the format is unknown."""
        reader: FormatReader | None = None
        for number, record in self._records():
            if reader is None:
                reader = self._reader(record)
                if reader is None:
                    self._skip(number, "is not a record in a supported format")
                    if self.skipped >= _STRANGERS_MAX:
                        break
                    continue
            try:
                yield from reader.take(record)
            except (ValueError, TypeError, RecursionError) as error:
                self._skip(number, str(error))
                continue
            self.records += 1
        if reader is not None:
            yield from reader.end()
        if not self.records:
            first = f" ({self.problems[0]})" if self.problems else ""
            raise RecordingError(f"{self._name}: contains no recorded session or request{first}")

    def _reader(self, record: Mapping[str, Any]) -> FormatReader | None:
        kind = next((kind for kind in FORMATS if kind.fits(record)), None)
        if kind is None:
            return None
        self.format = kind.format
        return kind(self._name)

    def _records(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        lines = self._lines()
        for number, line in lines:
            if not line.strip():
                continue
            found = load(line)
            if found is None and not (self.records or self.skipped):
                yield from self._document(line, lines)  # may be one document over several lines
                continue
            yield from self._objects(number, found)

    def _objects(self, number: int, found: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
        if found is None:
            self._skip(number, "is not JSON")
            return
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict):
                yield number, one
            else:
                self._skip(number, "is not a JSON object")

    def _document(self, begun: bytes, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Read the file as one document, or as lines of which the first is damaged."""
        text = io.BytesIO()
        text.write(begun)
        if begun.lstrip()[:1] in (b"{", b"["):
            for _, line in lines:
                text.write(line)
                if text.tell() > _WHOLE_MAX_BYTES:
                    break
        found = load(text.getvalue())
        if found is not None:
            yield from self._objects(1, found)
            return
        listed = [load(line) for line in text.getvalue().splitlines()]
        if not any(isinstance(one, dict) for one in listed):
            raise NotJsonError(f"{self._name}: is neither JSON Lines nor a JSON document")
        for number, one in enumerate(listed, 1):
            yield from self._objects(number, one)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        start = self._file.peek(2)[:2] if isinstance(self._file, io.BufferedReader) else b""
        source = gzip.GzipFile(fileobj=self._file) if start == _GZIP else self._file
        try:
            number = 0
            while line := source.readline(_LINE_MAX_BYTES + 1):
                number += 1
                if len(line) > _LINE_MAX_BYTES:
                    self._skip(number, f"is longer than {_LINE_MAX_BYTES // 2**20} MB")
                    while len(line) > _LINE_MAX_BYTES and not line.endswith(b"\n"):
                        line = source.readline(_LINE_MAX_BYTES + 1)
                    continue
                yield number, line
                if self._progress is not None and self._file.seekable():
                    self._progress(self._file.tell())
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._skip(0, f"the file is truncated: {error}")
        except OSError as error:
            raise RecordingError(f"{self._name}: cannot be read: {error.strerror or error}") from None

    def _skip(self, number: int, why: str) -> None:
        self.skipped += 1
        if len(self.problems) < _SHOWN:
            self.problems.append(f"line {number}: {why}" if number else why)
