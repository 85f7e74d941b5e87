"""Events that differ in one piece of text only: they are found without a JSON decoder, and read as if they had been
decoded one by one. That nothing else is taken for one, wherever it is cut, is in `property/test_text_events`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.detect.stream import PROBE_CHARS, RepetitionWatch, StreamWatch, watch_stream
from breakloop.dialects.answers import ListeningReader
from breakloop.dialects.registry import DIALECTS
from breakloop.dialects.text_events import decoded
from breakloop.model.call import CompletionCap
from tests.each import each
from tests.unit.dialects.recorded.shape import events, named

PAD = "aB3"


def chat(piece: str, *, index: int = 0, field: str = "content", **more: Any) -> bytes:
    """An event as OpenAI sends it."""
    choice = {"index": index, "delta": {field: piece}, "logprobs": None, "finish_reason": None}
    return events({"id": "c-1", "created": 1, "model": "m", "choices": [choice], "usage": None, **more})


def block(piece: str, *, index: int = 0, spaces: int = 0, thinks: bool = False) -> bytes:
    """An event as Anthropic sends it."""
    kind, field = ("thinking_delta", "thinking") if thinks else ("text_delta", "text")
    event = named({"type": "content_block_delta", "index": index, "delta": {"type": kind, field: piece}})
    return event.removesuffix(b"}\n\n") + b" " * spaces + b"}\n\n"


class Counted:
    """A reader that counts the events it decodes."""

    def __init__(self, dialect: str, watch: StreamWatch | None = None) -> None:
        self.watch = watch or RepetitionWatch(lambda *_: None)
        self.reader = ListeningReader(DIALECTS[dialect], self.watch)
        self.decoded = 0
        read = self.reader._read

        def counted(payload: bytes) -> None:
            self.decoded += 1
            read(payload)

        self.reader._read = counted

    def feed(self, *pieces: bytes) -> int:
        """Read pieces; return how many events were decoded by now."""
        for piece in pieces:
            self.reader.feed(piece)
        return self.decoded

    def text(self) -> str:
        return self.reader.answer(200, complete=True).text


ALIKE: dict[str, tuple[str, list[bytes]]] = {
    "chat": ("openai_chat", [chat("One"), chat(" two"), chat(" \u00fcber"), chat(" \u4e8c")]),
    "padded chat": (
        "openai_chat",
        [
            chat("One", obfuscation="x"),
            chat(" two", obfuscation=PAD),
            chat(" \u00fcber", obfuscation="Q9"),
            chat(" \u4e8c", obfuscation="z" * 256),
        ],
    ),
    "second choice": ("openai_chat", [chat(piece, index=1) for piece in ("One", " two", " \u00fcber", " \u4e8c")]),
    "messages": ("anthropic_messages", [block("One"), block(" two"), block(" \u00fcber"), block(" \u4e8c")]),
    "padded messages": (
        "anthropic_messages",
        [block("One", spaces=3), block(" two"), block(" \u00fcber", spaces=1), block(" \u4e8c", spaces=256)],
    ),
}


@each("dialect, alike", ALIKE)
def test_only_the_first_of_them_is_decoded(dialect: str, alike: list[bytes]) -> None:
    """And all are read (D-1)."""
    counted = Counted(dialect)
    assert counted.feed(*alike) == 1
    assert counted.text() == "One two \u00fcber \u4e8c"
    assert counted.decoded == 1


@each(
    "dialect, alike",
    [
        ("openai_chat", [chat(piece, field="reasoning_content") for piece in ("Hm", ", let", " me see")]),
        ("openai_chat", [chat(piece, field="reasoning") for piece in ("Hm", ", let", " me see")]),
        ("anthropic_messages", [block(piece, thinks=True) for piece in ("Hm", ", let", " me see")]),
    ],
)
def test_reasoning_too(dialect: str, alike: list[bytes]) -> None:
    """It is no part of the answer, and is checked like a text (LD-8)."""
    counted = Counted(dialect)
    assert counted.feed(*alike) == 1
    assert counted.text() == ""
    ((_, probe),) = counted.watch._reasoning.values()  # type: ignore[union-attr]
    assert probe.room == PROBE_CHARS - len("Hm, let me see")


def test_escapes_are_read_as_json() -> None:
    """Line breaks and quotes are in most texts (D-1)."""
    counted = Counted("openai_chat")
    assert counted.feed(chat("One"), chat("\ntwo\n"), chat("\tthree"), chat(" of four")) == 1
    assert counted.feed(chat(' "five" ')) == 2  # a quote may be the end
    assert counted.text() == 'One\ntwo\n\tthree of four "five" '


@each(
    "odd",
    {
        "another choice": chat("more", index=1),
        "the end": chat("more").replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        "usage": chat("more").replace(b'"usage":null', b'"usage":{"completion_tokens":1}'),
        "a field more": chat("more", note=1),
        "two fields": chat("more").replace(b'"delta":{', b'"delta":{"refusal":"No.",'),
        "no text": chat(""),
        "no piece": chat("more").replace(b'"more"', b"null"),
        "two events": chat("more") + chat("and more"),
        "two in the padding": chat("more").replace(b"}\n\n", b"}\n\ndata: {}\n\n"),
        "half an event": chat("more")[:-1],
        "a comment": b": ping\n\n",
        "another id": chat("more").replace(b"c-1", b"c-2"),
        "CR LF": chat("more").replace(b"\n", b"\r\n"),
    },
)
def test_what_differs_in_anything_else_is_decoded(odd: bytes) -> None:
    """Nothing is lost that an event says beside its text (D-1)."""
    counted = Counted("openai_chat")
    counted.feed(chat("One"), chat(" two"))
    assert counted.reader.collecting is not None
    assert not counted.reader.collecting.add(odd)


@each(
    "padding",
    {
        "a quote": b'"obfuscation":"a","note":"b"}',
        "an escape": b'"obfuscation":"a\\u0041"}',
        "too long": b'"obfuscation":"%b"}' % (b"a" * 257),
        "none": b'"obfuscation":null}',
        "a space": b'"obfuscation":"a "}',
        "another field": b'"other":"aB3"}',
        "another end": b'"obfuscation":"aB3"]',
    },
)
def test_padding_is_letters_and_nothing_else(padding: bytes) -> None:
    counted = Counted("openai_chat")
    counted.feed(chat("One", obfuscation=PAD))
    odd = chat("more", obfuscation=PAD).replace(b'"obfuscation":"%b"}' % PAD.encode(), padding)
    assert counted.reader.collecting is not None
    assert not counted.reader.collecting.add(odd)
    ended = chat("more", obfuscation=PAD).replace(b'"finish_reason":null', b'"finish_reason":"xy"')
    assert not counted.reader.collecting.add(ended)
    assert counted.reader.collecting.add(chat("more", obfuscation=PAD))


def test_padding_is_the_last_field() -> None:
    counted = Counted("openai_chat")
    counted.feed(chat("One", obfuscation=PAD, note=1))
    assert counted.reader.collecting is not None
    assert not counted.reader.collecting.add(chat("more", obfuscation=""))
    assert counted.reader.collecting.add(chat("more", obfuscation=PAD, note=1))


@each("spaces", [b"\t", b"\n", b" \r", b",", b" " * 257])
def test_padding_before_a_brace_is_spaces(spaces: bytes) -> None:
    counted = Counted("anthropic_messages")
    counted.feed(block("One", spaces=3))
    assert counted.reader.collecting is not None
    assert not counted.reader.collecting.add(block("more").replace(b"}\n\n", spaces + b"}\n\n"))


def test_a_brace_less_is_another_event() -> None:
    """What follows the text, and the last brace, may not be the same bytes (D-1)."""
    counted = Counted("anthropic_messages")
    counted.feed(block("One"), block(" two"))
    assert counted.reader.collecting is not None
    assert not counted.reader.collecting.add(block("more").replace(b"}}\n\n", b"}\n\n"))


@each(
    "first",
    {
        "an escape": chat('"One"'),
        "two fields": chat("One").replace(b'"delta":{', b'"delta":{"content":"Zero",'),
        "the field in another place": chat("One", note={"content": "One"}),
        "a tool call": chat("One").replace(b'"delta":{', b'"delta":{"tool_calls":[],'),
        "a refusal": chat("One").replace(b'"delta":{', b'"delta":{"refusal":"No.",'),
        "the end": chat("One").replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        "usage": chat("One").replace(b'"usage":null', b'"usage":{"completion_tokens":1}'),
        "usage of Groq": chat("One", x_groq={"usage": {"completion_tokens": 1}}),
        "two choices": chat("One").replace(b'"choices":[', b'"choices":[{"index":1,"delta":{}},'),
        "two choices, the text first": chat("One").replace(b"}]", b'},{"index":1,"delta":{},"finish_reason":"stop"}]'),
        "an escaped name": chat("One", note={"content": "One"}).replace(b'"content"', b'"conten\\u0074"', 1),
        "spaces": chat("One").replace(b'"content":', b'"content": '),
        "a space at the end": chat("One").replace(b"}\n\n", b"} \n\n"),
        "a comment before it": b": ping\n" + chat("One"),
        "no space": chat("One").replace(b"data: ", b"data:"),
        "two lines": chat("One").replace(b'"choices"', b'\ndata: "choices"'),
        "CR LF": chat("One").replace(b"\n", b"\r\n"),
    },
)
def test_events_of_which_none_are_collected(first: bytes) -> None:
    """They say more than their text, or their text is not found for certain (D-1)."""
    counted = Counted("openai_chat")
    counted.feed(first)
    assert counted.reader.collecting is None


def test_after_another_event_they_are_collected_again() -> None:
    """Pings come at any time; the next text is decoded, and those after it are not (D-1)."""
    counted = Counted("anthropic_messages")
    ping = named({"type": "ping"})
    assert counted.feed(block("One"), block(" two"), ping, block(" three"), block(" four")) == 3
    assert counted.feed(block("Five", index=1), block(" six", index=1), block(" seven", index=1)) == 4
    assert counted.text() == "One two three four\nFive six seven"


def test_half_an_event_ends_the_collecting() -> None:
    """What follows belongs to it, whatever it looks like (D-1)."""
    counted = Counted("openai_chat")
    counted.feed(chat("One"), chat(" two"), b"data: ", chat(" no event"), chat(" three"))
    counted.feed(chat(" four")[:-1], chat(" no event"), chat(" five"))
    assert counted.text() == "One two three five"


def test_nothing_is_collected_after_the_reading_has_stopped() -> None:
    """A hundred events in a row could not be read (C-9)."""
    counted = Counted("openai_chat")
    counted.feed(chat("One"), chat(" two"), *[b"data: {\n\n"] * 101, chat(" three"), chat(" four"))
    assert counted.text() == "One two"


def test_events_without_a_model_are_decoded() -> None:
    """The next one may have it: the first that is not empty counts (D-1)."""
    counted = Counted("openai_chat")
    for answer_id in ("A", "B", "A"):
        piece = {"choices": [{"index": 0, "delta": {"content": "x"}}], "id": answer_id}
        counted.feed(*[events(piece)] * 2)
    assert counted.decoded == 6
    assert counted.reader.answer(200, complete=True).response_id == "A"


def test_pings_and_merged_events_do_not_end_the_search() -> None:
    """It is for events that add to a text and are alone (D-1)."""
    ping, counted = named({"type": "ping"}), Counted("anthropic_messages")
    for _ in range(20):
        counted.feed(block("Hm", thinks=True), block(" hm", thinks=True), ping)
    counted.feed(*[block("One", index=1) * 2] * 20)
    assert counted.reader._tries_left == 7
    before = counted.decoded
    assert counted.feed(*[block(" two", index=1)] * 9) == before + 1


def test_a_piece_that_was_not_an_event_is_not_learnt() -> None:
    """It ended a comment, although it looks like one (D-1)."""
    counted = Counted("openai_chat")
    other = chat("", index=1).replace(b'"content":""', b'"refusal":"No"').replace(b'"c-1"', b'"c-2"')
    counted.feed(chat("One"), b": a", chat("no event", index=2), other)
    assert counted.reader._alike is not None
    assert not counted.reader._alike.has_same_start(chat("no event", index=2))


def test_large_events_are_not_kept() -> None:
    """A hundred of them may have to be decoded in one turn (D-1)."""
    counted = Counted("openai_chat")
    assert counted.feed(*[chat("One", note="x" * 4096)] * 9) == 9


def test_streams_in_which_each_event_has_a_number_are_not_searched_for_long() -> None:
    counted = Counted("openai_chat")
    counted.feed(*[chat("One", created=number) for number in range(100)])
    assert counted.reader._tries_left == 0
    assert counted.feed(*[chat(" two")] * 9) == 109


# -- what the listener has to know


def test_there_is_no_room_where_a_probe_has_found_something_or_is_another() -> None:
    """The listener needs each piece then (LD-8)."""
    watch = RepetitionWatch(lambda *_: None)
    watch.on_text(1, 0, "The other answer goes on.")
    watch.on_text(0, 0, "abc")
    assert watch.room(0, 0, is_reasoning=False) == PROBE_CHARS - 3
    assert watch.room(0, 1, is_reasoning=False) == watch.room(0, 0, is_reasoning=True) == 0
    for _ in range(60):
        watch.on_text(0, 0, "I should check the file again. ")
    assert not watch.found
    assert watch.room(0, 0, is_reasoning=False) == 0


def test_a_repetition_is_found_as_early() -> None:
    """At the event that completes the next 256 characters (LD-8)."""
    text = "I should check the file again. " * 60
    at_once, collected = Counted("openai_chat"), Counted("openai_chat")
    at_once.reader._tries_left = 0
    found: list[list[bool]] = [[], []]
    for number in range(200):
        for watched, counted in zip(found, (at_once, collected), strict=True):
            counted.feed(chat(text[9 * number : 9 * number + 9]))
            watched.append(counted.watch.found)
    assert found[0] == found[1]
    assert found[1][-1]
    assert (at_once.decoded, collected.decoded < 20 + found[1].count(True)) == (200, True)


@each(
    "tokens, piece",
    [(10, b"abc"), (25, "\u4e8c\u4e8c".encode()), (64, b"a\\n"), (500, b"abcdefgh"), (20, b"\xc3"), (2000, b"x" * 300)],
)
def test_a_cap_is_reached_as_early(tokens: int, piece: bytes) -> None:
    """At the event that exceeds it, also in scripts whose characters count three times (T-2)."""
    event = chat("@").replace(b"@", piece)
    reached = []
    for tries in (0, 8):
        cap = CompletionCap(tokens, "p", "r", cuts=True)
        watch = watch_stream(1, [cap], 1, can_cut=True, repeated=lambda *_: None, capped=lambda *_: None)
        counted = Counted("openai_chat", watch)
        counted.reader._tries_left = tries
        reached.append(next(number for number in range(3000) if counted.feed(event) and watch.found))
    assert reached[0] == reached[1]


@each(
    "alike, other",
    [
        ([chat("One"), chat(" two")], chat("Hm.", index=1, created=2, system_fingerprint="x")),
        ([block("One"), block(" two")], named({"type": "content_block_start", "index": 7, "content_block": {}})),
    ],
)
def test_a_stream_is_ended_after_the_last_of_them(alike: list[bytes], other: bytes) -> None:
    """The last event tells how, also if it was collected (LD-8)."""
    dialect = "openai_chat" if other.startswith(b"data") else "anthropic_messages"
    at_once, collected = Counted(dialect), Counted(dialect)
    at_once.reader._tries_left = 0
    for counted in (at_once, collected):
        counted.feed(alike[0], alike[0] + other, alike[1])
        assert counted.reader.collecting is None or counted is collected
        counted.reader.read_collected()
    assert collected.decoded < at_once.decoded
    assert collected.reader.ending([0], 10) == at_once.reader.ending([0], 10) != b""


def test_the_name_of_an_event_is_not_its_data() -> None:
    """Whatever the name contains (LD-8)."""
    counted = Counted("openai_chat")
    counted.feed(*[b"event: data: x\n" + chat("One")] * 3)
    counted.reader.read_collected()
    assert counted.decoded == 1
    assert b'"finish_reason":"length"' in counted.reader.ending([0], 10)


# -- their spelling


@each(
    "pieces, text",
    [
        ([b"a", b"b"], "ab"),
        ([b"a\\n", b"\\tb"], "a\n\tb"),
        (["\u00fc".encode(), b"b"], "\u00fcb"),
        ([b"a\\u00fc"], None),  # it may be half a character
        ([b"\xc3", b"\xbc"], None),
        ([b"a\n"], None),
        ([b"a\\x"], None),
        ([b"a\\", b"n"], None),  # the quote after it may not be the end
    ],
)
def test_pieces_are_decoded_together(pieces: list[bytes], text: str | None) -> None:
    assert decoded(pieces) == text


@each("broken", [b"\xc3", b"\x01", b"\\x", b"\t", b"\\\\", b"\\"])
def test_broken_pieces_are_read_as_if_they_had_been_decoded(broken: bytes) -> None:
    """Leniently, and the others are read as well (C-9)."""
    read = []
    for tries in (0, 8):
        counted = Counted("openai_chat")
        counted.reader._tries_left = tries
        counted.feed(chat("One"), chat("?").replace(b"?", broken), chat(" two"))
        read.append((counted.text(), counted.reader.unreadable))
    assert read[0] == read[1]
    assert read[1][0].startswith("One")
    assert read[1][0].endswith(" two")


def test_half_characters_are_joined() -> None:
    """A pair of surrogates may come in two events (D-1)."""
    counted = Counted("openai_chat")
    counted.feed(chat("One "), chat("?").replace(b"?", b"\\ud83d"), chat("?").replace(b"?", b"\\ude00"))
    assert counted.text() == "One \U0001f600"


def test_a_piece_is_not_sent_elsewhere_by_what_it_looks_like() -> None:
    """A text can contain anything, also what follows it in its event (D-1)."""
    tail = json.dumps(chat("").decode().partition('"content":"')[2])[1:-1]
    counted = Counted("openai_chat")
    counted.feed(chat("One"), chat(" two"), chat(json.loads(f'"{tail}"')))
    assert counted.text() == "One two" + json.loads(f'"{tail}"')


@pytest.mark.parametrize("size", [1, 50, 300])
def test_reading_collected_text_twice_adds_it_once(size: int) -> None:
    counted = Counted("openai_chat")
    counted.feed(*[chat("x" * size)] * 3)
    counted.reader.read_collected()
    counted.reader.read_collected()
    assert counted.text() == "x" * (3 * size)
