"""What is kept of an answer: bounds, order, and characters that came in halves."""

from __future__ import annotations

import tracemalloc
from typing import Any

from breakloop.dialects.answers import (
    ARGUMENTS_MAX_CHARS,
    CALLS_MAX,
    TEXT_MAX_CHARS,
    TEXTS_MAX,
    AnswerBuilder,
    PartialCall,
    joined,
    number,
    tokens,
    word,
)
from breakloop.model.call import Answer, ToolCall, Usage
from tests.each import each


class Notes(AnswerBuilder):
    """The smallest dialect."""

    def read_event(self, payload: bytes) -> None:
        self.read_leniently(payload)

    def read_fields(self, fields: dict[str, Any]) -> None:
        self.add_text(0, word(fields.get("say")))

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        return Usage(tokens(fields, "sent"))


def read(notes: Notes, *, complete: bool = True) -> Answer:
    return notes.build(200, complete=complete)


def test_texts_stand_in_the_order_of_their_numbers() -> None:
    """Pieces of several texts may come in turns; texts that stayed empty leave no gap (C-8)."""
    notes = Notes()
    for index, piece in ((2, "c"), (0, "a"), (5, ""), (2, "C"), (0, "A")):
        notes.add_text(index, piece)
    assert read(notes).text == "aA\ncC"


def test_text_is_bounded() -> None:
    """The beginning is kept (Y-2)."""
    notes = Notes()
    for _ in range(10):
        notes.add_text(0, "x" * (TEXT_MAX_CHARS // 8))
        notes.add_text(1, "y")
    assert read(notes).text == "x" * (TEXT_MAX_CHARS - 7) + "\n" + "y" * 7
    assert read(notes).unkept_chars == TEXT_MAX_CHARS // 4 + 10
    for index in range(TEXTS_MAX + 50):
        notes.add_text(index, "")
    assert len(notes._texts) == TEXTS_MAX


def test_small_pieces_take_the_memory_of_their_text() -> None:
    """A thousand streams hold their texts, not every piece of them (Y-2)."""
    said = [f"t{number:04d}" for number in range(5000)]
    notes = Notes()
    tracemalloc.start()
    try:
        call = notes.start_call(0, "f")
        for piece in said:
            notes.add_text(0, piece + ".")
            notes.add_arguments(call, piece + ",")
        assert tracemalloc.get_traced_memory()[0] < 120_000
    finally:
        tracemalloc.stop()
    assert read(notes).text == ".".join(said) + "."
    assert read(notes).calls == (ToolCall("f", ",".join(said) + ","),)


def test_calls_are_bounded() -> None:
    """In number; the first are kept (Y-2)."""
    notes = Notes()
    for index in range(CALLS_MAX + 50):
        notes.add_arguments(notes.start_call(index, f"f{index}"), "{}")
    calls = read(notes).calls
    assert len(calls) == CALLS_MAX
    assert calls[-1] == ToolCall(f"f{CALLS_MAX - 1}", "{}")
    notes.start_call(3, "another")
    assert read(notes).calls[3].name == "another"


def test_arguments_are_bounded_and_still_told_apart() -> None:
    """Calls that differ behind the bound are different calls, in pieces or as a value (Y-2)."""

    def made(end: str, *, whole: bool) -> ToolCall:
        notes = Notes()
        call = notes.start_call(0, "write")
        content = "x" * ARGUMENTS_MAX_CHARS + end
        if whole:
            notes.set_arguments(call, {"content": content})
        else:
            for piece in ('{"content":"', content[:1000], content[1000:], '"}'):
                notes.add_arguments(call, piece)
        return read(notes).calls[0]

    for whole in (True, False):
        assert len({made("a", whole=whole), made("b", whole=whole), made("a", whole=whole)}) == 2
        assert len(made("a", whole=whole).arguments) <= ARGUMENTS_MAX_CHARS + 30
    assert made("a", whole=True) == made("a", whole=False)


def test_arguments_have_one_spelling() -> None:
    """As in requests; what is not whole stands as it came (C-8)."""
    notes = Notes()
    for index, pieces in enumerate((['{"b": 1.0,', ' "a": []}'], ['{"b": '], ["ls -l"], [])):
        call = notes.start_call(index, "f")
        for piece in pieces:
            notes.add_arguments(call, piece)
    assert [call.arguments for call in read(notes).calls] == ['{"a":[],"b":1}', '{"b": ', "ls -l", ""]


def test_pieces_replace_a_value_and_a_value_replaces_pieces() -> None:
    """Some streams begin a call with empty arguments, others repeat them as a whole at the end (C-8)."""
    call = PartialCall("f")
    call.set("{}", 100)
    assert call.build() == ToolCall("f", "{}")
    call.add('{"a":', 100)
    call.add(" 1}", 100)
    assert call.build() == ToolCall("f", '{"a":1}')
    call.set('{"a":1,"b":2}', 100)
    assert call.build() == ToolCall("f", '{"a":1,"b":2}')


def test_errors_are_words() -> None:
    """A code or a type, never a message, which may quote what was asked (Y-1)."""
    for words, expected in (
        (("overloaded_error",), "overloaded_error"),
        ((None, "", "server_error"), "server_error"),
        ((502, "x"), "502"),
        (("You sent: secrets", "x" * 65, ["a"], "a\nb"), "error"),
        ((), "error"),
    ):
        notes = Notes()
        notes.set_error(*words)
        assert read(notes).error == expected


def test_how_streams_end() -> None:
    """An end mark is an end; a reason to finish is one if the connection was closed properly; errors are none (D-1)."""
    assert not Notes().is_complete(closed=True)
    marked, finished = Notes(), Notes()
    marked.read_event(b"[DONE]")
    finished.finish = "stop"
    assert marked.is_complete(closed=False)
    assert finished.is_complete(closed=True)
    assert not finished.is_complete(closed=False)
    marked.set_error("x")
    assert not marked.is_complete(closed=True)


def test_what_is_no_json_is_counted() -> None:
    """And what is JSON of another kind too; the rest is read (C-9)."""
    notes = Notes()
    for payload in (b"\xff", b"{", b"[1]", b'{"say":"hi"}', b'{"say":5}', b"\xef\xbb\xbf" + b'{"say":"!"}'):
        notes.read_event(payload)
    assert (notes.unreadable, read(notes).text) == (3, "hi!")


def test_forget() -> None:
    """What follows is the whole, with all its room (C-8)."""
    notes = Notes()
    notes.add_text(0, "x" * TEXT_MAX_CHARS)
    notes.add_arguments(notes.start_call(0, "f"), "y" * ARGUMENTS_MAX_CHARS)
    notes.clear()
    notes.add_text(0, "z")
    assert (read(notes).text, read(notes).calls) == ("z", ())
    assert 0 not in notes._calls


def test_halves_of_characters() -> None:
    """Servers that cut text by UTF-16 send two halves in two pieces; a half alone is replaced (C-9)."""
    notes = Notes()
    notes.read_event(b'{"say":"\\ud83c"}')
    notes.read_event(b'{"say":"\\udf0d!"}')
    assert read(notes).text == "🌍!"
    assert joined("a\ud83c") == "a\ufffd"
    assert joined("ä🌍") == "ä🌍"


@each(
    "fields, expected",
    [
        ({"a": 5}, 5),
        ({"b": 5}, 5),
        ({"a": 0, "b": 5}, 0),
        ({"a": None, "b": 5.0}, 5),
        ({"a": "5"}, 0),
        ({"a": True}, 0),
        ({"a": -1}, 0),
        ({"a": 10**18}, 0),
        ({"a": 1.5}, 0),
        (None, 0),
        ([], 0),
    ],
)
def test_tokens(fields: object, expected: int) -> None:
    """A count is a whole number that can be one; anything else is none (C-9)."""
    assert tokens(fields, "a", "b") == expected


def test_words_and_numbers() -> None:
    assert [word(value) for value in ("a", None, 5, "b" * 300)] == ["a", "", "", "b" * 200]
    assert [number(value, 7) for value in (3, None, "3", 1.0)] == [3, 7, 7, 7]
