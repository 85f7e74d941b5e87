"""OpenAI Responses requests: items gathered into turns, and what stays out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.model.call import Chat, Message, ToolCall
from breakloop.wire.openai_responses import opening, read


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
    """C-8: a text as input; the instructions are no message."""
    chat = read(body("hi", instructions="be kind", stream=True, max_output_tokens=40), 3)
    assert chat == Chat("openai_responses", "gpt-5", (Message("user", "hi"),), 1, stream=True, max_tokens=40)
    assert chat == read(body([{"role": "user", "content": "hi"}], stream=True, max_output_tokens=40), 3)


def test_turns() -> None:
    """C-8, LD-2: text and calls of an answer are one message, results that come together are one; reasoning is none."""
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
    """C-8: custom tools, and those that run at OpenAI or in a shell."""
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "SELECT"}
    shell = {"type": "local_shell_call", "id": "x", "call_id": "c", "action": {"command": ["ls"]}}
    remote = {"type": "mcp_call", "id": "y", "name": "look", "arguments": "{ }", "output": "seen"}
    (made,) = tail(custom, shell, remote)
    calls = (ToolCall("sql", "SELECT"), ToolCall("local_shell", '{"command":["ls"]}'), ToolCall("look", "{}"))
    assert made == Message("assistant", "seen", calls)
    outputs = tail(custom, {"type": "custom_tool_call_output", "call_id": "c", "output": "1"})
    assert outputs[-1] == Message("tool", "1")


def test_failed_results_differ() -> None:
    """C-8: the error flag of a result is part of it."""
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
    """C-8: an item kept at OpenAI stands without its id, and so does what we do not know."""
    assert tail({"type": "item_reference", "id": "msg_1"}) == (Message("item_reference", "<item_reference>"),)
    one, two = ({"type": "compaction", "id": name, "encrypted_content": "x"} for name in ("cmp_1", "cmp_2"))
    assert tail(one) == tail(two) != tail({**one, "encrypted_content": "y"})


def test_calls_that_cannot_be_seen() -> None:
    """B-6: six results that say "ok" may answer six different calls; a retry answers the same one."""
    chained = [tail(answered(number), previous_response_id=f"resp_{number}") for number in (1, 2)]
    assert chained[0] == tail(answered(1), previous_response_id="resp_9")
    assert chained[0] != chained[1]
    reference = {"type": "item_reference", "id": "fc_1"}
    assert tail(reference, answered(1)) != tail(reference, answered(2))
    # The call of the first of the last messages stands before them: nothing is known, so nothing is added.
    assert tail(asked(1), answered(1), last=1) == (Message("tool", "ok"),)
    assert tail(asked(1), answered(1), asked(2), answered(2)) == tail(asked(3), answered(3), asked(4), answered(4))


def test_the_chain_is_not_identity() -> None:
    """C-8: what came before is the session's business."""
    user = {"role": "user", "content": "go"}
    assert tail(user, previous_response_id="resp_1") == tail(user, previous_response_id="resp_2") == tail(user)


def test_stored_prompts() -> None:
    """C-8: the variables of a stored prompt tell requests apart, with or without input."""

    def stored(city: str, **more: Any) -> Chat | None:
        return read(json.dumps({"prompt": {"id": "pmpt_1", "variables": {"city": city}}, **more}).encode(), 3)

    assert stored("Rome") is not None
    assert stored("Rome") != stored("Oslo")
    assert stored("Rome", model="m", input="go") != stored("Oslo", model="m", input="go")


@pytest.mark.parametrize(
    "raw", [b'{"answers":{"q1":"yes"}}', b'{"input":"x"}', b'{"model":"m"}', b'{"model":"m","input":null}']
)
def test_other_apis_have_responses_too(raw: bytes) -> None:
    """C-8: a survey's answers are plain HTTP."""
    assert read(raw, 3) is None
    assert opening(raw) == ""


def test_odd_inputs() -> None:
    """C-9: an item that is no object, or stands without its list."""
    for said, expected in ((["x", 7], ("x", "7")), ({"role": "user", "content": "x"}, ("x",)), (5, ("5",))):
        chat = read(body(said), 3)
        assert chat is not None
        assert tuple(message.text for message in chat.tail) == expected
        assert chat.fallback == "tolerant"


def test_endless_results() -> None:
    """Y-2: what follows the first thousand stands as one digest."""
    many = [answered(number) for number in range(1002)]
    assert tail(*many)[0].text.count("<more:") == 1
    assert "<more:" not in tail(*many[:1000])[0].text


def test_opening() -> None:
    """C-7: instructions and first user message, at every turn."""
    first = opening(body("plan", instructions="be kind"))
    later = [{"role": "user", "content": "plan"}, asked(1), answered(1)]
    assert first == opening(body(later, instructions="be kind")) != ""
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert first == opening(body([thought, *later], instructions="be kind"))
    assert first not in {opening(body("plan")), opening(body("meal", instructions="be kind"))}
