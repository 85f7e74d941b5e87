"""Events of OpenHands, in both forms."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.model.call import Usage
from breakloop.replay.formats import openhands as events
from tests.unit.replay.transcripts import FINE, STUCK, openhands, openhands_sdk


def read(record: dict[str, Any]) -> events.OpenHandsEvent:
    found = events.read(record)
    assert found is not None
    return found


def test_an_action_with_its_answer() -> None:
    """The call as the model made it, with model and tokens (X-6)."""
    found = read(list(openhands(FINE))[2])
    assert (found.kind, found.id, found.response_id) == (events.ANSWER, "2", "chatcmpl-0")
    assert found.call == ("call_0", "execute_bash", '{"command":"ls"}')
    assert (found.model, found.usage) == ("claude-sonnet-4", Usage(1000, 50, 900))


def test_an_action_of_an_agent_without_native_calls() -> None:
    """Its kind is the name of the call, and what it thought is what it said (X-6)."""
    args = {"command": "ls", "thought": "I look.", "hidden": False, "confirmation_state": "confirmed"}
    found = read({"id": 5, "source": "agent", "action": "run", "args": args})
    assert (found.call, found.text) == (("event_5", "run", '{"command":"ls"}'), "I look.")


def test_a_result_belongs_to_its_call() -> None:
    """By the id of the call, else by the event that caused it; the exit status is written as the model sees it
    (X-6)."""
    found = read(list(openhands(STUCK))[3])
    assert (found.kind, found.call_id, found.failed) == (events.RESULT, "call_0", False)
    assert found.text.endswith("\n[Command finished with exit code 1]")
    other = read({"id": 6, "observation": "error", "content": "No.", "cause": 5, "extras": {}})
    assert (other.call_id, other.failed, other.text) == ("event_5", True, "No.")


@pytest.mark.parametrize(
    "record",
    [
        {"source": "agent", "action": "system", "args": {}},
        {"source": "user", "action": "recall", "args": {}},
        {"source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}},
        {"source": "agent", "action": "change_agent_state", "args": {}},
        {"source": "agent", "kind": "SystemPromptEvent"},
        {"source": "environment", "kind": "ConversationStateUpdateEvent"},
    ],
)
def test_what_the_model_never_sees(record: dict[str, Any]) -> None:
    """Known, and passed over (X-6)."""
    assert events.is_event(record)
    assert events.read(record) is None


def test_events_of_the_sdk() -> None:
    """Actions, what came of them, errors, refusals, and what is said (X-6)."""
    _, asked, action, seen = list(openhands_sdk(STUCK))[:4]
    assert read(asked).kind == events.USER
    assert (read(action).call, read(action).response_id) == (
        ("toolu_0", "terminal", '{"command":"pytest tests/parser"}'),
        "r0",
    )
    assert (read(seen).call_id, read(seen).failed) == ("toolu_0", True)
    error = {"kind": "AgentErrorEvent", "source": "agent", "tool_call_id": "t", "error": "No such tool."}
    assert (read(error).failed, read(error).text) == (True, "No such tool.")
    refused = {"kind": "UserRejectObservation", "source": "environment", "tool_call_id": "t", "rejection_reason": "No."}
    assert (read(refused).kind, read(refused).text) == (events.RESULT, "No.")
    said = {"kind": "MessageEvent", "source": "agent", "llm_message": {"content": [{"type": "text", "text": "Done."}]}}
    assert (read(said).kind, read(said).text) == (events.ANSWER, "Done.")


def test_condensations() -> None:
    """Events by their ids, or from one to another (X-6)."""
    old = {"forgotten_events_start_id": 3, "forgotten_events_end_id": 5, "summary": "Short.", "summary_offset": 2}
    found = read({"id": 9, "source": "agent", "action": "condensation", "args": old})
    assert (found.kind, found.forgotten, found.at, found.text) == (
        events.FORGET,
        frozenset({"3", "4", "5"}),
        2,
        "Short.",
    )
    new = {"kind": "Condensation", "source": "environment", "forgotten_event_ids": ["a", "b"], "summary": None}
    assert (read(new).forgotten, read(new).at) == (frozenset({"a", "b"}), 1)


@pytest.mark.parametrize("record", [{}, [], None, {"action": "run"}, {"kind": "thing", "source": "agent"}, {"kind": 3}])
def test_what_is_no_event(record: object) -> None:
    """What is no event (X-6)."""
    assert not events.is_event(record)
