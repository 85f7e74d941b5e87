"""Answers of Cohere, in the shape in which they come."""

from __future__ import annotations

from typing import Any

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, named

ID = "co-1f6e"
USAGE = {
    "billed_units": {"input_tokens": 5, "output_tokens": 9},
    "tokens": {"input_tokens": 71, "output_tokens": 11},
    "cached_tokens": 2,
}
WEATHER = ToolCall("get_weather", '{"city":"Paris"}')
START = {
    "id": ID,
    "type": "message-start",
    "delta": {"message": {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}},
}


def of(kind: str, message: Any, index: int | None = None) -> dict[str, Any]:
    return {"type": kind, "delta": {"message": message}} | ({} if index is None else {"index": index})


def end(reason: str, **more: Any) -> dict[str, Any]:
    return {"type": "message-end", "delta": {"finish_reason": reason, "usage": USAGE, **more}}


def call(call_id: str, name: str, given: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


SAID = (
    START,
    of("content-start", {"content": {"type": "thinking", "thinking": ""}}, 0),
    of("content-delta", {"content": {"thinking": "Hm."}}, 0),
    {"type": "content-end", "index": 0},
    of("content-start", {"content": {"type": "text", "text": ""}}, 1),
    of("content-delta", {"content": {"text": "Hello"}}, 1),
    of("content-delta", {"content": {"text": ", wörld"}}, 1),
    of("citation-start", {"citations": {"start": 0, "end": 5, "text": "Hello", "sources": []}}, 0),
    {"type": "content-end", "index": 1},
    end("COMPLETE"),
)
CALLED = (
    START,
    of("tool-plan-delta", {"tool_plan": "I will "}),
    of("tool-plan-delta", {"tool_plan": "look."}),
    of("tool-call-start", {"tool_calls": call("get_weather_1", "get_weather", "")}, 0),
    of("tool-call-delta", {"tool_calls": {"function": {"arguments": '{"city":'}}}, 0),
    of("tool-call-delta", {"tool_calls": {"function": {"arguments": ' "Paris"}'}}}, 0),
    {"type": "tool-call-end", "index": 0},
    of("tool-call-start", {"tool_calls": call("get_time_1", "get_time", "{}")}, 1),
    {"type": "tool-call-end", "index": 1},
    end("TOOL_CALL"),
)
TEXT = Answer(200, "Hello, wörld", (), Usage(5, 9, 2), "", ID, "COMPLETE", complete=True)
CALLS = Answer(
    200, "I will look.", (WEATHER, ToolCall("get_time", "{}")), Usage(5, 9, 2), "", ID, "TOOL_CALL", complete=True
)
PLANNED = {
    "role": "assistant",
    "tool_plan": "I will look.",
    "tool_calls": [call("get_weather_1", "get_weather", '{"city": "Paris"}'), call("get_time_1", "get_time", "{}")],
}
SPOKEN = {
    "role": "assistant",
    "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello, wörld"}],
}

COHERE = {
    "cohere stream": Recorded("cohere_chat", SSE, named(*SAID), TEXT),
    "cohere stream of calls": Recorded("cohere_chat", SSE, named(*CALLED), CALLS),
    "cohere whole": Recorded(
        "cohere_chat", JSON, dump({"id": ID, "message": SPOKEN, "finish_reason": "COMPLETE", "usage": USAGE}), TEXT
    ),
    "cohere whole calls": Recorded(
        "cohere_chat", JSON, dump({"id": ID, "message": PLANNED, "finish_reason": "TOOL_CALL", "usage": USAGE}), CALLS
    ),
    "cohere fails": Recorded(
        "cohere_chat",
        SSE,
        named(*SAID[:6], end("ERROR", error="upstream")),
        TEXT._replace(text="Hello", finish="ERROR", error="error", complete=False),
    ),
}
