"""The call: what a door hands over, and that nothing was looked at yet."""

from __future__ import annotations

import pytest

from breakloop.model.call import CREDENTIAL_HEADERS, SECRET_HEADERS, UNDECIDED, Call, Chat, Message, ToolCall


def test_a_call_starts_unread() -> None:
    """Only what is asked for is worked out, later and once (C-1)."""
    call = Call("GET", "/x")
    assert (call.parsed.chat, call.identity.claims, call.identity.caller) == (None, None, None)
    assert (call.identity.agent, call.identity.ip, call.parsed.query) == (None, None, None)
    assert (call.host, call.query, call.body, call.peer, call.repeated, dict(call.headers)) == ("", "", b"", "", (), {})
    assert not call.identity.verified
    assert not call.body_unseen
    assert (call.tracked, call.reported, call.decision) == (False, False, UNDECIDED)


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
    one.identity.caller, one.parsed.chat, one.identity.verified = "me", False, True
    assert (other.identity.caller, other.parsed.chat, other.identity.verified) == (None, None, False)


def test_nothing_is_written_to_a_decision_that_was_not_made() -> None:
    """All calls that the engine has not seen share it (E-7)."""
    with pytest.raises(AttributeError, match="no decision yet"):
        Call("GET", "/x").decision.wants_usage = True


def test_a_body_is_replaced_together_with_the_fields_that_describe_it() -> None:
    call = Call("POST", "/x", headers={"content-encoding": b"gzip"}, body=b"packed")
    call.replace_body(b"plain", {})
    assert (call.body, dict(call.headers)) == (b"plain", {})


def test_a_released_body_leaves_the_head_of_its_chat() -> None:
    """A thousand streams must not hold a thousand long conversations (Y-2)."""
    call = Call("POST", "/x", body=b"long")
    call.parsed.chat = Chat("openai_chat", "m", (Message("user", "hi"),), 1)
    call.release_body(b"{}")
    assert (call.body, call.parsed.body, call.parsed.chat) == (b"{}", None, Chat("openai_chat", "m", (), 1))


def test_what_was_read_is_a_value() -> None:
    """Equal content is equal, and cannot be changed afterwards (C-8)."""
    message = Message("user", "hi", (ToolCall("f", "{}"),))
    assert message == Message("user", "hi", (ToolCall("f", "{}"),))
    with pytest.raises(AttributeError):
        message.text = "ho"  # type: ignore[misc]
    chat = Chat("openai", "m", (message,), 1)
    assert (chat.stream, chat.max_tokens, chat.fallback) == (False, None, "")
