"""The newest step of a Chat Completions request."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from breakloop.dialects import registry
from breakloop.dialects.steps import media_key
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.dialects.parsing import append_note as append
from tests.unit.dialects.parsing import newest_step

read = partial(newest_step, "openai_chat")

SYSTEM = {"role": "system", "content": "be kind"}
USER = {"role": "user", "content": "go"}


def body(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def step(*messages: Any, **more: Any) -> Step:
    found = read(body(*messages, **more))
    assert found is not None
    return found


def called(*ids: str, text: str | None = None) -> dict[str, Any]:
    calls = [
        {"id": one, "type": "function", "function": {"name": f"f_{one}", "arguments": '{"b": 1, "a": 2}'}}
        for one in ids
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def returned(call_id: str, text: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_calls_and_results() -> None:
    """The last answer, what its calls returned in the order in which it stands, and what the user said (LD-4, C-8)."""
    messages = (SYSTEM, USER, called("0"), returned("0", "old"), called("1", "2", text="I look"))
    behind = (returned("2", "two"), returned("1", [{"type": "text", "text": "one"}]), {"role": "user", "content": "on"})
    sent = body(*messages, *behind, tools=[{"type": "function", "function": {"name": "f_1"}}, {"type": "x"}])
    assert read(sent) == Step(
        said="I look",
        calls=(ToolCall("f_1", '{"a":2,"b":1}'), ToolCall("f_2", '{"a":2,"b":1}')),
        call_ids=("1", "2"),
        results=(Result("two", call_id="2"), Result("one", call_id="1")),
        users=("on",),
        tools=("f_1",),
        messages=8,
        size=len(sent),
    )


def test_a_conversation_begins() -> None:
    """Without an answer there are only the words of the user (LD-4)."""
    found = step(SYSTEM, {"role": "developer", "content": "x"}, USER, {"role": "user", "content": "now"})
    assert (found.said, found.calls, found.results, found.users) == ("", (), (), ("go", "now"))
    assert found.messages == 4


def test_texts_only() -> None:
    """An answer and what follows; here the words of others than the user count too (LD-4)."""
    found = step(USER, {"role": "assistant", "content": "done?"}, {"role": "system", "content": "go on"}, USER)
    assert (found.said, found.calls, found.users) == ("done?", (), ("go on", "go"))
    assert found.as_text is False


def test_an_action_in_text() -> None:
    """The message behind it is what came of it, and not the user's words (LD-4)."""
    acted = {"role": "assistant", "content": "I look.\n```bash\nls\n```"}
    failed = {"role": "user", "content": "<returncode>2</returncode>\n<output>no</output>"}
    found = step(USER, acted, failed, {"role": "user", "content": "well?"})
    assert found.calls == (ToolCall("bash", "ls"),)
    assert found.results == (Result("<returncode>2</returncode>\n<output>no</output>", error=True),)
    assert found.users == ("well?",)
    assert found.as_text is True
    assert found.call_ids == ()
    waiting = step(USER, {**acted, "content": acted["content"] + " " * 300})
    assert (waiting.calls, waiting.results) == ((ToolCall("bash", "ls"),), ())


def test_roles_of_frameworks() -> None:
    """Roles that a framework should have translated are read: of answers, of calls in a message of their own, and of
    results (LD-4)."""
    listed = "Calling tools:\n[{'id': 'c1', 'type': 'function', 'function': {'name': 'look', 'arguments': {'at': 1}}}]"
    answered = {"role": "assistant", "content": "I look."}
    calls, result = {"role": "tool-call", "content": listed}, {"role": "tool-response", "content": "Error: no"}
    found = step(USER, answered, calls, result)
    assert found.said == f"I look.\n{listed}"
    assert found.calls == (ToolCall("look", '{"at":1}'),)
    assert found.results == (Result("Error: no", error=True),)
    assert found.users == ()
    found = step(USER, {"role": "tool_call", "content": [{"type": "text", "text": listed}]}, result, USER)
    assert (found.said, found.users) == (listed, ("go",))
    assert len(found.calls) == len(found.results) == 1
    found = step(USER, {"role": "ai", "content": "Well."}, {"role": "observation", "content": "seen"})
    assert (found.said, found.results) == ("Well.", (Result("seen", error=False),))
    assert step(USER, {"role": "tool-call"}, USER).said == ""


def test_code_for_a_user_is_no_action() -> None:
    """With declared tools a code block is shown, and the answer to it is the user's (LD-4)."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = step(USER, {"role": "assistant", "content": "Do so:\n```bash\nls\n```"}, USER, tools=tools)
    assert (found.calls, found.results, found.users, found.as_text) == ((), (), ("go",), False)


def test_errors_by_their_own_form() -> None:
    """The dialect has no flag (LD-4)."""
    assert step(called("1"), returned("1", "Error: no such file")).results[0].error
    assert not step(called("1"), returned("1", "0 errors, error: none")).results[0].error


def test_a_beginning_of_an_answer_is_none() -> None:
    """What the model shall go on with was not said by it; the step before it is the newest (LD-4)."""
    begun = {"role": "assistant", "content": "{"}
    assert step(USER, called("1"), returned("1"), begun).results == (Result("ok", call_id="1"),)
    assert step(USER, begun).said == ""
    assert step(USER, {"role": "assistant", "content": "a long answer " * 20}).said.startswith("a long")
    assert step(USER, {"role": "assistant", "content": "first"}, {"role": "assistant", "content": "x"}).said == "x"
    assert step(USER, called("1")).calls
    assert step(USER, {"role": "assistant", "content": "```bash\nls\n```"}).calls


def test_older_and_other_calls() -> None:
    """Functions as they were, and custom tools (C-8)."""
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    found = step(old, {"role": "function", "name": "f", "content": "1"}, functions=[{"name": "f"}])
    assert (found.calls, found.call_ids, found.results) == ((ToolCall("f", "{}"),), (), (Result("1"),))
    assert found.tools == ("f",)
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}
    declared = [{"type": "custom", "custom": {"name": "sql"}}]
    found = step({"role": "assistant", "tool_calls": [custom, {"id": "d", "x": 1}, 7]}, tools=declared)
    assert found.calls == (ToolCall("sql", "SELECT"), ToolCall("", '{"x":1}'), ToolCall("", "7"))
    assert found.call_ids == ("c", "d", "")
    assert found.tools == ("sql",)


def test_refusals_are_said() -> None:
    said = {"role": "assistant", "content": "well", "refusal": "no"}
    assert step(said, USER).said == "well\nno"


def test_media() -> None:
    """By type and digest, in results and from a person (C-8)."""

    def shot(fill: str, caption: str = "now") -> dict[str, Any]:
        url = {"url": f"data:image/png;base64,{fill * 200_000}"}
        return {"role": "user", "content": [{"type": "text", "text": caption}, {"type": "image_url", "image_url": url}]}

    key = media_key("image", shot("A")["content"][1])
    assert step(called("1"), returned("1", shot("A")["content"])).results == (Result("now", call_id="1", media=(key,)),)
    one, two = (step(called("1"), returned("1"), shot(fill)) for fill in "AB")
    assert one.users == (f"now\n<{key}>",) != two.users
    said = {"role": "assistant", "content": "a picture"}
    assert step(said, shot("A")).users != step(said, shot("B")).users
    acted = {"role": "assistant", "content": "```python\nlook()\n```"}
    assert step(acted, shot("A")).results == (Result("now", media=(key,)),)


def test_own_notes_are_gone() -> None:
    """A note that comes back is not there, wherever it was put (LD-4, LD-5)."""
    for model in ("m", "mistral-large"):
        sent = body(USER, called("1"), returned("1", "same"))
        steered = append("openai_chat", json.dumps({**json.loads(sent), "model": model}).encode(), "stop it")
        assert steered is not None
        assert b"stop it" in steered
        plain, noted = read(sent), read(steered)
        assert plain is not None
        assert noted is not None
        assert noted._replace(size=0, messages=0) == plain._replace(size=0, messages=0)


def test_only_the_tail_is_decoded() -> None:
    """O(tail); a message before the last answer may be anything (LD-4)."""
    sent = body(USER, called("1"), returned("1")).replace(b'"go"', b'"\\ud800"')
    assert read(sent) == step({"role": "user", "content": "abcdef"}, called("1"), returned("1"))


def test_bounds() -> None:
    """A million items hold nobody up (C-9)."""
    found = step(*[USER] * 5000)
    assert (len(found.users), found.messages) == (1000, 5000)
    many = [{"function": {"name": "f"}}] * 1500
    found = step({"role": "assistant", "tool_calls": many})
    assert len(found.calls) == 1001
    assert found.calls != step({"role": "assistant", "tool_calls": [*many[1:], {"function": {"name": "g"}}]}).calls
    assert found.tools == ()


def test_odd_types() -> None:
    """Typed, then tolerant (C-9)."""
    odd = step(USER, called("1"), returned("1", "caf\u00e9 \ud83d"), tools="none", stream="yes")
    assert odd.results == (Result("caf\u00e9 ?", call_id="1"),)
    assert odd.calls[0].name == "f_1"
    declared = [7, {"function": "x"}, {"function": {"name": "g"}}, {"custom": {"name": 5}}]
    assert step(USER, tools=declared, functions=[{"name": "h"}]).tools == ("g", "5", "h")
    assert step("just words", 7).users == ("just words", "7")
    assert read(body(None)) is None
    assert read(b"[]") is None
    assert read(b"{") is None
    assert read(b'{"messages": 1e999}') is not None


def test_the_step_is_the_same_after_the_tail_was_read() -> None:
    """Arguments that the tail has spelled already are not spelled again, and are the same ones (LD-4)."""
    sent = body(SYSTEM, USER, called("1", "2"), returned("1"), returned("2"))
    taken = registry.DIALECTS["openai_chat"].parse(sent)
    assert taken is not None
    chat = taken.chat(3)
    assert chat is not None
    assert taken.newest_step() == read(sent)
    assert taken.chat(3) == chat
    assert [made.arguments for made in chat.tail[1].calls] == ['{"a":2,"b":1}'] * 2
