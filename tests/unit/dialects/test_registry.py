"""Which dialect a request speaks, by path and body."""

from __future__ import annotations

import json

import pytest

from breakloop.dialects import registry
from tests.each import each
from tests.unit.dialects import parsing
from tests.unit.dialects.parsing import newest_step, read_chat, read_opening

BODY = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "input": "x",
        "prompt": "x",
        "contents": [{"role": "user", "parts": [{"text": "x"}]}],
    }
).encode()
RPC = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"f"}}'


@each(
    "path, expected",
    [
        ("/v1/chat/completions", "openai_chat"),
        ("/chat/completions/", "openai_chat"),
        ("/api/v1/chat/completions", "openai_chat"),
        ("/openai/deployments/gpt-4o/chat/completions", "openai_chat"),
        ("/v1/responses", "openai_responses"),
        ("/openai/responses", "openai_responses"),
        ("/v1/completions", "openai_completions"),
        ("/v1/xchat/completions", "openai_completions"),
        ("/openai/deployments/e/embeddings", "openai_embeddings"),
        ("/v1/messages", "anthropic_messages"),
        ("/anthropic/v1/messages/", "anthropic_messages"),
        ("/v1beta/models/g:generateContent", "gemini"),
        ("/v1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent", "gemini"),
        ("/v1/Chat/Completions", "openai_chat"),
        ("/v1/chat/completions;x=1", "openai_chat"),
        ("/V1/CHAT/COMPLETIONS/;x", "openai_chat"),
        ("/v1/Completions", "openai_completions"),
        ("/v1;a=b/Messages;x=1;y", "anthropic_messages"),
        ("/v1beta/models/G-2:generatecontent;x", "gemini"),
        ("/v1/messages;x=1/count_tokens", None),
        ("/v1/Messages/count_tokens", None),
        ("/v1/x;/messages.json", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/messages/batches", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/chat/completions/123", None),
        ("/v1beta/models/g:countTokens", None),
        ("/v1/xmessages", None),
        ("/messages.json", None),
        ("/", None),
        ("", None),
    ],
)
def test_paths(path: str, expected: str | None) -> None:
    """OpenAI's, Azure's, OpenRouter's, Anthropic's, Gemini's and Vertex AI's paths (C-8, D-2)."""
    chat = read_chat("POST", path, BODY, 3)
    assert (chat.dialect if chat else None) == expected
    assert bool(read_opening("POST", path, BODY)) is (
        expected is not None and expected not in {"openai_completions", "openai_embeddings"}
    )


def test_another_spelling_of_a_path_is_read_as_the_usual_one() -> None:
    """Streaming and the model of Gemini are given in the path (C-8)."""
    chat = read_chat("POST", "/v1beta/models/G-2:STREAMGENERATECONTENT;x=1", BODY, 3)
    assert chat is not None
    assert (chat.model, chat.stream) == ("G-2", True)


@pytest.mark.parametrize("path", ["/mcp", "/", "/messages/", "/v1/responses"])
def test_mcp_is_known_by_its_body(path: str) -> None:
    """Wherever it is sent, also to a path that another dialect uses (C-8)."""
    chat = read_chat("POST", path, RPC, 3)
    assert chat is not None
    assert chat.dialect == "mcp"
    assert read_opening("POST", path, RPC) == ""


def test_only_posts_with_a_body() -> None:
    """Anything else is plain HTTP (C-8)."""
    for method, path, body in (("GET", "/v1/messages", BODY), ("PUT", "/mcp", RPC), ("POST", "/v1/messages", b"")):
        assert read_chat(method, path, body, 3) is None
        assert read_opening(method, path, body) == ""


def test_providers() -> None:
    """`llm:provider` is whose dialect it is (C-6)."""
    names = ("openai_chat", "openai_responses", "anthropic_messages", "gemini", "mcp")
    assert [registry.DIALECTS[name].provider for name in names] == ["openai", "openai", "anthropic", "gemini", "mcp"]


@pytest.mark.parametrize(
    ("path", "body", "said", "opens"),
    [
        ("/v1/chat/completions", BODY, "x", "user\nx"),
        ("/v1/messages", BODY, "x", "user\nx"),
        ("/v1/responses", BODY, "x", "prompt\nx\nuser\nx"),
        ("/v1beta/models/m:generateContent", BODY, "x", "user\nx"),
        ("/v1/completions", BODY, "x", ""),
        ("/mcp", RPC, "", ""),
    ],
)
def test_all_is_read_from_a_body_that_was_taken_apart_once(path: str, body: bytes, said: str, opens: str) -> None:
    """Chat, step, opening and ids, in any order, as if each had been read by itself (Q-1, C-8)."""
    body = body[:-1] + b',"session_id":"s"}'
    taken = registry.parse("POST", path, body)
    assert taken is not None
    ids, step, opening, chat = taken.session_ids(), taken.newest_step(), taken.opening(), taken.chat(3)
    assert chat is not None
    assert (chat.tail[-1].text, opening, chat.model) == (said, opens, "" if path == "/mcp" else "m")
    assert chat == read_chat("POST", path, body, 3)
    assert step is not None
    assert step == newest_step(chat.dialect, body)
    assert opening == read_opening("POST", path, body)
    assert ids == parsing.session_ids(chat.dialect, body)
    assert ids.session == ("" if path == "/mcp" else "s")


USER = [{"role": "user", "content": "x"}]
PARTS = [{"role": "user", "parts": [{"text": "x"}]}]


@each(
    "path, body, expected",
    [
        ("/v1/chat/completions", {"model": "m", "input": "x"}, "openai_responses"),
        ("/v1/chat/completions", {"model": "m", "input": [{"role": "user", "content": "x"}]}, "openai_responses"),
        ("/v1/chat/completions", {"contents": PARTS}, "gemini"),
        ("/v1/chat/completions", {"model": "m", "prompt": "x"}, "openai_completions"),
        ("/v1/chat/completions", {"model": "text-embedding-1", "input": "x"}, "openai_embeddings"),
        ("/v1/chat/completions", {"model": "m", "input": "x", "dimensions": 8}, "openai_embeddings"),
        ("/v1/responses", {"model": "m", "messages": USER}, "openai_chat"),
        ("/v1/agents/completions", {"agent_id": "ag_1", "messages": USER}, "openai_chat"),
        ("/v1/responses", {"model": "m", "messages": USER, "system": "s", "max_tokens": 9}, "anthropic_messages"),
        ("/v1beta/models/g:generateContent", {"model": "m", "messages": USER}, "openai_chat"),
        # An API of its own, whose path ends in the same word.
        ("/channels/7/messages", {"messages": USER}, None),
        ("/surveys/7/responses", {"contents": ["x"]}, None),
        ("/surveys/7/responses", {"input": "x"}, None),
        ("/messages", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "f"}}, "mcp"),
        ("/orders", {"model": "m", "messages": USER}, None),
    ],
)
def test_bodies_of_another_dialect(path: str, body: object, expected: str | None) -> None:
    """The conversation that a body has decides, where it has none of its path's dialect (C-8)."""
    parsed = registry.parse("POST", path, json.dumps(body).encode())
    assert (None if parsed is None else parsed.dialect.name) == expected


@each("messages", [[], [{}], [{"role": "user"}], [{"role": "user", "parts": [{"type": "text", "text": "x"}]}], "x"])
def test_conversations_that_cannot_be_read(messages: object) -> None:
    """They have no step: nothing would distinguish one from another (LD-4)."""
    body = {"model": "m", "messages": messages} if messages != "x" else {"model": "m", "inputs": messages}
    assert newest_step("openai_chat", json.dumps(body).encode()) is None
