"""`tail`: what of the last messages goes into the fingerprint."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakloop.detect.fingerprint import Fingerprinter, TailFingerprint, folded, packed
from breakloop.model.call import UNREAD, Call, Chat, Message, ToolCall
from tests.builders import call


def fingerprints(
    *tail: Message, model: str = "m", messages: int = 3, caller: str = "c", agent: str = "a", named: str = ""
) -> TailFingerprint:
    chat = Chat("openai", model, tail, len(tail))
    return TailFingerprint(
        Fingerprinter(b"s"),
        caller=lambda _: caller,
        agent=lambda _: agent,
        chat=lambda _: chat,
        named=lambda _: named,
        is_new_name=lambda _: bool(named),
        messages=messages,
    )


def mark(*tail: Message, **who: Any) -> str:
    made = fingerprints(*tail, **who)(call())
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "same"), [("  Do\n\tIT  ", "do it"), ("STRASSE", "straße"), (" ", "   "), ("a\u00a0b", "a b")]
)
def test_folding(text: str, same: str) -> None:
    """Trimmed, white space folded, case-folded (LD-2)."""
    assert folded(text) == folded(same)
    assert mark(Message("user", text)) == mark(Message("user", same))


def test_a_name_is_the_clients_or_that_of_the_call() -> None:
    """Who names neither an agent nor a session changes no name (LD-6)."""
    assert fingerprints(*AT_WORK, named="one", agent="c").of_all_names(call()) is not None
    assert fingerprints(*AT_WORK, agent="c").of_all_names(call()) is None
    known = call()
    known.identity.named = ""
    assert fingerprints(*AT_WORK, named="one", agent="c").of_all_names(known) is None


def test_messages_that_were_not_read_yet() -> None:
    """They are read then, and only then (LD-2)."""
    made, asked = fingerprints(Message("user", "a")), call()
    expected = made(asked)
    for tail, found in ((UNREAD, expected), ((Message("user", "b"),), mark(Message("user", "b")))):
        asked = call()
        asked.parsed.chat = Chat("openai", "m", tail, 1)
        assert made(asked) == found


def test_messages_that_cannot_be_read_have_no_fingerprint() -> None:
    """Different requests would look the same (LD-2)."""
    assert fingerprints()(call()) is None
    assert fingerprints(Message("user", ""), Message("", ""))(call()) is None


def test_what_tells_them_apart() -> None:
    """Caller, agent, session or end user, model, role, text, tool name, arguments, order (LD-2, LD-6)."""
    one, two = Message("user", "a"), Message("user", "b")
    marks = {
        mark(one),
        mark(one, caller="x"),
        mark(one, agent="x"),
        mark(one, named="x"),
        mark(one, named="y"),
        mark(one, model="x"),
        mark(Message("system", "a")),
        mark(two),
        mark(one, two),
        mark(two, one),
        mark(Message("user", "a", (ToolCall("f", "{}"),))),
        mark(Message("user", "a", (ToolCall("g", "{}"),))),
        mark(Message("user", "a", (ToolCall("f", "{1}"),))),
        mark(Message("user", "a", (ToolCall("f", "{}"), ToolCall("f", "{}")))),
        mark(Message("user", "a"), Message("f", "{}")),
    }
    assert len(marks) == 15


def test_only_the_last_messages_count() -> None:
    """The last 3, or as many as asked for (LD-2)."""
    last = [Message("user", text) for text in "bcd"]
    assert mark(Message("user", "a"), *last) == mark(Message("user", "z"), *last) == mark(*last)
    assert mark(Message("user", "a"), *last, messages=4) != mark(Message("user", "z"), *last, messages=4)


def test_no_chat_no_fingerprint() -> None:
    """Anything but an LLM request is not judged (LD-2)."""
    made = TailFingerprint(
        Fingerprinter(b"s"), caller=str, agent=str, chat=lambda _: None, named=str, is_new_name=bool, messages=3
    )
    assert made(call()) is None


CALL = Message("assistant", "", (ToolCall("f", "{}"),))
AT_WORK = (Message("user", "go"), CALL, Message("tool", "ok"))


def test_one_fingerprint_for_all_names() -> None:
    """Requests of a caller that differ only in names have it in common, and it is nobody's own (LD-2)."""
    made = fingerprints(*AT_WORK, named="one")
    asked = call()
    of_all, own = made.of_all_names(asked), made(asked)
    assert own == made(asked)
    assert of_all == fingerprints(*AT_WORK, named="two", agent="b", model="n").of_all_names(call())
    assert of_all != fingerprints(*AT_WORK, named="two", caller="d").of_all_names(call())
    assert len({own, of_all, mark(*AT_WORK), mark(*AT_WORK, named="two")}) == 4
    assert fingerprints(*AT_WORK).of_all_names(call()) is None


@pytest.mark.parametrize(
    ("tail", "counted"),
    [
        ((Message("user", "hello"),), False),
        ((Message("system", "s"), Message("assistant", "How can I help?"), Message("user", "hello")), False),
        ((Message("tool", "", (ToolCall("f", "{}"),)),), False),  # an MCP client's first call
        (AT_WORK, True),
        (AT_WORK[1:], True),
        ((Message("user", "go"), CALL, Message("user", "ok")), True),  # Anthropic's results are the user's
        ((Message("assistant", "Action: f"), Message("user", "ok"), Message("assistant", "Action: f")), True),
        ((Message("model", "a"), Message("user", "b"), Message("model", "a"), Message("user", "b")), True),
    ],
)
def test_openings_are_not_counted_for_all_names(tail: tuple[Message, ...], counted: bool) -> None:
    """Many people may open a conversation alike; agents at work do not send the same in many sessions (LD-2, LD-6)."""
    made = fingerprints(*tail, named="one")
    assert (made.of_all_names(call()) is not None) == counted


def test_each_call_has_its_own_content() -> None:
    """Also after the fingerprint of all names was computed for another call (LD-2)."""
    made, other = fingerprints(*AT_WORK, named="one"), call()
    assert made.of_all_names(call()) is not None
    other.parsed.chat = Chat("openai", "m", (Message("user", "b"),), 1)
    assert made(other) == mark(Message("user", "b"), named="one")


SLY = st.text(st.sampled_from("a\x00\x1f1"), max_size=3)
CALLS = st.lists(st.builds(ToolCall, SLY, SLY), max_size=2).map(tuple)
MESSAGES = st.lists(st.builds(Message, SLY, SLY, CALLS), min_size=1, max_size=3)


def plain(message: Message) -> tuple[object, ...]:
    return message.role, folded(message.text), [(made.name, folded(made.arguments)) for made in message.calls]


@given(one=MESSAGES, other=MESSAGES)
def test_separators_in_messages_cannot_collide(one: list[Message], other: list[Message]) -> None:
    """No role, text, tool name or argument can pass for something else (LD-2)."""
    assume(all(any(m.text or m.calls for m in messages) for messages in (one, other)))  # else there is none
    assert (mark(*one) == mark(*other)) is ([plain(m) for m in one] == [plain(m) for m in other])


def test_calls_and_messages_are_not_confused() -> None:
    """Three messages are not one message with three calls, whatever they are named (LD-2)."""
    three = [Message("r", "t"), Message("r", "t"), Message("r", "t")]
    for end in ("\x00", "\x1f", "0", ""):
        one = Message("r", "t", (ToolCall(end, "r"), ToolCall("t", end), ToolCall("r", "t")))
        assert mark(*three) != mark(one)


@given(st.text(alphabet=st.sampled_from("aZ \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x00\x85\xa0\u2003Äß")))
def test_folding_is_the_same_for_every_text(text: str) -> None:
    """The quick way for ASCII and the slow one come to the same (LD-2)."""
    assert folded(text) == " ".join(text.split()).casefold()


def test_few_runs_of_white_space_and_many() -> None:
    """However a text is taken apart for it (LD-2)."""
    for runs in (1, 31, 32, 33, 100):
        text = "  " + "Aa \tb  \n   C" * runs + "   "
        assert folded(text) == " ".join(text.split()).casefold()


def test_a_result_is_told_by_its_call() -> None:
    """Many calls return "ok", so the call that the oldest message is the result of counts too (LD-2)."""
    ok, again, failed = (
        Message("tool", "ok"),
        Message("assistant", "", (ToolCall("run_tests", "{}"),)),
        Message("tool", "1 failed"),
    )
    edits = [Message("assistant", "", (ToolCall("edit", f'{{"line": {number}}}'),)) for number in (1, 2)]
    one, other = (mark(Message("user", "Mend it."), edit, ok, again, failed) for edit in edits)
    assert one != other
    assert one == mark(Message("user", "Go on."), edits[0], ok, again, failed)
    assert mark(Message("user", "a"), ok, again, failed) == mark(Message("user", "b"), ok, again, failed)
    assert mark(Message("user", "a"), again, failed, ok) == mark(Message("user", "b"), again, failed, ok)
    assert mark(edits[0], ok, ok, again, failed) == mark(edits[0], failed, ok, again, failed)
    assert mark(Message("user", "a"), again) != mark(Message("user", "b"), again)


def test_a_result_is_told_by_its_call_in_a_text() -> None:
    """The same holds for calls that the model writes as text, and not for other answers (LD-2)."""

    def called(name: str, number: int) -> Message:
        return Message(
            "assistant", f'Next.\n<tool_call>{{"name": "{name}", "arguments": {{"n": {number}}}}}</tool_call>'
        )

    ok, shown, last = Message("user", "ok"), called("show", 0), Message("user", "shown")
    task = Message("user", "Mend it.")
    assert mark(task, called("edit", 1), ok, shown, last) != mark(task, called("edit", 2), ok, shown, last)
    assert mark(task, called("edit", 1), ok, shown, last) == mark(last, called("edit", 1), ok, shown, last)
    said = [Message("assistant", text) for text in ("Very well.", "As you like.")]
    assert mark(task, said[0], ok, shown, last) == mark(task, said[1], ok, shown, last)
    quoted = [Message("user", called("edit", number).text) for number in (1, 2)]
    assert mark(task, quoted[0], ok, shown, last) == mark(task, quoted[1], ok, shown, last)


@given(st.text(st.sampled_from(list("aB \t\n\x1c\x0b.")), max_size=600))
def test_short_and_long_texts_are_folded_alike(text: str) -> None:
    """By whichever way costs less (LD-2)."""
    assert folded(text) == " ".join(text.split()).lower()


def test_so_much_is_folded_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and arguments together; what comes after counts as it is (LD-2, Y-2)."""
    monkeypatch.setattr("breakloop.detect.fingerprint._FOLDED_MAX", 10)

    def same(*lengths: int) -> list[bool]:
        """Whether the case of a text, of arguments and of the text after them makes no difference."""
        texts = ["a" * length for length in lengths]
        variants = [[text.upper() if at == place else text for at, text in enumerate(texts)] for place in range(3)]

        def made(first: str, arguments: str, last: str) -> str:
            return mark(Message("user", first, (ToolCall("f", arguments),)), Message("user", last))

        return [made(*variant) == made(*texts) for variant in variants]

    assert same(4, 4, 2) == [True, True, True]
    assert same(4, 4, 3) == [True, True, False]
    assert same(4, 6, 1) == [True, True, False]
    assert same(4, 7, 1) == [True, False, False]
    assert same(11, 1, 1) == [False, False, False]


def test_who_sends_is_hashed_once_and_the_fingerprint_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is kept for it is bounded (LD-2, Y-2)."""
    monkeypatch.setattr("breakloop.detect.fingerprint._SENDERS_MAX", 2)
    model, maker = [""], Fingerprinter(b"s")

    def chat(_: Call) -> Chat:
        return Chat("openai", model[0], (Message("user", "a"),), 1)

    made = TailFingerprint(
        maker, caller=lambda _: "c", agent=lambda _: "a", chat=chat, named=lambda _: "", is_new_name=bool, messages=3
    )
    for name, kept in (("m", 1), ("m", 1), ("n", 2), ("o", 1), ("x" * 257, 1), ("x" * 256, 2)):
        model[0] = name
        assert made(call()) == maker.digest(["c", "a", name], packed(["user", "a", "0"]))
        assert len(made._states) == kept
