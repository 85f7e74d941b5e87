"""Words for answers, and which request gets which."""

from __future__ import annotations

import pytest

from breakloop.model.call import Usage
from breakloop.testing.answer import (
    NONSENSE,
    Answer,
    Body,
    Cut,
    Failure,
    Script,
    Stall,
    ToolUse,
    body,
    call_tool,
    cut,
    fail,
    filler,
    nonsense,
    raw,
    say,
    sized,
    stall,
    tool_failed,
)
from tests.unit.testing.talking import seen


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("Hello big world.", ("Hello", " big", " world.")),
        ("  two  spaces ", ("  two", "  spaces ")),
        ("", ()),
        ("  ", ("  ",)),
        ("line\n\nline\n", ("line", "\n\nline\n")),
    ],
)
def test_a_text_is_streamed_word_by_word(text: str, chunks: tuple[str, ...]) -> None:
    """And nothing of it is lost."""
    assert say(text).chunks == chunks
    assert say(text).text == text


def test_words_for_answers() -> None:
    assert say(chunks=["a", "b"], finish="length", usage=Usage(1, 2)) == Answer(
        ("a", "b"), finish="length", usage=Usage(1, 2)
    )
    assert call_tool("f", {"a": 1}, text="x", tool_id="t") == Answer(("x",), (ToolUse("f", {"a": 1}, "t"),))
    assert tool_failed("no").tool_error
    failed = fail(429, "slow", kind="k", code="c", retry_after=3, headers={"x-a": "1"})
    assert (failed.status, failed.failure) == (429, Failure("slow", "k", "c"))
    assert failed.manner.headers == (("Retry-After", "3"), ("x-a", "1"))
    assert body(b"x", status=201) == Answer(status=201, body=Body((b"x",)))
    assert body([b"x", b"y"], content_type="a/b").body == Body((b"x", b"y"), "a/b")
    assert raw(b"x").raw == (b"x",)
    assert (raw([b"x", b"y"], close=False).raw, raw(b"x", close=False).manner.close) == ((b"x", b"y"), False)
    assert nonsense().raw == (NONSENSE,)
    assert stall().manner.stalls == (Stall("start"),)
    assert cut(reset=True).manner.cut == Cut("start", reset=True)
    assert (len(filler(100)), filler(0), sized(7).text) == (100, "", filler(7))


def test_queued_answers_come_first_then_respond_then_the_default() -> None:
    script = Script(default=say("default"), respond=lambda request: say("asked") if request.path == "/a" else None)
    script.next(say("1"), say("2"))
    assert script.left == 2
    found = [script.take(seen(path)) for path in ("/x", "/a", "/a", "/x")]
    assert [answer.text for answer in found if answer] == ["1", "2", "asked", "default"]
    assert script.left == 0
    assert Script().take(seen()) is None


def test_an_answer_can_wait_for_its_request() -> None:
    script = Script()
    script.next(say("b"), when=lambda request: request.path == "/b")
    script.next(say("any"))
    found = [script.take(seen(path)) for path in ("/a", "/a", "/b")]
    assert [answer and answer.text for answer in found] == ["any", None, "b"]


def test_housekeeping_takes_nothing_unless_it_is_meant() -> None:
    """MCP clients do more than call tools."""
    script = Script(default=say("default"))
    script.next(say("1"))
    request = seen("/mcp")
    request.is_housekeeping = True
    assert script.take(request) is None
    script.next(fail(503), when=lambda request: request.path == "/mcp")
    taken = script.take(request)
    assert taken is not None
    assert taken.status == 503
    assert script.left == 1


def test_only_what_is_meant_to_goes_before_the_body() -> None:
    script = Script()
    assert script.early(seen()) is None
    script.next(say("late"), say("early").early())
    assert script.early(seen()) is None
    assert script.left == 2
    script.take(seen())
    early = script.early(seen())
    assert early is not None
    assert early.text == "early"
    script.next(say("b").early(), when=lambda request: request.path == "/b")
    assert script.early(seen("/a")) is None
    assert script.early(seen("/b")) is not None
