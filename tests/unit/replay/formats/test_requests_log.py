"""Logs of requests and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.model.call import SECRET_HEADERS, ToolCall
from breakloop.replay.formats.requests import RequestLogReader, answer_of
from breakloop.replay.sessions import RecordedBody, RecordedSession, RecordedTurn

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
SAID = {"id": "r", "choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]}
CALLED = {"choices": [{"message": {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}
CLAUDE = {
    "type": "message",
    "content": [{"type": "text", "text": "Hi."}, {"type": "tool_use", "name": "g", "input": {}}],
}
CHUNKS = [{"choices": [{"delta": {"content": "H"}}]}, {"choices": [{"delta": {"content": "i."}}]}]


def read(record: dict[str, Any]) -> tuple[RecordedSession, RecordedTurn]:
    assert RequestLogReader.fits(record)
    ((session, turns, whole),) = RequestLogReader("log").take(record)
    assert not whole
    (turn,) = turns
    return session, turn


def sent(turn: RecordedTurn) -> tuple[str, dict[str, Any]]:
    assert isinstance(turn.request, RecordedBody)
    return turn.request.path, json.loads(turn.request.body)


@pytest.mark.parametrize(
    "record",
    [
        {"request": CHAT, "response": SAID},
        {"request_body": json.dumps(CHAT), "response_body": json.dumps(SAID)},
        {"request": {"url": "https://llm.example.com/v1/chat/completions", "body": CHAT}, "response": {"body": SAID}},
        {"url": "/v1/chat/completions", "body": CHAT, "response": {"status_code": 200, "body": SAID}},
        {**CHAT, "response": SAID, "timestamp": 5, "session_id": "s"},
        {"request": CHAT, "response": CHUNKS},
        {"request": CHAT, "response": "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS)},
        {"request": CHAT, "response": {"role": "assistant", "content": "Hi."}},
        {"request": CHAT, "response": "Hi."},
    ],
    ids=["bodies", "texts", "envelopes", "batch", "bare", "chunks", "events", "message", "text"],
)
def test_requests_as_people_log_them(record: dict[str, Any]) -> None:
    """The body that was sent, and what the answer said (X-5)."""
    _, turn = read(record)
    assert sent(turn) == ("/v1/chat/completions", CHAT)
    assert (turn.answer.status, turn.answer.text, turn.answer.failed) == (200, "Hi.", False)


def test_anthropic_bodies_go_to_their_own_path() -> None:
    """And their answers are read as theirs (X-5)."""
    _, turn = read({"request": CHAT, "response": CLAUDE})
    assert sent(turn)[0] == "/v1/messages"
    assert (turn.answer.text, turn.answer.calls) == ("Hi.", (ToolCall("g", "{}"),))


def test_responses_and_calls() -> None:
    """The newer interface, and calls that the model made (X-5)."""
    _, turn = read({"request": {"model": "m", "input": "Hello."}, "response": {"object": "response", "output": []}})
    assert sent(turn)[0] == "/v1/responses"
    _, turn = read({"request": CHAT, "response": CALLED})
    assert turn.answer.calls == (ToolCall("f", "{}"),)


@pytest.mark.parametrize(
    "more",
    [
        {"session_id": "s"},
        {"metadata": {"session_id": "s"}},
        {"request": {"headers": {"X-Agent-Session": "s"}, "body": CHAT}},
        {"request": {**CHAT, "metadata": {"session_id": "s"}}},
    ],
)
def test_sessions_by_recorded_ids(more: dict[str, Any]) -> None:
    """In the record, its metadata, a header field or the body (X-5, C-7)."""
    session, _ = read({"request": CHAT, "response": SAID, **more})
    assert (session.id, session.named, session.gateway) == ("s", True, "")


def test_sessions_without_ids_are_those_of_a_gateway() -> None:
    """Named by their opening or trace, judged together, and no id is made up for the engine (X-5, C-7)."""
    one, _ = read({"request": CHAT, "response": SAID})
    longer = {**CHAT, "messages": [*CHAT["messages"], {"role": "assistant", "content": "Hi."}]}
    same, _ = read({"request": longer, "response": SAID})
    other, _ = read({"request": {**CHAT, "messages": [{"role": "user", "content": "Bye."}]}, "response": SAID})
    traced, _ = read({"request": CHAT, "response": SAID, "trace_id": "t"})
    assert one.id == same.id
    assert len({one.id, other.id, traced.id}) == 3
    assert traced.id == "t"
    assert {(found.named, found.gateway) for found in (one, same, other, traced)} == {(False, "log")}


def test_agents_times_and_headers() -> None:
    """Keys are not carried along (X-5, Y-1)."""
    headers = {"X_Team": "t", "Authorization": "Bearer secret", "x-api-key": "secret", "Content-Encoding": "gzip"}
    record = {"request": {"headers": headers, "body": CHAT}, "agent": "a", "ts": "2023-11-14T22:13:20Z"}
    session, turn = read({**record, "response": SAID})
    assert (session.agent, turn.agent, turn.at_s) == ("a", "a", 1_700_000_000.0)
    assert turn.headers == {"x-team": b"t"}


@pytest.mark.parametrize("name", sorted(SECRET_HEADERS))
def test_no_credential_is_carried_along(name: str) -> None:
    """Whichever field a provider reads it from (Y-1)."""
    record = {"request": {"headers": {name.title(): "secret", "x-team": "t"}, "body": CHAT}, "response": SAID}
    assert read(record)[1].headers == {"x-team": b"t"}


@pytest.mark.parametrize(
    ("record", "status"),
    [
        ({"request": CHAT, "response": {"status_code": 503, "body": {"error": {"type": "x"}}}}, 503),
        ({"request": CHAT, "status_code": 429}, 429),
        ({"request": CHAT, "error": "timed out"}, 500),
        ({"request": CHAT}, 0),
    ],
)
def test_requests_that_failed(record: dict[str, Any], status: int) -> None:
    """A retry after one of these is no loop (X-5, LD-6)."""
    _, turn = read(record)
    assert turn.answer.status == status
    assert turn.answer.failed


@pytest.mark.parametrize("record", [{}, {"request": {"url": "/x"}}, {"messages": "x"}, {"response": SAID}])
def test_what_is_no_request(record: dict[str, Any]) -> None:
    """What is no request (X-5)."""
    assert not RequestLogReader.fits(record)
    with pytest.raises(ValueError, match="no request body"):
        RequestLogReader("log").take(record)


def test_an_answer_of_no_dialect_is_its_status() -> None:
    """Nothing to read is not a failure."""
    assert answer_of("", {"x": 1}).status == 200
