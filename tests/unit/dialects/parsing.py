"""What dialects read from request bodies, for tests that need one part of it."""

from __future__ import annotations

from breakloop.dialects import registry
from breakloop.dialects.session_ids import NONE, BodyIds
from breakloop.model.call import Chat, Step


def read_chat(method: str, path: str, body: bytes, tail: int) -> Chat | None:
    """The chat of a request with its last `tail` messages."""
    parsed = registry.parse(method, path, body)
    return None if parsed is None else parsed.chat(tail)


def read_opening(method: str, path: str, body: bytes) -> str:
    parsed = registry.parse(method, path, body)
    return "" if parsed is None else parsed.opening()


def chat(dialect: str, body: bytes, tail: int, path: str = "") -> Chat | None:
    """The chat of a body whose dialect is known."""
    parsed = registry.DIALECTS[dialect].parse(body, path)
    return None if parsed is None else parsed.chat(tail)


def opening(dialect: str, body: bytes) -> str:
    parsed = registry.DIALECTS[dialect].parse(body)
    return "" if parsed is None else parsed.opening()


def newest_step(dialect: str, body: bytes) -> Step | None:
    parsed = registry.DIALECTS[dialect].parse(body)
    return None if parsed is None else parsed.newest_step()


def session_ids(dialect: str, body: bytes) -> BodyIds:
    parsed = registry.DIALECTS[dialect].parse(body)
    return NONE if parsed is None else parsed.session_ids()


def append_note(dialect: str, body: bytes, note: str) -> bytes | None:
    return registry.DIALECTS[dialect].append_note(body, note)
