"""Answers of Ollama, in the shape in which they come."""

from __future__ import annotations

from typing import Any

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import JSON, LINES, Recorded, dump

MODEL = "llama4"
COUNT = {"total_duration": 4_883_583_458, "prompt_eval_count": 26, "eval_count": 9}
WEATHER = ToolCall("get_weather", '{"city":"Paris","unit":"c"}')


def piece(said: str = "", **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said} | more
    return {"model": MODEL, "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}


def done(**more: Any) -> dict[str, Any]:
    return piece() | {"done": True, "done_reason": "stop"} | COUNT | more


def lines(*payloads: Any) -> bytes:
    return b"".join(dump(one) + b"\n" for one in payloads)


CALLS: dict[str, Any] = {
    "tool_calls": [
        {"function": {"name": "get_weather", "arguments": {"unit": "c", "city": "Paris"}}},
        {"function": {"name": "get_time", "arguments": {}}},
    ]
}
TEXT = Answer(200, "Hello, wörld", (), Usage(26, 9), MODEL, "", "stop", complete=True)
CALLED = Answer(200, "", (WEATHER, ToolCall("get_time", "{}")), Usage(26, 9), MODEL, "", "stop", complete=True)
GENERATED = {"model": MODEL, "created_at": "2026-01-01T00:00:00Z"}

OLLAMA = {
    "ollama stream": Recorded(
        "ollama_chat", LINES, lines(piece(thinking="Hm."), piece("Hello"), piece(", wörld"), done()), TEXT
    ),
    "ollama calls": Recorded("ollama_chat", LINES, lines(piece(**CALLS), done()), CALLED),
    "ollama whole": Recorded("ollama_chat", JSON, dump(done() | {"message": piece("Hello, wörld")["message"]}), TEXT),
    "ollama whole calls": Recorded("ollama_chat", JSON, dump(done() | {"message": piece(**CALLS)["message"]}), CALLED),
    "ollama fails": Recorded(
        "ollama_chat",
        LINES,
        lines(piece("Hello"), {"error": "an error was encountered"}),
        Answer(200, "Hello", model=MODEL, error="error"),
    ),
    "ollama generate": Recorded(
        "ollama_generate",
        LINES,
        lines(
            GENERATED | {"response": "Hello, ", "done": False},
            GENERATED | {"response": "wörld", "done": False},
            GENERATED | {"response": "", "done": True, "done_reason": "stop"} | COUNT,
        ),
        TEXT,
    ),
    "ollama generate whole": Recorded(
        "ollama_generate",
        JSON,
        dump(GENERATED | {"response": "Hello, wörld", "done": True, "done_reason": "stop"} | COUNT),
        TEXT,
    ),
}
