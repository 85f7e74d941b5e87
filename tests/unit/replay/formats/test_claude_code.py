"""Claude Code's transcripts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from breakloop.model.call import Usage
from breakloop.replay.formats.claude_code import ClaudeCodeReader
from breakloop.replay.sessions import RecordedBody, RecordedTurn, SessionSlice
from tests.unit.replay.transcripts import FINE, STUCK, claude, stamp

Record = dict[str, Any]


def read(records: Iterable[Record]) -> list[SessionSlice]:
    reader = ClaudeCodeReader("file.jsonl")
    pieces = [piece for record in records for piece in reader.take(record)]
    return [*pieces, *reader.end()]


def turns(records: Iterable[Record]) -> list[RecordedTurn]:
    return [turn for piece in read(records) for turn in piece.turns]


def messages(turn: RecordedTurn) -> list[Any]:
    assert isinstance(turn.request, RecordedBody)
    assert turn.request.path == "/v1/messages"
    found = json.loads(turn.request.body)["messages"]
    assert isinstance(found, list)
    return found


def answer(number: int, *blocks: Record, **more: Any) -> Record:
    message = {"id": f"msg_{number}", "role": "assistant", "model": "m", "content": list(blocks)}
    return {"type": "assistant", "sessionId": "s", "timestamp": stamp(number), "message": {**message, **more}}


def use(name: str, call: str) -> Record:
    return {"type": "tool_use", "id": call, "name": name, "input": {"b": 1, "a": 2}}


def heard(content: Any, **more: Any) -> Record:
    return {"type": "user", "sessionId": "s", "message": {"role": "user", "content": content}, **more}


def test_lines_of_one_message_are_one_turn() -> None:
    """Text and call stand on a line each; the request is what came before them, at the time it was sent (X-6)."""
    made = turns(claude(FINE))
    assert len(made) == len(FINE)
    first, second = made[:2]
    assert (first.answer.text, [call.name for call in first.answer.calls]) == ("I run it.", ["Bash"])
    assert first.answer.calls[0].arguments == '{"command":"ls"}'
    assert (first.answer.usage, first.answer.model) == (Usage(1000, 50, 900, 90), "claude-opus-4-5")
    assert [one["role"] for one in messages(first)] == ["user"]
    assert [one["role"] for one in messages(second)] == ["user", "assistant", "user"]
    assert [block["type"] for block in messages(second)[1]["content"]] == ["text", "tool_use"]
    assert second.at_s is not None
    assert first.at_s is not None
    assert second.at_s - first.at_s == 3.0  # from the prompt to the first result


def test_errors_keep_their_flag() -> None:
    """It is what step detection goes by (X-6)."""
    last = turns(claude(STUCK[:2]))[1]
    assert messages(last)[-1]["content"][0]["is_error"] is True


def test_a_session_is_named_and_ends() -> None:
    """A session is named and ends (X-6)."""
    pieces = read(claude(FINE, "abc"))
    assert {piece.session.id for piece in pieces} == {"abc"}
    assert (pieces[0].session.source, pieces[0].session.agent) == ("claude-code", "claude-code")
    assert [piece.whole for piece in pieces] == [False] * len(FINE) + [True]


def test_results_between_the_lines_of_an_answer() -> None:
    """The first of two calls has run before the second is told (X-6)."""
    made = turns(
        [
            heard("Go."),
            answer(1, use("A", "t1")),
            heard([{"type": "tool_result", "tool_use_id": "t1", "content": "one"}]),
            answer(1, use("B", "t2")),
            heard([{"type": "tool_result", "tool_use_id": "t2", "content": "two"}]),
            answer(2, {"type": "text", "text": "Done."}),
        ]
    )
    assert [[call.name for call in turn.answer.calls] for turn in made] == [["A", "B"], []]
    assert [one["role"] for one in messages(made[1])] == ["user", "assistant", "user", "user"]


def test_snapshots_of_an_answer_count_once() -> None:
    """While it streams the same answer is written again, longer, with more tokens each time (X-6)."""
    text = [{"type": "text", "text": said} for said in ("I lo", "I look.")]
    (made,) = turns(
        [
            heard("Go."),
            answer(1, text[0], usage={"output_tokens": 1, "input_tokens": 9}),
            answer(1, text[1], use("A", "t1"), usage={"output_tokens": 20, "input_tokens": 9}),
            answer(1, use("A", "t1"), {"type": "thinking", "thinking": "hm"}, usage={"output_tokens": 15}),
        ]
    )
    assert made.answer.text == "I look."
    assert len(made.answer.calls) == 1
    assert made.answer.usage == Usage(9, 20)


def test_another_request_with_the_same_id_is_another_answer() -> None:
    """Gateways that give every message the same id (X-6)."""
    lines = [answer(1, use("A", f"t{number}")) | {"requestId": f"r{number}"} for number in range(3)]
    assert len(turns(lines)) == 3


def test_copied_lines_have_the_same_keys() -> None:
    """A resumed session begins with the history of the old one (X-6)."""
    old = list(claude(FINE[:3], "old"))
    new = [{**record, "sessionId": "new"} if "sessionId" in record else record for record in old]
    assert [turn.key for turn in turns(old)] == [turn.key for turn in turns(new)]
    assert len({turn.key for turn in turns(claude(FINE))}) == len(FINE)
    assert len(turns([*old, *old])) == 3  # the same lines twice in one file


def test_sub_agents_are_sessions_of_their_own() -> None:
    """By their id, or by the chain of their lines in older transcripts (X-6)."""
    own = list(claude(FINE[:2], "x", sessionId="s", isSidechain=True, agentId="a1"))
    pieces = read([*claude(FINE[:1], "s"), *own])
    assert [(piece.session.id, piece.session.agent) for piece in pieces if piece.turns] == [
        ("s/a1", "claude-code sub-agent"),
        ("s", "claude-code"),
        ("s/a1", "claude-code sub-agent"),
    ]
    side = {"isSidechain": True}
    chain = [
        heard("Task.", uuid="x", parentUuid=None, **side),
        heard("Other task.", uuid="y", parentUuid=None, **side),
        answer(1, use("A", "t1")) | side | {"uuid": "x2", "parentUuid": "x"},
        answer(2, use("A", "t2")) | side | {"uuid": "y2", "parentUuid": "y"},
    ]
    found = read(chain)
    assert [piece.session.id for piece in found if piece.turns] == ["s/x", "s/y"]
    assert [messages(piece.turns[0])[0]["content"] for piece in found if piece.turns] == ["Task.", "Other task."]


def test_compaction_begins_a_new_history() -> None:
    """What follows has the summary before it, and nothing else (X-6)."""
    boundary = {"type": "system", "subtype": "compact_boundary", "sessionId": "s", "content": "compacted"}
    made = turns([heard("Go."), answer(1, use("A", "t1")), boundary, heard("Summary."), answer(2, use("A", "t2"))])
    assert [one["content"] for one in messages(made[1])] == ["Summary."]


def test_errors_of_the_api_are_failed_turns() -> None:
    """Nothing came back, and nothing of it goes into the next request (X-6, LD-6)."""
    error = answer(1, {"type": "text", "text": "API Error: 529"}, model="<synthetic>") | {"isApiErrorMessage": True}
    other = answer(2, {"type": "text", "text": "No response requested."}, model="<synthetic>")
    made = turns([heard("Go."), error, other, answer(3, use("A", "t1"))])
    assert [turn.answer.failed for turn in made] == [True, False]
    assert [one["role"] for one in messages(made[1])] == ["user"]


def test_what_stands_before_local_commands_is_no_message() -> None:
    """The same sentence each time; nobody repeats himself with it (X-6)."""
    caveat = heard("Caveat: The messages below were generated by the user while running local commands.")
    made = turns([heard("Go."), caveat, answer(1, use("A", "t1"))])
    assert [one["content"] for one in messages(made[0])] == ["Go."]


def test_what_the_command_prints_as_a_stream() -> None:
    """`claude -p --output-format stream-json` (X-6)."""
    lines: list[Record] = [
        {"type": "system", "subtype": "init", "session_id": "s", "model": "m"},
        {"type": "user", "session_id": "s", "message": {"role": "user", "content": "Go."}},
        {"type": "assistant", "session_id": "s", "message": answer(1, use("A", "t1"))["message"]},
        {"type": "assistant", "session_id": "s", "parent_tool_use_id": "t1", "message": answer(2)["message"]},
        {"type": "result", "session_id": "s", "total_cost_usd": 0.1},
    ]
    assert ClaudeCodeReader.fits(lines[0])
    assert [piece.session.id for piece in read(lines) if piece.turns] == ["s", "s/t1"]


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        ({"type": "summary", "summary": "A title", "leafUuid": "x"}, True),
        ({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}, True),
        ({"type": "user", "sessionId": "s", "message": {"role": "user", "content": "Hi"}}, True),
        ({"type": "user", "message": {"role": "user", "content": "Hi"}}, False),
        ({"type": "message", "role": "user", "content": []}, False),
        ({"type": "system", "content": "x"}, False),
        ({}, False),
    ],
)
def test_which_records_are_theirs(record: Record, fits: bool) -> None:
    """Which records are theirs (X-6)."""
    assert ClaudeCodeReader.fits(record) is fits


def test_a_line_without_its_message() -> None:
    """Named, not fatal (X-6)."""
    with pytest.raises(ValueError, match="type user without a message"):
        read([{"type": "user", "sessionId": "s"}])
