"""Codex's rollouts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from breakloop.model.call import Usage
from breakloop.replay.formats.codex import CodexReader
from breakloop.replay.sessions import RecordedBody, RecordedTurn, SessionSlice
from tests.unit.replay.transcripts import FINE, STUCK, rollout, stamp

Record = dict[str, Any]


def read(records: Iterable[Record]) -> list[SessionSlice]:
    reader = CodexReader("rollout-1.jsonl")
    pieces = [piece for record in records for piece in reader.take(record)]
    return [*pieces, *reader.end()]


def turns(records: Iterable[Record]) -> list[RecordedTurn]:
    return [turn for piece in read(records) for turn in piece.turns]


def items(turn: RecordedTurn) -> list[Any]:
    assert isinstance(turn.request, RecordedBody)
    assert turn.request.path == "/v1/responses"
    found = json.loads(turn.request.body)["input"]
    assert isinstance(found, list)
    return found


def item(**payload: Any) -> Record:
    return {"timestamp": stamp(0), "type": "response_item", "payload": payload}


def event(kind: str, **payload: Any) -> Record:
    return {"timestamp": stamp(0), "type": "event_msg", "payload": {"type": kind, **payload}}


def call(number: int, name: str = "shell") -> Record:
    return item(type="function_call", name=name, arguments="{}", call_id=f"c{number}")


def output(number: int, said: str = "ok") -> Record:
    return item(type="function_call_output", call_id=f"c{number}", output=said)


def test_an_answer_is_what_stands_between_two_inputs() -> None:
    """With its tokens; thinking is left out (X-6)."""
    made = turns(rollout(FINE))
    assert len(made) == len(FINE)
    assert [one.name for one in made[0].answer.calls] == ["exec_command"]
    assert (made[0].answer.usage, made[0].answer.model) == (Usage(1000, 50, 900, 0, 20), "gpt-5-codex")
    assert [one["type"] for one in items(made[1])] == ["message", "function_call", "function_call_output"]
    assert made[0].at_s is not None
    assert made[1].at_s is not None
    assert made[1].at_s - made[0].at_s == 3.0


def test_the_session() -> None:
    """One a file, named by its first line; a fork repeats that of its parent (X-6)."""
    pieces = read([*rollout(FINE, "abc"), *rollout([], "parent")])
    assert {piece.session.id for piece in pieces} == {"abc"}
    assert (pieces[0].session.agent, pieces[0].session.model) == ("codex", "gpt-5-codex")
    assert pieces[-1].whole
    spawned = rollout(FINE, source={"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}})
    assert read(spawned)[0].session.agent == "codex sub-agent"


def test_several_calls_and_words_are_one_answer() -> None:
    """Custom tools and searches too (X-6)."""
    said = item(type="message", role="assistant", content=[{"type": "output_text", "text": "I look."}])
    patch = item(type="custom_tool_call", name="apply_patch", input="*** Begin", call_id="c9")
    search = item(type="web_search_call", action={"type": "search", "query": "x"})
    (made,) = turns([said, call(1), patch, search])
    assert made.answer.text == "I look."
    assert [one.name for one in made.answer.calls] == ["shell", "apply_patch", "web_search"]
    assert made.answer.calls[1].arguments == "*** Begin"


def test_tokens_may_be_told_behind_the_results() -> None:
    """And the same total once more is no news (X-6)."""
    used = {"input_tokens": 7, "output_tokens": 2}
    told = event("token_count", info={"last_token_usage": used, "total_token_usage": used})
    made = turns([call(1), output(1), told, call(2), told, output(2), event("token_count", info=None)])
    assert [turn.answer.usage for turn in made] == [Usage(7, 2), None]


def test_tokens_of_calls_that_are_not_recorded_count_for_none() -> None:
    """A summary that was made in between is not the answer's (X-6)."""
    told = [
        event("token_count", info={"last_token_usage": used, "total_token_usage": used})
        for used in ({"input_tokens": 7, "output_tokens": 2}, {"input_tokens": 99, "output_tokens": 9})
    ]
    assert turns([call(1), told[0], output(1), told[1]])[0].answer.usage == Usage(7, 2)


def test_tokens_from_totals_alone() -> None:
    """What the total has grown by (X-6)."""
    told = [
        event("token_count", info={"total_token_usage": {"input_tokens": n, "output_tokens": n // 10}})
        for n in (100, 250)
    ]
    made = turns([call(1), told[0], output(1), call(2), told[1], output(2)])
    assert [turn.answer.usage for turn in made] == [Usage(100, 10), Usage(150, 15)]


def test_compaction() -> None:
    """The history that replaces it, else the summary (X-6)."""
    history = [{"type": "message", "role": "user", "content": "short"}]
    compacted = {"timestamp": stamp(0), "type": "compacted", "payload": {"message": "Summary."}}
    replaced = {**compacted, "payload": {"message": "", "replacement_history": history}}
    for record, content in ((compacted, "Summary."), (replaced, "short")):
        made = turns([call(1), output(1), record, call(2)])
        assert [one["content"] for one in items(made[1])] == [content]


def test_forks_have_the_keys_of_their_parents() -> None:
    """As far as their items are the same (X-6)."""
    parent, fork = turns(rollout(FINE[:3])), turns(rollout([*FINE[:3], *STUCK[:2]], forked_from_id="c-1"))
    assert [turn.key for turn in fork][:3] == [turn.key for turn in parent]
    assert len({turn.key for turn in fork}) == 5


def test_rollouts_of_older_versions() -> None:
    """Bare items behind a line with the session (X-6)."""
    head = {"id": "old", "timestamp": stamp(0), "instructions": None}
    assert CodexReader.fits(head)
    bare = [record["payload"] for record in (call(1), output(1), call(2))]
    pieces = read([head, {"record_type": "state"}, *bare])
    assert [piece.session.id for piece in pieces if piece.turns] == ["old", "old"]


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (event("token_count"), True),
        ({"type": "turn_context", "payload": {"model": "m"}}, True),
        ({"type": "other", "payload": {}}, False),
        ({"type": "response_item", "payload": "x"}, False),
        ({"id": "x", "timestamp": "y"}, False),
    ],
)
def test_which_records_are_theirs(record: Record, fits: bool) -> None:
    """Which records are theirs (X-6)."""
    assert CodexReader.fits(record) is fits


def test_a_line_without_its_payload() -> None:
    """Named, not fatal (X-6)."""
    with pytest.raises(ValueError, match="type event_msg without a payload"):
        read([{"type": "event_msg", "payload": 3}])
