"""Requests of LLM APIs that are not known: passed, counted and published, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

from breakloop.engine.unknown_apis import resembles_llm, shape_of
from tests.builders import call, world
from tests.each import each

PROMPT = {"prompt": "Go on.", "max_gen_len": 9}


@each(
    "path, body, expected",
    [
        ("/model/meta.llama3-8b-instruct-v1:0/invoke", PROMPT, True),
        ("/v1/other", {"model": "m", "messages": [{"role": "user"}]}, True),
        ("/v1/chat", {"model": "command-r", "message": "hi", "chat_history": []}, True),
        ("/v1/messages/count_tokens", {"model": "m", "messages": []}, False),
        ("/v1/models/text-embedding:embedContent", {"contents": []}, False),
        ("/tools/search", {"input": "cats"}, False),
        ("/rooms/1/messages", {"text": "hello"}, False),
    ],
)
def test_what_looks_like_an_llm_api(path: str, body: Any, expected: bool) -> None:
    """A text for a model, and a model (C-6)."""
    assert resembles_llm(path, json.dumps(body).encode()) is expected
    assert not resembles_llm(path, b"model prompt")


@each(
    "path, shape",
    [
        ("/model/meta.llama3-8b-instruct-v1:0/invoke", "/model/*:0/invoke"),
        ("/v1/threads/thread_abc123def456/runs", "/v1/threads/*/runs"),
        ("/v1/users/4711/ask", "/v1/users/*/ask"),
        ("/v1/chat", "/v1/chat"),
    ],
)
def test_one_endpoint_has_one_shape(path: str, shape: str) -> None:
    """Ids and names of models are not published (Y-1)."""
    assert shape_of(path) == shape


def test_they_pass_and_are_counted_and_told_once() -> None:
    """An operator sees it in a metric and an event; what is known, or nothing of the kind, is not counted (C-6, O-1)."""
    here = world()
    for number in range(3):
        assert here.decide(call(f"/model/m-{number}/invoke", "POST", body=json.dumps(PROMPT).encode())).allowed
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    here.decide(call("/v1/chat/completions", "POST", body=json.dumps(chat).encode()))
    here.decide(call("/tools", "POST", body=b'{"x":1}'))
    assert here.engine.tally.unknown_apis == {"none": 3}
    assert here.named("api.unknown") == [{"path": "/model/*/invoke", "upstream": "none"}]


def test_what_is_told_has_a_bound() -> None:
    """Paths that clients make up (Y-2)."""
    here = world()
    for number in range(80):
        name = "".join(chr(97 + int(digit)) for digit in str(number))
        here.decide(call(f"/{name}/ask", "POST", body=b'{"model":"m","prompt":"x"}'))
    assert (here.engine.tally.unknown_apis, len(here.named("api.unknown"))) == ({"none": 80}, 50)
