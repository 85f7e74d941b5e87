"""Callers, keys and sessions by name."""

from __future__ import annotations

import hashlib

import pytest

from breakloop.model.call import Call
from breakloop.policy.identity import Digests, api_key, session_header


def key_of(headers: dict[str, bytes], query: str = "") -> bytes:
    return api_key(
        Call("GET", "/", headers=headers, query=query), lambda call: dict([call.query.split("=")]).get("key")
    )


@pytest.mark.parametrize(
    ("headers", "expected"),
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
    """C-7: Authorization, x-api-key, api-key, x-goog-api-key, in this order."""
    assert key_of(headers) == expected


def test_the_query_key_comes_last() -> None:
    """C-7: `?key=` counts when no header has a key."""
    assert key_of({}, "key=AIza") == b"AIza"
    assert key_of({"x-api-key": b"sk"}, "key=AIza") == b"sk"


def test_digests_are_keyed_and_stable() -> None:
    """C-7: 32 hex digits, the same on every instance with the same secret, and of the whole key."""
    expected = hashlib.blake2b(b"sk-1", key=b"secret", digest_size=16).hexdigest()
    assert Digests(b"secret").of_key(b"sk-1") == expected
    digests = Digests(b"secret")
    assert digests.of_key(b"sk-1") == digests.of_key(b"sk-1") == expected
    assert Digests(b"other").of_key(b"sk-1") != expected
    assert digests.of_key(b"sk-" + b"x" * 200 + b"1") != digests.of_key(b"sk-" + b"x" * 200 + b"2")


def test_secrets_of_any_length_work_in_full() -> None:
    """C-7: a long secret is not cut off."""
    assert Digests(b"s" * 100 + b"1").of_key(b"k") != Digests(b"s" * 100 + b"2").of_key(b"k")
    assert len(Digests(b"").of_key(b"k")) == 32


def test_long_names_are_digested() -> None:
    digests = Digests(b"secret")
    assert digests.bounded("a" * 256) == "a" * 256
    assert len(digests.bounded("a" * 60_000)) < 64
    assert digests.bounded("a" * 60_000) != digests.bounded("a" * 60_001)


@pytest.mark.parametrize(
    "name",
    [
        "x-agent-session",
        "mcp-session-id",
        "x-claude-code-session-id",
        "x-litellm-session-id",
        "session-id",
        "x-session-id",
    ],
)
def test_session_ids_that_clients_send(name: str) -> None:
    """C-7: ours, MCP's, Claude Code's, LiteLLM's and Codex' session headers."""
    assert session_header(Call("POST", "/", headers={name: b" s-1 "})) == "s-1"
    ours = Call("POST", "/", headers={name: b"theirs", "x-agent-session": b"ours"})
    assert session_header(ours) == "ours"


def test_no_session_header() -> None:
    assert session_header(Call("POST", "/", headers={"x-agent-session": b""})) == ""
