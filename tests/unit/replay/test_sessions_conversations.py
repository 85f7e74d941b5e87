"""Requests put together out of differences."""

from __future__ import annotations

import json
from typing import Any

from breakloop.model.call import Answer, ToolCall
from breakloop.replay.sessions import Conversations, Delta, json_bytes


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def messages(body: bytes) -> list[dict[str, Any]]:
    found = json.loads(body)["messages"]
    assert isinstance(found, list)
    return found


def test_a_request_is_what_is_kept_and_what_is_new() -> None:
    """Base[:keep] + delta, where base is the previous request of the thread and its answer (X-5)."""
    made = Conversations("m")
    assert json.loads(made.body(Delta("0", 0, [user("one")]))) == {"model": "m", "messages": [user("one")]}
    made.answered("0", Answer(200, "first"))
    grown = messages(made.body(Delta("0", 2, [user("two")])))
    assert grown == [user("one"), {"role": "assistant", "content": "first"}, user("two")]
    made.answered("0", Answer(200, "second"))
    assert messages(made.body(Delta("0", 1, [user("again")]))) == [user("one"), user("again")]


def test_threads_know_nothing_of_each_other() -> None:
    """Sub-agents have conversations of their own (X-5)."""
    made = Conversations("m")
    made.body(Delta("a", 0, [user("mine")]))
    made.answered("a", Answer(200, "yours"))
    assert messages(made.body(Delta("b", 2, [user("other")]))) == [user("other")]


def test_calls_have_ids_and_results_find_theirs() -> None:
    """On the wire each call has an id of its own; the same call again has another (X-5)."""
    made = Conversations("m")
    ids = []
    keep = 0
    delta: list[dict[str, Any]] = [user("look")]
    for _ in range(2):
        made.body(Delta("0", keep, delta))
        made.answered("0", Answer(200, "", (ToolCall("a", "{}"), ToolCall("b", '{"x":1}'))))
        keep, delta = 99, [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
        found = messages(made.body(Delta("0", keep, delta)))
        call, one, two = found[-3:]
        assert call["content"] is None
        assert [made["function"] for made in call["tool_calls"]] == [
            {"name": "a", "arguments": "{}"},
            {"name": "b", "arguments": '{"x":1}'},
        ]
        assert [one["tool_call_id"], two["tool_call_id"]] == [made["id"] for made in call["tool_calls"]]
        ids += [one["tool_call_id"], two["tool_call_id"]]
        made.answered("0", Answer(200, "", ()))
        delta = [user("again")]
    assert len(set(ids)) == 4


def test_recorded_ids_stay_and_recorded_calls_are_spelled_out() -> None:
    """A history that a framework sent itself keeps its ids, and gets them where it has none (X-5)."""
    made = Conversations("m")
    call = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}
    kept = {"role": "tool", "content": "r", "tool_call_id": "mine"}
    first, second, third = messages(made.body(Delta("0", 0, [call, {"role": "tool", "content": "r"}, kept])))
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert second["tool_call_id"] == first["tool_calls"][0]["id"]
    assert third == kept
    wired = {"role": "assistant", "tool_calls": [{"id": "c9", "type": "function", "function": {"name": "g"}}]}
    assert messages(made.body(Delta("1", 0, [wired]))) == [wired]


def test_results_of_forgotten_calls_get_no_id() -> None:
    """A result whose call was cut away belongs to nothing."""
    made = Conversations("m")
    made.body(Delta("0", 0, [user("look")]))
    made.answered("0", Answer(200, "", (ToolCall("a", "{}"),)))
    assert messages(made.body(Delta("0", 1, [{"role": "tool", "content": "1"}])))[-1] == {
        "role": "tool",
        "content": "1",
    }


def test_half_a_character_does_no_harm() -> None:
    """Recordings hold lone surrogates; a body is UTF-8."""
    assert json_bytes("a\ud800ü") == '"a?ü"'.encode()
