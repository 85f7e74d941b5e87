"""Reads what was recorded, whole or in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from breakloop.dialects.answers import AnswerReader
from breakloop.dialects.registry import reader
from breakloop.model.call import Answer
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, events


def started(dialect: str, content_type: bytes) -> AnswerReader:
    """A reader, which there has to be."""
    found = reader(dialect, content_type)
    assert found is not None
    return found


def read(recorded: Recorded, pieces: Iterable[bytes] = (), *, complete: bool = True) -> Answer:
    """What is read when the body comes in these pieces; else in one."""
    reading = started(recorded.dialect, recorded.content_type)
    for piece in pieces or [recorded.body]:
        reading.feed(piece)
    return reading.answer(200, complete=complete)


def stream(dialect: str, *payloads: Any) -> Answer:
    """What is read of these events."""
    return read(Recorded(dialect, SSE, events(*payloads), Answer(200)))


def whole(dialect: str, value: Any, status: int = 200) -> Answer:
    """What is read of this body."""
    reading = started(dialect, JSON)
    reading.feed(dump(value))
    return reading.answer(status, complete=True)
