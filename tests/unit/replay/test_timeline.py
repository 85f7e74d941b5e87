"""Turns in a row, and the loops among them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from breakloop.model.call import Answer, ToolCall, Usage
from breakloop.model.verdict import LoopFinding as Seen
from breakloop.model.verdict import Verdict
from breakloop.replay.sessions import RecordedBody, RecordedSession, RecordedTurn
from breakloop.replay.timeline import AGAIN, BLOCK, LAND, NEW, NOTICE, Timeline, TimelineRecorder, shown

SESSION = RecordedSession("s", "claude-code", "claude-code", "m")
LEVELS = {".": NEW, "n": NOTICE, "l": LAND, "b": BLOCK}


def turn(command: str, at_s: float | None = None, text: str = "") -> RecordedTurn:
    calls = (ToolCall("Bash", command),) if command else ()
    answer = Answer(200, text, calls, Usage(100, 10), "model-1", complete=True)
    return RecordedTurn(RecordedBody("/v1/messages", b"{}"), answer, at_s=at_s)


def verdict(level: int, kind: str = "repeat", evidence: str = "") -> Verdict:
    said = Verdict(allowed=level != BLOCK, reason="loop_detected" if level == BLOCK else "allowed")
    if level > AGAIN:
        said.loop = Seen(kind, "f", 3, 0, 0, "reject", fresh=True, message="", evidence=evidence)
        said.warning = "loop" if level in {NOTICE, LAND} else ""
        said.landed = level == LAND
    return said


def line(levels: str, commands: Sequence[str] = (), *, kind: str = "repeat") -> Timeline:
    """A session whose turns are called `a`, ... and were judged so: . nothing, n notice, l landed, b
    block."""
    tape = TimelineRecorder()
    for number, mark in enumerate(levels, 1):
        command = commands[number - 1] if commands else f"cat {number}"
        tape.take(SESSION, turn(command, 100.0 + number), verdict(LEVELS[mark], kind, f"{number} times"), 400)
    found = tape.timeline(SESSION, "file")
    assert found is not None
    return found


def test_nothing_to_tell() -> None:
    """A session about which nothing was said has no timeline, but its cost (X-6)."""
    tape = TimelineRecorder()
    for number in range(5):
        tape.take(SESSION, turn(f"cat {number}"), verdict(NEW), 400)
    assert tape.timeline(SESSION) is None
    assert (tape.spent().tokens, tape.model) == (550, "model-1")


def test_a_loop_from_its_first_turn_to_its_last() -> None:
    """It goes back as far as turns did the same, and says how far it came (X-6)."""
    found = line("......nnbbb..", ["ls", "cat", "x", "pwd", "x", "x", *["x"] * 5, "git", "date"])
    (loop,) = found.loops
    assert (loop.first, loop.last, loop.turns) == (3, 11, 9)
    assert (loop.notice, loop.block, loop.kind, loop.evidence) == (7, 9, "repeat", "11 times")
    assert (loop.spent.tokens, loop.after.tokens) == (9 * 110, 3 * 110)
    assert (loop.seconds, loop.began_at) == (8.0, 103.0)
    assert [cell.level for cell in found.cells[:7]] == [NEW, NEW, NEW, NEW, AGAIN, AGAIN, NOTICE]
    assert (found.blocked, found.span, found.looping_turns, found.model) == (True, (3, 11), 9, "model-1")


def test_calls_that_differ_begin_where_something_was_said() -> None:
    """The turn before is what the first verdict speaks of (X-6)."""
    (loop,) = line(".....nb.").loops
    assert (loop.first, loop.last) == (5, 7)


def test_two_loops() -> None:
    """Far apart they are two, and the costliest is told first; close together they are one (X-6)."""
    found = line("..b" + "." * 9 + "bbbb")
    assert [(loop.first, loop.last) for loop in found.loops] == [(2, 3), (12, 16)]
    assert [loop.first for loop in found.stopped] == [12, 2]
    assert (found.span, found.looping_turns, found.after.tokens) == ((2, 16), 7, 5 * 110)
    assert len(line("..b" + "." * 7 + "b").loops) == 1


def test_a_notice_alone() -> None:
    """Costs nothing that would have been saved, and counts only where nothing was blocked (X-6)."""
    found = line(".n")
    assert (found.blocked, found.after.tokens, found.loops[0].block, found.loops[0].notice) == (False, 0, None, 2)
    mixed = line(".n" + "." * 20 + "b")
    assert [loop.block for loop in mixed.stopped] == [23]


def test_the_kind_that_was_seen_most() -> None:
    """One loop is often of several kinds (X-6)."""
    tape = TimelineRecorder()
    for number, kind in enumerate(["failure", "repeat", "repeat", "tail"]):
        tape.take(SESSION, turn("x"), verdict(BLOCK, kind, f"{kind} {number}"), 0)
    found = tape.timeline(SESSION)
    assert found is not None
    assert (found.loops[0].kind, found.loops[0].evidence, found.kinds) == ("repeat", "repeat 2", "repeat")


def test_denials_for_other_reasons_are_no_loops() -> None:
    """A limit in a bundle (X-6)."""
    tape = TimelineRecorder()
    tape.take(SESSION, turn("x"), Verdict(allowed=False, reason="rate_limited"), 0)
    assert tape.timeline(SESSION) is None


def test_what_a_turn_is_called() -> None:
    """By the first tool; words and silence have names too (X-6)."""
    tape = TimelineRecorder()
    two = Answer(200, "", (ToolCall("Read", "a"), ToolCall("Bash", "b")))
    for made in (
        turn("x"),
        turn("", text="Hello."),
        RecordedTurn(RecordedBody("", b""), two),
        RecordedTurn(RecordedBody("", b""), Answer(500)),
    ):
        tape.take(SESSION, made, verdict(NOTICE), 0)
    found = tape.timeline(SESSION)
    assert found is not None
    assert [cell.tool for cell in found.cells] == ["Bash", "(text)", "Read +1", "(no answer)"]
    assert [len(cell.identity) for cell in found.cells] == [8, 8, 8, 0]


def test_no_words_without_being_asked() -> None:
    """Digests and names of tools; excerpts are opt-in (Y-1)."""
    for excerpts, said in ((False, ""), (True, "Bash cat secret.txt")):
        tape = TimelineRecorder(excerpts=excerpts)
        tape.take(SESSION, turn("cat  secret.txt\n"), verdict(BLOCK), 0)
        found = tape.timeline(SESSION)
        assert found is not None
        assert (found.cells[0].excerpt, found.loops[0].excerpt) == (said, said)
        assert excerpts or "secret" not in repr(found)


@pytest.mark.parametrize(
    ("said", "most", "seen"),
    [("a\n b\t c", 10, "a b c"), ("abcdef", 5, "ab..."), ("\x1b[31mred\u202e", 20, "?[31mred?"), ("", 5, "")],
)
def test_texts_for_people(said: str, most: int, seen: str) -> None:
    """Nothing that moves the cursor or turns the writing round (Y-1)."""
    assert shown(said, most) == seen


def test_a_loop_that_would_have_been_landed() -> None:
    """The answer of that turn is paid for, and what comes after it would not have been (X-6, LD-10)."""
    found = line("..nnllbb", ["ls", *["x"] * 7])
    (loop,) = found.loops
    assert (loop.notice, loop.land, loop.block, loop.end) == (3, 5, 7, 5)
    assert loop.after.tokens == 3 * 110
    assert [cell.level for cell in found.cells[2:]] == [NOTICE] * 2 + [LAND] * 2 + [BLOCK] * 2
    (only,) = line("...l", ["x"] * 4).loops
    assert (only.land, only.block, only.end, only.after.tokens) == (4, None, 4, 0)
    assert line("...l", ["x"] * 4).blocked
