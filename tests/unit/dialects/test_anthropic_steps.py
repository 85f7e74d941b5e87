"""The newest step of an Anthropic Messages request."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from breakloop.dialects.steps import media_key
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.dialects.parsing import append_note as append
from tests.unit.dialects.parsing import newest_step

read = partial(newest_step, "anthropic_messages")

USER = {"role": "user", "content": "go"}


def body(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "claude", "max_tokens": 9, "messages": messages, **more}).encode()


def step(*messages: Any, **more: Any) -> Step:
    found = read(body(*messages, **more))
    assert found is not None
    return found


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def use(number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {"n": number}}


def result(number: int, text: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def test_calls_and_results() -> None:
    """tool_use, tool_result with its flag, and words beside; thinking is not said (LD-4, C-8)."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    behind = user(result(2, "no", is_error=True), result(1, [text("one"), text("more")]), text("hurry"), text("up"))
    sent = body(USER, said(thought, text("I look"), use(1), use(2)), behind, tools=[{"name": "f"}, {"type": "x"}])
    assert read(sent) == Step(
        said="I look",
        calls=(ToolCall("f", '{"n":1}'), ToolCall("f", '{"n":2}')),
        call_ids=("toolu_1", "toolu_2"),
        results=(Result("no", error=True, call_id="toolu_2"), Result("one\nmore", call_id="toolu_1")),
        users=("hurry\nup",),
        tools=("f",),
        messages=3,
        size=len(sent),
    )


def test_a_conversation_begins() -> None:
    assert step(USER, system="x").users == ("go",)
    assert step(USER, {"role": "assistant", "content": "hi"}, USER).said == "hi"


def test_an_action_in_text() -> None:
    """As in the other dialects (LD-4)."""
    found = step(USER, {"role": "assistant", "content": "```bash\nls\n```"}, user(text("Error: no")))
    assert (found.calls, found.results, found.as_text) == (
        (ToolCall("bash", "ls"),),
        (Result("Error: no", error=True),),
        True,
    )


def test_a_beginning_of_an_answer_is_none() -> None:
    """A prefill is sent with every request of such a client, and is no answer (LD-4)."""
    for begun in ({"role": "assistant", "content": "{"}, said(text("{"))):
        found = step(USER, said(use(1)), user(result(1)), begun)
        assert (found.said, len(found.calls), len(found.results)) == ("", 1, 1)
    assert step(USER, said(use(1))).calls


def test_media_in_results() -> None:
    """Type and digest; a text document is text (C-8)."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 90_000}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    paper = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    found = step(said(use(1)), user(result(1, [text("seen"), image, linked, paper])))
    assert found.results[0].text == "seen\nwords"
    assert found.results[0].media == (media_key("image", image), media_key("image", linked))


def test_tools_that_run_at_anthropic() -> None:
    """Their results stand in the answer (C-8)."""
    call = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    hit = {"type": "web_search_result", "url": "u", "encrypted_content": "new each time"}
    done = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [hit]}
    bad = {"type": "code_execution_tool_result", "tool_use_id": "c", "content": {"type": "x", "return_code": 1}}
    worse = {"type": "web_search_tool_result", "tool_use_id": "d", "content": {"type": "web_search_tool_result_error"}}
    found = step(USER, said(call, done, bad, worse, text("so")), USER)
    assert found.calls == (ToolCall("web_search", '{"query":"x"}'),)
    assert found.results[0] == Result('{"type":"web_search_result","url":"u"}', call_id="s")
    assert [one.error for one in found.results] == [False, True, True]
    assert found.users == ("go",)


def test_what_a_harness_adds_is_no_news() -> None:
    """Reminders change with every request, and are not the user's words (LD-4)."""
    reminder = text("<system-reminder>\nThe list is now: ...\n</system-reminder>")
    plain = step(said(use(1)), user(result(1, "same")))
    for noted in (
        step(said(use(1)), user(result(1, "same"), reminder)),
        step(said(use(1)), user(result(1, "same\n\n" + reminder["text"]))),
    ):
        assert noted._replace(size=0) == plain._replace(size=0)


def test_own_notes_are_gone() -> None:
    """Own notes are gone (LD-4, LD-5)."""
    sent = body(USER, said(use(1)), user(result(1, "same")))
    steered = append("anthropic_messages", sent, "stop it")
    assert steered is not None
    plain, noted = read(sent), read(steered)
    assert plain is not None
    assert noted is not None
    assert noted._replace(size=0) == plain._replace(size=0)


def test_odd_types() -> None:
    """Typed, then tolerant; then nothing (C-9)."""
    odd = step(USER, said("words", 7, use(1)), user("text", result(1, "\ud83d", is_error="true")), tools={"name": "f"})
    assert odd.said == "words\n7"
    assert odd.results == (Result("?", error=True, call_id="toolu_1"),)
    assert odd.users == ("text",)
    assert odd.tools == ("f",)
    assert step("just words").users == ("just words",)
    assert read(b'{"model": "m"}') is None
    assert read(b"no") is None
    found = step(said(*[text("x")] * 1200), user(*[text("y")] * 1200))
    assert found.said.count("x\n") >= 999
    found = step(said(use(1)), *[user(*[result(1, str(n))] * 900) for n in range(2)])
    assert (len(found.results), found.results[0].text, found.results[-1].text) == (1000, "0", "1")
