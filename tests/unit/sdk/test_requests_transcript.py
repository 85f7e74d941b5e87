"""Steps of a custom loop as chat requests."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from breakloop.sdk.requests import RESULT_MAX_CHARS, Transcript, check_calls, result_text


def added(transcript: Transcript, *calls: tuple[str, Any], results: list[Any], text: str = "", user: str = "") -> Any:
    return json.loads(transcript.add(calls, results, text, user))


def test_what_are_no_calls_changes_nothing() -> None:
    """Neither does the next step show any of it (T-1)."""
    transcript = Transcript("m", "Do it.")
    with pytest.raises(TypeError, match="calls: must be a list"):
        transcript.add([("f", {}), "g"], ["x"], "canary", "")  # type: ignore[list-item]
    check_calls([["f", {}], ("g", "x")])
    assert len(added(transcript, results=["one"])["messages"]) == 3


def test_a_step_is_an_answer_and_its_results() -> None:
    """The request that would come next (D-4)."""
    body = added(
        Transcript("m", "Do it."), ("f", {"b": 1, "a": "é"}), ("g", "{}"), results=["one", {"n": 2}], text="Hm."
    )
    opening, said, one, two = body["messages"]
    assert (body["model"], opening["content"], said["content"]) == ("m", "Do it.", "Hm.")
    assert [made["function"]["name"] for made in said["tool_calls"]] == ["f", "g"]
    assert said["tool_calls"][0]["function"]["arguments"] == '{"a":"é","b":1}'
    assert [one["tool_call_id"], two["tool_call_id"]] == [made["id"] for made in said["tool_calls"]]
    assert (one["content"], two["content"]) == ("one", '{"n":2}')


def test_no_two_calls_have_one_id() -> None:
    """A step is told from the same request sent again by its ids (LD-4)."""
    first, second = Transcript("", ""), Transcript("", "")
    ids = [
        message["tool_call_id"]
        for transcript in (first, second)
        for body in (added(transcript, ("f", {}), results=["x"]), added(transcript, ("f", {}), results=["x"]))
        for message in body["messages"][-1:]
    ]
    assert len(set(ids)) == 4
    assert min(map(len, ids)) >= 8


def test_a_step_without_calls_ends_with_the_user() -> None:
    """What the harness said, or nothing; else the answer would look like one that is to be continued (LD-4)."""
    assert added(Transcript("", ""), results=[], text="Hm.", user="Go on.")["messages"][-1]["content"] == "Go on."
    assert added(Transcript("", ""), results=[], text="Hm.")["messages"][-1] == {"role": "user", "content": ""}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("plain", "plain"),
        (KeyError("a"), "Error: KeyError: 'a'"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        (None, "null"),
        (3, "3"),
    ],
)
def test_results_as_a_model_would_read_them(result: object, text: str) -> None:
    """Errors in the form that says so (D-4)."""
    assert result_text(result) == text


def test_long_and_binary_results_are_told_apart() -> None:
    """Cut, and not mistaken for another that begins alike (Y-2)."""
    long = "a" * 50_000
    assert len(result_text(long)) < RESULT_MAX_CHARS + 100
    assert result_text(long) == result_text("a" * 50_000) != result_text("a" * 49_999 + "b")
    assert result_text(b"\xff" * 99) != result_text(b"\xfe" * 99)


def test_it_stays_bounded_and_begins_with_an_answer() -> None:
    """After any number of steps; what is kept is the newest (Y-2)."""
    transcript = Transcript("m", "Task.")
    sizes, body = [], b""
    for number in range(300):
        body = transcript.add([("read", {"n": number})], [f"{number} " * 1000], "", "")
        sizes.append(len(body))
    messages = json.loads(body)["messages"]
    assert max(sizes) < 140_000
    assert (messages[0]["content"], messages[1]["role"]) == ("Task.", "assistant")
    assert messages[-1]["content"].startswith("299 ")
    falls = [number for number in range(1, 300) if sizes[number] * 2 < sizes[number - 1]]
    assert min(later - earlier for earlier, later in pairwise(falls)) > 3
