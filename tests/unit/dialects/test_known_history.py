"""Messages that an earlier request had are not decoded again, and nothing else is read because of it (Q-4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import registry
from breakloop.dialects.base import EARLIER, ParsedBody
from breakloop.dialects.known_history import CALLERS, CONVERSATIONS, ENDINGS, KnownHistories, KnownHistory

Message = dict[str, Any]
PATHS = {
    "openai_chat": "/v1/chat/completions",
    "anthropic_messages": "/v1/messages",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-pro:generateContent",
}


def turn(dialect: str, number: int, size: int = 900) -> list[Message]:
    """A call and its result, as the dialect has them."""
    name, given_, found = (
        f"call_{number:08d}",
        {"path": f"file-{number}.txt"},
        f"line {number} of a result\n" * (size // 24),
    )
    if dialect == "openai_chat":
        function = {"name": "read_file", "arguments": json.dumps(given_)}
        calls = [{"id": name, "type": "function", "function": function}]
        result = {"role": "tool", "tool_call_id": name, "content": found}
        return [{"role": "assistant", "content": None, "tool_calls": calls}, result]
    if dialect == "anthropic_messages":
        use = {"type": "tool_use", "id": name, "name": "read_file", "input": given_}
        got = {"type": "tool_result", "tool_use_id": name, "content": found}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [got]}]
    if dialect == "openai_responses":
        call = {"type": "function_call", "call_id": name, "name": "read_file", "arguments": json.dumps(given_)}
        return [call, {"type": "function_call_output", "call_id": name, "output": found}]
    response = {"functionResponse": {"name": "read_file", "response": {"output": found}}}
    made = {"functionCall": {"name": "read_file", "args": given_}}
    return [{"role": "model", "parts": [made]}, {"role": "user", "parts": [response]}]


def opening(dialect: str) -> list[Message]:
    if dialect == "gemini":
        return [{"role": "user", "parts": [{"text": "Find the harbour."}]}]
    return [{"role": "user", "content": "Find the harbour."}]


def body_of(dialect: str, messages: list[Message], separators: tuple[str, str] = (",", ":")) -> bytes:
    field = {"openai_responses": "input", "gemini": "contents"}.get(dialect, "messages")
    fields = {"model": "m", field: messages, "max_tokens": 100, "metadata": {"user_id": "u"}}
    if dialect == "gemini":
        del fields["max_tokens"], fields["model"]
    return json.dumps(fields, separators=separators).encode()


def read(dialect: str, body: bytes, history: KnownHistory | None) -> ParsedBody | None:
    return registry.parse("POST", PATHS[dialect], body, history)


def seen(parsed: ParsedBody | None) -> object:
    """Everything that is read of a body."""
    if parsed is None:
        return None
    return parsed.chat(4), parsed.newest_step(), parsed.opening(), parsed.system(), parsed.session_ids(), parsed.lenient


def is_short(parsed: ParsedBody | None) -> bool:
    return parsed is not None and EARLIER in parsed.parts.items


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("dialect", PATHS)
def test_a_conversation_that_grows_is_read_as_before(dialect: str, separators: tuple[str, str]) -> None:
    """From the second request on, the middle of the conversation is not decoded, and nothing else differs."""
    history, messages = KnownHistory(), opening(dialect)
    for number in range(40):
        messages += turn(dialect, number)
        body = body_of(dialect, messages, separators)
        parsed = read(dialect, body, history)
        assert seen(parsed) == seen(read(dialect, body, None))
        assert is_short(parsed) or number < 5


def test_what_is_decoded_does_not_grow() -> None:
    """However long the conversation is, a request costs as much as its first and last messages."""
    history, messages, sizes, body = KnownHistory(), opening("openai_chat"), [], b""
    for number in range(100):
        messages += turn("openai_chat", number, 2000)
        body = body_of("openai_chat", messages)
        short = history.shorten(body, "openai_chat")
        sizes.append(len(body) if short is None else len(short.body))
        read("openai_chat", body, history)
    assert max(sizes[10:]) < 1.2 * sizes[9] < 0.4 * len(body)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_how_a_conversation_opens_is_read_once(separators: tuple[str, str]) -> None:
    """Once its session is known, the first messages are not decoded until somebody asks for them."""
    history, messages = KnownHistory(), [{"role": "system", "content": "Be brief."}, *opening("openai_chat")]
    for number in range(20):
        messages += turn("openai_chat", number)
        body = body_of("openai_chat", messages, separators)
        parsed, whole = read("openai_chat", body, history), read("openai_chat", body, None)
        assert parsed is not None
        assert whole is not None
        if number > 6:
            assert (parsed.parts.items[0] is EARLIER) is (number <= 12)
        assert (parsed.chat(4), parsed.newest_step()) == (whole.chat(4), whole.newest_step())
        if number >= 12:
            assert (parsed.system(), parsed.task()) == (whole.system(), whole.task())
            assert is_short(parsed)
        elif parsed.known_opening is not None and not parsed.known_opening.session:
            parsed.keep_session("a", parsed.opening())


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: messages[0].update(content="Find the lighthouse."),
        lambda messages: messages[3].update(content="ok"),
        lambda messages: messages[6].update(content=messages[6]["content"].replace("line", "LINE")),
        lambda messages: messages.pop(5),
        lambda messages: messages.insert(4, {"role": "user", "content": "Wait."}),
        lambda messages: messages.__delitem__(slice(4, None)),
    ],
)
def test_another_history_is_read_anew(change: Callable[[list[Message]], object]) -> None:
    """A message that was changed, removed or added; a conversation that was cut."""
    history, messages = KnownHistory(), opening("openai_chat")
    for number in range(20):
        messages += turn("openai_chat", number)
        read("openai_chat", body_of("openai_chat", messages), history)
    change(messages)
    body = body_of("openai_chat", messages)
    parsed = read("openai_chat", body, history)
    assert not is_short(parsed)
    assert seen(parsed) == seen(read("openai_chat", body, None))


def test_marks_that_move_along_the_conversation() -> None:
    """Clients mark the newest messages for the provider's cache, and remove the marks from older ones."""
    history, messages = KnownHistory(), opening("anthropic_messages")
    for number in range(20):
        messages += turn("anthropic_messages", number)
        sent = [*messages[:-1], json.loads(json.dumps(messages[-1]))]
        sent[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        body = body_of("anthropic_messages", sent)
        parsed = read("anthropic_messages", body, history)
        assert seen(parsed) == seen(read("anthropic_messages", body, None))
        assert is_short(parsed) is (number > 4)


def test_a_message_that_was_not_decoded_is_when_it_is_needed() -> None:
    """Twenty results of parallel calls: more is kept of the next request, until it is enough."""
    history, messages = KnownHistory(), opening("openai_chat")
    decoded = 0
    for number in range(30):
        made = [turn("openai_chat", 100 * number + at) for at in range(20)]
        calls = [call for one, _ in made for call in one["tool_calls"]]
        messages += [{"role": "assistant", "content": None, "tool_calls": calls}, *[result for _, result in made]]
        body = body_of("openai_chat", messages)
        parsed = read("openai_chat", body, history)
        assert seen(parsed) == seen(read("openai_chat", body, None))
        decoded += is_short(parsed)
    assert decoded > 20


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("end", [b"", b'{"role": "user"', b',"x"],"model":"m"}', b',"\\ud800"],"model":"m"}', b",,]}"])
def test_odd_ends_are_read_as_before(end: bytes, keeps: bool) -> None:
    """What follows the known beginning is checked like any other body."""
    history, messages = KnownHistory(), opening("openai_chat")
    for number in range(20):
        messages += turn("openai_chat", number)
        parsed = read("openai_chat", body_of("openai_chat", messages), history)
        if keeps and parsed is not None:
            parsed.keep_session("a", parsed.opening())
    whole = body_of("openai_chat", messages)
    body = whole[: whole.rfind(b"]")] + end
    assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))


@pytest.mark.parametrize("between", [b"", b" ", b":", b"]", b"x", b"\n", b" ,", b",,", b",\n", b", ", b",null,"])
@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_between_the_known_and_the_new(between: bytes, keeps: bool) -> None:
    """Only a comma and white space make two messages of them."""
    history, messages = KnownHistory(), opening("openai_chat")
    for number in range(20):
        messages += turn("openai_chat", number)
        parsed = read("openai_chat", body_of("openai_chat", messages), history)
        if keeps and parsed is not None:
            parsed.keep_session("a", parsed.opening())
    whole = body_of("openai_chat", messages)
    known = history.shorten(whole, "openai_chat")
    assert known is not None
    end = known.beginning.end
    body = whole[:end] + between + whole[end + 1 :]
    assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))


def test_each_caller_and_each_dialect_has_its_own() -> None:
    """Nobody's request is read with the help of another's."""
    histories, messages = KnownHistories(), opening("openai_chat")
    for number in range(20):
        messages += turn("openai_chat", number)
        read("openai_chat", body_of("openai_chat", messages), histories.of("key:a"))
    body = body_of("openai_chat", messages)
    assert is_short(read("openai_chat", body, histories.of("key:a")))
    assert not is_short(read("openai_chat", body, histories.of("key:b")))
    assert not is_short(read("anthropic_messages", body, histories.of("key:a")))


def test_what_is_kept_is_bounded() -> None:
    """So many conversations of a caller, and so many callers."""
    histories = KnownHistories()
    for number in range(CALLERS + 10):
        histories.of(f"key:{number}")
    assert len(histories._of_callers) == CALLERS
    history = histories.of("key:a")
    for number in range(CONVERSATIONS + 10):
        messages = [{"role": "user", "content": f"Find harbour {number}."}]
        for at in range(20):
            messages += turn("openai_chat", at)
        read("openai_chat", body_of("openai_chat", messages), history)
    assert len(history._beginnings) == CONVERSATIONS


def test_conversations_that_take_turns() -> None:
    """Each is found among the others, however alike they are. The one that was continued last is forgotten last."""
    history, count = KnownHistory(), 8
    talks = [[{"role": "user", "content": f"Find harbour {number}."}] for number in range(count)]
    for number in range(20):
        for messages in talks if number % 3 else talks[::-1]:
            messages.extend(turn("openai_chat", number, 2000))
            body = body_of("openai_chat", messages)
            parsed = read("openai_chat", body, history)
            assert seen(parsed) == seen(read("openai_chat", body, None))
            assert is_short(parsed) or number < 5
    assert len(history._beginnings) == len(history._probes) == count
    for number in range(CONVERSATIONS - 1):
        other: list[Message] = [{"role": "user", "content": f"Find lighthouse {number}."}]
        for at in range(20):
            other += turn("openai_chat", at)
        read("openai_chat", body_of("openai_chat", other), history)
    known = [history.shorten(body_of("openai_chat", one), "openai_chat") is not None for one in talks]
    assert known == [False] * (count - 1) + [True]


def test_two_lists_of_messages() -> None:
    """JSON may have a field twice; the last one counts."""
    history, messages = KnownHistory(), opening("openai_chat")
    for number in range(20):
        messages += turn("openai_chat", number)
        twice = body_of("openai_chat", messages)[:-1] + b',"messages":' + json.dumps(messages[:14]).encode() + b"}"
        assert seen(read("openai_chat", twice, history)) == seen(read("openai_chat", twice, None))


# -- declared tools that follow the messages


def tools_of(dialect: str, count: int = 8) -> list[dict[str, Any]]:
    said, schema = "Reads a file of the harbour. " * 8, {"type": "object", "properties": {"path": {"type": "string"}}}
    tools: list[dict[str, Any]] = []
    for number in range(count):
        name = f"tool_{number}"
        if dialect == "openai_chat":
            tools.append({"type": "function", "function": {"name": name, "description": said, "parameters": schema}})
        elif dialect == "gemini":
            tools.append({"functionDeclarations": [{"name": name, "description": said, "parameters": schema}]})
        else:
            tools.append({"name": name, "description": said, "input_schema": schema})
    return tools


def with_tools(body: bytes, tools: object, *more: tuple[str, object]) -> bytes:
    """A body that has tools, and fields after them."""
    added = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in (("tools", tools), *more))
    return body[:-1] + added.encode() + b"}"


def grown(history: KnownHistory, tools: object) -> list[Message]:
    """A conversation that is known, with its tools."""
    messages = opening("openai_chat")
    for number in range(20):
        messages += turn("openai_chat", number)
        read("openai_chat", with_tools(body_of("openai_chat", messages), tools), history)
    return messages


@pytest.mark.parametrize("dialect", PATHS)
def test_known_tools_are_not_decoded_again(dialect: str) -> None:
    """Their names are kept, and all other fields after the messages are read."""
    history, messages, cut = KnownHistory(), opening(dialect), 0
    for number in range(20):
        messages += turn(dialect, number)
        body = with_tools(body_of(dialect, messages), tools_of(dialect), ("user", "u-1"), ("stream", True))
        parsed, whole = read(dialect, body, history), read(dialect, body, None)
        assert parsed is not None
        assert seen(parsed) == seen(whole)
        step = parsed.newest_step()
        assert step is not None
        assert step.tools == tuple([f"tool_{at}" for at in range(8)])
        cut += bool(parsed.parts.tools)
    assert cut == 16  # as soon as there are messages to cut out


def test_tools_of_the_other_conversations_of_a_caller() -> None:
    """The same tools are kept once; others take the place of those that were first, and are read as before."""
    history = KnownHistory()
    grown(history, tools_of("openai_chat"))
    messages: list[Message] = [{"role": "user", "content": "Find the lighthouse."}]
    for number in range(8):
        messages += turn("openai_chat", number)
        read("openai_chat", with_tools(body_of("openai_chat", messages), tools_of("openai_chat")), history)
    assert len(history._endings) == 1
    for count in range(8, 9 + ENDINGS):
        other: list[Message] = [{"role": "user", "content": f"Find harbour {count}."}]
        for number in range(6):
            other += turn("openai_chat", number)
            body = with_tools(body_of("openai_chat", other), tools_of("openai_chat", count))
            assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))
    assert len(history._endings) == ENDINGS
    kept = {id(ending) for ending in history._endings.values()}
    assert all(one.ending is None or id(one.ending) in kept for one in history._beginnings)
    body = with_tools(body_of("openai_chat", messages), tools_of("openai_chat"))
    assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))


def test_tools_of_one_dialect_are_not_those_of_another() -> None:
    """The same bytes, sent to two APIs: only one of them finds names of tools there."""
    history, messages = KnownHistory(), opening("openai_chat")
    for number in range(12):
        messages += turn("openai_chat", number)
        body = with_tools(body_of("openai_chat", messages), tools_of("openai_chat"))
        for dialect in ("openai_chat", "anthropic_messages"):
            assert seen(read(dialect, body, history)) == seen(read(dialect, body, None))
    assert len(history._endings) == 2


@pytest.mark.parametrize("small", [True, False])
def test_other_tools_are_read(small: bool) -> None:
    """A tool that was added, renamed or removed in the middle of a conversation."""
    history, tools = KnownHistory(), tools_of("openai_chat")
    messages = grown(history, tools)
    named = json.loads(json.dumps(tools).replace("tool_7", "look_7"))
    for other in (named, [*tools, *tools_of("openai_chat", 1)], tools[:1] if small else tools[1:], [], None):
        body = with_tools(body_of("openai_chat", messages), other)
        parsed = read("openai_chat", body, history)
        assert parsed is not None
        assert not parsed.parts.tools
        assert seen(parsed) == seen(read("openai_chat", body, None))


@pytest.mark.parametrize(
    "before",
    [
        b',{"role":"user","content":"',  # the ending is in a text
        b',{"role":"user","content":"\\"',
        b'],"tools":[{"type":"function","function":{"name":"first"}}],"stop":["a"',  # twice; the last one counts
        b'],"tools":[{"type":"function","function":{"name":"first"}}',
        b'],"tools":5,"stop":["a"',
        b'],"messages":[{"role":"user","content":"Wait."}',
        b'],"stop":[["a"]',
        b'],"stop":[["a"',
        b'],"stop":{"a":["b"',
        b"]",
        b"[",
        b'"',
        b"\\",
        b",\xff",
        b',{"role":"user","content":"\\ud800"}',
        b',{"role":"user","content":"Wait."}',
    ],
)
def test_what_stands_before_a_known_ending(before: bytes) -> None:
    """The ending may close something else than the list of messages, or be no ending at all."""
    history = KnownHistory()
    messages = grown(history, tools_of("openai_chat"))
    whole = with_tools(body_of("openai_chat", messages), tools_of("openai_chat"))
    known = history.shorten(whole, "openai_chat")
    assert known is not None
    assert known.tools
    ending = known.beginning.ending
    assert ending is not None
    at = len(whole) - ending.size
    body = whole[:at] + before + whole[at:]
    assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))


def test_an_ending_that_overlaps_the_known_beginning() -> None:
    """A body that is shorter than both together."""
    history = KnownHistory()
    messages = grown(history, tools_of("openai_chat"))
    whole = with_tools(body_of("openai_chat", messages), tools_of("openai_chat"))
    known = history.shorten(whole, "openai_chat")
    assert known is not None
    ending = known.beginning.ending
    assert ending is not None
    end, size = known.beginning.end, ending.size
    for body in (whole[:end] + whole[-size:], whole[:end] + whole[1 - size :], whole[:end]):
        assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))


@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_functions_beside_tools(before: bool, twice: bool) -> None:
    """The old field declares tools, too. Conversations of a caller with and without it do not mix."""
    history, tools = KnownHistory(), tools_of("openai_chat")
    talks: list[list[Message]] = [[{"role": "user", "content": f"Find harbour {number}."}] for number in range(2)]
    for number in range(14):
        for talk, messages in enumerate(talks):
            messages.extend(turn("openai_chat", number, 1500))
            body = with_tools(body_of("openai_chat", messages), tools)
            if talk != twice or number > 11:
                named = b'"functions":[{"name":"delete"}],'
                body = (
                    body.replace(b"{", b"{" + named, 1)
                    if before
                    else body.replace(b'"max_tokens"', named + b'"max_tokens"')
                )
            assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))


def test_an_escaped_second_list_of_messages() -> None:
    """However short what is left of a body may be, the last list counts."""
    history, messages = KnownHistory(), opening("openai_chat")
    for number in range(30):
        messages += turn("openai_chat", number, 100)
        parsed = read("openai_chat", with_tools(body_of("openai_chat", messages), tools_of("openai_chat")), history)
        if parsed is not None and parsed.known_opening is not None and not parsed.known_opening.session:
            parsed.keep_session("a", parsed.opening())
    whole = with_tools(body_of("openai_chat", messages), tools_of("openai_chat"))
    known = history.shorten(whole, "openai_chat")
    assert known is not None
    ending = known.beginning.ending
    assert ending is not None
    at = len(whole) - ending.size
    other = json.dumps(messages[-8:], separators=(",", ":"))[:-1].encode()
    body = whole[:at] + b'],"messag\\u0065s":' + other + whole[at:]
    assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))


def test_names_of_tools_are_bounded() -> None:
    """Tools with more or longer names are decoded with each request."""
    for count, name in ((129, "t"), (100, "t" * 60)):
        history, messages = KnownHistory(), opening("openai_chat")
        tools = [
            {"type": "function", "function": {"name": f"{name}{at}", "description": "x" * 20}} for at in range(count)
        ]
        for number in range(10):
            messages += turn("openai_chat", number)
            body = with_tools(body_of("openai_chat", messages), tools)
            parsed = read("openai_chat", body, history)
            assert parsed is not None
            assert not parsed.parts.tools
            assert seen(parsed) == seen(read("openai_chat", body, None))


@pytest.mark.parametrize("more", [("functions", None), ("metadata", "tools"), ("tools", None)])
def test_tools_that_stand_twice_in_an_ending(more: tuple[str, str | None]) -> None:
    """It is not clear which of two equal lists is to be cut out, or other fields declare tools: none are."""
    history, messages, tools = KnownHistory(), opening("openai_chat"), tools_of("openai_chat")
    for number in range(10):
        messages += turn("openai_chat", number)
        name, inner = more
        body = with_tools(body_of("openai_chat", messages), tools, (name, {inner: tools} if inner else tools))
        parsed = read("openai_chat", body, history)
        assert parsed is not None
        assert not parsed.parts.tools
        assert seen(parsed) == seen(read("openai_chat", body, None))


def test_another_field_of_that_name() -> None:
    """Only the tools of the body itself are cut out, and only where they stand first. Messages are cut out all the same."""
    history, messages, tools = KnownHistory(), opening("openai_chat"), tools_of("openai_chat")
    for number in range(10):
        messages += turn("openai_chat", number)
        body = with_tools(body_of("openai_chat", messages), tools)
        body = body.replace(b', "tools":', b', "prediction": {"tools": ["a"]}, "tools":')
        parsed = read("openai_chat", body, history)
        assert seen(parsed) == seen(read("openai_chat", body, None))
        assert is_short(parsed) is (number > 3)


def test_a_message_that_is_needed_after_all_beside_known_tools() -> None:
    """The whole body is decoded then, its tools too."""
    history, tools, cut = KnownHistory(), tools_of("openai_chat"), []
    messages = grown(history, tools)
    for number in range(4):
        made = [turn("openai_chat", 100 * number + at) for at in range(20)]
        calls = [call for one, _ in made for call in one["tool_calls"]]
        messages += [{"role": "assistant", "content": None, "tool_calls": calls}, *[result for _, result in made]]
        for body in [with_tools(body_of("openai_chat", messages), tools)] * 2:
            parsed = read("openai_chat", body, history)
            assert parsed is not None
            assert seen(parsed) == seen(read("openai_chat", body, None))
            cut.append(bool(parsed.parts.tools))
    assert set(cut) == {True, False}


@given(st.data())
def test_any_sequence_of_requests(data: st.DataObject) -> None:
    """Whatever an earlier request was, a body is read as if it were the first."""
    history = KnownHistory()
    roles = st.sampled_from(["user", "assistant", "system", "tool"])
    texts = st.text(max_size=30)
    message = st.fixed_dictionaries({"role": roles, "content": texts})
    conversation = data.draw(st.lists(message, min_size=12, max_size=30))
    for _ in range(4):
        body = body_of("openai_chat", conversation)
        assert seen(read("openai_chat", body, history)) == seen(read("openai_chat", body, None))
        at = data.draw(st.integers(0, len(conversation) - 1))
        if data.draw(st.booleans()):
            conversation = [*conversation, *data.draw(st.lists(message, max_size=4))]
        elif data.draw(st.booleans()):
            conversation = [*conversation[:at], data.draw(message), *conversation[at + 1 :]]
        else:
            conversation = conversation[:at] + conversation[at + 1 :]
