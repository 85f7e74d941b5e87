"""Ids of conversations in bodies, as real clients write them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import registry, session_ids
from breakloop.dialects.content import load
from breakloop.dialects.session_ids import NONE, BodyIds, BodyModel, trace_of
from tests.each import each
from tests.unit.dialects import parsing

UUID = "0199ae1c-5f0e-7c32-9d0b-7e8a4c1f2b3d"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
DIALECTS = (
    "openai_chat",
    "openai_responses",
    "openai_completions",
    "openai_embeddings",
    "anthropic_messages",
    "gemini",
    "mcp",
    "",
)


def find(dialect: str, body: bytes) -> BodyIds:
    if dialect == "mcp":
        return parsing.session_ids(dialect, body)
    try:
        return session_ids.find_in(msgspec.json.decode(body, type=BodyModel))
    except RecursionError:
        return NONE
    except ValueError:
        fields = load(body)
        return session_ids.find_in(fields) if isinstance(fields, dict) else NONE


def ids(dialect: str = "openai_chat", **fields: Any) -> BodyIds:
    return find(dialect, json.dumps({"model": "m", "messages": [], **fields}).encode())


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_conversations_of_the_responses_api(conversation: object) -> None:
    """A string, or an object that holds it (C-7)."""
    assert ids("openai_responses", conversation=conversation) == BodyIds(session="conv_1")


def test_previous_responses() -> None:
    """Read beside whatever else is there (C-7)."""
    found = ids("openai_responses", previous_response_id="resp_1", prompt_cache_key=UUID)
    assert found == BodyIds(previous="resp_1", cache_key=UUID)
    assert ids("openai_responses", previous_response_id=None) == NONE


@pytest.mark.parametrize(
    "user_id",
    [
        f"user_{'a' * 64}_account__session_{UUID}",
        f"user_{'a' * 64}_account_{UUID}_session_{UUID}",
        json.dumps({"device_id": "d", "account_uuid": "", "session_id": UUID}),
        {"session_id": UUID},
    ],
)
def test_claude_code(user_id: object) -> None:
    """The session in `metadata.user_id`, in the spelling of old and in that of now (C-7)."""
    assert ids("anthropic_messages", metadata={"user_id": user_id}) == BodyIds(session=UUID)


@pytest.mark.parametrize("user_id", ["u-1", UUID, "user_1", "my_session_key", "{", "[1]", '{"device_id":"d"}', 7, None])
def test_a_user_is_no_session(user_id: object) -> None:
    """What names a user never names a session (C-7)."""
    found = BodyIds(user=str(user_id)) if user_id is not None else NONE
    assert ids("anthropic_messages", metadata={"user_id": user_id}) == found
    assert ids(user="u-1", safety_identifier="u-2") == BodyIds(user="u-2")


@each(
    "fields",
    [
        {"litellm_session_id": "s-1"},
        {"metadata": {"session_id": "s-1"}},
        {"metadata": {"litellm_session_id": "s-1"}},
        {"litellm_metadata": {"session_id": "s-1"}, "metadata": {"session_id": "not this one"}},
        {"session_id": "s-1"},
        {"metadata": {"sessionId": "s-1", "promptId": "p"}},
        {"metadata": {"langfuse_session_id": "s-1", "langfuse_user_id": "u"}},
        {"metadata": {"thread_id": "s-1", "session_id": "wider"}},
        {"metadata": {"conversation_id": "s-1"}},
        {"conversation_id": "s-1", "metadata": {"session_id": "other"}},
        {"session_id": " s-1 "},
    ],
)
def test_sessions_of_gateways_and_agents(fields: dict[str, Any]) -> None:
    """LiteLLM's, OpenRouter's, OpenHands', Cline's, Qwen Code's, Langfuse's and LangSmith's (C-7)."""
    assert ids(**fields) == BodyIds(session="s-1")


@each("value", ["", "  ", "null", "undefined", "None", None, True, 1.5, [], {}, ["s"]])
def test_what_is_no_id(value: object) -> None:
    """Other types, and the words of a program without an id; the next field is looked at all the same (C-7)."""
    assert ids(session_id=value) == NONE
    assert ids(conversation=value, session_id=value, metadata={"session_id": "s-1"}).session == "s-1"
    assert ids(metadata=value, previous_response_id="resp_1") == BodyIds(previous="resp_1")


def test_numbers_are_ids() -> None:
    assert ids(session_id=17).session == "17"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt_cache_key": UUID}, UUID),
        ({"prompt_cache_key": UUID, "user": "u"}, UUID),
        ({"prompt_cache_key": UUID, "user": UUID}, ""),
        ({"prompt_cache_key": UUID, "safety_identifier": UUID}, ""),
        ({"prompt_cache_key": "support-bot-v3"}, ""),
        ({"prompt_cache_key": f"user-{UUID}"}, ""),
        ({"prompt_cache_key": ""}, ""),
    ],
)
def test_cache_keys(fields: dict[str, str], expected: str) -> None:
    """Codex' is the id of its session; the name of a prompt, or of a user, is none (C-7)."""
    assert ids("openai_responses", **fields).cache_key == expected


def test_traces() -> None:
    """LiteLLM's and Langfuse's traces are kept apart from sessions (C-7)."""
    assert ids(litellm_trace_id="t") == ids(metadata={"trace_id": "t"}) == BodyIds(trace="t")
    assert ids(metadata={"trace_id": "t", "session_id": "s"}) == BodyIds(session="s", trace="t")


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f" 00-{TRACE}-00f067aa0ba902b7-00", TRACE),
        (f"01-{TRACE}-00f067aa0ba902b7-01-what-comes", TRACE),
        (f"ff-{TRACE}-00f067aa0ba902b7-01", ""),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", ""),
        ("", ""),
        ("garbage", ""),
    ],
)
def test_trace_parents(traceparent: str, expected: str) -> None:
    """As W3C defines them; what is invalid is no trace (C-7)."""
    assert trace_of(traceparent) == expected


def mcp_call(meta: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {}, "_meta": meta}}


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"agent-session-id": "s"}, BodyIds(session="s")),
        ({"openai/session": "s", "openai/subject": "user"}, BodyIds(session="s")),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, BodyIds(trace=TRACE)),
        ({"progressToken": 1, "traceparent": 7}, NONE),
        ({}, NONE),
        (None, NONE),
        ("text", NONE),
    ],
)
def test_mcp(meta: object, expected: BodyIds) -> None:
    """Goose's and ChatGPT's session, and the trace, in `_meta` (C-7)."""
    assert find("mcp", json.dumps(mcp_call(meta)).encode()) == expected
    batch = [{"jsonrpc": "2.0", "method": "notifications/x"}, mcp_call(meta)]
    assert find("mcp", json.dumps(batch).encode()) == expected
    assert find("mcp", b"\xef\xbb\xbf" + json.dumps(batch).encode()) == expected


def test_odd_bodies_are_read_all_the_same() -> None:
    """A BOM, NaN or lone surrogates do not hide the session, and every id can be encoded (C-9)."""
    body = b'\xef\xbb\xbf{"metadata":{"session_id":"s"},"temperature":NaN}'
    assert find("openai_chat", body).session == "s"
    found = find("openai_chat", b'{"session_id":"a\\ud800"}').session
    assert found.encode() == b"a?"


@pytest.mark.parametrize("stream", [True, "odd"])
def test_bodies_that_were_taken_apart(stream: object) -> None:
    """Nothing is decoded anew, however the body had to be read (C-7, Q-1)."""
    sent = {"model": "m", "messages": [], "metadata": {"thread_id": "t"}, "previous_response_id": 7, "stream": stream}
    taken = registry.parse("POST", "/v1/messages", json.dumps(sent).encode())
    assert taken is not None
    taken.body = b""
    assert taken.session_ids() == BodyIds(session="t", previous="7")
    bare = registry.parse("POST", "/v1/messages", b'{"model":"m","messages":[]}')
    assert bare is not None
    assert bare.session_ids() == NONE


def test_an_id_is_not_looked_for_in_something_huge() -> None:
    """What the id may stand in is decoded, and a megabyte of it is not (Q-1)."""
    assert ids(metadata={"session_id": "s", "text": "x" * 1_000_000}, session_id="t").session == "t"
    assert ids(metadata={"session_id": "s", "text": "x" * 1_000_000}) == NONE


@each(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"metadata":{"user_id":',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"metadata":' + b"[" * 100_000,
        b'{"session_id":' + b"9" * 5000 + b"}",
        b'{"metadata":{"user_id":"{' + b"[" * 50_000 + b'"}}',
    ],
)
@each("dialect", DIALECTS)
def test_garbage_has_no_ids(dialect: str, body: bytes) -> None:
    """And raises nothing (C-9)."""
    assert find(dialect, body)._replace(user="") == NONE  # any text may be the name of a user


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from(
    ("metadata", "litellm_metadata", "session_id", "conversation", "previous_response_id", "prompt_cache_key", "params")
)


@given(st.sampled_from(DIALECTS), st.dictionaries(_NAMES, _JSON))
def test_any_body_gives_texts(dialect: str, fields: dict[str, Any]) -> None:
    """Whatever the types are, the answer is five texts, and a tree at most (C-9)."""
    *found, _tree = find(dialect, json.dumps(fields).encode())
    assert [type(value) for value in found] == [str] * 5
    "".join(found).encode()  # no lone surrogates
