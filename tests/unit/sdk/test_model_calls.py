"""`ModelCalls`: each request is decided once and settled once, whatever becomes of it; what cannot be read is not checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from breakloop import Guard, LoopDetectedError
from breakloop.clock import FakeClock
from breakloop.model.call import NO_ANSWER, Answer
from breakloop.model.decision import Decision
from breakloop.sdk.context import agent
from breakloop.sdk.model_calls import (
    Conversation,
    ModelCalls,
    assistant_message,
    result_message,
    text_message,
    with_methods,
)
from breakloop.sdk.requests import STEPS_ONLY, make_answer
from tests.unit.sdk.backends import ScriptedBackend


def conversation(turns: int) -> Conversation:
    steps = [
        message
        for number in range(turns)
        for message in (
            assistant_message("", [(f"c{number}", "search", {"q": "x"})]),
            result_message(f"c{number}", "nothing"),
        )
    ]
    return Conversation([text_message("user", "Find it."), *steps], "gpt-5", ["search"], session="s")


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def calls(backend: ScriptedBackend) -> ModelCalls:
    return ModelCalls(Guard(_backend=backend), "bot")


def test_a_request_is_what_the_framework_would_send(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """Messages, tools and names, in the form of OpenAI's chat API (P-3)."""
    calls.begin("k", lambda: conversation(1)._replace(agent="theirs"))
    call = backend.calls[0]
    assert call.path == "/v1/chat/completions"
    assert b'"tools":[{"function":{"name":"search"},"type":"function"}]' in call.body
    assert b'"content":"nothing","role":"tool","tool_call_id":"c0"' in call.body
    assert call.headers["x-agent-id"] == b"bot"
    assert call.headers["x-agent-session"] == b"s"


def test_names_around_it_come_before_those_of_the_framework(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """As in every integration (P-3)."""
    with agent(session="ticket"):
        calls.begin("k", lambda: conversation(1))
    assert backend.calls[0].headers["x-agent-session"] == b"ticket"


def test_it_is_settled_once(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """With its answer; a second end changes nothing (P-3)."""
    calls.begin("k", lambda: conversation(0))
    calls.end("k", lambda: make_answer(200, "Hello."))
    calls.end("k", lambda: make_answer(200, "Again."))
    assert [answer.text for answer in backend.answers] == ["Hello."]


def test_a_call_that_never_ended_is_settled_as_failed(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """So that a retry does not count twice (P-3)."""
    calls.begin("k", lambda: conversation(0))
    calls.begin("k", lambda: conversation(0))
    assert [answer.status for answer in backend.answers] == [NO_ANSWER]


def test_what_cannot_be_read_is_not_checked(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """Fail open, counted (LD-7)."""

    def unreadable() -> Conversation:
        raise TypeError("another version")

    assert calls.begin("k", unreadable).allowed
    assert calls.call(unreadable, lambda _: "made", lambda _: make_answer()) == "made"
    assert (backend.calls, calls.guard.faults) == ([], 2)


def test_an_answer_that_cannot_be_read_is_an_answer(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """The call is settled all the same (LD-7)."""

    def unreadable() -> Answer:
        raise TypeError("another version")

    calls.begin("k", lambda: conversation(0))
    calls.end("k", unreadable)
    assert [answer.status for answer in backend.answers] == [200]
    assert calls.guard.faults == 1


def said(pieces: list[str]) -> Answer:
    return make_answer(200, "".join(pieces))


def test_a_stream_is_settled_with_all_of_its_pieces(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """Also if it fails, or nobody reads it to its end (P-3)."""

    def pieces(_: Decision) -> Iterator[str]:
        yield "Hel"
        yield "lo."

    def broken(_: Decision) -> Iterator[str]:
        yield "Hel"
        raise ConnectionError

    assert list(calls.stream(lambda: conversation(0), pieces, said)) == ["Hel", "lo."]
    with pytest.raises(ConnectionError):
        list(calls.stream(lambda: conversation(0), broken, said))
    left: Any = calls.stream(lambda: conversation(0), pieces, said)
    next(left)
    left.close()
    assert [(answer.status, answer.text) for answer in backend.answers] == [
        (200, "Hello."),
        (NO_ANSWER, ""),
        (200, "Hel"),
    ]


def test_a_stream_on_an_event_loop(calls: ModelCalls, backend: ScriptedBackend) -> None:
    """The same in the other colour (P-3)."""

    async def pieces(_: Decision) -> AsyncIterator[str]:
        yield "Hel"
        yield "lo."

    async def run() -> list[str]:
        return [piece async for piece in calls.astream(lambda: conversation(0), pieces, said)]

    assert asyncio.run(run()) == ["Hel", "lo."]
    assert [answer.text for answer in backend.answers] == ["Hello."]


def test_a_denied_stream_is_raised_and_not_made(clock: FakeClock) -> None:
    """Nothing is asked (LD-4)."""
    calls = ModelCalls(Guard(STEPS_ONLY, clock=clock))
    made: list[int] = []

    def pieces(_: Decision) -> Iterator[str]:
        made.append(1)
        yield "again"

    for turns in range(5):
        said_again = conversation(turns)
        list(calls.stream(lambda said_again=said_again: said_again, pieces, said))  # type: ignore[misc]
    with pytest.raises(LoopDetectedError, match="5 times in a row"):
        list(calls.stream(lambda: conversation(5), pieces, said))
    assert len(made) == 5


class Model:
    name = "m"

    def ask(self) -> str:
        return "asked"


def test_a_copy_with_other_methods() -> None:
    """The class stays, and the original is not changed."""
    original = Model()
    made = with_methods(original, ask=lambda: "guarded")
    assert isinstance(made, Model)
    assert (made.ask(), original.ask()) == ("guarded", "asked")


def test_failed_results_are_marked() -> None:
    """A chat API has no flag for it (LD-4)."""
    assert result_message("c", "not found", failed=True)["content"] == "Error: not found"
    assert result_message("c", "Error: not found", failed=True)["content"] == "Error: not found"
    assert result_message("c", {"b": 1, "a": 2})["content"] == '{"a":2,"b":1}'
