"""OpenAI Responses requests: items gathered into turns, and what stays out."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from breakloop.model.call import Chat, Message, ToolCall
from tests.unit.dialects import parsing

read = partial(parsing.chat, "openai_responses")
opening = partial(parsing.opening, "openai_responses")


def body(said: Any, **more: Any) -> bytes:
    return json.dumps({"model": "gpt-5", "input": said, **more}).encode()


def tail(*items: Any, last: int = 3, **more: Any) -> tuple[Message, ...]:
    chat = read(body(items, **more), last)
    assert chat is not None
    return chat.tail


def asked(number: int, arguments: str = "{}") -> dict[str, str]:
    made = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "f"}
    return {**made, "arguments": arguments}


def answered(number: int, output: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": output, **more}


def test_a_plain_request() -> None:
    """A text as input; the instructions are no message (C-8)."""
    chat = read(body("hi", instructions="be kind", stream=True, max_output_tokens=40), 3)
    assert chat == Chat("openai_responses", "gpt-5", (Message("user", "hi"),), 1, stream=True, max_tokens=40)
    assert chat == read(body([{"role": "user", "content": "hi"}], stream=True, max_output_tokens=40), 3)


def test_turns() -> None:
    """Text and calls of an answer are one message, results that come together are one; reasoning is none
    (C-8, LD-2)."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "sure"}]},
        asked(1, '{"b": 1, "a": 2}'),
        asked(2),
        answered(1, "one"),
        answered(2, [{"type": "input_text", "text": "two"}]),
    ]
    calls = (ToolCall("f", '{"a":2,"b":1}'), ToolCall("f", "{}"))
    turns = (Message("user", "go"), Message("assistant", "sure", calls), Message("tool", "one\ntwo"))
    assert tail(*items) == turns
    assert tail(*items, last=2) == turns[1:]
    assert tail(*items, last=0) == ()
    chat = read(body(items), 3)
    assert chat is not None
    assert chat.message_count == 7


def test_messages_of_the_user_stay_apart() -> None:
    assert tail(*[{"role": "user", "content": str(number)} for number in range(4)]) == tuple(
        [Message("user", text) for text in "123"]
    )


def test_other_kinds_of_calls() -> None:
    """Custom tools, and those that run at OpenAI or in a shell (C-8)."""
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "SELECT"}
    shell = {"type": "local_shell_call", "id": "x", "call_id": "c", "action": {"command": ["ls"]}}
    remote = {"type": "mcp_call", "id": "y", "name": "look", "arguments": "{ }", "output": "seen"}
    (made,) = tail(custom, shell, remote)
    calls = (ToolCall("sql", "SELECT"), ToolCall("local_shell", '{"command":["ls"]}'), ToolCall("look", "{}"))
    assert made == Message("assistant", "seen", calls)
    outputs = tail(custom, {"type": "custom_tool_call_output", "call_id": "c", "output": "1"})
    assert outputs[-1] == Message("tool", "1")


def test_failed_results_differ() -> None:
    """The error flag of a result is part of it (C-8)."""
    done = tail(asked(1), answered(1, status="completed"))
    assert done == tail(asked(1), answered(1))
    assert tail(asked(1), answered(1, status="failed"))[-1].text == "<failed> ok"


def test_media_count_by_their_bytes() -> None:
    def image(url: str) -> str:
        return tail({"role": "user", "content": [{"type": "input_image", "image_url": url}]})[0].text

    assert image("data:a").startswith("<input_image:")
    assert image("data:a") == image("data:a") != image("data:b")
    shot = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "data:a"}}
    assert tail(shot)[0].text.startswith("<computer_screenshot:")


def test_references_have_no_id() -> None:
    """An item kept at OpenAI stands without its id, and so does what we do not know (C-8)."""
    assert tail({"type": "item_reference", "id": "msg_1"}) == (Message("item_reference", "<item_reference>"),)
    one, two = ({"type": "compaction", "id": name, "encrypted_content": "x"} for name in ("cmp_1", "cmp_2"))
    assert tail(one) == tail(two) != tail({**one, "encrypted_content": "y"})


def test_calls_that_cannot_be_seen() -> None:
    """Six results that say "ok" may answer six different calls; a retry answers the same one (B-6)."""
    chained = [tail(answered(number), previous_response_id=f"resp_{number}") for number in (1, 2)]
    assert chained[0] == tail(answered(1), previous_response_id="resp_9")
    assert chained[0] != chained[1]
    reference = {"type": "item_reference", "id": "fc_1"}
    assert tail(reference, answered(1)) != tail(reference, answered(2))
    # The call of the first of the last messages stands before them: nothing is known, so nothing is added.
    assert tail(asked(1), answered(1), last=1) == (Message("tool", "ok"),)
    assert tail(asked(1), answered(1), asked(2), answered(2)) == tail(asked(3), answered(3), asked(4), answered(4))


def test_the_chain_is_not_identity() -> None:
    """What came before is the session's business (C-8)."""
    user = {"role": "user", "content": "go"}
    assert tail(user, previous_response_id="resp_1") == tail(user, previous_response_id="resp_2") == tail(user)


def test_stored_prompts() -> None:
    """The variables of a stored prompt tell requests apart, with or without input (C-8)."""

    def stored(city: str, **more: Any) -> Chat | None:
        return read(json.dumps({"prompt": {"id": "pmpt_1", "variables": {"city": city}}, **more}).encode(), 3)

    assert stored("Rome") is not None
    assert stored("Rome") != stored("Oslo")
    assert stored("Rome", model="m", input="go") != stored("Oslo", model="m", input="go")


@pytest.mark.parametrize(
    "raw", [b'{"answers":{"q1":"yes"}}', b'{"input":"x"}', b'{"model":"m"}', b'{"model":"m","input":null}']
)
def test_other_apis_have_responses_too(raw: bytes) -> None:
    """A survey's answers are plain HTTP (C-8)."""
    assert read(raw, 3) is None
    assert opening(raw) == ""


def test_odd_inputs() -> None:
    """An item that is no object, or stands without its list (C-9)."""
    for said, expected in ((["x", 7], ("x", "7")), ({"role": "user", "content": "x"}, ("x",)), (5, ("5",))):
        chat = read(body(said), 3)
        assert chat is not None
        assert tuple(message.text for message in chat.tail) == expected
        assert chat.fallback == "tolerant"


def test_endless_results() -> None:
    """What follows the first thousand stands as one digest (Y-2)."""
    many = [answered(number) for number in range(1002)]
    assert tail(*many)[0].text.count("<more:") == 1
    assert "<more:" not in tail(*many[:1000])[0].text


def test_opening() -> None:
    """Instructions and first user message, at every turn (C-7)."""
    first = opening(body("plan", instructions="be kind"))
    later = [{"role": "user", "content": "plan"}, asked(1), answered(1)]
    assert first == opening(body(later, instructions="be kind")) != ""
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert first == opening(body([thought, *later], instructions="be kind"))
    assert first not in {opening(body("plan")), opening(body("meal", instructions="be kind"))}
