"""What is told of a request does not depend on what is known of its conversation, however odd its end is (C-7, Q-4)."""

from __future__ import annotations

import json
from typing import Any

from breakloop.clock import FakeClock
from breakloop.model.call import Call
from breakloop.policy.descriptors import ContextSettings, Descriptors
from tests.each import each

Message = dict[str, Any]


def make() -> Descriptors:
    return Descriptors(ContextSettings(secret=b"k"), FakeClock())


def turn(number: int, size: int = 900) -> list[Message]:
    function = {"name": "read_file", "arguments": json.dumps({"path": f"file-{number}.txt"})}
    calls = [{"id": f"call_{number:08d}", "type": "function", "function": function}]
    found = f"line {number} of a result\n" * (size // 24)
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": found},
    ]


def body_of(messages: list[Message]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}, separators=(",", ":")).encode()


def call_of(body: bytes) -> Call:
    return Call("POST", "/v1/chat/completions", headers={"x-api-key": b"sk-1"}, body=body)


def told(who: Descriptors, body: bytes) -> tuple[str, int, int]:
    """The session of a request, and its number of messages by the chat and by the step."""
    call = call_of(body)
    chat, step = who.chat(call), who.step(call)
    return who.session(call), -1 if chat is None else chat.message_count, -1 if step is None else step.messages


def conversation(turns: int) -> tuple[Descriptors, list[Message], str]:
    """A caller whose conversation is known, its messages, and its session."""
    who, messages = make(), [{"role": "user", "content": "Find the harbour."}]
    for number in range(turns):
        messages += turn(number)
    sessions = set()
    for number in range(3):
        sessions.add(told(who, body_of(messages))[0])
        messages += turn(turns + number, 100)
    (session,) = sessions
    assert session.startswith("derived:")
    return who, messages, session


@each("length", [1, 2, 3, 4, 5, 7])
def test_a_second_list_of_messages(length: int) -> None:
    """JSON may have a field twice, and the last one counts: the session and the number of messages are its own."""
    who, messages, session = conversation(30)
    other: list[Message] = [{"role": "user", "content": "Find the lighthouse."}]
    for number in range(3):
        other += turn(number, 50)
    twice = body_of(messages)[:-1] + b',"messages":' + json.dumps(other[:length]).encode() + b"}"
    found = told(who, twice)
    assert found == told(make(), twice)
    assert found[0] != session
    assert found[1] == length


def test_a_dense_end_is_still_a_request_to_an_llm() -> None:
    """Limits on these apply to it."""
    who, messages, _ = conversation(10)
    dense = body_of([*messages, {"role": "tool", "content": [[1, 2]] * 120_000}])
    assert told(who, dense) == told(make(), dense) == ("", 0, -1)


def test_what_cannot_be_read_has_no_session() -> None:
    who, messages, _ = conversation(30)
    dense = body_of([*messages, {"role": "tool", "content": [[1, 2]] * 35_000}])
    known, fresh = call_of(dense), call_of(dense)
    for one, call in ((who, known), (make(), fresh)):
        one.head(call)
        one.step(call)
        assert one.session(call) == ""
