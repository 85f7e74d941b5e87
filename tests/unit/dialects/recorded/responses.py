"""Answers of OpenAI's Responses, in the shape in which they come."""

from __future__ import annotations

from itertools import count
from typing import Any

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, events, named

ID, MODEL = "resp_67c9fdcecf488190bdd9a0409de3a1ec07b8b0ad4e5eb654", "gpt-5-2025-08-07"
WEATHER = ToolCall("get_weather", '{"city":"Paris","unit":"c"}')
COUNT = {
    "input_tokens": 81,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 7},
    "output_tokens": 35,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 116,
}
USAGE = Usage(81, 35, 64, 7, 20)

REASONING: dict[str, Any] = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "secrets"}],
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [
        {"type": "output_text", "text": "Hello, wörld", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "No more."},
    ],
}
FUNCTION: dict[str, Any] = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"unit": "c", "city": "Paris"}',
}
SHELL: dict[str, Any] = {"id": "sh_1", "type": "shell_call", "call_id": "c2", "action": {"commands": ["ls"]}}
CUSTOM: dict[str, Any] = {"id": "ct_1", "type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "*** x"}
SEARCH: dict[str, Any] = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "q"},
}
OUTPUT = [REASONING, MESSAGE, FUNCTION, SHELL, CUSTOM, SEARCH]
MADE = (
    WEATHER,
    ToolCall("shell", '{"commands":["ls"]}'),
    ToolCall("patch", "*** x"),
    ToolCall("web_search", '{"query":"q","type":"search"}'),
)
IDS = ("call_1", "c2", "c3", "")  # a search of the provider has no results, and no id


def response(status: str, output: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "object": "response",
        "created_at": 1741290958,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "You are a helpful assistant.",
        "max_output_tokens": None,
        "model": MODEL,
        "output": output,
        "parallel_tool_calls": True,
        "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}],
        "usage": None,
        **more,
    }


def begun(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it stands when it is added: nothing is in it yet."""
    empty = {"content": [], "arguments": "", "input": "", "summary": []}
    return item | {name: value for name, value in empty.items() if name in item} | {"status": "in_progress"}


def numbered(*payloads: dict[str, Any]) -> list[dict[str, Any]]:
    number = count()
    return [one | {"sequence_number": next(number)} for one in payloads]


def piece(kind: str, index: int, delta: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "item_id": "x", "output_index": index, "delta": delta, **more}


def text_piece(delta: str, part: int = 0, kind: str = "output_text") -> dict[str, Any]:
    return piece(f"response.{kind}.delta", 1, delta, content_index=part, logprobs=[], obfuscation="h4")


def item(word: str, index: int, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": f"response.output_item.{word}", "output_index": index, "item": value}


ARGUED = "response.function_call_arguments.delta"
BEGINNING = (
    {"type": "response.created", "response": response("in_progress", [])},
    {"type": "response.in_progress", "response": response("in_progress", [])},
    item("added", 0, begun(REASONING)),
    piece("response.reasoning_summary_text.delta", 0, "secrets", summary_index=0),
    item("done", 0, REASONING),
    item("added", 1, begun(MESSAGE)),
    {"type": "response.content_part.added", "output_index": 1, "content_index": 0, "part": {"type": "output_text"}},
    text_piece("Hello"),
    text_piece(", wörld"),
    {"type": "response.output_text.done", "output_index": 1, "content_index": 0, "text": "Hello, wörld"},
    text_piece("No more.", 1, "refusal"),
    item("done", 1, MESSAGE),
    item("added", 2, begun(FUNCTION)),
    piece(ARGUED, 2, '{"unit": "c", '),
    piece(ARGUED, 2, '"city": "Paris"}'),
)
MIDDLE = (
    {"type": "response.function_call_arguments.done", "output_index": 2, "arguments": FUNCTION["arguments"]},
    item("done", 2, FUNCTION),
    item("added", 3, SHELL),
    item("done", 3, SHELL),
    item("added", 4, begun(CUSTOM)),
    piece("response.custom_tool_call_input.delta", 4, "*** x"),
    item("done", 4, CUSTOM),
    {"type": "response.web_search_call.searching", "output_index": 5, "item_id": "ws_1"},
    item("done", 5, SEARCH),
)


def end(word: str, output: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": f"response.{word}", "response": response(word, output, usage=COUNT, **more)}


def said(finish: str = "completed", *, calls: tuple[ToolCall, ...] = MADE, **more: Any) -> Answer:
    whole: dict[str, Any] = {
        "status": 200,
        "text": "Hello, wörld\nNo more.",
        "usage": USAGE,
        "complete": True,
        "model": MODEL,
        "response_id": ID,
    }
    return Answer(calls=calls, finish=finish, call_ids=IDS[: len(calls)], **(whole | more))


def stream(*payloads: dict[str, Any], answer: Answer) -> Recorded:
    return Recorded("openai_responses", SSE, named(*numbered(*payloads)), answer)


FAILURE = {"code": "server_error", "message": "secrets"}
RESPONSES = {
    "responses": stream(*BEGINNING, *MIDDLE, end("completed", OUTPUT), answer=said()),
    "responses without output": stream(*BEGINNING, *MIDDLE, end("completed", []), answer=said()),
    "responses only the end": stream(end("completed", OUTPUT), answer=said()),
    "responses other order": Recorded(
        "openai_responses",
        SSE,
        events(
            *[dict(reversed(one.items())) for one in numbered(*BEGINNING, *MIDDLE, end("completed", []))], b"[DONE]"
        ),
        said(),
    ),
    "responses incomplete": stream(
        *BEGINNING,
        end("incomplete", OUTPUT[:2], incomplete_details={"reason": "max_output_tokens"}),
        answer=said("max_output_tokens", calls=()),
    ),
    "responses fails": stream(
        *BEGINNING,
        end("failed", [], error=FAILURE),
        answer=said("failed", calls=(WEATHER,), error="server_error", complete=False),
    ),
    "responses error": stream(
        *BEGINNING,
        {"type": "error", "code": "rate_limit_exceeded", "message": "secrets", "param": None},
        answer=said("", calls=(WEATHER,), usage=None, error="rate_limit_exceeded", complete=False),
    ),
    "responses error inside": stream(
        *BEGINNING,
        {"type": "error", "error": {"type": "upstream_error", "message": "secrets"}},
        answer=said("", calls=(WEATHER,), usage=None, error="upstream_error", complete=False),
    ),
    "responses cut short": stream(*BEGINNING, answer=said("", calls=(WEATHER,), usage=None, complete=False)),
    "responses whole": Recorded("openai_responses", JSON, dump(response("completed", OUTPUT, usage=COUNT)), said()),
    "responses whole fails": Recorded(
        "openai_responses",
        JSON,
        dump(response("failed", [], error=FAILURE)),
        said("failed", calls=(), text="", usage=None, error="server_error", complete=False),
    ),
}
