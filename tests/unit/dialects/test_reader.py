"""Which answers are read, how they are framed, and what is left of those that are too large or broken."""

from __future__ import annotations

import pytest

from breakloop.dialects import registry
from breakloop.dialects.answers import StreamReader, WholeAnswerReader
from breakloop.dialects.registry import reader
from breakloop.model.call import Answer, Usage
from tests.each import each
from tests.unit.dialects.recorded.everything import EVERYTHING
from tests.unit.dialects.recorded.openai import COUNT, TEXT, USAGE, WHOLE, chunk, delta
from tests.unit.dialects.recorded.reading import read, started
from tests.unit.dialects.recorded.shape import JSON, SSE, Recorded, dump, events

DIALECTS = sorted({recorded.dialect for recorded in EVERYTHING.values()})
EACH = pytest.mark.parametrize("dialect", DIALECTS)


@EACH
@pytest.mark.parametrize("kind", [SSE, b"text/event-stream", b"Text/Event-Stream;charset=UTF-8"])
def test_events(dialect: str, kind: bytes) -> None:
    """Every dialect can be streamed (C-8)."""
    assert isinstance(reader(dialect, kind), StreamReader)


@EACH
@pytest.mark.parametrize("kind", [JSON, b"application/json; charset=utf-8", b"application/problem+json", b"TEXT/JSON"])
def test_bodies(dialect: str, kind: bytes) -> None:
    """Every dialect can come whole, streamed though it was to be: errors do (C-8)."""
    assert isinstance(reader(dialect, kind, streamed=True), WholeAnswerReader)


@pytest.mark.parametrize("kind", [b"text/html", b"audio/mpeg", b"application/octet-stream", b"\xff", b"json"])
def test_nothing_to_read(kind: bytes) -> None:
    """Sounds, pages, and anything in no dialect at all (C-8)."""
    assert reader("openai_chat", kind) is None
    assert reader("", JSON) is None
    assert reader("http", SSE) is None


def test_no_type() -> None:
    """What was asked for decides then (C-9)."""
    assert isinstance(reader("openai_chat", b""), WholeAnswerReader)
    assert isinstance(reader("openai_chat", b"", streamed=True), StreamReader)


def test_events_of_another_type() -> None:
    """A stream that says it is a body is read as a stream (C-9)."""
    for complete in (True, False):
        expected = read(Recorded("openai_chat", SSE, TEXT, Answer(200)), complete=complete)
        assert read(Recorded("openai_chat", JSON, TEXT, Answer(200)), complete=complete) == expected
        assert expected.text == "Hello, wörld 🌍\n\ndata: x"


@EACH
def test_what_http_says_of_a_body(dialect: str) -> None:
    """It is complete when HTTP says so, and it is JSON (D-1)."""
    for body, complete, expected in (
        (b"{}", True, True),
        (b"{}", False, False),
        (b'{"a', True, False),
        (b"", True, True),
    ):
        reading = started(dialect, JSON)
        reading.feed(body)
        answer = reading.answer(200, complete=complete)
        assert answer == Answer(200, complete=expected)
        assert reading.unreadable == (body == b'{"a')


@EACH
def test_what_is_seen_of_nothing(dialect: str) -> None:
    """An answer without a single byte has a status (D-1)."""
    assert started(dialect, SSE).answer(502, complete=False) == Answer(502)
    assert started(dialect, JSON).answer(204, complete=True) == Answer(204, complete=True)


def test_large_bodies() -> None:
    """What is too large is not kept; the count of tokens near its end is read all the same (Y-2)."""
    for pieces in (1, 2, 100):
        found = WholeAnswerReader(registry.DIALECTS["openai_chat"], 100_000)
        said = {"choices": [{"message": {"content": 'say "usage": {} ' * 20_000}}], "usage": COUNT, "service_tier": "x"}
        body = dump(said)
        size = len(body) // pieces + 1
        for start in range(0, len(body), size):
            found.feed(body[start : start + size])
            assert len(found._body) <= 100_000
        assert found.answer(200, complete=True) == Answer(200, usage=USAGE, complete=True)
        assert found.unreadable == 1


@pytest.mark.parametrize(
    "end", [b"", b'"usage":', b'"usage":{"prompt', b'"usage":[1]}', b'"usage":null}', b'\\"usage\\":{}']
)
def test_large_bodies_without_a_count(end: bytes) -> None:
    """Broken ones too (Y-2)."""
    found = WholeAnswerReader(registry.DIALECTS["openai_chat"], 100)
    found.feed(b"x" * 200 + end)
    assert found.answer(200, complete=True) == Answer(200, complete=True)


def test_large_arrays_of_gemini() -> None:
    """The count has another name there (Y-2)."""
    found = WholeAnswerReader(registry.DIALECTS["gemini"], 100)
    found.feed(b'[{"text": "' + b"x" * 200 + b'"},{"usageMetadata": {"promptTokenCount": 3}, "modelVersion": "m"}]')
    assert found.answer(200, complete=True).usage == Usage(3)


def test_large_events() -> None:
    """Passed over and counted, and the next are read (Y-2)."""
    found = StreamReader(registry.DIALECTS["openai_chat"].answer_builder(), 1000)
    found.feed(events(chunk(delta(content="one")), chunk(delta(content="x" * 2000)), chunk(delta(content=" two"))))
    assert (found.answer(200, complete=True).text, found.unreadable) == ("one two", 1)


def test_broken_events_are_counted() -> None:
    """But not half an event at the end of a stream that was cut short (C-9)."""
    for complete, expected in ((True, 2), (False, 1)):
        found = started("openai_chat", SSE)
        found.feed(b"data: {]\n\n" + events(chunk(delta(content="Hi"))) + b'data: {"id": "chat')
        assert (found.answer(200, complete=complete).text, found.unreadable) == ("Hi", expected)


@pytest.mark.parametrize("kind", [SSE, JSON])
@EACH
def test_nesting_without_end(dialect: str, kind: bytes) -> None:
    """Is passed over, and what comes after it is read (C-9)."""
    reading = started(dialect, kind)
    for deep in (b'{"a":' * 100_000, b"[" * 100_000, b'{"type":"error","error":' * 2000 + b"1" + b"}" * 2000):
        reading.feed(b"data: " + deep + b"\n\n" if kind == SSE else deep)
    reading.answer(200, complete=True)
    assert reading.unreadable >= 1


def test_the_client_that_leaves_at_the_end() -> None:
    """After the end mark all has been said, however the connection ends; before it, it has not (D-1)."""
    for name in ("messages text", "responses", "responses incomplete", "mcp events", "completions text", "chat text"):
        assert read(EVERYTHING[name], complete=False).complete
    assert not read(EVERYTHING["gemini events"], complete=False).complete  # which has no such mark
    recorded = EVERYTHING["chat text"]
    assert not read(recorded, [TEXT.removesuffix(b"data: [DONE]\n\n")], complete=False).complete


def test_a_second_look() -> None:
    """Asking twice gives the same (D-1)."""
    for name in ("chat text", "chat whole", "messages calls", "gemini call cut short", "chat without empty line"):
        recorded = EVERYTHING[name]
        reading = started(recorded.dialect, recorded.content_type)
        reading.feed(recorded.body)
        assert reading.answer(200, complete=True) == reading.answer(200, complete=True) == recorded.answer


def test_status_is_the_callers() -> None:
    reading = started("openai_chat", JSON)
    reading.feed(WHOLE)
    assert reading.answer(499, complete=True).status == 499


def test_a_body_with_too_many_values_is_not_decoded() -> None:
    """It passes; its token counts are found at its end (Y-2)."""
    reading = WholeAnswerReader(registry.DIALECTS["anthropic_messages"])
    reading.feed(
        b'{"type":"message","content":[' + b"[]," * 400_000 + b'0],"usage":{"input_tokens":7,"output_tokens":2}}'
    )
    answer = reading.answer(200, complete=True)
    assert (answer.complete, answer.failed, reading.unreadable) == (True, False, 1)
    assert answer.usage == Usage(7, 2)


def _message(*content: str, usage: str = '{"input_tokens":7,"output_tokens":2}', more: str = "") -> bytes:
    head = '"type":"message","id":"msg_1","model":"claude","stop_reason":"end_turn"'
    return f'{{{head},"content":[{",".join(content)}],"usage":{usage}{more}}}'.encode()


def _completion(message: str, *, usage: str = "null", more: str = "", of_choice: str = "") -> bytes:
    choice = f'{{"index":0,"message":{message},"finish_reason":"stop"{of_choice}}}'
    return f'{{"id":"c","model":"gpt","choices":[{choice}],"usage":{usage}{more}}}'.encode()


_SAID = '{"type":"text","text":"hi"}'
_USED = '{"type":"tool_use","id":"t","name":"find","input":%s}'
_CALLED = '{"content":null,"tool_calls":[{"id":"a","function":{"name":"find","arguments":%s}}]}'


@each(
    "dialect, body",
    [
        ("anthropic_messages", _message(_SAID)),
        ("anthropic_messages", _message(_SAID, '{"type":"text","text":""}', '{"type":"text","text":"you\\u00e9"}')),
        ("anthropic_messages", _message('{"type":"thinking","thinking":"hm","signature":"x"}', _SAID, _USED % "{}")),
        ("anthropic_messages", _message(_USED % '{"b":1.0,"a":[1e3,12345678901234567890123]}')),
        ("anthropic_messages", _message(_USED % '"{}"', '{"type":"server_tool_use","name":"web"}', '{"type":null}')),
        ("anthropic_messages", _message(_SAID, '{"type":"fallback","to":{"model":"other"}}', "3")),
        ("anthropic_messages", _message('{"text":"no type"}', '{"type":"text","text":null}', usage="{}")),
        ("anthropic_messages", _message(_SAID, usage='{"input_tokens":null,"output_tokens":null}')),
        ("anthropic_messages", _message(_SAID, usage='{"input_tokens":1,"cache_read_input_tokens":null}')),
        (
            "anthropic_messages",
            _message(
                _SAID,
                usage='{"input_tokens":1,"output_tokens":2,"cache_read_input_tokens":3,"cache_creation_input_tokens":4,'
                '"iterations":[{"type":"compaction","input_tokens":5,"output_tokens":6},{"type":"message"}],'
                '"output_tokens_details":{"thinking_tokens":1}}',
            ),
        ),
        ("anthropic_messages", _message(_SAID, more=',"error":{"type":"overloaded_error"}')),
        ("anthropic_messages", _message(_SAID, more=',"error":"?"')),
        ("anthropic_messages", b'{"type":"error","error":{"type":"api_error"}}'),
        ("anthropic_messages", _message(*[_USED % "{}"] * 300)),
        ("anthropic_messages", _message('{"type":"text","text":"%s"}' % ("x" * 70_000))),
        ("bedrock_anthropic", _message(_SAID, more=',"internalServerException":{"message":"no"}')),
        ("openai_chat", _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":2}')),
        ("openai_chat", _completion(_CALLED % '"{\\"b\\":1.0, \\"a\\":2}"', usage='{"prompt_tokens":-7}')),
        ("openai_chat", _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":1e15}')),
        ("openai_chat", _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":-2}')),
        ("openai_chat", _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":true}')),
        (
            "openai_chat",
            _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":2,"cached_tokens":1}'),
        ),
        ("openai_chat", _completion('{"content":"hi"}', usage='{"input_tokens":7,"output_tokens":2}')),
        ("openai_chat", _completion('{"content":"hi","refusal":"no"}')),
        ("openai_chat", _completion('{"content":"hi"}', more=',"error":{"code":"x"}')),
        ("openai_chat", _completion('{"content":"hi"}', of_choice=',"error":{"code":"x"}')),
        ("cohere_chat", _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":2}')),
        ("ollama_chat", _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":2}')),
        ("bedrock_chat", _completion('{"content":"hi"}', usage='{"prompt_tokens":7,"completion_tokens":2}')),
        ("cohere_chat", b'{"id":"c","message":{"content":[{"type":"text","text":"hi"}]},"finish_reason":"COMPLETE"}'),
    ],
)
def test_the_short_way_reads_what_the_long_way_reads(dialect: str, body: bytes) -> None:
    """An answer of the usual form is decoded at once; what it says does not depend on that (D-1)."""
    reading = WholeAnswerReader(registry.DIALECTS[dialect])
    reading.feed(body)
    builder = registry.DIALECTS[dialect].answer_builder()
    assert builder.read_body(body)
    expected = builder.build(200, complete=not (builder.error and builder.FAILS))
    assert reading.answer(200, complete=True) == expected
