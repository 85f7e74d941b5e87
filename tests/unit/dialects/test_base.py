"""The steps of reading, with a dialect made up for it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from breakloop.dialects.answers import AnswerBuilder, StreamListener
from breakloop.dialects.base import BodyFields, Dialect, ParsedBody, item_at
from breakloop.model.call import Chat, Message


class Body(msgspec.Struct):
    says: list[msgspec.Raw]


class MadeUp(Dialect):
    """A dialect made up for these tests."""

    name = "made_up"
    provider = "nobody"

    def read_fields(self, body: bytes) -> BodyFields:
        return BodyFields("typed", msgspec.json.decode(body, type=Body).says, system="be kind")

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        return BodyFields("tolerant\ud800", fields["says"]) if "says" in fields else None

    def flatten(self, item: Any) -> Message | None:
        return None if item == {} else Message(item.get("role", ""), item["text"])

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        raise NotImplementedError


made_up = MadeUp()


def read(body: bytes, tail: int) -> Chat | None:
    parsed = made_up.parse(body)
    return None if parsed is None else parsed.chat(tail)


def test_typed_then_tolerant_then_none() -> None:
    """Each step where the one before it failed, and the result says so (C-9)."""
    raw = b'{"says":[{"text":"a"},{},{"text":"b"}]}'
    first, second = read(raw, 2), read(b"\xef\xbb\xbf" + raw, 2)
    assert first is not None
    assert second is not None
    assert (first.model, first.fallback, first.message_count) == ("typed", "", 3)
    assert (second.model, second.fallback, second.message_count) == ("tolerant?", "tolerant", 3)
    assert first.tail == second.tail == (Message("", "b"),)
    assert read(b'{"other":1}', 2) is None
    assert read(b"[]", 2) is None


def test_only_the_newest_are_decoded() -> None:
    """Nobody looks at what stands before them (LD-2)."""
    chat = read(b'{"says":[{"no text":1},{"text":"b"}]}', 1)
    assert chat is not None
    assert (chat.tail, chat.fallback) == ((Message("", "b"),), "")


def test_an_opening_is_looked_for_at_the_beginning() -> None:
    """Up to the first message of the user, if that is among the first hundred (C-7, Y-2)."""

    def opening(before: int) -> str:
        says = [{"role": "x", "text": "y"}] * before + [{"role": "user", "text": "u"}]
        parsed = made_up.parse(json.dumps({"says": says}).encode())
        return "" if parsed is None else parsed.opening()

    assert opening(1) == "system\nbe kind\nx\ny\nuser\nu"
    assert opening(99) != ""
    assert opening(100) == ""


def test_a_system_prompt_is_the_opening_without_the_user() -> None:
    """What stands outside the messages, and those before the user's; in every step of reading (LD-4)."""

    def system(*says: dict[str, str], mark: bytes = b"") -> str:
        taken = made_up.parse(mark + json.dumps({"says": says}).encode())
        assert taken is not None
        return taken.system()

    assert system({"role": "x", "text": "y"}, {"role": "user", "text": "u"}) == "system\nbe kind\nx\ny"
    assert system({"role": "user", "text": "u"}, {"role": "x", "text": "y"}) == "system\nbe kind"
    assert system({"role": "x", "text": "y"}) == ""
    assert system({"role": "x", "text": "y"}, {"role": "user", "text": "u"}, mark=b"\xef\xbb\xbf") == "x\ny"


def test_a_body_is_taken_apart_once_for_all_that_is_asked() -> None:
    """And a message is decoded once, whoever asks for it (Q-1)."""
    taken = made_up.parse(b'{"says":[{"role":"user","text":"a"},{"text":"b"},{"text":"c"}]}')
    assert taken is not None
    items = taken.parts.items
    assert [type(item) for item in items] == [msgspec.Raw] * 3
    taken.chat(1)
    assert [type(item) for item in items] == [msgspec.Raw, msgspec.Raw, dict]
    newest = items[2]
    taken.opening()
    taken.chat(3)
    assert taken.view(lambda parsed: item_at(parsed.parts.items, -1)) is newest
    assert taken.parts.items is items


def test_an_item_that_is_no_object_is_not_as_expected() -> None:
    """It sends the body to the tolerant step (C-9)."""
    items: list[Any] = [msgspec.Raw(b'{"a":1}'), 7, msgspec.Raw(b"7")]
    assert item_at(items, 0) == items[0] == {"a": 1}
    assert item_at(items, 1) == 7
    with pytest.raises(ValueError, match="not an object"):
        item_at(items, -1)


def test_an_odd_message_loosens_the_parts_for_everybody() -> None:
    """Whoever meets it first; what was read before stays as it was (C-9)."""
    taken = made_up.parse(b'{"says":[7,{"role":"user","text":"a"},{"text":"b"}]}')
    assert taken is not None
    chat = taken.chat(2)
    assert chat is not None
    assert chat.fallback == ""
    assert taken.view(lambda parsed: (item_at(parsed.parts.items, 0), parsed.parts.model)) == (7, "tolerant\ud800")
    assert taken.lenient
    loose = taken.chat(2)
    assert loose is not None
    assert loose == chat._replace(model="tolerant?", fallback="tolerant")


def test_nothing_to_read_in_odd_parts() -> None:
    """None, not an error: where the tolerant step has no such body, and where nothing ends (C-9)."""

    def refuse(_parsed: ParsedBody) -> str:
        raise ValueError("odd")

    def nested(_parsed: ParsedBody) -> str:
        raise RecursionError

    class Strict(MadeUp):
        def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
            return None

    strict = Strict()
    taken = strict.parse(b'{"says":[]}')
    assert taken is not None
    assert taken.view(refuse) is None
    assert taken.view(nested) is None
    assert strict.parse(b"[]") is None


def test_model_and_stream_flag_may_stand_in_the_path() -> None:
    """Where they are no fields (C-8)."""

    class InPath(MadeUp):
        model_in_path = True

        def read_path(self, path: str) -> tuple[str, bool]:
            return path[1:], True

    taken = InPath().parse(b'{"says":[]}', "/m")
    assert taken is not None
    chat = taken.chat(1)
    assert chat is not None
    assert (chat.model, chat.stream) == ("m", True)
