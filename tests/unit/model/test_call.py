"""The call: what a door hands over, and that nothing was looked at yet."""

from __future__ import annotations

import pytest

from breakloop.model.call import Call, Chat, Message, ToolCall


def test_a_call_starts_unread() -> None:
    """C-1: only what is asked for is worked out, later and once."""
    call = Call("GET", "/x")
    caches = [name for name in Call.__slots__ if name.endswith("_cache")]
    assert len(caches) == 6
    assert all(getattr(call, name) is None for name in caches)
    assert (call.host, call.query, call.body, call.peer, call.repeated, dict(call.headers)) == ("", "", b"", "", (), {})
    assert not call.verified
    assert not call.body_unseen


def test_headers_by_their_canonical_name() -> None:
    """C-2: the first value, as text; None for what is not there."""
    call = Call("GET", "/x", headers={"x-a": b"gr\xfc\xdfe"})
    assert call.header("x-a") == "grüße"
    assert call.header("x-b") is None


def test_nothing_else_can_be_stored_on_it() -> None:
    """E-7: a call has its fields and no others."""
    with pytest.raises(AttributeError):
        Call("GET", "/").colour = "red"  # type: ignore[attr-defined]


def test_what_was_read_is_a_value() -> None:
    """C-8: equal content is equal, and cannot be changed afterwards."""
    message = Message("user", "hi", (ToolCall("f", "{}"),))
    assert message == Message("user", "hi", (ToolCall("f", "{}"),))
    with pytest.raises(AttributeError):
        message.text = "ho"  # type: ignore[misc]
    chat = Chat("openai", "m", (message,), 1)
    assert (chat.stream, chat.max_tokens, chat.fallback) == (False, None, "")
