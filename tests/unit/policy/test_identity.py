"""Callers and keys by name; sessions and traces as header fields name them."""

from __future__ import annotations

import hashlib

import pytest

from breakloop.model.call import Call
from breakloop.policy.identity import (
    CONVERSATION_HEADERS,
    PARENT_HEADERS,
    IdentityHasher,
    api_key,
    conversation_header,
    parent_header,
    session_header,
    trace_id,
)
from tests.each import each


def key_of(headers: dict[str, bytes], query: str = "") -> bytes:
    return api_key(
        Call("GET", "/", headers=headers, query=query), lambda call: dict([call.query.split("=")]).get("key")
    )


@each(
    "headers, expected",
    [
        ({"authorization": b"Bearer sk-1"}, b"sk-1"),
        ({"authorization": b"bearer  sk-1 "}, b"sk-1"),
        ({"authorization": b"Basic dXNlcjpwYXNz"}, b"Basic dXNlcjpwYXNz"),
        ({"x-api-key": b"sk-1"}, b"sk-1"),
        ({"api-key": b"sk-1"}, b"sk-1"),
        ({"x-goog-api-key": b"sk-1"}, b"sk-1"),
        ({"authorization": b"Bearer ", "x-api-key": b"sk-2"}, b"sk-2"),
        ({"authorization": b"Bearer sk-1", "x-api-key": b"sk-2"}, b"sk-1"),
        ({"x-api-key": b""}, b""),
        ({}, b""),
    ],
)
def test_where_an_api_key_stands(headers: dict[str, bytes], expected: bytes) -> None:
    """Authorization, x-api-key, api-key, x-goog-api-key, in this order (C-7)."""
    assert key_of(headers) == expected


def test_the_query_key_comes_last() -> None:
    """`?key=` counts when no header has a key (C-7)."""
    assert key_of({}, "key=AIza") == b"AIza"
    assert key_of({"x-api-key": b"sk"}, "key=AIza") == b"sk"


def test_digests_are_keyed_and_stable() -> None:
    """32 hex digits, the same on every instance with the same secret, and of the whole key (C-7)."""
    expected = hashlib.blake2b(b"sk-1", key=b"secret", digest_size=16).hexdigest()
    assert IdentityHasher(b"secret").of_key(b"sk-1") == expected
    digests = IdentityHasher(b"secret")
    assert digests.of_key(b"sk-1") == digests.of_key(b"sk-1") == expected
    assert IdentityHasher(b"other").of_key(b"sk-1") != expected
    assert digests.of_key(b"sk-" + b"x" * 200 + b"1") != digests.of_key(b"sk-" + b"x" * 200 + b"2")


def test_secrets_of_any_length_work_in_full() -> None:
    """A long secret is not cut off (C-7)."""
    assert IdentityHasher(b"s" * 100 + b"1").of_key(b"k") != IdentityHasher(b"s" * 100 + b"2").of_key(b"k")
    assert len(IdentityHasher(b"").of_key(b"k")) == 32


def test_long_names_are_digested() -> None:
    digests = IdentityHasher(b"secret")
    assert digests.bounded("a" * 256) == "a" * 256
    assert len(digests.bounded("a" * 60_000)) < 64
    assert digests.bounded("a" * 60_000) != digests.bounded("a" * 60_001)


def asked(**headers: bytes) -> Call:
    return Call("POST", "/", headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("name", CONVERSATION_HEADERS)
def test_conversations_that_clients_name(name: str) -> None:
    """What Codex, Claude Code, OpenCode, LiteLLM and others send names the conversation; ours comes first (C-7)."""
    assert conversation_header(Call("POST", "/", headers={name: b" s-1 "})) == "s-1"
    both = Call("POST", "/", headers={name: b"theirs", "x-agent-session": b"ours"})
    assert conversation_header(both) == "ours"


def test_the_narrowest_id_of_a_client_wins() -> None:
    """Codex' sub-agents share a `session-id`, Claude Code's are told apart by a second header field (C-7)."""
    codex = asked(session_id=b"root", thread_id=b"sub-agent", x_client_request_id=b"sub-agent")
    assert conversation_header(codex) == "sub-agent"
    assert conversation_header(asked(x_claude_code_session_id=b"s", x_claude_code_agent_id=b"a")) == "s/a"
    assert conversation_header(asked(x_claude_code_agent_id=b"a")) == ""
    assert conversation_header(asked(x_agent_session=b"ours", x_claude_code_agent_id=b"a")) == "ours"


@pytest.mark.parametrize("value", [b"", b"  ", b"null", b"undefined", b"None"])
def test_what_a_client_without_an_id_sends(value: bytes) -> None:
    """The words of a program that has no id are not one (C-7)."""
    assert conversation_header(asked(x_agent_session=value)) == ""
    assert session_header(asked(mcp_session_id=value)) == ""
    assert conversation_header(asked(x_agent_session=value, session_id=b"next")) == "next"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"mcp_session_id": b"m", "helicone_session_id": b"h"}, "m"),
        ({"helicone_session_id": b"h", "x_zoo_session_id": b"z"}, "h"),
        ({"x_zoo_session_id": b"z", "x_client_session_id": b"c"}, "c"),
        ({"baggage": b"a=1, langfuse_session_id=chat%201;ttl=5,session.id=x"}, "chat 1"),
        ({"baggage": b"user.id=u,session.id=x"}, "x"),
        ({"baggage": b"user.id=u,,=,session.id="}, ""),
        ({"x_request_id": b"r", "x_client_request_id": b"r", "x_user_id": b"u", "cookie": b"session=1"}, ""),
        ({}, ""),
    ],
)
def test_wider_sessions(headers: dict[str, bytes], expected: str) -> None:
    """MCP's and Helicone's sessions, whatever ends in -session-id, and baggage; never ids of users or requests
    (C-7)."""
    assert session_header(asked(**headers)) == expected
    assert conversation_header(asked(**headers)) == ""


def test_trace_ids() -> None:
    """Of `traceparent`, else of LiteLLM's own field (C-7)."""
    trace = b"4bf92f3577b34da6a3ce929d0e0e4736"
    sent = asked(traceparent=b"00-" + trace + b"-00f067aa0ba902b7-01", x_litellm_trace_id=b"t")
    assert trace_id(sent) == trace.decode()
    assert trace_id(asked(traceparent=b"00-xyz", x_litellm_trace_id=b"t")) == "t"
    assert trace_id(asked(traceparent=b"\xff")) == ""
    assert trace_id(asked()) == ""


@pytest.mark.parametrize("name", PARENT_HEADERS)
def test_parents_that_clients_name(name: str) -> None:
    """Ours, Codex', OpenCode's, Kilo Code's, Copilot's; a parent's session is never taken for one's own (C-7)."""
    assert parent_header(Call("POST", "/", headers={name: b" p-1 "})) == "p-1"
    assert parent_header(Call("POST", "/", headers={name: b"theirs", "x-agent-parent": b"ours"})) == "ours"
    assert parent_header(Call("POST", "/", headers={name: b"null"})) == ""
    alone = Call("POST", "/", headers={name: b"p-1"})
    assert conversation_header(alone) == session_header(alone) == ""
    both = Call("POST", "/", headers={name: b"p-1", "x-session-id": b"own"})
    assert (conversation_header(both), parent_header(both)) == ("own", "p-1")


def test_parents_of_claude_code() -> None:
    """A sub-agent was started by the session, or by another sub-agent of it; by the names that these go by (C-7)."""
    main = asked(x_claude_code_session_id=b"s")
    first = asked(x_claude_code_session_id=b"s", x_claude_code_agent_id=b"a")
    second = asked(x_claude_code_session_id=b"s", x_claude_code_agent_id=b"b", x_claude_code_parent_agent_id=b"a")
    assert [parent_header(call) for call in (main, first, second)] == ["", "s", "s/a"]
    assert parent_header(first) == conversation_header(main)
    assert parent_header(second) == conversation_header(first)
    assert parent_header(asked(x_claude_code_parent_agent_id=b"a")) == ""
    assert parent_header(asked(x_claude_code_session_id=b"s", x_claude_code_agent_id=b"null")) == ""
    assert parent_header(asked(x_request_id=b"r", x_user_id=b"u")) == ""
