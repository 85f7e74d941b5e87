"""What an OpenAI client and the OpenAI API really exchange: 17 header fields and a chat body of a given size one way,
24 fields and a completion, whole or in 100 chunks, the other. The last message is what a tool returned; at its end are
a word that tells the stand-in upstream what is wanted, and a number that is never used twice. So each request is a new
step of an agent that goes on."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from bench.load import Pieces

PATH = "/v1/chat/completions"
MODEL = "gpt-4.1-mini"
API_KEY = "sk-proj-" + "b3nch" * 30  # as long as real ones
CHUNKS = 100
# Last words of a request, before its number. All but `WHOLE` are looked for in requests of at most `SMALL_BYTES`.
WHOLE, PROBE, FLAT_OUT, PACED = b"Read", b"Time", b"Pour", b"Drip"
BEFORE_NUMBER = b" page "
SMALL_BYTES = 16 * 1024
NUMBER = b"123456789"
_ANSWER_BYTES = 2048
_TURN_BYTES = 3000
_LINE = 'The "harbour" opens at seven and closes at nine in the evening;\n\tsee note {} of the town\'s yearly report.\n'
_ID = "chatcmpl-CkZ3vQx8Hs1bTq0YwR7mJ4nUe5LdA"
_SERIAL = b"000000000000"  # in the fields of an answer that no other answer has
_STAMP = {"id": _ID, "created": 1_763_180_000, "model": f"{MODEL}-2025-04-14", "service_tier": "default"}


def request_fields(length: int) -> list[tuple[str, str]]:
    """The 17 fields that the openai package sends, in its order and spelling."""
    return [
        ("Host", "127.0.0.1:8787"),
        ("Accept-Encoding", "gzip, deflate, br"),
        ("Connection", "keep-alive"),
        ("authorization", f"Bearer {API_KEY}"),
        ("accept", "application/json"),
        ("content-type", "application/json"),
        ("user-agent", "OpenAI/Python 3.49.0"),
        ("x-stainless-lang", "python"),
        ("x-stainless-package-version", "3.49.0"),
        ("x-stainless-os", "Linux"),
        ("x-stainless-arch", "x64"),
        ("x-stainless-runtime", "CPython"),
        ("x-stainless-runtime-version", "3.11.7"),
        ("x-stainless-async", "false"),
        ("x-stainless-retry-count", "0"),
        ("x-stainless-read-timeout", "600"),
        ("Content-Length", str(length)),
    ]


def answer_head(*body: tuple[str, str]) -> bytes:
    """A status line and 24 fields as the API sends them; `body` says type and length, in two of them. `numbered` makes
    those different that are different in each answer."""
    fields = [
        ("Date", "Sun, 15 Nov 2026 07:00:00 GMT"),
        *body,
        ("Connection", "keep-alive"),
        ("access-control-expose-headers", "X-Request-ID, CF-Ray"),
        ("openai-organization", "acme-industries"),
        ("openai-processing-ms", f"412.{_SERIAL.decode()}"),
        ("openai-project", "proj_7f3a9c215b7e4b609c55"),
        ("openai-version", "2020-10-01"),
        ("x-envoy-upstream-service-time", "431"),
        ("x-ratelimit-limit-requests", "30000"),
        ("x-ratelimit-limit-tokens", "150000000"),
        ("x-ratelimit-remaining-requests", "29999"),
        ("x-ratelimit-remaining-tokens", _SERIAL.decode()),
        ("x-ratelimit-reset-requests", "2ms"),
        ("x-ratelimit-reset-tokens", "0s"),
        ("x-request-id", f"req_5e1f0b6a7c8d4e2f9a3b{_SERIAL.decode()}"),
        ("cf-cache-status", "DYNAMIC"),
        ("set-cookie", "__cf_bm=" + "Qx8Hs1bTq0" * 12 + "; path=/; domain=.example.com; HttpOnly; Secure"),
        ("strict-transport-security", "max-age=31536000; includeSubDomains; preload"),
        ("x-content-type-options", "nosniff"),
        ("Server", "cloudflare"),
        ("CF-RAY", f"99ec{_SERIAL.decode()}-FRA"),
        ("alt-svc", 'h3=":443"; ma=86400'),
    ]
    return ("HTTP/1.1 200 OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n").encode()


def numbered(answer: bytes, number: int) -> bytes:
    """The same answer with ids, times and remaining tokens that no other one has."""
    return answer.replace(_SERIAL, b"%012d" % number)


def call(size_bytes: int, word: bytes = WHOLE, *extra: tuple[str, str]) -> Pieces:
    """A request whose body has `size_bytes`, before and after its number; `extra` fields come on top of the 17."""
    body = request_body(size_bytes, word)
    fields = [*request_fields(len(body)), *extra]
    head = f"POST {PATH} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
    before, _, after = (head.encode() + body).partition(NUMBER)
    return Pieces(before, after)


def request_body(size_bytes: int, word: bytes = WHOLE) -> bytes:
    """A conversation with as many turns as fill `size_bytes`."""
    opening = [
        {"role": "system", "content": "You are a careful research agent. Use the tools you are given, one at a time."},
        {"role": "user", "content": "Find out how the harbour's opening hours changed since 2019."},
    ]
    last = f"{word.decode()}{(BEFORE_NUMBER + NUMBER).decode()}."
    options = {"max_tokens": 512, "stream": word in {FLAT_OUT, PACED}}
    turns: list[dict[str, Any]] = []
    while True:
        messages = [*opening, *turns, *_turn(len(turns), 0)]
        messages[-1]["content"] = last
        room = size_bytes - len(_json({"model": MODEL, "messages": messages, **options}))
        if room < 2 * _TURN_BYTES:
            messages[-1]["content"] = _text(room) + last
            return _json({"model": MODEL, "messages": messages, **options})
        turns += _turn(len(turns), _TURN_BYTES)


@cache
def answer() -> bytes:
    """A whole answer of 2 KB, with its head."""
    return completion(_text(_ANSWER_BYTES - len(_completion_body(""))))


def completion(content: str) -> bytes:
    """An answer that says `content`, with its head."""
    body = _completion_body(content)
    return answer_head(("Content-Type", "application/json"), ("Content-Length", str(len(body)))) + body


@cache
def stream_head() -> bytes:
    """The head of a streamed answer."""
    return answer_head(("Content-Type", "text/event-stream; charset=utf-8"), ("Transfer-Encoding", "chunked"))


@cache
def stream_chunks(padded: bool = False) -> tuple[bytes, ...]:  # noqa: FBT001, FBT002 - a key of the cache
    """100 events in a transfer chunk each: a role, words, the end, usage, and `[DONE]` with the end of the body.
    `padded`: in a field of their own, letters hide how long a word is."""
    usage = {"prompt_tokens": 431, "completion_tokens": 96, "total_tokens": 527}
    events = [_event({"role": "assistant", "content": "", "refusal": None})]
    events += [
        _event({"content": f" harbour{number}"}, padding=f"aB{number:04}x"[number % 5 :] if padded else "")
        for number in range(CHUNKS - 4)
    ]
    events += [_event({}, "stop"), _event(None, None, usage), b"data: [DONE]\n\n"]
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return (*chunks[:-1], chunks[-1] + b"0\r\n\r\n")


def _event(
    delta: dict[str, Any] | None, finish: str | None = None, usage: dict[str, int] | None = None, padding: str = ""
) -> bytes:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    content = {
        **_STAMP,
        "object": "chat.completion.chunk",
        "system_fingerprint": "fp_7c55e7b3a1",
        "choices": [] if delta is None else choices,
        "usage": usage,
        **({"obfuscation": padding} if padding else {}),
    }
    return b"data: %b\n\n" % _json(content)


def _completion_body(content: str) -> bytes:
    return completion_body({"role": "assistant", "content": content, "refusal": None, "annotations": []}, "stop")


def completion_body(message: dict[str, Any], finish: str) -> bytes:
    """The body of an answer with this message."""
    return _json(
        {
            **_STAMP,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": {"prompt_tokens": 431, "completion_tokens": 96, "total_tokens": 527},
            "system_fingerprint": "fp_7c55e7b3a1",
        }
    )


def _turn(number: int, size_bytes: int) -> list[dict[str, Any]]:
    """A tool call of the model, and its result."""
    arguments = json.dumps({"query": f"harbour opening hours {number}", "limit": 10})
    name = f"call_{number}"  # as servers write them that number the calls of a conversation
    calls = [{"id": name, "type": "function", "function": {"name": "search", "arguments": arguments}}]
    result = {"role": "tool", "tool_call_id": name, "content": _text(size_bytes)}
    return [{"role": "assistant", "content": None, "tool_calls": calls}, result]


def _text(size_bytes: int) -> str:
    """Prose that takes `size_bytes` in JSON (its quotes, tabs and line ends are escaped there)."""
    lines: list[str] = []
    left = size_bytes
    while left > 0:
        line = _LINE.format(len(lines))
        taken = len(json.dumps(line)) - 2
        lines.append(line if taken <= left else "x" * left)
        left -= taken
    return "".join(lines)


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
