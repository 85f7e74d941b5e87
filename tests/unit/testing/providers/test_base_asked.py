"""What all renderers start from."""

from __future__ import annotations

from breakloop.model.call import Usage
from breakloop.testing.answer import Answer, Failure, ToolUse, call_tool, say
from breakloop.testing.providers.base import ProviderRequest, arguments, dump, event, fail_at, halves, tokens
from tests.unit.testing.talking import asked, seen


def test_json_is_compact_utf8() -> None:
    assert dump({"a": "ü", "b": [1, None]}) == '{"a":"ü","b":[1,null]}'.encode()
    assert event({"a": 1}) == b'data: {"a":1}\n\n'
    assert event({"a": 1}, "x.y") == b'event: x.y\ndata: {"a":1}\n\n'


def test_usage_is_counted_unless_given() -> None:
    """Four bytes a token, of the body and of what is said."""
    assert [tokens(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
    question = seen(fields={"a": "x" * 92})  # 101 bytes
    assert ProviderRequest(question, {}, say("12345678"), 0).usage == Usage(26, 2)
    assert ProviderRequest(question, {}, call_tool("ab", {"c": 1}), 0).usage == Usage(26, 3)
    assert ProviderRequest(question, {}, say("x", usage=Usage(7, 3)), 0).usage == Usage(7, 3)


def test_ids_come_from_the_numbers_of_requests() -> None:
    one = asked(Answer(tools=(ToolUse("a"), ToolUse("b", id="mine"))))
    one.seen.number = 12
    assert one.name("x-") == "x-00000012"
    assert [one.tool_id(index, "call_") for index in (0, 1)] == ["call_00000012_0", "mine"]


def test_model_and_stream_are_what_was_asked_for() -> None:
    assert asked(say("x"), model="m", stream=True).model == "m"
    assert asked(say("x"), model=3).model == "stand-in"
    assert asked(say("x"), stream=True).streamed
    assert not asked(say("x"), stream="yes").streamed
    assert asked(say("x").streamed()).streamed
    assert not asked(say("x").streamed(False), stream=True).streamed


def test_the_word_for_the_end() -> None:
    words = {"stop": "STOP", "tools": "CALLS"}
    assert asked(say("x")).finish(words) == "STOP"
    assert asked(call_tool("x")).finish(words) == "CALLS"
    assert asked(say("x", finish="odd")).finish(words) == "odd"


def test_arguments_travel_as_text() -> None:
    assert arguments(ToolUse("a", {"b": "ü"})) == '{"b":"ü"}'
    assert arguments(ToolUse("a", "{broken")) == "{broken"
    assert halves("abc") == ["a", "bc"]
    assert halves("a") == ["a"]
    assert halves("") == []


def test_a_stream_can_break_off() -> None:
    assert list(fail_at([1, 2, 3], None, lambda _: 9)) == [1, 2, 3]
    assert list(fail_at([1, 2, 3], Failure("x"), lambda _: 9)) == [1, 2, 3]
    assert list(fail_at([1, 2, 3], Failure("x", at=1), lambda _: 9)) == [1, 9]
    assert list(fail_at([1, 2, 3], Failure("x", at=8), lambda _: 9)) == [1, 2, 3, 9]
