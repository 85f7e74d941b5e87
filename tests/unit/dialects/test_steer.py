"""The steer note: at the tail, as each API accepts it, and nothing else touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import MessageParam
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from breakloop.dialects import body_changes
from breakloop.dialects.steps import without_additions
from breakloop.model.decision import MARK
from tests.each import each
from tests.unit.dialects.parsing import append_note

DIALECTS = ("openai_chat", "openai_responses", "openai_completions", "anthropic_messages", "gemini", "mcp")
NOTE = 'You called "search" 5 times with the same arguments. Change course or finish. \u2192 \u00e9'
TEXT = f"[breakloop] {NOTE} [/breakloop]"
INTO = f"\n\n{TEXT}"
PART = {"type": "text", "text": TEXT}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
    {"role": "tool", "tool_call_id": "c2", "content": "2"},
]
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "a", "input": {}}]}
USED = {"type": "tool_result", "tool_use_id": "t1", "content": "1", "cache_control": {"type": "ephemeral"}}
FUNCTION_CALL = {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"}
FUNCTION_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "1"}
MODEL_CALL = {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {}}}]}
MODEL_RESULT = {"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {"result": 1}}}]}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def steered(dialect: str, body: dict[str, Any]) -> dict[str, Any] | None:
    changed = append_note(dialect, json.dumps(body).encode(), NOTE)
    return None if changed is None else json.loads(changed)


def chat(*messages: Any, **more: Any) -> Any:
    return steered("openai_chat", {"model": "gpt-5", "messages": list(messages), "stream": True, **more})


def anthropic(*messages: Any) -> Any:
    return steered("anthropic_messages", {"model": "claude", "max_tokens": 9, "messages": list(messages)})


def responses(said: Any, **more: Any) -> Any:
    return steered("openai_responses", {"model": "gpt-5", "instructions": "be kind", "input": said, **more})


def gemini(*contents: Any) -> Any:
    return steered("gemini", {"contents": list(contents), "systemInstruction": {"parts": [{"text": "be kind"}]}})


def test_chat_after_tool_results() -> None:
    """A message of the user's after all results, never between the calls and them (LD-5)."""
    found = chat(user("go"), CALLS, *RESULTS)
    assert found == {
        "model": "gpt-5",
        "messages": [user("go"), CALLS, *RESULTS, user(TEXT)],
        "stream": True,
    }


def test_chat_in_the_users_own_message() -> None:
    """No second message of the user's in a row, which some servers refuse (LD-5)."""
    assert chat(user("go"))["messages"] == [user("go" + INTO)]
    assert chat(user(""))["messages"] == [user(INTO)]
    parts = [{"type": "text", "text": "go"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert chat(user(parts))["messages"] == [user([*parts, PART])]
    assert chat(user([]))["messages"] == [user([PART])]
    system = {"role": "system", "content": "be kind"}
    assert chat(system)["messages"] == [system, user(TEXT)]


@pytest.mark.parametrize("model", ["mistral-large-latest", "mistralai/Devstral-Small-2", "open-mixtral-8x22b"])
def test_mistral_takes_no_user_after_a_tool(model: str) -> None:
    """Its API answers 400 to that order, so the note goes into the last result (LD-5)."""
    found = chat(user("go"), CALLS, *RESULTS, model=model)
    assert found["messages"] == [user("go"), CALLS, RESULTS[0], {**RESULTS[1], "content": "2" + INTO}]


@each(
    "messages",
    [
        [user("go"), CALLS],
        [user("go"), {"role": "assistant", "content": "The answer is"}],
        [user("go"), {"role": "assistant", "content": "The answer is", "prefix": True}],
        [user(None)],
        [user({"text": "go"})],
        [{"role": "user"}],
        [{"content": "go"}],
        [{"role": 7, "content": "go"}],
        ["go"],
        [[]],
        [],
    ],
)
def test_chat_that_cannot_be_steered(messages: list[Any]) -> None:
    """Calls that wait for their results, words to be continued, and what is no message (LD-5)."""
    assert chat(*messages) is None


def test_anthropic_after_tool_results() -> None:
    """A text block behind the results in the same message; a cache mark before it stays where it is (LD-5)."""
    found = anthropic(user("go"), USE, user([USED]))
    assert found == {"model": "claude", "max_tokens": 9, "messages": [user("go"), USE, user([USED, PART])]}


def test_anthropic_texts() -> None:
    """Into the last message, a string or blocks; a system message may be the last one too (LD-5)."""
    assert anthropic(user("go"))["messages"] == [user("go" + INTO)]
    blocks = [{"type": "text", "text": "go"}]
    assert anthropic(user(blocks))["messages"] == [user([*blocks, PART])]
    system = {"role": "system", "content": "hurry"}
    assert anthropic(user("go"), system)["messages"] == [user("go"), {**system, "content": "hurry" + INTO}]


def test_anthropic_that_cannot_be_steered() -> None:
    """A beginning for the model to go on with, calls without results, and nothing at all (LD-5)."""
    assert anthropic(user("go"), {"role": "assistant", "content": "The answer is"}) is None
    assert anthropic(user("go"), USE) is None
    assert anthropic(user(None)) is None
    assert anthropic() is None


def test_anthropic_while_a_tool_of_its_own_is_at_work() -> None:
    """Then a message with results may hold nothing else, or the API answers 400 (LD-5)."""
    code = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}
    done = {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": {}}
    call = {"type": "tool_use", "id": "t1", "name": "a", "input": {}, "caller": {"type": "code_execution_20260120"}}
    waiting = {"role": "assistant", "content": [code, call]}
    assert anthropic(user("go"), waiting, user([USED])) is None
    assert anthropic(user("go"), waiting, user([USED]), {"role": "system", "content": "hurry"}) is None
    finished = {"role": "assistant", "content": [code, done, USE["content"][0]]}
    assert anthropic(user("go"), finished, user([USED])) is not None
    assert anthropic(user("go"), {"role": "assistant", "content": [{"type": [], "id": {}}, 7]}, user("go")) is not None


def test_responses_with_a_text() -> None:
    """`instructions` are not touched, whatever the form of the input (LD-5)."""
    assert responses("go") == {"model": "gpt-5", "instructions": "be kind", "input": "go" + INTO}
    assert responses("go", previous_response_id="resp_1")["previous_response_id"] == "resp_1"


def test_responses_with_items() -> None:
    """Behind the results, or in the user's last message (LD-5)."""
    note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}
    assert responses([user("go"), FUNCTION_CALL, FUNCTION_OUTPUT])["input"] == [
        user("go"),
        FUNCTION_CALL,
        FUNCTION_OUTPUT,
        note,
    ]
    direct = {**FUNCTION_OUTPUT, "caller": {"type": "direct"}}
    assert responses([direct], previous_response_id="resp_1")["input"] == [direct, note]
    custom = {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"}
    assert responses([custom])["input"] == [custom, note]
    approved = {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}
    assert responses([approved])["input"] == [approved, note]
    assert responses([user("go")])["input"] == [user("go" + INTO)]
    parts = [{"type": "input_text", "text": "go"}]
    typed = {"type": "message", "role": "user", "content": parts}
    assert responses([typed])["input"] == [{**typed, "content": [*parts, {"type": "input_text", "text": TEXT}]}]
    developer = {"role": "developer", "content": "hurry"}
    assert responses([developer])["input"] == [developer, note]


@pytest.mark.parametrize(
    "last",
    [
        FUNCTION_CALL,
        {"type": "reasoning", "summary": []},
        {"type": "compaction_trigger"},
        {"type": "item_reference", "id": "i"},
        {"id": "i"},
        {"role": "assistant", "content": "The answer is"},
        {**FUNCTION_OUTPUT, "caller": {"type": "program", "caller_id": "p"}},
        "go",
        None,
    ],
)
def test_responses_that_cannot_be_steered(last: Any) -> None:
    """A call that waits for its result, a program that is running, and whatever has to come last itself (LD-5)."""
    assert responses([user("go"), last]) is None
    assert responses([]) is None
    assert responses({}) is None
    assert steered("openai_responses", {"model": "gpt-5", "prompt": {"id": "p"}}) is None


def test_gemini() -> None:
    """Function responses stay among themselves; else the note is a part of the user's last content (LD-5)."""
    note = {"role": "user", "parts": [{"text": TEXT}]}
    go = {"role": "user", "parts": [{"text": "go"}]}
    found = gemini(go, MODEL_CALL, MODEL_RESULT)
    assert found["contents"] == [go, MODEL_CALL, MODEL_RESULT, note]
    assert found["systemInstruction"] == {"parts": [{"text": "be kind"}]}
    mixed = {"parts": [{"function_response": {"name": "a"}}, {"inlineData": {"mimeType": "image/png", "data": ""}}]}
    assert gemini(go, MODEL_CALL, mixed)["contents"] == [go, MODEL_CALL, mixed, note]
    assert gemini(go)["contents"] == [{"role": "user", "parts": [{"text": "go"}, {"text": TEXT}]}]
    said = {"parts": [{"text": 'what is "functionResponse": ?'}]}
    assert gemini(said)["contents"] == [{"parts": [*said["parts"], {"text": TEXT}]}]
    others: list[Any] = [{"role": "model", "parts": [{"text": "It is"}]}, {"parts": []}, {"parts": "go"}, "go"]
    for last in (MODEL_CALL, *others):
        assert gemini(go, last) is None
    assert steered("gemini", {"contents": go}) is None


def test_completions() -> None:
    """The end of the prompt; not where a gap is to be filled, and not for a batch or tokens (LD-5)."""
    assert steered("openai_completions", {"model": "m", "prompt": "go"}) == {"model": "m", "prompt": "go" + INTO}
    assert steered("openai_completions", {"prompt": "go", "suffix": None}) is not None
    for more in ({"suffix": "end"}, {"prompt": ["go"]}, {"prompt": [1, 2]}, {"prompt": None}):
        assert steered("openai_completions", {"model": "m", "prompt": "go", **more}) is None
    assert steered("openai_completions", {"model": "m"}) is None


@pytest.mark.parametrize("dialect", ["openai_embeddings", "mcp"])
def test_dialects_without_a_conversation(dialect: str) -> None:
    """There is nobody to tell (LD-5)."""
    assert append_note(dialect, b'{"model":"m","input":"go","messages":[{"role":"user","content":"go"}]}', NOTE) is None


def test_the_sdks_know_what_is_appended() -> None:
    """The new messages are of a form that the providers' own libraries define (LD-5)."""
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(chat(user("go"), CALLS, *RESULTS)["messages"])
    TypeAdapter(list[MessageParam]).validate_python(anthropic(user("go"), USE, user([USED]))["messages"])
    TypeAdapter(list[ResponseInputItemParam]).validate_python(responses([FUNCTION_CALL, FUNCTION_OUTPUT])["input"])


@each(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b"not json",
        b'{"messages":}',
        b'{"messages":null,"input":null,"contents":null,"prompt":null}',
        b'\xef\xbb\xbf{"messages":[{"role":"user","content":"go"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"a"}]}',
        b'{"messages":[{"role":"user","content":"a","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"x":NaN}',
        b'{"messages":[{"role":"user","content":"a"}]} x',
        b'{"messages":' + b"[" * 100_000,
        b'{"messages":[{"role":"user","content":"a"}],"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    ],
)
@each("dialect", DIALECTS)
def test_garbage_is_left_alone(dialect: str, body: bytes) -> None:
    """What is not understood to the last byte is not changed (LD-5)."""
    assert append_note(dialect, body, NOTE) is None


def test_fields_that_stand_in_it_twice_are_not_mistaken() -> None:
    """Lengths that fit by chance are not enough: each value is compared with what stands there (LD-5)."""
    trap = b'{"a":1,"b":22,"a":{"filler":1,"seven77":2}}'
    with pytest.raises(ValueError, match="not at the expected position"):
        body_changes.JsonBody(trap)


def test_notes_are_recognised_and_taken_off() -> None:
    """By a fixed mark, and only where it is as short as ours are (LD-5)."""
    assert TEXT.startswith(MARK)
    assert without_additions("go" + INTO) == without_additions(f"go\n{TEXT}") == "go"
    assert without_additions(TEXT) == ""
    assert without_additions(f"[/breakloop] go\n{TEXT}") == "[/breakloop] go"
    for text in ("go", "", "[/breakloop]", f"[breakloop] {'x' * 2000} [/breakloop]"):
        assert without_additions(text) == text


@given(st.text(), st.text(alphabet="[]/breaklop \n", min_size=1))
def test_any_note_can_be_taken_off_again(said: str, note: str) -> None:
    """Also one that holds the marks themselves, or lone surrogates, or is far too long (LD-5)."""
    for text in (note, note * 300, "\ud800", "[breakloop] [/breakloop]"):
        body = json.dumps({"prompt": said}).encode()
        changed = append_note("openai_completions", body, text)
        assert changed is not None
        assert len(changed) < len(body) + 6000
        assert without_additions(json.loads(changed)["prompt"]) == said.rstrip()
