"""OpenAI chat requests, as they are and as they should not be."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.model.call import Chat, Message, ToolCall
from tests.each import each
from tests.unit.dialects import parsing

read = partial(parsing.chat, "openai_chat")
opening = partial(parsing.opening, "openai_chat")


def body(messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": messages, **more}).encode()


def message(**fields: Any) -> Message:
    chat = read(body([fields]), 3)
    assert chat is not None
    return chat.tail[-1]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_plain_request() -> None:
    """Model, messages, stream and the token limit of a chat request (C-8)."""
    chat = read(body([user("hi")], stream=True, max_tokens=50), 3)
    assert chat == Chat("openai_chat", "gpt-4o", (Message("user", "hi"),), 1, stream=True, max_tokens=50)


def test_the_newer_token_limit_wins() -> None:
    chat = read(body([], max_tokens=50, max_completion_tokens=70), 3)
    assert chat is not None
    assert chat.max_tokens == 70


def test_only_the_tail_is_decoded() -> None:
    """The last messages, oldest first, and how many there were (LD-2)."""
    messages = [user(str(number)) for number in range(10)]
    for tail, expected in ((3, ["7", "8", "9"]), (0, []), (20, [str(number) for number in range(10)])):
        chat = read(body(messages), tail)
        assert chat is not None
        assert [item.text for item in chat.tail] == expected
        assert chat.message_count == 10
        assert chat.fallback == ""


def test_tool_calls_and_results_without_ids() -> None:
    """Calls by name and arguments, results by text; ids are not identity (C-8)."""
    function = {"name": "search", "arguments": '{"q": 1}'}
    one = message(
        role="assistant", content=None, tool_calls=[{"id": "call_1", "type": "function", "function": function}]
    )
    two = message(
        role="assistant", content=None, tool_calls=[{"id": "call_2", "type": "function", "function": function}]
    )
    assert one == two == Message("assistant", "", (ToolCall("search", '{"q":1}'),))
    result = message(role="tool", tool_call_id="call_1", content="found")
    assert result == message(role="tool", tool_call_id="call_2", content="found") == Message("tool", "found")


def test_legacy_and_custom_calls() -> None:
    """`function_call` of old, custom tools of now, and several calls in order (C-8)."""
    assert message(role="assistant", function_call={"name": "f", "arguments": "{}"}).calls == (ToolCall("f", "{}"),)
    assert message(role="function", name="f", content="out") == Message("function", "out")
    calls = [{"type": "custom", "custom": {"name": "sql", "input": "SELECT"}}, {"function": {"name": "g"}}]
    assert message(role="assistant", tool_calls=calls).calls == (ToolCall("sql", "SELECT"), ToolCall("g", ""))


def test_parts_are_joined_and_media_stand_as_digests() -> None:
    """Text of list contents is read; images and audio count by type and digest (C-8)."""

    def with_image(url: str) -> str:
        return message(
            role="user", content=[{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
        ).text

    assert with_image("data:a").startswith("see\n<image_url:")
    assert with_image("data:a") == with_image("data:a")
    assert with_image("data:a") != with_image("data:b")
    audio = message(role="user", content=[{"type": "input_audio", "input_audio": {"data": "x" * 10_000}}]).text
    assert audio.startswith("<input_audio:")
    assert len(audio) < 40
    assert message(role="user", content=["a", {"type": "text", "text": "b"}]).text == "a\nb"


def test_refusals_are_text() -> None:
    assert message(role="assistant", content=None, refusal="no").text == "no"
    assert message(role="assistant", content="well", refusal="no").text == "well\nno"
    assert message(role="assistant", content=[{"type": "refusal", "refusal": "no"}]).text == "no"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"role": "user", "content": 7}, Message("user", "7")),
        ({"role": "user", "content": {"b": 1, "a": 2}}, Message("user", '{"a":2,"b":1}')),
        ({"role": 7, "content": "x"}, Message("7", "x")),
        ({"role": "user"}, Message("user", "")),
        (
            {"role": "user", "content": [1, None, {"text": "x"}, {"type": "text", "text": 5}]},
            Message("user", "1\n\nx\n5"),
        ),
        (
            {"role": "a", "tool_calls": {"function": {"name": 1, "arguments": {"x": 1}}}},
            Message("a", "", (ToolCall("1", '{"x":1}'),)),
        ),
        ({"role": "a", "tool_calls": ["f"]}, Message("a", "", (ToolCall("", "f"),))),
        ({"role": "a", "tool_calls": [{"id": "1", "what": 2}]}, Message("a", "", (ToolCall("", '{"what":2}'),))),
        ({"role": "a", "function_call": "auto"}, Message("a", "", (ToolCall("", '{"function":"auto"}'),))),
    ],
)
def test_odd_fields_of_a_message(fields: dict[str, Any], expected: Message) -> None:
    """Numbers and objects where text is expected stand as their JSON text (C-9)."""
    assert message(**fields) == expected


@each(
    "raw, expected",
    [
        (b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"x"}]}', ("m", False, None, ["x"])),
        (rb'{"model":"m","messages":[{"role":"user","content":"x\ud800"}]}', ("m", False, None, ["x?"])),
        (b'{"model":"m","messages":[{"role":"user","content":"x\xff"}]}', ("m", False, None, ["x\ufffd"])),
        (b'{"model":"m","stream":1,"messages":[{"role":"user","content":"x"}]}', ("m", True, None, ["x"])),
        (b'{"model":"m","stream":"false","messages":[{"content":"x"}]}', ("m", False, None, ["x"])),
        (b'{"model":5,"messages":[{"role":"user","content":"x"}]}', ("5", False, None, ["x"])),
        (b'{"model":"m","max_tokens":"9","messages":[{"content":"x"}]}', ("m", False, None, ["x"])),
        (b'{"model":"m","max_tokens":9.5,"messages":[{"content":"x"}]}', ("m", False, None, ["x"])),
        (b'{"model":["m"],"max_tokens":9.0,"messages":[{"content":"x"}]}', ('["m"]', False, 9, ["x"])),
        (b'{"model":"m","messages":null}', ("m", False, None, [])),
        (b'{"model":"m"}', ("m", False, None, [])),
        (b'{"model":"m","messages":"x"}', ("m", False, None, ["x"])),
        (b'{"model":"m","messages":{"content":"x"}}', ("m", False, None, ["x"])),
        (b'{"model":"m","messages":["x",7,null]}', ("m", False, None, ["x", "7", ""])),
        (b'{"model":"m","top_p":NaN,"messages":[{"content":"x"}]}', ("m", False, None, ["x"])),
        (b'{"model":"m","n":NaN,"seed":' + b"9" * 5000 + b',"messages":[{"content":"x"}]}', ("m", False, None, ["x"])),
    ],
)
def test_odd_bodies_fall_back_and_say_so(raw: bytes, expected: tuple[str, bool, int | None, list[str]]) -> None:
    """A wrong type in one field never blinds detection, and each fallback can be counted (C-9)."""
    chat = read(raw, 3)
    assert chat is not None
    assert (chat.model, chat.stream, chat.max_tokens, [item.text for item in chat.tail]) == expected
    assert chat.fallback == "tolerant"


def test_json_text_of_what_cannot_be_written_as_it_is() -> None:
    """A lone surrogate or an integer over 64 bits inside an object that stands for text (C-9)."""
    chat = read(
        rb'{"model":"m","messages":[{"content":{"b":1,"a":"\ud800"}},{"content":[{"type":"file","x":"\ud800"}]}]}', 3
    )
    assert chat is not None
    assert chat.tail[0].text == r'{"a":"\ud800","b":1}'
    assert chat.tail[1].text.startswith("<file:")
    assert message(role="user", content={"n": 2**70}).text == '{"n":1180591620717411303424}'


def test_utf_16_is_read() -> None:
    chat = read(json.dumps({"model": "m", "messages": [user("x")]}).encode("utf-16"), 3)
    assert chat is not None
    assert chat.tail == (Message("user", "x"),)


@pytest.mark.parametrize(
    "raw",
    [b"", b"x", b"[]", b"7", b'"messages"', b'{"messages":[', b'{"a":' * 100_000, b'{"messages":' + b"[" * 100_000],
)
def test_what_is_no_chat_is_none(raw: bytes) -> None:
    """The last step is plain HTTP; deep nesting does not crash (C-9)."""
    assert read(raw, 3) is None
    assert opening(raw) == ""


def test_deep_nesting_in_the_tail_is_none() -> None:
    """A message nested too deep to walk makes the request plain HTTP (C-9)."""
    assert (
        read(b'{"model":"m","messages":[{"role":"user","content":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}]}", 3)
        is None
    )


def test_large_bodies_read_the_same() -> None:
    """Long messages, and a flood of tiny ones (LD-2, Q-1)."""
    long = read(body([user("x" * 1000)] * 200 + [{"role": "tool", "tool_call_id": "1", "content": "end"}]), 2)
    assert long == Chat("openai_chat", "gpt-4o", (Message("user", "x" * 1000), Message("tool", "end")), 201)
    flood = read(b'{"model":"m","messages":[' + b"0," * 40_000 + b'{"role":"user","content":"end"}]}', 2)
    assert flood == Chat("openai_chat", "m", (Message("", "0"), Message("user", "end")), 40_001, fallback="tolerant")
    text = read(b'{"model":"m","messages":"' + b"," * 100_000 + b'"}', 2)
    assert text is not None
    assert (text.message_count, text.fallback) == (1, "tolerant")


def test_opening_names_a_conversation() -> None:
    """System prompt and first user message, the same at every later turn (C-7)."""
    first = [{"role": "system", "content": "be kind"}, user("plan a trip")]
    later = [*first, {"role": "assistant", "content": "where?"}, user("Rome")]
    assert opening(body(first)) == opening(body(later)) != ""
    assert opening(body(first)) != opening(body([first[0], user("plan a meal")]))
    assert opening(body(first)) != opening(body([{"role": "system", "content": "be rude"}, first[1]]))
    assert opening(body([first[0]])) == ""
    assert opening(body(["note", first[1]])) != opening(body([first[1]])) != ""
    assert opening(body(first, stream=1)) == opening(b"\xef\xbb\xbf" + body(first)) == opening(body(first))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "function"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["model", "messages", "stream", "max_tokens", "max_completion_tokens"]), _JSON))
def test_any_object_is_read_and_every_text_can_be_encoded(value: dict[str, Any]) -> None:
    """Whatever stands in the fields, there is a Chat, and its texts can be hashed (C-9)."""
    chat = read(json.dumps(value).encode(), 3)
    assert chat is not None
    chat.model.encode()
    for item in chat.tail:
        "".join([item.role, item.text, *(call.name + call.arguments for call in item.calls)]).encode()
    opening(json.dumps(value).encode()).encode()


@given(st.binary())
def test_any_bytes_do_no_harm(raw: bytes) -> None:
    """Garbage is plain HTTP (C-9)."""
    read(raw, 3)
    opening(raw)


@pytest.mark.parametrize("field", ["content", "tool_calls"])
def test_of_endless_lists_the_rest_stands_as_a_digest(field: str) -> None:
    """Three million parts in one message hold nobody up, and still tell requests apart (Y-2)."""
    items: list[Any] = [{"type": "text", "text": "a", "function": {"name": "f"}}] * 1000

    def newest(*more: Any) -> Message:
        chat = read(body([{"role": "assistant", field: [*items, *more]}]), 1)
        assert chat is not None
        return chat.tail[0]

    plain, longer = newest(), newest({"x": 1}, {"x": 2})
    assert "<more:" not in str(plain)
    assert str(longer).count("<more:") == 1
    assert longer == newest({"x": 1}, {"x": 2}) != newest({"x": 1}, {"x": 3})
    assert len(newest(*items, *items).calls) <= 1001


def test_an_opening_is_looked_for_at_the_beginning() -> None:
    """A million messages without one of the user are not all read (Y-2)."""
    assert opening(body([{"role": "system", "content": "s"}] * 99 + [user("u")])) != ""
    assert opening(body([{"role": "system", "content": "s"}] * 100 + [user("u")])) == ""


def _round(*calls: tuple[str, str]) -> list[dict[str, object]]:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": "write", "arguments": arguments}}
        for i, (arguments, _) in enumerate(calls)
    ]
    results: list[dict[str, object]] = [
        {"role": "tool", "tool_call_id": f"c{i}", "content": result} for i, (_, result) in enumerate(calls)
    ]
    return [{"role": "assistant", "content": None, "tool_calls": made}, *results]


def _tail(messages: list[dict[str, object]], tail: int = 3) -> tuple[Message, ...]:
    chat = read(json.dumps({"model": "m", "messages": messages}).encode(), tail)
    assert chat is not None
    return chat.tail


def test_results_of_parallel_calls_are_one_message() -> None:
    """So the calls they answer are in the tail, and different rounds that all return "ok" are different (LD-2)."""
    start: list[dict[str, object]] = [{"role": "user", "content": "write them all"}]
    first = _tail(start + _round(('{"f":1}', "ok"), ('{"f":2}', "ok"), ('{"f":3}', "ok")))
    second = _tail(start + _round(('{"f":4}', "ok"), ('{"f":5}', "ok"), ('{"f":6}', "ok")))
    assert [message.role for message in first] == ["user", "assistant", "tool"]
    assert first[2].text == "ok\n<result>\nok\n<result>\nok"
    assert first != second


def test_every_tail_length_ends_with_the_newest() -> None:
    """Merging results neither drops nor repeats a message (LD-2)."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "u"}]
    messages += _round(("{}", "a"), ("{}", "b")) + _round(("{}", "c"))
    roles = ["user", "assistant", "tool", "assistant", "tool"]
    for tail in range(7):
        assert [message.role for message in _tail(messages, tail)] == (roles[-tail:] if tail else [])
    assert _tail(messages, 3)[0].text == "a\n<result>\nb"
