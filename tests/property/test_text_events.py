"""Streams whose text is collected before it is read: the same is found at the same event, and the same is read, as when
each event is decoded."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.stream import StreamWatch, watch_stream
from breakloop.dialects.framing import STREAM
from breakloop.dialects.registry import DIALECTS
from breakloop.gateway.exchange import GuardedAnswer
from breakloop.model.call import Answer, CompletionCap
from tests.unit.dialects.recorded.shape import dump, events, named

CHAT, MESSAGES = "openai_chat", "anthropic_messages"
UNIT = "I should check the file again, and then go on. "
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["a", " the", "\n", "\n\n", '"', "\\", "\\n", " \u4e8c\u4e8c", "\U0001f600", "```", "x" * 300]),
)
PADDING = st.sampled_from([None, "", "aB3", "x", 'a"', "\u00fc"])


def chat(kind: str, text: str, at: int, padding: str | None) -> bytes:
    """An event of a chat."""
    delta: dict[str, Any] = {} if kind == "end" else {"reasoning_content" if kind == "thought" else "content": text}
    if kind == "call":
        delta = {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": text}}]}
    choice = {"index": at, "delta": delta, "finish_reason": "stop" if kind == "end" else None}
    usage = {"completion_tokens": 3} if kind == "usage" else None
    fields: dict[str, Any] = {"id": "c-1", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    if kind == "nameless":
        fields = {"choices": [choice], "usage": usage, "id": text}
    event = events(fields if padding is None else {**fields, "obfuscation": padding})
    return b"event: data: x\n" + event if kind == "named" else event


def message(kind: str, text: str, at: int, padding: str | None) -> bytes:
    """An event of a message."""
    if kind == "end":
        return named({"type": "content_block_stop", "index": at})
    deltas: dict[str, Any] = {
        "call": {"type": "input_json_delta", "partial_json": text},
        "thought": {"type": "thinking_delta", "thinking": text},
    }
    delta = deltas.get(kind, {"type": "text_delta", "text": text})
    event = named({"type": "content_block_delta", "index": at, "delta": delta})
    return event.removesuffix(b"}\n\n") + b" " * len(padding or "") + b"}\n\n"


def sent(dialect: str, kind: str, text: str, at: int, padding: str | None) -> bytes:
    """An event, or what is none."""
    made = chat if dialect == CHAT else message
    if kind == "comment":
        return b": " + dump(text).replace(b"\\n", b"") + b"\n\n"
    if kind == "raw":  # not escaped
        return made("text", "@", at, padding).replace(b"@", text.encode("utf-8", "replace"))
    if kind == "half":  # a part of a character
        return made("text", "@", at, padding).replace(b"@", text.encode("utf-8", "replace")[:1])
    if kind == "ascii":
        return made("text", "@", at, padding).replace(b"@", json.dumps(text)[1:-1].encode())
    return made(kind, text, at, padding)


KINDS = ["text"] * 12 + ["thought", "call", "end", "usage", "comment", "raw", "half", "ascii", "named", "nameless"]
ONE = st.tuples(st.sampled_from(KINDS), TEXTS, st.sampled_from([0, 0, 0, 0, 1]), PADDING)
ALIKE = st.tuples(
    st.sampled_from(["text", "text", "thought", "half", "named", "nameless"]), TEXTS, st.integers(1, 60), PADDING
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Pieces of a stream, most of which are an event."""
    dialect = draw(st.sampled_from([CHAT, MESSAGES]))
    found: list[bytes] = []
    for _ in range(draw(st.integers(1, 6))):
        kind, text, times, padding = draw(ALIKE)
        text = draw(st.sampled_from([text, text, UNIT]))
        found += [sent(dialect, kind, text, 0, padding)] * times
        found += [sent(dialect, *one) for one in draw(st.lists(ONE, max_size=6))]
    if draw(st.booleans()):
        whole = b"".join(found)
        places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
        if draw(st.booleans()):
            found = [whole[start:end] for start, end in pairwise([0, *places, len(whole)])]
        else:
            at = draw(st.integers(0, len(found) - 1))
            cut = draw(st.integers(0, len(found[at])))
            found[at : at + 1] = [found[at][:cut], found[at][cut:]]
    return dialect, found


def watched(
    dialect: str, caps: list[int], guards: int, *, collects: bool
) -> tuple[GuardedAnswer, StreamWatch, list[Any]]:
    reported: list[Any] = []
    watch = watch_stream(
        guards,
        [CompletionCap(tokens, "p", "r", cuts=True) for tokens in caps],
        1,
        can_cut=True,
        repeated=lambda *found: reported.append(found),
        capped=lambda *found: reported.append(found),
    )
    reading = GuardedAnswer(DIALECTS[dialect], None, reported.append, watch, STREAM)
    if not collects:
        reading._stream._tries_left = 0
    return reading, watch, reported


@given(
    stream=streams(),
    caps=st.lists(st.integers(1, 400), max_size=2),
    guards=st.sampled_from([0, 1, 2]),
    whole=st.booleans(),
    several=st.sampled_from([1, 1, 1, 2, 5]),
)
def test_collected_text_is_read_as_decoded_text(
    stream: tuple[str, list[bytes]], caps: list[int], guards: int, whole: bool, several: int
) -> None:
    """Also odd events, broken ones, and pieces that are no events (D-1, LD-8)."""
    dialect, pieces = stream
    plain, plain_watch, plain_reports = watched(dialect, caps, guards, collects=False)
    reading, watch, reports = watched(dialect, caps, guards, collects=True)
    for together in [pieces[at : at + several] for at in range(0, len(pieces), several)]:
        cut = plain.feed(together)
        assert reading.feed(together) is cut
        assert (watch.found, watch.findings() == [], reports) == (
            plain_watch.found,
            plain_watch.findings() == [],
            plain_reports,
        )
        if cut:
            assert watch.chars == plain_watch.chars
            assert reading._final_events() == plain._final_events()
            assert reading._line_end() == plain._line_end()
    answers: list[Answer] = [one.answer(200, complete=whole) for one in (plain, reading)]
    assert answers[0] == answers[1]
    assert (reports, watch.chars, watch.open) == (plain_reports, plain_watch.chars, plain_watch.open)
    assert reading._stream.ending([0, 1], 10) == plain._stream.ending([0, 1], 10)
