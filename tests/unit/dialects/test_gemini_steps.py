"""The newest step of a Gemini request."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from breakloop.dialects.steps import media_key
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.dialects.parsing import append_note as append
from tests.unit.dialects.parsing import newest_step

read = partial(newest_step, "gemini")

USER = {"role": "user", "parts": [{"text": "go"}]}


def body(*contents: Any, **more: Any) -> bytes:
    return json.dumps({"contents": contents, **more}).encode()


def step(*contents: Any, **more: Any) -> Step:
    found = read(body(*contents, **more))
    assert found is not None
    return found


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(number: int, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": "f", "args": {"n": number}, **more}}


def response(value: Any, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": "f", "response": value, **more}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


@pytest.mark.parametrize("declared", ["functionDeclarations", "function_declarations"])
def test_calls_and_results(declared: str) -> None:
    """Function calls, their responses with `error` as the flag, and words beside; thoughts are not said (LD-4, C-8)."""
    answer = model({"text": "hm", "thought": True}, {"text": "I look"}, call(1, id="a"), call(2, id="b"))
    behind = user(response({"output": "one"}, id="a"), response({"error": "no"}, id="b"), {"text": "hurry"})
    sent = body(USER, answer, behind, tools=[{declared: [{"name": "f"}]}, {"googleSearch": {}}])
    assert read(sent) == Step(
        said="I look",
        calls=(ToolCall("f", '{"n":1}'), ToolCall("f", '{"n":2}')),
        call_ids=("a", "b"),
        results=(Result("one", call_id="a"), Result("no", error=True, call_id="b")),
        users=("hurry",),
        tools=("f",),
        messages=3,
        size=len(sent),
    )


def test_a_conversation_begins() -> None:
    assert step(USER).users == ("go",)
    assert step({"parts": [{"text": "no role"}]}).users == ("no role",)


def test_an_answer_in_pieces() -> None:
    """Clients keep a stream as they got it; however it was cut, it is the same answer (LD-4)."""
    whole = step(USER, model({"text": "I look around"}), USER)
    pieces = step(USER, model({"text": "I lo"}), model({"text": "ok ar"}, {"text": "ound"}), USER)
    assert pieces.said == whole.said == "I look around"


def test_responses() -> None:
    """What was returned, as text; anything else as JSON in one spelling (C-8)."""
    values: list[tuple[Any, str, bool]] = [
        ({"result": "x"}, "x", False),
        ({"output": {"b": 1, "a": 2}}, '{"a":2,"b":1}', False),
        ({"stdout": "x", "code": 0}, '{"code":0,"stdout":"x"}', False),
        ({"error": None, "output": "x"}, '{"error":null,"output":"x"}', False),
        ({"error": "no", "output": "x"}, '{"error":"no","output":"x"}', True),
        ("text", "text", False),
        (None, "", False),
    ]
    for value, text, error in values:
        assert step(model(call(1)), user(response(value))).results == (Result(text, error=error),)


def test_code_that_runs_at_google() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1/0"}}
    ran = {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "oh"}}
    found = step(USER, model(code, ran, {"text": "so"}), USER)
    assert (found.said, found.calls) == ("so", (ToolCall("code_execution", "1/0"),))
    assert found.results == (Result("oh", error=True),)


def test_media() -> None:
    """By type and digest, in results and from a person (C-8)."""

    def image(fill: str) -> dict[str, Any]:
        return {"inlineData": {"mimeType": "image/png", "data": fill * 90_000}}

    pdf = {"file_data": {"mime_type": "application/pdf", "file_uri": "https://example.org/a.pdf"}}
    found = step(model(call(1)), user(response({"output": "x"}, parts=[image("A"), pdf])))
    keys = media_key("image", image("A")["inlineData"]), media_key("file", pdf["file_data"])
    assert found.results == (Result("x", media=keys),)
    said = model({"text": "a picture"})
    assert step(said, user(image("A"))).users != step(said, user(image("B"))).users
    one, two = (step(model(call(1)), user(response({"output": "x"})), user(image(fill), pdf)) for fill in "AB")
    assert one.users == (f"<{keys[0]}>\n<{keys[1]}>",) != two.users


def test_an_action_in_text() -> None:
    """As in the other dialects (LD-4)."""
    found = step(USER, model({"text": "```tool_code\nlook()\n```"}), USER)
    assert (found.calls, found.results, found.as_text) == ((ToolCall("python", "look()"),), (Result("go"),), True)


def test_own_notes_are_gone() -> None:
    """Own notes are gone (LD-4, LD-5)."""
    sent = body(USER, model(call(1)), user(response({"output": "same"})))
    steered = append("gemini", sent, "stop it")
    assert steered is not None
    plain, noted = read(sent), read(steered)
    assert plain is not None
    assert noted is not None
    assert noted._replace(size=0, messages=0) == plain._replace(size=0, messages=0)


def test_odd_types() -> None:
    """Typed, then tolerant; then nothing (C-9)."""
    odd = step(
        "words", model(7, call(1)), user(response("\ud83d"), 5), tools=[3, {"functionDeclarations": {"name": "f"}}]
    )
    assert (odd.said, odd.results, odd.users, odd.tools) == ("7", (Result("?"),), ("5",), ("f",))
    assert step("words").users == ("words",)
    assert read(b"[]") is None
    assert len(step(model(*[{"text": "x"}] * 1500)).said) > 1000
    assert step(user({"fileData": 5}), user({})).users != ()
