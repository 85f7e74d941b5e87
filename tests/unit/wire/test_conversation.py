"""The steps of reading, with a dialect made up for it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from breakloop.model.call import Message
from breakloop.wire.conversation import Conversation, Parts, decoded, undecoded_items


class Body(msgspec.Struct):
    says: msgspec.Raw


def typed(body: bytes) -> Parts:
    return Parts("typed", undecoded_items(msgspec.json.decode(body, type=Body).says, body), system="be kind")


def tolerant(fields: dict[str, Any]) -> Parts | None:
    return Parts("tolerant\ud800", fields["says"]) if "says" in fields else None


def flatten(item: Any) -> Message | None:
    return None if item == {} else Message(item.get("role", ""), item["text"])


made_up = Conversation("made_up", typed, tolerant, flatten)


def test_typed_then_tolerant_then_none() -> None:
    """C-9: each step where the one before it failed, and the result says so."""
    raw = b'{"says":[{"text":"a"},{},{"text":"b"}]}'
    first, second = made_up.read(raw, 2), made_up.read(b"\xef\xbb\xbf" + raw, 2)
    assert first is not None
    assert second is not None
    assert (first.model, first.fallback, first.message_count) == ("typed", "", 3)
    assert (second.model, second.fallback, second.message_count) == ("tolerant?", "tolerant", 3)
    assert first.tail == second.tail == (Message("", "b"),)
    assert made_up.read(b'{"other":1}', 2) is None
    assert made_up.read(b"[]", 2) is None


def test_only_the_newest_are_decoded() -> None:
    """LD-2: nobody looks at what stands before them."""
    chat = made_up.read(b'{"says":[{"no text":1},{"text":"b"}]}', 1)
    assert chat is not None
    assert (chat.tail, chat.fallback) == ((Message("", "b"),), "")


def test_an_opening_is_looked_for_at_the_beginning() -> None:
    """C-7, Y-2: up to the first message of the user, if that is among the first hundred."""

    def opening(before: int) -> str:
        says = [{"role": "x", "text": "y"}] * before + [{"role": "user", "text": "u"}]
        return made_up.opening(json.dumps({"says": says}).encode())

    assert opening(1) == "system\nbe kind\nx\ny\nuser\nu"
    assert opening(99) != ""
    assert opening(100) == ""


def test_items_of_large_bodies() -> None:
    """Y-2: many small items are decoded at once, few large ones not at all."""
    few = b'[{"text":"' + b"x" * 70_000 + b'"}]'
    many = b"[" + b"0," * 40_000 + b"0]"
    assert isinstance(undecoded_items(msgspec.Raw(few), few)[0], msgspec.Raw)
    assert undecoded_items(msgspec.Raw(many), many)[0] == 0
    text = b'"' + b"," * 70_000 + b'"'
    with pytest.raises(ValueError, match="not a list"):
        undecoded_items(msgspec.Raw(text), text)


def test_an_item_that_is_no_object_is_not_as_expected() -> None:
    """C-9: it sends the body to the tolerant step."""
    assert decoded(msgspec.Raw(b'{"a":1}')) == {"a": 1}
    assert decoded(7) == 7
    with pytest.raises(ValueError, match="not an object"):
        decoded(msgspec.Raw(b"7"))
