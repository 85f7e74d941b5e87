"""LiteLLM's logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.replay.formats.requests import LitellmReader
from breakloop.replay.sessions import RecordedBody, RecordedSession, RecordedTurn

MESSAGES = [{"role": "user", "content": "Hello."}]
SAID = {"choices": [{"message": {"role": "assistant", "content": "Hi."}}]}
PAYLOAD: dict[str, Any] = {
    "id": "c1",
    "trace_id": "t1",
    "call_type": "acompletion",
    "response_cost": 0.1,
    "status": "success",
    "startTime": 1_700_000_000.5,
    "model": "m",
    "messages": MESSAGES,
    "response": SAID,
    "model_parameters": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "metadata": {"user_api_key_alias": "team-key", "requester_metadata": {"session_id": "s1"}},
}
ROW: dict[str, Any] = {
    "request_id": "c2",
    "call_type": "acompletion",
    "spend": 0.1,
    "startTime": "2023-11-14T22:13:20Z",
    "session_id": "s2",
    "messages": json.dumps(MESSAGES),
    "response": json.dumps(SAID),
    "model": "m",
    "metadata": "{}",
}


def read(record: dict[str, Any]) -> tuple[RecordedSession, RecordedTurn]:
    assert LitellmReader.fits(record)
    ((session, (turn,), _),) = LitellmReader("log").take(record)
    return session, turn


def body(turn: RecordedTurn) -> dict[str, Any]:
    assert isinstance(turn.request, RecordedBody)
    found = json.loads(turn.request.body)
    assert isinstance(found, dict)
    return found


def test_the_standard_payload() -> None:
    """Messages, tools, answer, time, the client's session, whose key it was (X-5)."""
    session, turn = read(PAYLOAD)
    assert (session.id, session.named, session.agent) == ("s1", True, "team-key")
    assert body(turn) == {"model": "m", "messages": MESSAGES, "tools": PAYLOAD["model_parameters"]["tools"]}
    assert (turn.answer.text, turn.at_s) == ("Hi.", 1_700_000_000.5)
    assert read({"standard_logging_object": PAYLOAD})[0].id == "s1"


def test_a_row_of_the_spend_logs() -> None:
    """Everything may be a text there (X-5)."""
    session, turn = read(ROW)
    assert (session.id, turn.at_s) == ("s2", 1_700_000_000.0)
    assert (body(turn)["messages"], turn.answer.text) == (MESSAGES, "Hi.")


def test_the_request_as_the_proxy_got_it_comes_first() -> None:
    """It has what the log leaves out (X-5)."""
    sent = {"model": "alias", "messages": MESSAGES, "temperature": 0}
    assert body(read({**ROW, "messages": "{}", "proxy_server_request": json.dumps({"body": sent})})[1]) == sent
    assert body(read({**ROW, "messages": "{}", "proxy_server_request": sent})[1]) == sent


def test_a_trace_that_litellm_made_up_joins_nothing() -> None:
    """It is the id of the call itself; a real trace only names the session (C-7)."""
    without = {**PAYLOAD, "metadata": {}}
    assert read({**without, "trace_id": "c1"})[0].id.startswith("opening:")
    session, _ = read(without)
    assert (session.id, session.named, session.gateway) == ("t1", False, "log")


@pytest.mark.parametrize(
    ("kind", "messages", "path", "name"),
    [
        ("aresponses", "Hello.", "/v1/responses", "input"),
        ("atext_completion", "Hello.", "/v1/completions", "prompt"),
        ("anthropic_messages", MESSAGES, "/v1/messages", "messages"),
        ("completion", {"role": "user", "content": "Hello."}, "/v1/chat/completions", "messages"),
    ],
)
def test_kinds_of_calls(kind: str, messages: object, path: str, name: str) -> None:
    """Each goes where it went (X-5)."""
    _, turn = read({**PAYLOAD, "call_type": kind, "messages": messages})
    assert isinstance(turn.request, RecordedBody)
    assert turn.request.path == path
    assert name in body(turn)


def test_failures_and_what_is_no_call_of_a_model() -> None:
    """A failure is one; embeddings and the like are passed over; prompts that were not kept are missed (X-5)."""
    assert read({**PAYLOAD, "status": "failure", "response": None})[1].answer.failed
    assert LitellmReader("log").take({**PAYLOAD, "call_type": "aembedding"}) == []
    with pytest.raises(ValueError, match="only if configured to"):
        LitellmReader("log").take({**ROW, "messages": "{}"})
    assert not LitellmReader.fits({"messages": MESSAGES, "response": SAID})
