"""Which renderer answers, and what an error looks like there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.testing.answer import DEFAULT_TEXT, FINAL_TEXT, body, call_tool, fail, say, sized
from breakloop.testing.providers import render
from tests.unit.testing.talking import CHAT, events, seen, whole

EVERY = [
    (CHAT, "choices"),
    ("/openai/deployments/x/chat/completions?api-version=1", "choices"),
    ("/v1/completions", "choices"),
    ("/v1/responses/", "output"),
    ("/v1/embeddings", "data"),
    ("/v1/messages", "content"),
    ("/v1/messages/count_tokens", "input_tokens"),
    ("/v1beta/models/g:generateContent", "candidates"),
    ("/v1/projects/p/models/g:countTokens?x=y", "totalTokens"),
    ("/elsewhere", "body_sha256"),
]


@pytest.mark.parametrize(("path", "field"), EVERY)
def test_the_end_of_the_path_decides(path: str, field: str) -> None:
    assert field in whole(render(seen(path, {"input": "x"}), None, 5))


def test_the_default_sentence() -> None:
    made = whole(render(seen(CHAT, {"model": "m"}), None, 5))
    assert (made["choices"][0]["message"]["content"], made["created"]) == (DEFAULT_TEXT, 5)


OFF: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"tool_choice": "none"}),
    (CHAT, {"function_call": "none"}),
    ("/v1/responses", {"tool_choice": "none"}),
    ("/v1/messages", {"tool_choice": {"type": "none"}}),
    ("/v1beta/models/g:generateContent", {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}),
    ("/v1beta/models/g:generateContent", {"tool_config": {"function_calling_config": {"mode": "NONE"}}}),
]


@pytest.mark.parametrize(("path", "off"), OFF)
def test_no_tool_is_called_if_tools_are_off(path: str, off: dict[str, Any]) -> None:
    """The text that was to go with the call is said, or a default one (LD-10)."""
    for answer, text in ((call_tool("look", {"q": 1}), FINAL_TEXT), (call_tool("look", text="I know."), "I know.")):
        made = json.dumps(whole(render(seen(path, off), answer, 5)))
        assert (text in made, "look" in made) == (True, False)
        assert "look" in json.dumps(whole(render(seen(path, {"tool_choice": "auto"}), answer, 5)))


def test_only_posts_are_answered_in_a_dialect() -> None:
    assert whole(render(seen(CHAT, method="GET"), None, 5))["path"] == CHAT
    assert whole(render(seen("/livez", method="GET"), None, 5))["path"] == "/livez"
    assert whole(render(seen("/v1/models", method="GET"), None, 5))["object"] == "list"
    assert whole(render(seen("/v1/models/x", method="GET"), None, 5))["id"] == "x"


def test_errors_in_each_dialect() -> None:
    failed = render(seen(), fail(429, "slow"), 5)
    assert (failed.status, failed.headers) == (429, (("x-request-id", "req_00000001"),))
    assert whole(failed)["error"]["code"] == "rate_limit_exceeded"
    failed = render(seen("/v1/messages"), fail(529), 5)
    assert whole(failed)["error"]["type"] == "overloaded_error"
    assert whole(failed)["request_id"] == "req_00000001"
    assert failed.headers == (("request-id", "req_00000001"),)
    assert whole(render(seen("/x:generateContent"), fail(503), 5))["error"]["status"] == "UNAVAILABLE"
    assert whole(render(seen("/elsewhere"), fail(500, "m"), 5))["error"]["message"] == "m"


def test_a_body_goes_as_it_is() -> None:
    rendered = render(seen(), body(b"<xml/>", content_type="text/xml", status=201), 5)
    assert (list(rendered.pieces), rendered.content_type, rendered.status) == ([b"<xml/>"], "text/xml", 201)
    assert not rendered.streamed
    assert render(seen(), body([b"a", b"b"]), 5).streamed


def test_a_text_where_no_dialect_is_spoken() -> None:
    rendered = render(seen("/elsewhere"), say("a b"), 5)
    assert (list(rendered.pieces), rendered.content_type) == ([b"a", b" b"], "text/plain; charset=utf-8")
    assert len(b"".join(render(seen("/elsewhere"), sized(1000), 5).pieces)) == 1000


@pytest.mark.parametrize("path", [path for path, _ in EVERY if "count" not in path.lower() and "embed" not in path])
@pytest.mark.parametrize("size", [2_000, 20_000, 4_321])
def test_bodies_of_a_size(path: str, size: int) -> None:
    """Exactly so many bytes, and still what the dialect wants."""
    rendered = render(seen(path), sized(size), 5)
    pieces = b"".join(rendered.pieces)
    assert len(pieces) == size
    if path != "/elsewhere":
        assert whole(rendered)


def test_a_sized_stream_has_so_many_chunks() -> None:
    found = events(render(seen(CHAT, {"stream": True}), sized(1003, chunks=10), 5))
    texts = [data["choices"][0]["delta"].get("content") for _, data in found[1:-2]]
    assert ([len(text) for text in texts], len(texts)) == ([101] * 3 + [100] * 7, 10)


def test_a_body_that_is_no_json_is_answered_all_the_same() -> None:
    broken = seen()
    broken.take(b"{not json")
    assert whole(render(broken, None, 5))["model"] == "stand-in"
