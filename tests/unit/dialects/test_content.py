"""What the dialects share: texts, digests, one spelling of arguments, tolerant loading."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects import base, content, registry
from breakloop.model.call import Message, ToolCall
from tests.each import each


@each(
    "value, expected",
    [
        ('{"b": 1.0, "a": [1, 2]}', '{"a":[1,2],"b":1}'),
        (" [ 1 ]", "[1]"),
        ('{"a": "\\u00e9"}', '{"a":"é"}'),
        ('{"a": ', '{"a": '),
        ("SELECT 1", "SELECT 1"),
        ("1.0", "1.0"),
        ({"b": 1.0, "a": None}, '{"a":null,"b":1}'),
        (None, ""),
        ("\ud800", "\ud800"),
        ('{"a": "\ud800"}', '{"a":"\\ud800"}'),
        ({"n": 2**70}, '{"n":1180591620717411303424}'),
    ],
)
def test_arguments_have_one_spelling(value: Any, expected: str) -> None:
    """Key order, white space, escapes and the spelling of numbers do not count; what is no JSON is kept (C-8)."""
    assert content.arguments(value) == expected


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic_messages", "gemini"])
def test_a_thousand_calls_are_not_all_brought_into_one_spelling(dialect: str) -> None:
    """They share a bound, and what is beyond it is compared as it was sent: a request could otherwise hold ten
    megabytes of JSON in texts, which nothing counts before it is decoded (Y-2)."""
    given = {"b": [1.0] * 200, "a": 1}

    def spellings(count: int) -> set[str]:
        messages: dict[str, dict[str, Any]] = {
            "openai_chat": {"tool_calls": [{"function": {"name": "f", "arguments": json.dumps(given)}}] * count},
            "anthropic_messages": {"content": [{"type": "tool_use", "name": "f", "input": given}] * count},
            "gemini": {"parts": [{"functionCall": {"name": "f", "args": given}}] * count},
        }
        flat = registry.DIALECTS[dialect].flatten({"role": "assistant", **messages[dialect]})
        assert flat is not None
        return {call.arguments for call in flat.calls}

    one_spelling = json.dumps({"a": 1, "b": [1] * 200}, separators=(",", ":"))
    assert spellings(1) == spellings(20) == {one_spelling}
    (as_sent,) = spellings(900)
    assert "1.0" in as_sent


def test_media_without_ids_and_cache_marks() -> None:
    """A digest of what is shown, not of what it is called (C-8)."""
    plain = content.media("image", {"data": "x"})
    assert plain == content.media("image", {"data": "x", "id": "1", "cache_control": {"type": "ephemeral"}})
    assert plain != content.media("image", {"data": "y"})
    assert len(content.media("k" * 500, {})) < 100


def test_content_of_odd_parts() -> None:
    """Every value has a text; thinking has none (C-9)."""
    parts = ["a", 1, None, {"type": "thinking", "thinking": "hm"}, {"type": ["x"], "y": 1}]
    lines = content.content(parts).split("\n")
    assert lines[:3] == ["a", "1", ""]
    assert lines[3].startswith('<["x"]:')
    assert len(lines) == 4


def test_of_endless_lists_the_rest_stands_as_a_digest() -> None:
    """Three million parts hold nobody up, and still tell requests apart (Y-2)."""
    many: list[Any] = ["a"] * content.ITEMS_MAX
    assert "<more:" not in content.content(many)
    assert content.content([*many, "x"]) != content.content([*many, "y"])
    assert content.content([*many, *many]).count("\n") == content.ITEMS_MAX


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\xef\xbb\xbf[1]", [1]),
        ("[1]".encode("utf-16"), [1]),
        (rb'["\ud800"]', ["\ud800"]),
        (b'["\xff"]', ["\ufffd"]),
        (rb'["\ud800", ' + b"9" * 5000 + b"]", ["\ud800", float("inf")]),
        (b'["a\x00\x1fb\n"]', ["a\x00\x1fb\n"]),
        (b"[1]\x00\x00", [1]),
        ("[1]\0".encode("utf-16"), [1]),
        (b"[1]\x00[2]", None),
        (b"x", None),
        (b"[" * 100_000, None),
    ],
)
def test_load(raw: bytes, expected: Any) -> None:
    """What the strict decoders refuse is read where it can be (C-9)."""
    assert content.load(raw) == expected


def test_flags_and_counts() -> None:
    """Words and numbers for flags, whole floats for counts (C-9)."""
    assert [content.truth(value) for value in (True, 1, "yes", "false", "0", 0, None)] == [True] * 3 + [False] * 4
    assert [content.count(value) for value in (5, 5.0, 5.5, True, "5", None)] == [5, 5, None, None, None, None]


def test_clean_messages_can_be_encoded() -> None:
    """Lone surrogates are replaced everywhere, other text is left alone (C-9)."""
    broken = Message("r\ud800", "t\ud800é", (ToolCall("n\ud800", "a\ud800"),))
    assert base._clean_message(broken) == Message("r?", "t?é", (ToolCall("n?", "a?"),))


MOST = 1000
PROSE = '"First, [second], {third}, \\"fourth\\", \\\\"'  # strings with commas, brackets, quotes and backslashes


@each(
    "json_text, expected",
    [
        ("[" + ",".join(["[]"] * MOST) + "]", True),
        ("[" + "[" * MOST + "]" * MOST + "]", True),
        ("[" + ",".join(["null"] * (MOST + 1)) + "]", True),
        ("[" + ", ".join(["1"] * (MOST - 1)) + "]", False),
        ("{" + ",".join(f'"{at}": 1' for at in range(MOST + 1)) + "}", True),
        ("[" + ",".join([PROSE] * (MOST - 1)) + "]", False),
        ("[" + ",".join([PROSE] * (MOST + 1)) + "]", True),
        ('["' + "1," * 5 * MOST + '"]', False),
        ('["' + "\\\\" * 300 + "1," * 5 * MOST + '"]', False),
    ],
)
def test_the_values_of_a_body_are_counted_without_decoding_it(
    monkeypatch: pytest.MonkeyPatch, json_text: str, expected: bool
) -> None:
    """Lists, objects, numbers and strings count; what only a string contains does not, wherever pieces end (Y-2)."""
    assert content.has_too_many_values(json_text.encode(), MOST) is expected
    for size in (1, 2, 3, 7, 41, 100):
        monkeypatch.setattr(content, "_COUNTED_PIECE", size)
        assert content.has_too_many_values(json_text.encode(), MOST) is expected, size
        counter, body = content.ValueCounter(MOST), json_text.encode()
        added = any(counter.add(body[at : at + size]) for at in range(0, len(body), size))
        assert (added or any(counter.rest())) is expected, size


@each("every", [1, 2, 16, 60, 61, 95, 96, 97, 122, 5000, 10_000])
@each("start", [0, 1])
@each("separator", [b",", b"[", b"{", b",[{", b"{[[,,,,"])
def test_separators_are_counted_however_many_there_are(every: int, start: int, separator: bytes) -> None:
    """Rare ones, frequent ones, and as many as a sample of the bytes does not show (Y-2)."""
    body = bytearray(b"a" * 9999)
    for at, place in enumerate(range(start, len(body), every)):
        body[place] = separator[at % len(separator)]
    expected = sum(body.count(one) for one in (b",", b"[", b"{"))
    assert content._separators(bytes(body)) == expected
    assert content._separators(bytes(body[:40])) == sum(body[:40].count(one) for one in (b",", b"[", b"{"))


def test_a_body_with_fewer_bytes_than_values_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are the next pieces of one whose strings are being looked at (Y-2)."""
    counted: list[bytes] = []

    def recorded(piece: bytes) -> int:
        counted.append(piece)
        return len(piece)

    monkeypatch.setattr(content, "_separators", recorded)
    counter = content.ValueCounter(MOST)
    assert not any(counter.add(b"," * (MOST // 2)) for _ in range(2))
    assert counted == []
    counter.add(b",")
    assert counted == [b"," * (MOST // 2), b"," * (MOST // 2), b","]
    assert counter.add(b",")
    assert len(counted) == 3


def test_no_more_is_counted_than_necessary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is mostly values is read until there are too many of them (Y-2)."""
    count, read = content._separators, list[int]()

    def recorded(piece: bytes) -> int:
        read.append(len(piece))
        return count(piece)

    monkeypatch.setattr(content, "_separators", recorded)
    assert content.has_too_many_values(b"[" + b"[]," * 3_000_000 + b"1]")
    assert sum(read) < 1_500_000


def test_a_body_with_too_many_values_is_compared_as_it_is() -> None:
    """Neither decoded for a fingerprint, nor read leniently (Y-2)."""
    dense = b"[" + b" [1.0]," * content.VALUES_MAX + b"1]"
    assert content.canonical(dense) is dense
    assert content.canonical(b'["' + b" [1.0]," * content.VALUES_MAX + b'" ,2]').endswith(b'",2]')
    assert content.load(b"[" + b"1," * 90_000 + b"NaN]") is None
    assert content.load(b"[" + b"1," * 40_000 + b"1,NaN]")[:2] == [1, 1]
