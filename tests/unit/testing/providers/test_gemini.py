"""Gemini's shapes."""

from __future__ import annotations

from breakloop.model.call import Usage
from breakloop.testing.answer import Failure, call_tool, say
from breakloop.testing.providers import gemini
from tests.unit.testing.talking import asked, events, whole

USAGE = Usage(20, 9, 8, 0, 3)
PATH = "/v1beta/models/gem-2:generateContent"
STREAM = "/v1beta/models/gem-2:streamGenerateContent"


def test_generate_content() -> None:
    """Thinking is counted beside what was said."""
    assert whole(gemini.generate_content(asked(say("Hi.", usage=USAGE), PATH, contents=[]))) == {
        "candidates": [{"content": {"parts": [{"text": "Hi."}], "role": "model"}, "index": 0, "finishReason": "STOP"}],
        "usageMetadata": {
            "promptTokenCount": 20,
            "totalTokenCount": 29,
            "candidatesTokenCount": 6,
            "cachedContentTokenCount": 8,
            "thoughtsTokenCount": 3,
        },
        "modelVersion": "gem-2",
        "responseId": "standin-00000001",
    }


def test_calls_and_ends() -> None:
    answer = call_tool("f", {"a": 1}, text="ok").with_tool("g", '{"b": 2}', tool_id="mine")
    candidate = whole(gemini.generate_content(asked(answer, PATH)))["candidates"][0]
    assert candidate["content"]["parts"] == [
        {"text": "ok"},
        {"functionCall": {"name": "f", "args": {"a": 1}}},
        {"functionCall": {"name": "g", "args": {"b": 2}, "id": "mine"}},
    ]
    assert candidate["finishReason"] == "STOP"
    short = whole(gemini.generate_content(asked(say("x", finish="length"), PATH)))
    assert short["candidates"][0]["finishReason"] == "MAX_TOKENS"


def test_a_stream_of_events() -> None:
    """`alt=sse`: CRLF between events, the end and the whole count in the last."""
    rendered = gemini.generate_content(asked(call_tool("f", text="a b"), f"{STREAM}?alt=sse"))
    pieces = list(rendered.pieces)
    assert rendered.streamed
    assert rendered.content_type.startswith("text/event-stream")
    assert all(piece.startswith(b"data: {") and piece.endswith(b"}\r\n\r\n") for piece in pieces)
    rendered = gemini.generate_content(asked(call_tool("f", text="a b"), f"{STREAM}?alt=sse"))
    found = [data for _, data in events(rendered)]
    assert [one["candidates"][0]["content"]["parts"] for one in found] == [
        [{"text": "a"}],
        [{"text": " b"}],
        [{"functionCall": {"name": "f", "args": {}}}],
    ]
    assert [one["candidates"][0].get("finishReason") for one in found] == [None, None, "STOP"]
    assert ["candidatesTokenCount" in one["usageMetadata"] for one in found] == [False, False, True]


def test_a_stream_as_an_array() -> None:
    """Without `alt=sse` the stream is one JSON array, sent element by element."""
    rendered = gemini.generate_content(asked(say("a b"), STREAM))
    assert (rendered.streamed, rendered.content_type) == (True, gemini.JSON)
    found = whole(rendered)
    assert [one["candidates"][0]["content"]["parts"][0]["text"] for one in found] == ["a", " b"]
    assert len(whole(gemini.generate_content(asked(say(""), STREAM)))) == 1


def test_errors() -> None:
    assert gemini.error(Failure("m"), 429) == {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}
    assert gemini.error(Failure("m", "ODD"), 418)["error"]["status"] == "ODD"
    found = whole(gemini.generate_content(asked(say("a b c").then_fail(1, "busy"), STREAM)))
    assert (len(found), found[1]["error"]["status"]) == (2, "UNAVAILABLE")


def test_counting_tokens() -> None:
    assert whole(gemini.count_tokens(asked(say("x", usage=USAGE)))) == {"totalTokens": 20}
