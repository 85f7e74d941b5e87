"""Gemini requests: parts in both spellings, model and streaming from the path."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from breakloop.model.call import Chat, Message, ToolCall
from tests.unit.dialects import parsing

read = partial(parsing.chat, "gemini")
opening = partial(parsing.opening, "gemini")

PATH = "/v1beta/models/gemini-flash:generateContent"


def body(*contents: Any, **more: Any) -> bytes:
    return json.dumps({"contents": contents, **more}).encode()


def parts(*found: Any, role: str = "user") -> Message:
    chat = read(body({"role": role, "parts": found}), 3, PATH)
    assert chat is not None
    return chat.tail[-1]


@pytest.mark.parametrize(
    ("path", "model", "stream"),
    [
        (PATH, "gemini-flash", False),
        ("/v1beta/models/gemini-flash:streamGenerateContent", "gemini-flash", True),
        ("/v1/projects/p/locations/l/publishers/google/models/gemini-pro:generateContent", "gemini-pro", False),
        ("/v1/tunedModels/mine:generateContent", "mine", False),
    ],
)
def test_model_and_stream_stand_in_the_path(path: str, model: str, stream: bool) -> None:
    """Gemini's and Vertex AI's paths (C-8)."""
    chat = read(body({"parts": [{"text": "hi"}]}, generationConfig={"maxOutputTokens": 9}), 3, path)
    assert chat == Chat("gemini", model, (Message("user", "hi"),), 1, stream, 9)


def test_both_spellings() -> None:
    """Clients send camel case, snake case and mixtures (C-8)."""
    call = {"name": "f", "args": {"b": 1, "a": 2}, "id": "1"}
    expected = Message("model", "", (ToolCall("f", '{"a":2,"b":1}'),))
    assert parts({"functionCall": call, "thoughtSignature": "x"}, role="model") == expected
    assert parts({"function_call": call, "thought_signature": "y"}, role="model") == expected
    result = {"name": "f", "response": {"result": "none"}, "id": "2"}
    assert parts({"functionResponse": result}).text == parts({"function_response": result}).text == '{"result":"none"}'
    chat = read(body({"parts": []}, generation_config={"max_output_tokens": 7}), 3, PATH)
    assert chat is not None
    assert chat.max_tokens == 7


def test_thoughts_are_left_out() -> None:
    assert parts({"text": "hm", "thought": True}, {"text": "so"}, role="model") == Message("model", "so")


def test_errors_and_media_of_results() -> None:
    """An error and a success that says the same differ; pictures in a result count (C-8)."""

    def result(response: Any, **more: Any) -> str:
        return parts({"functionResponse": {"name": "f", "response": response, **more}}).text

    assert result({"error": "none"}) != result({"result": "none"})
    one, two = ({"inlineData": {"mimeType": "image/png", "data": data}} for data in ("AAAA", "BBBB"))
    assert result({}, parts=[one]) != result({}, parts=[two])
    assert result({}, parts=["x"]) == "{}\nx"


def test_media_count_by_their_bytes() -> None:
    """Type and digest, whatever the order of fields, ids and signatures (C-8)."""

    def image(data: str) -> str:
        return parts({"inlineData": {"mime_type": "image/png", "data": data}, "thoughtSignature": "s"}).text

    assert image("AAAA").startswith("<inlineData:")
    assert image("AAAA") == parts({"inlineData": {"data": "AAAA", "mime_type": "image/png"}}).text != image("BBBB")
    video = {"fileData": {"fileUri": "gs://a"}, "videoMetadata": {"fps": 1}}
    assert parts(video).text == parts(dict(reversed(video.items()))).text
    assert parts(video).text.startswith("<fileData:")
    one, two = ({"executableCode": {"id": name, "code": "x"}} for name in "12")
    assert parts(one) == parts(two)


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ("hi", ["hi"]),
        ({"parts": "hi"}, ["hi"]),
        ([{"parts": {"text": 5}}], ["5"]),
        (["x", {"parts": [7, {}]}], ["x", "7\n"]),
        (None, []),
    ],
)
def test_odd_contents(contents: Any, expected: list[str]) -> None:
    """What is not as expected is read as far as it goes (C-9)."""
    chat = read(json.dumps({"contents": contents, "generationConfig": {"maxOutputTokens": "x"}}).encode(), 3, PATH)
    assert chat is not None
    assert [message.text for message in chat.tail] == expected
    assert (chat.max_tokens, chat.fallback, chat.model) == (None, "tolerant", "gemini-flash")


def test_endless_parts() -> None:
    """What follows the first thousand stands as one digest (Y-2)."""
    many = [{"text": "a"}] * 1000
    assert parts(*many, {"text": "x"}).text.count("<more:") == 1
    assert parts(*many, {"text": "x"}) != parts(*many, {"text": "y"})


def test_opening() -> None:
    """The system instruction, in either spelling, and the first user message (C-7)."""
    user = {"role": "user", "parts": [{"text": "plan"}]}
    system = {"parts": [{"text": "be kind"}]}
    first = opening(body(user, systemInstruction=system))
    assert first == opening(body(user, {"role": "model", "parts": [{"text": "ok"}]}, system_instruction=system)) != ""
    assert first == opening(b"\xef\xbb\xbf" + body(user, systemInstruction=system))
    assert first != opening(body(user))
    assert opening(b'{"contents":[{"parts":[{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}]}") == ""
