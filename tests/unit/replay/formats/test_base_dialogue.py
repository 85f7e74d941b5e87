"""Requests made again from what came in and what was answered."""

from __future__ import annotations

import json
from typing import Any

from breakloop.model.call import Answer
from breakloop.replay.formats.base import ANTHROPIC, CHAT, RESPONSES, Dialogue
from breakloop.replay.sessions import RecordedBody, RecordedTurn

ANSWER = Answer(200, "Yes.", complete=True)


def user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


def sent(turn: RecordedTurn) -> dict[str, Any]:
    assert isinstance(turn.request, RecordedBody)
    found = json.loads(turn.request.body)
    assert isinstance(found, dict)
    return found


def test_a_request_holds_all_that_came_before() -> None:
    """A request holds all that came before (X-6)."""
    dialogue = Dialogue(CHAT)
    dialogue.hear(user("a"), 10.0)
    dialogue.begin(12.0)
    first = dialogue.answered([{"role": "assistant", "content": "Yes."}], ANSWER, "m", "key")
    assert first.request == RecordedBody(
        "/v1/chat/completions", b'{"model":"m","messages":[{"content":"a","role":"user"}]}'
    )
    assert (first.at_s, first.key, first.answer) == (10.0, "key", ANSWER)
    dialogue.hear(user("b"), 20.0)
    dialogue.begin(21.0)
    second = dialogue.answered([], ANSWER, "m")
    assert [one["content"] for one in sent(second)["messages"]] == ["a", "Yes.", "b"]
    assert second.at_s == 20.0


def test_what_comes_in_during_an_answer_stands_behind_it() -> None:
    """The result of the first of two calls is told before the second call is (X-6)."""
    dialogue = Dialogue(ANTHROPIC)
    dialogue.hear(user("a"), 1.0)
    dialogue.begin(2.0)
    dialogue.hear(user("result"), 3.0)
    assert [one["content"] for one in sent(dialogue.answered([user("answer")], ANSWER, ""))["messages"]] == ["a"]
    dialogue.begin(5.0)
    last = dialogue.answered([], ANSWER, "")
    assert [one["content"] for one in sent(last)["messages"]] == ["a", "answer", "result"]
    assert last.at_s == 3.0


def test_without_a_time_of_the_request_that_of_the_answer_is_taken() -> None:
    """Without a time of the request that of the answer is taken (X-6)."""
    dialogue = Dialogue(RESPONSES)
    dialogue.begin(7.0)
    turn = dialogue.answered([], ANSWER, "m")
    assert (turn.at_s, sent(turn)) == (7.0, {"model": "m", "input": []})


def test_compaction() -> None:
    """All is forgotten, or some of it by name with a summary in its place (X-6)."""
    dialogue = Dialogue(CHAT)
    for name in "abcd":
        dialogue.hear(user(name), name=name)
    dialogue.forget({"b", "c"}, user("summary"), 1)
    dialogue.begin(None)
    assert [one["content"] for one in sent(dialogue.answered([], ANSWER, ""))["messages"]] == ["a", "summary", "d"]
    dialogue.restart([user("short")])
    dialogue.begin(None)
    assert [one["content"] for one in sent(dialogue.answered([], ANSWER, ""))["messages"]] == ["short"]
