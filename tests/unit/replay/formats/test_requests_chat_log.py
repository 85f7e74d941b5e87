"""Whole conversations, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from breakloop.model.call import Usage
from breakloop.replay.formats.requests import ChatLogReader
from breakloop.replay.sessions import RecordedBody, SessionSlice
from tests.unit.replay.transcripts import FINE, STUCK, conversation

Record = dict[str, Any]


def read(records: Iterable[Record]) -> list[SessionSlice]:
    reader = ChatLogReader("logs/chat.jsonl")
    pieces = [piece for record in records for piece in reader.take(record)]
    return [*pieces, *reader.end()]


def sessions(pieces: list[SessionSlice]) -> dict[str, int]:
    found: dict[str, int] = {}
    for piece in pieces:
        found[piece.session.id] = found.get(piece.session.id, 0) + len(piece.turns)
    return found


def test_each_answer_is_a_turn() -> None:
    """With the calls that it made (X-6)."""
    pieces = read([conversation(FINE)])
    assert sessions(pieces) == {"chat.jsonl#1": len(FINE) + 1}
    turn = pieces[1].turns[0]
    assert isinstance(turn.request, RecordedBody)
    assert turn.request.path == "/v1/chat/completions"
    assert len(json.loads(turn.request.body)["messages"]) == 3
    assert [call.name for call in turn.answer.calls] == ["bash"]
    assert pieces[-1].whole


def test_a_session_is_named_where_the_record_names_it() -> None:
    """And never twice the same (X-6)."""
    record = {**conversation(FINE), "session_id": "abc", "agent": "worker", "model": "m"}
    other = {**conversation(STUCK), "session_id": "abc"}
    pieces = read([record, other])
    assert list(sessions(pieces)) == ["abc", "abc#2"]
    assert (pieces[0].session.agent, pieces[0].session.model) == ("worker", "m")


def test_a_history_that_is_written_again_after_each_turn() -> None:
    """One session, each turn once (X-6)."""
    whole = conversation(FINE)["messages"]
    records = [{"messages": whole[:end]} for end in range(2, len(whole) + 1, 2)]
    assert sessions(read(records)) == {"chat.jsonl#1": len(FINE) + 1}


def test_the_same_prompt_answered_twice_is_two_sessions() -> None:
    """Samples for training are no loop (X-6)."""
    asked = {"role": "user", "content": "Why?"}
    records = [{"messages": [asked, {"role": "assistant", "content": said}]} for said in ("Because.", "So.")]
    assert sessions(read(records)) == {"chat.jsonl#1": 1, "chat.jsonl#2": 1}


def test_conversations_of_anthropic() -> None:
    """Blocks are told from text (X-6)."""
    use = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}
    record = {
        "system": "You help.",
        "messages": [
            {"role": "user", "content": "Go.", "timestamp": 100},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use], "usage": {"input_tokens": 9}},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "no"}]},
            {"role": "assistant", "content": "There is none."},
        ],
    }
    first, second, _ = read([record])
    turn = first.turns[0]
    assert isinstance(turn.request, RecordedBody)
    assert turn.request.path == "/v1/messages"
    assert (turn.answer.text, turn.answer.calls[0].name, turn.at_s) == ("I look.", "search", 100.0)
    assert (turn.answer.usage, second.turns[0].answer.usage) == (Usage(9), None)


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (conversation(FINE), True),
        ({"messages": [{"role": "user", "content": "Hi"}]}, False),  # a request without its answer
        ({**conversation(FINE), "response": {"choices": []}}, False),  # a request with its answer
        ({"messages": "x"}, False),
        ({"messages": [1, 2]}, False),
    ],
)
def test_which_records_are_theirs(record: Record, fits: bool) -> None:
    """What has its answer beside it is a log of requests (X-6)."""
    assert ChatLogReader.fits(record) is fits


def test_a_record_without_messages() -> None:
    """Named, not fatal (X-6)."""
    with pytest.raises(ValueError, match="no list of messages"):
        read([{"messages": [1]}])
