"""Event logs, trajectories and evaluations of OpenHands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from breakloop.replay.formats.openhands import OpenHandsReader
from breakloop.replay.sessions import RecordedBody, RecordedTurn, SessionSlice
from tests.unit.replay.transcripts import FINE, STUCK, openhands, openhands_sdk

Record = dict[str, Any]


def read(records: Iterable[Record], name: str = "run.json") -> list[SessionSlice]:
    reader = OpenHandsReader(name)
    pieces = [piece for record in records for piece in reader.take(record)]
    return [*pieces, *reader.end()]


def messages(turn: RecordedTurn) -> list[Any]:
    assert isinstance(turn.request, RecordedBody)
    found = json.loads(turn.request.body)["messages"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("make", [openhands, openhands_sdk])
def test_events_become_calls_of_the_model(make: Any) -> None:
    """Events become calls of the model: both forms (X-6)."""
    pieces = read(make(FINE))
    made = [turn for piece in pieces for turn in piece.turns]
    assert len(made) == len(FINE)
    assert [one["role"] for one in messages(made[1])] == ["user", "assistant", "user"]
    result = messages(made[1])[2]["content"][0]
    assert (result["type"], result["tool_use_id"]) == ("tool_result", messages(made[1])[1]["content"][0]["id"])
    assert made[1].at_s is not None
    assert made[0].at_s is not None
    assert made[1].at_s - made[0].at_s == 3.0
    assert pieces[-1].whole


def test_failures_keep_their_flag() -> None:
    """Failures keep their flag (X-6)."""
    made = [turn for piece in read(openhands_sdk(STUCK[:2])) for turn in piece.turns]
    assert messages(made[1])[2]["content"][0]["is_error"] is True


def test_several_calls_of_one_answer() -> None:
    """One event each, with the same response; results of the first stand between them (X-6)."""
    listed = list(openhands_sdk(FINE[:2]))
    listed[4]["llm_response_id"] = listed[2]["llm_response_id"]
    made = [turn for piece in read(listed) for turn in piece.turns]
    assert [len(turn.answer.calls) for turn in made] == [2]


def test_a_folder_of_events_is_named_by_the_one_above() -> None:
    """And any other file by itself (X-6)."""
    assert read(openhands(FINE), "sessions/abc/events")[0].session.id == "abc"
    assert read(openhands(FINE), "out/trajectory.json")[0].session.id == "trajectory"


def test_what_was_condensed_is_gone() -> None:
    """With a summary in its place (X-6)."""
    listed = list(openhands(FINE[:3]))
    args = {"forgotten_events_start_id": 2, "forgotten_events_end_id": 5, "summary": "Short.", "summary_offset": 1}
    listed.insert(6, {"id": 99, "source": "agent", "action": "condensation", "args": args})
    made = [turn for piece in read(listed) for turn in piece.turns]
    assert [len(messages(turn)) for turn in made] == [1, 3, 2]
    assert messages(made[2])[1]["content"] == "Short."


def test_evaluations_have_a_session_a_record() -> None:
    """With pairs of events in old ones (X-6)."""
    metadata = {"llm_config": {"model": "m"}}
    events = list(openhands(FINE))
    pairs = [events[:2], *(events[at : at + 2] for at in range(2, len(events), 2))]
    records: list[Record] = [
        {"instance_id": "one", "history": events, "metadata": metadata},
        {"history": pairs},
    ]
    assert all(OpenHandsReader.fits(record) for record in records)
    pieces = read(records)
    assert [piece.session.id for piece in pieces if piece.whole] == ["one", "run#2"]
    assert sum(len(piece.turns) for piece in pieces) == 2 * len(FINE)


def test_text_actions_and_their_results() -> None:
    """Without an id of a call the event that caused it is meant (X-6)."""
    listed: list[Record] = [
        {"id": 1, "source": "user", "action": "message", "args": {"content": "Go."}},
        {"id": 2, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "I look."}},
        {"id": 3, "observation": "run", "content": "a b", "cause": 2, "extras": {}},
        {"id": 4, "source": "agent", "action": "message", "args": {"content": "Done."}},
    ]
    made = [turn for piece in read(listed) for turn in piece.turns]
    assert messages(made[1])[2]["content"][0]["tool_use_id"] == "event_2"
    assert made[1].answer.text == "Done."
