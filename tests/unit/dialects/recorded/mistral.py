"""Answers of Mistral's conversations, in the shape in which they come."""

from __future__ import annotations

from typing import Any

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, named

ID, MODEL = "conv_0197", "mistral-medium"
USAGE = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29, "connector_tokens": None}
STARTED = {"type": "conversation.response.started", "conversation_id": ID}
DONE = {"type": "conversation.response.done", "usage": USAGE}


def piece(said: Any) -> dict[str, Any]:
    at = {"id": "msg_1", "output_index": 0, "content_index": 0, "model": MODEL, "role": "assistant"}
    return {"type": "message.output.delta", **at, "content": said}


def call(call_id: str, name: str, given: str, kind: str = "function.call.delta") -> dict[str, Any]:
    return {"type": kind, "id": f"fc_{call_id}", "tool_call_id": call_id, "name": name, "arguments": given}


MADE = (ToolCall("get_weather", '{"city":"Paris"}'), ToolCall("get_time", "{}"))
TEXT = Answer(200, "Hello, wörld", (), Usage(20, 9), MODEL, ID, "stop", complete=True)
CALLS = Answer(200, "", MADE, Usage(20, 9), "", ID, "stop", complete=True, call_ids=("a", "b"))
SPOKEN = {"type": "message.output", "role": "assistant", "model": MODEL, "content": "Hello, wörld"}
CALLED = [call("a", "get_weather", '{"city": "Paris"}', "function.call"), call("b", "get_time", "{}", "function.call")]


def whole(*outputs: Any) -> bytes:
    return dump({"object": "conversation.response", "conversation_id": ID, "outputs": list(outputs), "usage": USAGE})


MISTRAL = {
    "mistral stream": Recorded(
        "mistral_conversations",
        SSE,
        named(STARTED, piece("Hello"), piece({"type": "text", "text": ", wörld"}), DONE),
        TEXT,
    ),
    "mistral stream of calls": Recorded(
        "mistral_conversations",
        SSE,
        named(
            STARTED,
            call("a", "get_weather", '{"city":'),
            call("a", "get_weather", ' "Paris"}'),
            call("b", "get_time", "{}"),
            DONE,
        ),
        CALLS,
    ),
    "mistral whole": Recorded("mistral_conversations", JSON, whole(SPOKEN), TEXT),
    "mistral whole calls": Recorded("mistral_conversations", JSON, whole(*CALLED), CALLS),
    "mistral fails": Recorded(
        "mistral_conversations",
        SSE,
        named(STARTED, piece("Hello"), {"type": "conversation.response.error", "message": "no", "code": 3000}),
        Answer(200, "Hello", (), None, MODEL, ID, error="3000"),
    ),
}
