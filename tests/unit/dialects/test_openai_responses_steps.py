"""The newest step of a Responses request."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from breakloop.dialects.steps import media_key
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.dialects.parsing import append_note as append
from tests.unit.dialects.parsing import newest_step

read = partial(newest_step, "openai_responses")

USER = {"role": "user", "content": [{"type": "input_text", "text": "go"}]}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}


def body(said: Any, **more: Any) -> bytes:
    return json.dumps({"model": "gpt-5", "input": said, **more}).encode()


def step(*items: Any, **more: Any) -> Step:
    found = read(body(items, **more))
    assert found is not None
    return found


def asked(number: int) -> dict[str, Any]:
    made = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "f"}
    return {**made, "arguments": f'{{"n": {number}}}'}


def answered(number: int, output: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": output, **more}


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_calls_and_results() -> None:
    """Items of the model one behind the other are one answer; results by their ids (LD-4, C-8)."""
    items = [USER, asked(0), answered(0), REASONING, message("I look"), REASONING, asked(1), asked(2)]
    behind = [answered(2, "two"), answered(1, [{"type": "input_text", "text": "one"}]), USER]
    sent = body(items + behind, tools=[{"type": "function", "name": "f"}, {"type": "web_search"}])
    assert read(sent) == Step(
        said="I look",
        calls=(ToolCall("f", '{"n":1}'), ToolCall("f", '{"n":2}')),
        call_ids=("call_1", "call_2"),
        results=(Result("two", call_id="call_2"), Result("one", call_id="call_1")),
        users=("go",),
        tools=("f",),
        messages=11,
        size=len(sent),
        stored=True,
    )


def test_a_conversation_begins() -> None:
    """As a text, as items, or as a stored prompt (LD-4)."""
    found = read(body("hi", instructions="be kind"))
    assert found is not None
    assert (found.said, found.users, found.messages) == ("", ("hi",), 1)
    assert step({"role": "developer", "content": "x"}, USER).users == ("go",)
    stored = read(b'{"model": "m", "prompt": {"id": "p", "variables": {"a": "b"}}}')
    assert stored is not None
    assert stored.users == ('{"id":"p","variables":{"a":"b"}}',)
    assert read(b'{"model": "m"}') is None


def test_an_answer_that_is_kept_at_openai() -> None:
    """With previous_response_id only results are seen; which call they answer says the id (LD-4)."""
    found = step(answered(1, "one"), previous_response_id="resp_1")
    assert (found.said, found.calls, found.results) == ("", (), (Result("one", call_id="call_1"),))
    found = step(USER, {"type": "item_reference", "id": "fc_1"}, answered(1, "one"))
    assert (found.users, found.results) == ((), (Result("one", call_id="call_1"),))


def test_which_answers_the_next_request_may_leave_out() -> None:
    """Those that OpenAI stores, and all on a websocket, where Codex continues answers that are not stored (LD-4)."""
    for lenient in ({}, {"max_output_tokens": "many"}):
        assert step(USER, **lenient).stored
        assert not step(USER, store=False, **lenient).stored
        assert step(USER, store=False, type="response.create", **lenient).stored


def test_errors() -> None:
    """The status of a result, its error field, and what it says of itself (C-8)."""
    for failed in (answered(1, status="failed"), answered(1, error="x"), answered(1, "Exit code: 1\nno")):
        assert step(asked(1), failed).results[0].error
    assert not step(asked(1), answered(1, status="completed")).results[0].error


def test_other_kinds_of_calls() -> None:
    """Custom tools, shells, and those that run at OpenAI and bring their results with them (C-8)."""
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "SELECT"}
    remote = {"type": "mcp_call", "id": "y", "name": "look", "arguments": "{ }", "output": None, "error": "no"}
    shell = {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}}
    ran = [
        {"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "", "stderr": "c", "outcome": {"type": "exit", "exit_code": 1}},
    ]
    shown = {"type": "computer_screenshot", "image_url": "data:image/png;base64," + "A" * 90_000}
    found = step(
        USER,
        *(custom, remote, shell),
        {"type": "custom_tool_call_output", "call_id": "c", "output": "1"},
        {"type": "shell_call_output", "call_id": "s", "output": ran},
        {"type": "shell_call_output", "call_id": "t", "output": [ran[0], "x"]},
        {"type": "computer_call_output", "call_id": "p", "output": shown},
    )
    assert found.calls == (ToolCall("sql", "SELECT"), ToolCall("look", "{}"), ToolCall("shell", '{"commands":["ls"]}'))
    assert found.call_ids == ("c", "y", "s")
    assert found.results == (
        Result("no", error=True, call_id="y"),
        Result("1", call_id="c"),
        Result("a\nb\nc", error=True, call_id="s"),
        Result("a\nb\nx", call_id="t"),
        Result("", call_id="p", media=(media_key("image", shown),)),
    )


def test_what_is_neither() -> None:
    """Approval is nobody's words (LD-4)."""
    approval = {"type": "mcp_approval_response", "approve": True, "approval_request_id": "x"}
    found = step(USER, asked(1), answered(1), approval, {"type": "compaction", "encrypted_content": "x"})
    assert (found.users, len(found.results)) == ((), 1)


def test_an_action_in_text() -> None:
    """As in the other dialects (LD-4)."""
    found = step(USER, message("```bash\nls\n```"), USER)
    assert (found.calls, found.results, found.users) == ((ToolCall("bash", "ls"),), (Result("go"),), ())


def test_own_notes_are_gone() -> None:
    """Own notes are gone (LD-4, LD-5)."""
    sent = body([USER, asked(1), answered(1, "same")])
    steered = append("openai_responses", sent, "stop it")
    assert steered is not None
    plain, noted = read(sent), read(steered)
    assert plain is not None
    assert noted is not None
    assert noted._replace(size=0, messages=0) == plain._replace(size=0, messages=0)


def test_odd_types() -> None:
    """Typed, then tolerant; then nothing (C-9)."""
    odd = step(7, asked(1), answered(1, "\ud83d"), "words", tools={"name": 5})
    assert odd.results == (Result("?", call_id="call_1"),)
    assert (odd.users, odd.tools) == (("words",), ("5",))
    found = read(b'{"model": "m", "input": "\\ud83d"}')
    assert found is not None
    assert found.users == ("?",)
    assert read(b"[]") is None
    assert len(step(*[answered(1)] * 3000).results) == 1000
