"""Asking for a stream's count of tokens, and taking it out again: byte for byte, however the stream is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import registry
from breakloop.dialects.body_changes import HELD_MAX_BYTES, UsageStrip, without_usage
from tests.each import each

CHAT = "openai_chat"
ASKS = b'"stream_options":{"include_usage":true}'


# -- the question


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_completions"])
def test_it_is_asked_behind_the_last_field(dialect: str) -> None:
    """Everything else keeps its bytes, white space too (D-1)."""
    body = b' { "stream" : true ,\n"model":"m", "messages":[{"role":"user","content":"}"}] \n}\r\n '
    asking = registry.DIALECTS[dialect].request_usage(body)
    assert asking == body.replace(b" \n}\r\n ", b' \n,"stream_options":{"include_usage":true}}\r\n ')
    assert json.loads(asking) == json.loads(body) | {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (b"{}", b'{"include_usage":true}'),
        (b"{ }", b'{"include_usage":true }'),
        (b"null", b'{"include_usage":true}'),
        (b'{"include_obfuscation": false}', b'{"include_usage":true,"include_obfuscation": false}'),
        (b'{"include_usage" : false, "x":1}', b'{"include_usage" : true, "x":1}'),
        (b'{"x":[false],"include_usage":null}', b'{"x":[false],"include_usage":true}'),
    ],
)
def test_it_is_asked_among_other_options(options: bytes, expected: bytes) -> None:
    """A client that said no, or said something else (D-1)."""
    body = b'{"stream_options": %b,"stream":true,"messages":[{"role":"user","content":"\\"stream_options\\": {}"}]}'
    asking = registry.DIALECTS[CHAT].request_usage(body % options)
    assert asking == body % expected
    assert json.loads(asking)["stream_options"]["include_usage"] is True


@each(
    "body",
    [
        b'{"messages":[]}',
        b'{"messages":[],"stream":false}',
        b'{"messages":[],"stream":null}',
        b'{"messages":[],"stream":"true"}',
        b'{"stream":true,"stream_options":{"include_usage":true}}',
        b'{"stream":true,"stream_options":{"include_usage":"yes"}}',
        b'{"stream":true,"stream_options":[]}',
        b'{"stream":true,"stream_options":7}',
        b'{"stream":true,"stream_options":{},"metadata":{"stream_options":{}}}',
        b'{"stream":true,"stream\\u005foptions":{}}',
        b'{"stream":true,"stream_options":{"include_usage":false,"include_usage":null}}',
        b'{"stream":true',
        b"\xef\xbb\xbf" + b'{"stream":true}',
        b"[]",
        b"",
        b'{"stream":true,"x":' + b"[" * 100_000,
    ],
)
def test_it_is_not_asked(body: bytes) -> None:
    """No stream, asked already, or nothing that could be changed without doubt (D-1)."""
    assert registry.DIALECTS[CHAT].request_usage(body) is None


@pytest.mark.parametrize("dialect", ["openai_responses", "anthropic_messages", "gemini", "openai_embeddings", "mcp"])
def test_the_others_need_not_be_asked(dialect: str) -> None:
    """Their streams carry a count anyway (D-1)."""
    assert registry.DIALECTS[dialect].request_usage(b'{"stream":true}') is None


# -- the answer


def chunk(choices: list[Any], **more: Any) -> dict[str, Any]:
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def said(text: str) -> list[Any]:
    return [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]


TEXTS = ["", "Hé", ' "usage":null,"usage": null} ', "\n\ndata: x\n\n", '"usage"', "end"]
COUNT = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def lines(payloads: list[Any], end: str = "\n", *, compact: bool = True, **more: Any) -> bytes:
    """A stream: each payload with what `more` adds to it, and a comment somewhere."""
    separators = (",", ":") if compact else (", ", ": ")
    events = [
        "data: " + (json.dumps({**one, **more}, separators=separators, ensure_ascii=False) if one else "[DONE]")
        for one in payloads
    ]
    events.insert(2, ": keep-alive")
    return "".join(event + end * 2 for event in events).encode()


def streams(end: str = "\n", *, compact: bool = True, padding: bool = False) -> tuple[bytes, bytes]:
    """The same stream as it comes when asked for, and when not."""
    padded = {"obfuscation": "aB3"} if padding else {}
    chunks: list[Any] = [chunk(said(text)) for text in TEXTS]
    plain = lines([*chunks, None], end, compact=compact, **padded)
    asked = lines(chunks, end, compact=compact, usage=None, **padded)
    count = lines([chunk([])], end, compact=compact, usage=COUNT, **padded).partition(b": keep-alive")[0]
    return asked + count + f"data: [DONE]{end}{end}".encode(), plain


FORMS = [
    pytest.param(*streams(), id="openai"),
    pytest.param(*streams(padding=True), id="padded"),
    pytest.param(*streams(compact=False), id="spaces"),
    pytest.param(*streams("\r\n"), id="crlf"),
    pytest.param(*streams("\r"), id="cr"),
]


def strip(*pieces: bytes) -> bytes:
    stripping = UsageStrip()
    return b"".join(map(stripping.feed, pieces)) + stripping.finish()


@pytest.mark.parametrize(("asked", "plain"), FORMS)
def test_the_client_sees_what_it_would_have_seen(asked: bytes, plain: bytes) -> None:
    """The client sees what it would have seen: to the byte (D-1)."""
    assert b'"usage"' in asked
    assert strip(asked) == plain


@pytest.mark.parametrize(("asked", "plain"), FORMS)
def test_wherever_it_is_cut(asked: bytes, plain: bytes) -> None:
    """In two at every place, and byte by byte (D-1)."""
    for at in range(len(asked) + 1):
        assert strip(asked[:at], asked[at:]) == plain, at
    assert strip(*(asked[at : at + 1] for at in range(len(asked)))) == plain


@given(st.sampled_from([form.values for form in FORMS]), st.lists(st.integers(0, 2000), max_size=12))
def test_in_any_pieces(form: tuple[bytes, bytes], cuts: list[int]) -> None:
    """The same for any number of cuts (D-1)."""
    asked, plain = form
    places = [0, *sorted(cuts), len(asked)]
    assert strip(*(asked[low:high] for low, high in itertools.pairwise(places))) == plain


@pytest.mark.parametrize(("asked", "plain"), FORMS)
def test_no_event_waits_for_the_next(asked: bytes, plain: bytes) -> None:
    """An event passes with its last byte; of a CR LF, the CR (D-1)."""
    stripping = UsageStrip()
    passed = b""
    for at in range(len(asked)):
        passed += stripping.feed(asked[at : at + 1])
        if asked[: at + 1].endswith((b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n\r")):
            assert passed == strip(asked[: at + 1])
    assert passed == plain


def event(payload: bytes) -> bytes:
    return b"data: %b\n\n" % payload


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"usage":null,"choices":[{}]}', b'{"choices":[{}]}'),
        (b'{"usage": null, "choices":[{}]}', b'{"choices":[{}]}'),
        (b'{"choices":[{}],"usage":null,"id":"x"}', b'{"choices":[{}],"id":"x"}'),
        (b'{"choices":[],"prompt_filter_results":[1],"usage":null}', b'{"choices":[],"prompt_filter_results":[1]}'),
    ],
)
def test_where_the_null_stands(payload: bytes, expected: bytes) -> None:
    """Other servers than OpenAI's write it elsewhere (D-1)."""
    assert without_usage(event(payload)) == event(expected)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":[],"usage":{"prompt_tokens":1}}',
        b'{"choices":null,"usage":{"prompt_tokens":1}}',
        b'{"usage":{"prompt_tokens":1}}',
        b'{"choices": [ ], "usage": {}, "obfuscation": "x"}',
    ],
)
def test_the_count_is_taken_out(payload: bytes) -> None:
    """The chunk that has no other content (D-1)."""
    assert without_usage(b"event: x\nid: 1\n" + event(payload)) == b""


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}',  # would have come anyway
        b'{"choices":[{"delta":{"usage":null}}]}',
        b'{"choices":[{"delta":{"a":1,"usage":null}}],"usage":null,"x":{"usage":null}}',
        b'{"choices":[],"usage":{"a":1},"error":{"message":"x"}}',
        b'{"choices":"","usage":{}}',
        b'{"usage":null',
        b'"usage"',
        b"[DONE]",
        b'{"x":' + b"[" * 5000 + b',"usage"',
    ],
)
def test_everything_else_passes(payload: bytes) -> None:
    """In doubt as it came (D-1)."""
    assert without_usage(event(payload)) == event(payload)


def test_an_event_of_two_lines_passes() -> None:
    """Nobody writes a count like that (D-1)."""
    lines = b'data: {"choices":[],\ndata: "usage":{}}\n\n'
    assert without_usage(lines) == lines


def test_what_is_no_event_passes_at_the_end() -> None:
    """A server that fails in the middle of a stream, and one that forgets the last line (D-1)."""
    broken = event(b'{"choices":[{}],"usage":null}') + b'{"error":{"message":"x"}}'
    assert strip(broken) == event(b'{"choices":[{}]}') + b'{"error":{"message":"x"}}'
    assert UsageStrip().finish() == b""


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_endless_event_is_not_held(end: bytes) -> None:
    """It passes as it is, and what follows is looked at again (Y-2)."""
    long = b'data: {"choices":[{}],"x":"' + b"y" * (2 * HELD_MAX_BYTES) + b'","usage":null}' + end
    short = b'data: {"choices":[{}],"usage":null}' + end
    stripping, passed = UsageStrip(), b""
    for at in range(0, len(long), 1000):
        passed += stripping.feed(long[at : at + 1000])
        assert at + 1000 - len(passed) <= HELD_MAX_BYTES + 1000
    assert passed == long
    assert stripping.feed(short) == short.replace(b',"usage":null', b"")
