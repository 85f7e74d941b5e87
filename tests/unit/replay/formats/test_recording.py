"""Files: plain, gzipped, one document or many lines, whole or broken off."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from breakloop.replay.formats import recording as files
from breakloop.replay.formats.recording import Recording, RecordingError
from breakloop.replay.sessions import SessionSlice
from tests.unit.replay import transcripts
from tests.unit.replay.formats.test_otel import PRINTED
from tests.unit.replay.formats.test_requests_litellm_log import PAYLOAD
from tests.unit.replay.recorded import own_line

REQUEST = {"request": {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}, "response": "Hi."}


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def opened(content: bytes) -> Recording:
    return Recording(io.BufferedReader(io.BytesIO(content)), "file")


def read(recording: Recording) -> list[SessionSlice]:
    return list(recording.pieces())


@pytest.mark.parametrize(
    ("record", "name"),
    [(own_line("a", 1), "breakloop"), (PRINTED, "opentelemetry"), (PAYLOAD, "litellm"), (REQUEST, "requests")],
)
def test_the_first_line_tells_the_format(record: dict[str, Any], name: str) -> None:
    """The first line tells the format (X-5)."""
    recording = opened(lines(record, record))
    assert len(read(recording)) == 2
    assert (recording.format, recording.records, recording.skipped) == (name, 2, 0)


def test_gzip_is_seen_by_its_first_bytes(tmp_path: Path) -> None:
    """Whatever the file is called; progress is told in bytes of the file (X-5)."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(lines(own_line("a", 1), own_line("b", 1))))
    told: list[int] = []
    with path.open("rb") as file:
        assert [piece.session.id for piece in Recording(file, "a", told.append).pieces()] == ["a", "b"]
    assert told[-1] == path.stat().st_size


@pytest.mark.parametrize("indent", [None, 2])
def test_one_document(indent: int | None) -> None:
    """A list of records, on one line or many (X-5)."""
    content = json.dumps([own_line("a", 1), own_line("b", 1)], indent=indent).encode()
    assert [piece.session.id for piece in read(opened(content))] == ["a", "b"]


def test_what_cannot_be_read_is_passed_over_and_told() -> None:
    """A log that was cut off is still a log (X-5)."""
    recording = opened(
        lines(own_line("a", 1)) + b"\n[1]\n" + lines({"turns": 1}) + lines(own_line("b", 1)) + b'{"turns": ['
    )
    assert [piece.session.id for piece in read(recording)] == ["a", "b"]
    assert recording.skipped == 3
    assert recording.problems == ["line 3: is not a JSON object", "line 4: has no list of turns", "line 6: is not JSON"]


def test_gzip_that_ends_early() -> None:
    """What came before the end is read (X-5)."""
    packed = gzip.compress(lines(*[own_line(f"{number}", number % 7) for number in range(3000)]))
    recording = opened(packed[: len(packed) // 2])
    assert 0 < len(read(recording)) < 3000
    assert recording.problems[-1].startswith("the file is truncated")


@pytest.mark.slow
def test_gzip_that_is_broken_inside() -> None:
    """The same where a block of it is none (X-5)."""
    content = lines(*[own_line(f"{number}", 1) for number in range(20)])
    stored = b"\x00" + len(content).to_bytes(2, "little") + (0xFFFF - len(content)).to_bytes(2, "little") + content
    recording = opened(gzip.compress(b"")[:10] + stored * 500 + b"\x07")
    assert 0 < len(read(recording)) <= 10_000
    assert recording.problems[-1].startswith("the file is truncated")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "contains no recorded session or request"),
        (b"hello\n", "is neither JSON Lines nor a JSON document"),
        (b'{"a": 1}\n', "line 1: is not a record in a supported format"),
        (b"{\n", "is neither JSON Lines nor a JSON document"),
    ],
)
def test_what_is_no_recording(content: bytes, said: str) -> None:
    """The message names the file and says why (X-5)."""
    with pytest.raises(RecordingError, match=r"^file: ") as raised:
        read(opened(content))
    assert said in str(raised.value)


def test_the_first_record_may_be_a_stranger() -> None:
    """A heading before the log is no reason to refuse it."""
    recording = opened(lines({"version": 1}, own_line("a", 1)))
    assert len(read(recording)) == 1
    assert recording.skipped == 1


@pytest.mark.parametrize(
    ("records", "name", "turns"),
    [
        (list(transcripts.claude(transcripts.FINE)), "claude-code", 5),
        (list(transcripts.rollout(transcripts.FINE)), "codex", 5),
        (list(transcripts.openhands(transcripts.FINE)), "openhands", 5),
        (list(transcripts.openhands_sdk(transcripts.FINE)), "openhands", 5),
        ([transcripts.trajectory(transcripts.FINE)], "swe-agent", 5),
        ([transcripts.conversation(transcripts.FINE)], "chat", 6),
    ],
)
def test_transcripts_of_programs(records: list[dict[str, Any]], name: str, turns: int) -> None:
    """Recognised by content; as lines, and as one document (X-6)."""
    for content in (lines(*records), json.dumps(records, indent=1).encode()):
        recording = opened(content)
        assert sum(len(piece.turns) for piece in recording.pieces()) == turns
        assert (recording.format, recording.skipped) == (name, 0)


def test_lines_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are passed over without being held, and named; the others are read (X-6)."""
    monkeypatch.setattr(files, "_LINE_MAX_BYTES", 1000)
    long = b'{"turns": [' + b" " * 5000 + b"]}\n"
    recording = opened(lines(own_line("a", 1)) + long + lines(own_line("b", 1)) + long[:-1])
    assert [piece.session.id for piece in read(recording)] == ["a", "b"]
    assert recording.problems == ["line 2: is longer than 0 MB", "line 4: is longer than 0 MB"]


def test_the_first_line_may_be_damaged() -> None:
    """A log that was rotated in the middle of a line (X-6)."""
    recording = opened(b'{"turns": [\n' + lines(own_line("a", 1)) + b"{\n" + lines(own_line("b", 1)))
    assert [piece.session.id for piece in read(recording)] == ["a", "b"]
    assert recording.problems == ["line 1: is not JSON", "line 3: is not JSON"]


def test_a_long_file_of_something_else_is_not_read_to_its_end() -> None:
    """Folders hold other JSON too (X-6)."""
    recording = opened(lines({"a": 1}) * 1000)
    with pytest.raises(RecordingError):
        read(recording)
    assert recording.skipped == 200
