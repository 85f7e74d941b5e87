"""Our own format."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from breakloop.model.call import Answer, ToolCall
from breakloop.replay.formats.own import OwnReader, label_of
from breakloop.replay.sessions import Delta, SessionLabel

LINE = {
    "id": "run/1",
    "source": "here",
    "agent": "team",
    "model": "m",
    "task": "Count the lamps.",
    "label": {"loop": True, "by": "human", "kind": "stuck", "note": "n"},
    "meta": {},
    "turns": [
        {
            "agent": "planner",
            "thread": 0,
            "keep": 0,
            "request_messages_delta": [{"role": "user", "content": "Count."}],
            "response": {"content": "", "tool_calls": [{"name": "look", "arguments": '{"b": 1, "a": 2}'}]},
            "t": 0.0,
        },
        {
            "agent": None,
            "thread": 0,
            "keep": 2,
            "request_messages_delta": [{"role": "tool", "content": "none"}],
            "response": {"content": "None.", "tool_calls": [], "text_action": {"name": "x", "arguments": ""}},
            "t": 7.5,
        },
    ],
}


def test_a_session() -> None:
    """Every field that is replayed; `text_action` is not, because a gateway sees only the text (X-5)."""
    ((session, turns, whole),) = OwnReader("f").take(LINE)
    assert whole
    assert (session.id, session.source, session.agent, session.model) == ("run/1", "here", "team", "m")
    assert (session.task, session.label, session.named) == (
        "Count the lamps.",
        SessionLabel(True, "human", "stuck"),
        True,
    )
    assert turns[0].request == Delta("0", 0, [{"role": "user", "content": "Count."}])
    assert turns[0].answer == Answer(200, "", (ToolCall("look", '{"a":2,"b":1}'),), complete=True)
    assert [(turn.agent, turn.at_s) for turn in turns] == [("planner", 0.0), ("", 7.5)]
    assert turns[1].answer == Answer(200, "None.", complete=True)
    assert isinstance(turns[1].request, Delta)
    assert turns[1].request.keep == 2


def test_what_may_be_missing() -> None:
    """An id, a label, times, a response, a thread (X-5)."""
    reader = OwnReader("f.jsonl")
    ((first, turns, _),) = reader.take({"turns": [{"request_messages_delta": [{"role": "user", "content": "a"}]}]})
    ((second, none, _),) = reader.take({"turns": []})
    assert (first.id, second.id) == ("f.jsonl#1", "f.jsonl#2")
    assert turns[0].answer.failed
    assert turns[0].at_s is None
    assert list(none) == []


@pytest.mark.parametrize("record", [{"id": "a"}, {"turns": {}}, {"turns": ["x"]}])
def test_what_is_no_session(record: dict[str, object]) -> None:
    """It is said, and not guessed (X-5)."""
    with pytest.raises(ValueError, match="turn"):
        OwnReader("f").take(record)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (True, SessionLabel(True)),
        ({"loop": False, "by": "outcome"}, SessionLabel(False, "outcome")),
        ({"loop": None, "by": None}, SessionLabel()),
        ({"loop": "yes"}, SessionLabel()),
        ("loop", SessionLabel()),
        (None, SessionLabel()),
    ],
)
def test_labels(value: object, label: SessionLabel) -> None:
    """Only a clear yes or no counts (X-5)."""
    assert label_of(value) == label


def test_the_format_is_known_by_its_turns() -> None:
    """The format is known by its turns (X-5)."""
    assert OwnReader.fits(LINE)
    assert not OwnReader.fits({"messages": []})


def test_calls_in_the_words_of_openai_are_read_too() -> None:
    """Whoever writes this format by hand may copy them."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    ((_, turns, _),) = OwnReader("f").take({"turns": [{"response": {"content": None, "tool_calls": [call, "odd"]}}]})
    assert turns[0].answer.calls == (ToolCall("f", '{"x":1}'), ToolCall("", "odd"))


def test_the_page_describes_it() -> None:
    """The example of the how-to can be read, and every field that it has is explained there (X-5)."""
    page = (Path(__file__).resolve().parents[4] / "docs/how-to/replay.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    record = json.loads(example)
    ((session, turns, _),) = OwnReader("f").take(record)
    assert (session.label, len(turns), turns[1].at_s) == (SessionLabel(True, "human"), 2, 4.2)
    names = [f"`{name}`" for name in record if name != "turns"] + [f"`turns[].{name}`" for name in record["turns"][0]]
    assert [name for name in names if name not in page] == []
