"""The call: what a door hands over, and that nothing was looked at yet."""

from __future__ import annotations

import pytest

from breakloop.model.call import CREDENTIAL_HEADERS, SECRET_HEADERS, Call, Chat, Message, ToolCall


def test_a_call_starts_unread() -> None:
    """Only what is asked for is worked out, later and once (C-1)."""
    call = Call("GET", "/x")
    assert (call.chat_cache, call.claims_cache, call.caller_cache) == (None, None, None)
    assert (call.agent_cache, call.ip_cache, call.query_cache) == (None, None, None)
    assert (call.host, call.query, call.body, call.peer, call.repeated, dict(call.headers)) == ("", "", b"", "", (), {})
    assert not call.verified
    assert not call.body_unseen
    assert (call.tracked, call.reported, call.ticket) == (False, False, None)


def test_headers_by_their_canonical_name() -> None:
    """The first value, as text; None for what is not there (C-2)."""
    call = Call("GET", "/x", headers={"x-a": b"gr\xfc\xdfe"})
    assert call.header("x-a") == "grüße"
    assert call.header("x-b") is None


def test_names_of_credential_fields() -> None:
    """What is a credential is secret, and so are two fields that no LLM API reads a key from (C-7, Y-1)."""
    assert CREDENTIAL_HEADERS == ("authorization", "x-api-key", "api-key", "x-goog-api-key")
    assert SECRET_HEADERS - {*CREDENTIAL_HEADERS} == {"proxy-authorization", "cookie"}


def test_calls_share_nothing() -> None:
    """What is remembered on one is not found on another (E-7)."""
    one, other = Call("GET", "/x"), Call("GET", "/x")
    one.caller_cache, one.chat_cache, one.verified = "me", False, True
    assert (other.caller_cache, other.chat_cache, other.verified) == (None, None, False)


def test_what_was_read_is_a_value() -> None:
    """Equal content is equal, and cannot be changed afterwards (C-8)."""
    message = Message("user", "hi", (ToolCall("f", "{}"),))
    assert message == Message("user", "hi", (ToolCall("f", "{}"),))
    with pytest.raises(AttributeError):
        message.text = "ho"  # type: ignore[misc]
    chat = Chat("openai", "m", (message,), 1)
    assert (chat.stream, chat.max_tokens, chat.fallback) == (False, None, "")
