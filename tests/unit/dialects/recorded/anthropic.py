"""Answers of Anthropic's Messages, in the shape in which they come."""

from __future__ import annotations

from typing import Any

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, named

ID, MODEL = "msg_01XFDUDYJgAACzvnptvVoYEL", "claude-sonnet-4-5-20250929"
WEATHER = ToolCall("get_weather", '{"location":"San Francisco, CA","unit":"c"}')
START_COUNT = {
    "input_tokens": 25,
    "cache_creation_input_tokens": 100,
    "cache_read_input_tokens": 2000,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 1,
    "service_tier": "standard",
}


def start(**usage: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": ID,
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": START_COUNT | usage,
    }
    return {"type": "message_start", "message": message}


def block(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, kind: str, **said: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **said}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: str = "end_turn", **usage: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    change = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    return change, {"type": "message_stop"}


PING = {"type": "ping"}
THINKING = (
    block(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="Let me think of secrets"),
    delta(0, "signature_delta", signature="EqQBCgIYAhIM1gbcDa9GJwZA2b3h"),
    stop(0),
)
TEXT = named(
    start(),
    *THINKING,
    block(1, type="text", text=""),
    PING,
    delta(1, "text_delta", text="Hello"),
    delta(1, "text_delta", text=", wörld"),
    stop(1),
    *end(output_tokens=15, output_tokens_details={"thinking_tokens": 9}),
)
CALLS = named(
    start(),
    block(0, type="text", text=""),
    delta(0, "text_delta", text="Let me look."),
    stop(0),
    block(1, type="tool_use", id="toolu_01T1x1fJ34qAmk2tNTrN7Up6", name="get_weather", input={}),
    delta(1, "input_json_delta", partial_json=""),
    delta(1, "input_json_delta", partial_json='{"unit": "c", "location":'),
    delta(1, "input_json_delta", partial_json=' "San Francisco, CA"}'),
    stop(1),
    block(2, type="tool_use", id="toolu_02", name="get_time", input={}),
    delta(2, "input_json_delta", partial_json=""),
    stop(2),
    *end("tool_use", output_tokens=89),
)
SEARCH = named(
    start(),
    block(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
    delta(0, "input_json_delta", partial_json='{"query": "weather"}'),
    stop(0),
    block(1, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[{"type": "web_search_result"}]),
    stop(1),
    block(2, type="text", text=""),
    delta(2, "text_delta", text="It rains"),
    delta(2, "citations_delta", citation={"type": "web_search_result_location", "cited_text": "It rains"}),
    stop(2),
    block(3, type="text", text=""),
    delta(3, "text_delta", text="in Paris."),
    stop(3),
    *end(
        input_tokens=10682,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=None,
        output_tokens=510,
        server_tool_use={"web_search_requests": 1},
    ),
)
COMPACTED = named(
    start(cache_creation_input_tokens=0, cache_read_input_tokens=0),
    block(0, type="compaction"),
    delta(0, "compaction_delta", content="a summary"),
    stop(0),
    block(1, type="text", text=""),
    delta(1, "text_delta", text="Hi"),
    *end(
        output_tokens=15,
        iterations=[
            {"type": "compaction", "input_tokens": 1000, "cache_read_input_tokens": 500, "output_tokens": 200},
            {"type": "message", "input_tokens": 25, "output_tokens": 15},
        ],
    ),
)
FALLBACK = named(
    start(),
    block(0, type="fallback", **{"from": {"model": MODEL}, "to": {"model": "claude-other"}}),
    stop(0),
    block(1, type="text", text="Hi"),
    *end(output_tokens=3),
)
OVERLOADED = named(
    start(),
    block(0, type="text", text=""),
    delta(0, "text_delta", text="Hel"),
    {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded: secrets"}, "request_id": "req_1"},
)
WHOLE = dump(
    {
        "id": ID,
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [
            {"type": "thinking", "thinking": "secrets", "signature": "EqQ"},
            {"type": "redacted_thinking", "data": "EmwK"},
            {"type": "text", "text": "Let me", "citations": None},
            {"type": "text", "text": "look."},
            {
                "type": "tool_use",
                "id": "toolu_1",
                "name": "get_weather",
                "input": {"unit": "c", "location": "San Francisco, CA"},
            },
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": START_COUNT | {"output_tokens": 89},
    }
)
ERROR = dump({"type": "error", "error": {"type": "rate_limit_error", "message": "secrets"}, "request_id": "req_1"})


def said(text: str, usage: Usage, *calls: ToolCall, finish: str = "end_turn", **more: Any) -> Answer:
    whole: dict[str, Any] = {"status": 200, "complete": True, "model": MODEL, "response_id": ID} | more
    return Answer(text=text, calls=calls, finish=finish, usage=usage, **whole)


def stream(body: bytes, answer: Answer) -> Recorded:
    return Recorded("anthropic_messages", SSE, body, answer)


MESSAGES = {
    "messages text": stream(TEXT, said("Hello, wörld", Usage(2125, 15, 2000, 100, 9))),
    "messages calls": stream(
        CALLS,
        said("Let me look.", Usage(2125, 89, 2000, 100), WEATHER, ToolCall("get_time", "{}"), finish="tool_use"),
    ),
    "messages search": stream(
        SEARCH,
        said("It rains\nin Paris.", Usage(12682, 510, 2000), ToolCall("web_search", '{"query":"weather"}')),
    ),
    "messages compacted": stream(COMPACTED, said("Hi", Usage(1525, 215, 500))),
    "messages fallback": stream(FALLBACK, said("Hi", Usage(2125, 3, 2000, 100), model="claude-other")),
    "messages overloaded": stream(
        OVERLOADED, said("Hel", Usage(2125, 1, 2000, 100), finish="", error="overloaded_error", complete=False)
    ),
    "messages cut short": stream(
        CALLS[: CALLS.index(b"San Fran")],
        said(
            "Let me look.",
            Usage(2125, 1, 2000, 100),
            ToolCall("get_weather", '{"unit": "c", "location":'),
            finish="",
            complete=False,
        ),
    ),
    "messages crlf": stream(TEXT.replace(b"\n", b"\r\n"), said("Hello, wörld", Usage(2125, 15, 2000, 100, 9))),
    "messages whole": Recorded(
        "anthropic_messages",
        JSON,
        WHOLE,
        said("Let me\nlook.", Usage(2125, 89, 2000, 100), WEATHER, finish="tool_use"),
    ),
    "messages whole fails": Recorded("anthropic_messages", JSON, ERROR, Answer(200, error="rate_limit_error")),
}
