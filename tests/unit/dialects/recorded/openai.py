"""Answers of OpenAI and of those who speak like it, in the shape in which they come."""

from __future__ import annotations

from typing import Any

from breakloop.model.call import Answer, ToolCall, Usage
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, events

ID, MODEL = "chatcmpl-CKqkkN1J8zVYvQ2ZfXWmT4b6sQhLx", "gpt-4o-mini-2024-07-18"
WEATHER = ToolCall("get_weather", '{"city":"Paris","unit":"c"}')
TIME = ToolCall("get_time", '{"zone":"Europe/Paris"}')
COUNT = {
    "prompt_tokens": 82,
    "completion_tokens": 17,
    "total_tokens": 99,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 5, "audio_tokens": 0, "accepted_prediction_tokens": 0},
}
USAGE = Usage(82, 17, 64, 0, 5)


def chunk(*choices: Any, usage: Any = None, **more: Any) -> dict[str, Any]:
    """One chunk, with all that stands around what is said."""
    return {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": 1759500000,
        "model": MODEL,
        "service_tier": "default",
        "system_fingerprint": "fp_560af6e559",
        "choices": list(choices),
        "usage": usage,
        "obfuscation": "x7Jq",
        **more,
    }


def delta(finish: str | None = None, index: int = 0, **said: Any) -> dict[str, Any]:
    return {"index": index, "delta": said, "logprobs": None, "finish_reason": finish}


def tool(index: int | None, arguments: str, name: str = "", call_id: str = "") -> dict[str, Any]:
    """A piece of a call: the first has an id, a type and a name."""
    piece: dict[str, Any] = {} if index is None else {"index": index}
    if call_id:
        piece |= {"id": call_id, "type": "function"}
    return piece | {"function": {"name": name, "arguments": arguments} if name else {"arguments": arguments}}


TEXT = events(
    chunk(delta(role="assistant", content="", refusal=None)),
    chunk(delta(content="Hello")),
    chunk(delta(content=", wörld")),
    chunk(delta(content=" 🌍\n\ndata: x")),
    chunk(delta("stop")),
    chunk(usage=COUNT),
    b"[DONE]",
)
CALLS = events(
    chunk(delta(role="assistant", content=None, tool_calls=[tool(0, "", "get_weather", "call_a")])),
    chunk(delta(tool_calls=[tool(0, '{"unit"')])),
    chunk(delta(tool_calls=[tool(0, ': "c", "city": "Pa')])),
    chunk(delta(tool_calls=[tool(0, 'ris"}'), tool(1, "", "get_time", "call_b")])),
    chunk(delta(tool_calls=[tool(1, '{"zone": "Europe/Paris"}')])),
    chunk(delta("tool_calls")),
    b"[DONE]",
)
SEVERAL = events(
    chunk(delta(role="assistant", content="one"), delta(index=1, role="assistant", content="eins")),
    chunk(delta(index=1, content=" zwei")),
    chunk(delta(content=" two")),
    chunk(delta("length", 1)),
    chunk(delta("stop")),
    b"[DONE]",
)
REFUSAL = events(
    chunk(delta(role="assistant", content="", refusal=None)),
    chunk(delta(refusal="I can")),
    chunk(delta(refusal="not.")),
    chunk(delta("stop")),
    b"[DONE]",
)
AZURE = events(
    {
        "choices": [],
        "created": 0,
        "id": "",
        "model": "",
        "object": "",
        "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}}}],
    },
    chunk(delta(role="assistant", content="Hi") | {"content_filter_results": {}}),
    chunk(delta("stop") | {"content_filter_results": {}}),
    b"[DONE]",
)
OPENROUTER = b": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n" + events(
    chunk(delta(role="assistant", content="", reasoning="think", reasoning_details=[{"type": "reasoning.text"}])),
    chunk(delta(content="Hi")),
    chunk(delta("error", content=""), error={"code": 502, "message": "Provider disconnected"}, provider="Somebody"),
    b"[DONE]",
)
GROQ = events(
    chunk(delta(role="assistant", content="Hi"), x_groq={"id": "req_1"}),
    chunk(delta("stop"), x_groq={"id": "req_1", "usage": COUNT}),
    b"[DONE]",
)
ZERO_INDEX = events(
    chunk(delta(role="assistant", tool_calls=[tool(0, '{"city":"Paris","unit":"c"}', "get_weather", "a")])),
    chunk(delta(tool_calls=[tool(0, '{"zone":"Europe/Paris"}', "get_time", "b")])),
    chunk(delta("tool_calls")),
    b"[DONE]",
)
NO_INDEX = events(
    chunk(delta(role="assistant", tool_calls=[tool(None, '{"city":"Paris",', "get_weather", "a")])),
    chunk(delta(tool_calls=[tool(None, '"unit":"c"}')])),
    chunk(delta(tool_calls=[tool(None, '{"zone":"Europe/Paris"}', "get_time", "b")])),
    chunk(delta("tool_calls")),
    b"[DONE]",
)
LEGACY = events(
    chunk(delta(role="assistant", content=None, function_call={"name": "get_weather", "arguments": ""})),
    chunk(delta(function_call={"arguments": '{"unit":"c",'})),
    chunk(delta(function_call={"arguments": '"city":"Paris"}'})),
    chunk(delta("function_call")),
    b"[DONE]",
)
CUSTOM = events(
    chunk(delta(tool_calls=[{"index": 0, "id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}])),
    chunk(delta(tool_calls=[{"index": 0, "custom": {"input": " -l"}}])),
    chunk(delta("tool_calls")),
    b"[DONE]",
)
PARTS = events(  # Mistral's thinking models
    chunk(delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])),
    chunk(delta(content=[{"type": "text", "text": "Hi"}])),
    chunk(delta("stop", content=" you")),
    b"[DONE]",
)
WHOLE = dump(
    {
        "id": ID,
        "object": "chat.completion",
        "created": 1759500000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "reasoning_content": "hm",
                    "tool_calls": [
                        tool(None, '{"unit": "c", "city": "Paris"}', "get_weather", "call_a"),
                        tool(None, '{ "zone": "Europe/Paris" }', "get_time", "call_b"),
                    ],
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "Two.", "refusal": "No."},
                "finish_reason": "stop",
            },
        ],
        "usage": COUNT,
        "service_tier": "default",
    }
)
ERROR = dump(
    {
        "error": {
            "message": "You sent secrets",
            "type": "insufficient_quota",
            "param": None,
            "code": "billing_hard_limit",
        }
    }
)


def said(text: str = "", *calls: ToolCall, finish: str = "stop", usage: Usage | None = None, **more: Any) -> Answer:
    whole: dict[str, Any] = {"status": 200, "complete": True, "model": MODEL, "response_id": ID} | more
    return Answer(text=text, calls=calls, finish=finish, usage=usage, **whole)


def stream(body: bytes, answer: Answer) -> Recorded:
    return Recorded("openai_chat", SSE, body, answer)


CHAT = {
    "chat text": stream(TEXT, said("Hello, wörld 🌍\n\ndata: x", usage=USAGE)),
    "chat calls": stream(CALLS, said("", WEATHER, TIME, finish="tool_calls")),
    "chat n=2": stream(SEVERAL, said("one two\neins zwei")),
    "chat refusal": stream(REFUSAL, said("I cannot.")),
    "chat azure": stream(AZURE, said("Hi")),
    "chat openrouter fails": stream(OPENROUTER, said("Hi", finish="error", error="502", complete=False)),
    "chat groq": stream(GROQ, said("Hi", usage=USAGE)),
    "chat all calls 0": stream(ZERO_INDEX, said("", WEATHER, TIME, finish="tool_calls")),
    "chat no numbers": stream(NO_INDEX, said("", WEATHER, TIME, finish="tool_calls")),
    "chat legacy call": stream(LEGACY, said("", WEATHER, finish="function_call")),
    "chat custom call": stream(CUSTOM, said("", ToolCall("shell", "ls -l"), finish="tool_calls")),
    "chat parts": stream(PARTS, said("Hi you")),
    "chat crlf": stream(TEXT.replace(b"\n", b"\r\n"), said("Hello, wörld 🌍\n\ndata: x", usage=USAGE)),
    "chat cr": stream(TEXT.replace(b"\n", b"\r"), said("Hello, wörld 🌍\n\ndata: x", usage=USAGE)),
    "chat without end mark": stream(
        TEXT.removesuffix(b"data: [DONE]\n\n"), said("Hello, wörld 🌍\n\ndata: x", usage=USAGE)
    ),
    "chat without empty line": stream(TEXT.removesuffix(b"\n\n"), said("Hello, wörld 🌍\n\ndata: x", usage=USAGE)),
    "chat cut short": stream(
        TEXT[: TEXT.index(b'"stop"')], said("Hello, wörld 🌍\n\ndata: x", finish="", complete=False)
    ),
    "chat fails at once": stream(
        events({"error": {"message": "x", "type": "server_error", "code": None}}),
        Answer(200, error="server_error"),
    ),
    "chat vllm fails": stream(
        events(chunk(delta(content="Hi")), {"object": "error", "message": "x", "type": "BadRequestError", "code": 400}),
        said("Hi", finish="", error="400", complete=False),
    ),
    "chat forgets to stream": stream(
        events(chunk(delta(content="Hi"))) + b'{\n "error": {\n  "code": "boom"\n }\n}\n',
        said("Hi", finish="", error="boom", complete=False),
    ),
    "chat whole": Recorded(
        "openai_chat", JSON, WHOLE, said("Let me look.\nTwo.\nNo.", WEATHER, TIME, finish="tool_calls", usage=USAGE)
    ),
    "chat whole fails": Recorded("openai_chat", JSON, ERROR, Answer(200, error="billing_hard_limit")),
}

OLD: dict[str, Any] = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "gpt-3.5-turbo-instruct"}
COMPLETIONS = {
    "completions text": Recorded(
        "openai_completions",
        SSE,
        events(
            OLD | {"choices": [{"text": "One", "index": 0, "logprobs": None, "finish_reason": None}], "usage": None},
            OLD | {"choices": [{"text": "Uno", "index": 1, "logprobs": None, "finish_reason": None}]},
            OLD | {"choices": [{"text": " two", "index": 0, "logprobs": None, "finish_reason": "length"}]},
            OLD | {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}},
            b"[DONE]",
        ),
        Answer(200, "One two\nUno", (), Usage(5, 3), "gpt-3.5-turbo-instruct", "cmpl-1", "length", "", True),
    ),
    "completions whole": Recorded(
        "openai_completions",
        JSON,
        dump(
            OLD
            | {
                "choices": [{"text": "One", "index": 0, "logprobs": None, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
            }
        ),
        Answer(200, "One", (), Usage(5, 3), "gpt-3.5-turbo-instruct", "cmpl-1", "stop", "", True),
    ),
    "embeddings": Recorded(
        "openai_embeddings",
        JSON,
        dump(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.0023064255, -0.009327292]}],
                "model": "text-embedding-3-small",
                "usage": {"prompt_tokens": 8, "total_tokens": 8},
            }
        ),
        Answer(200, "", (), Usage(8, 0), "text-embedding-3-small", complete=True),
    ),
}
