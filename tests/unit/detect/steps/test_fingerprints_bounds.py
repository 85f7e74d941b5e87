"""Calls, results and answers, read for their fingerprints at the bounds (LD-4)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from breakloop.detect.steps.fingerprints import (
    ACK,
    CHANGES,
    NONE,
    OK,
    RATE,
    RUNS,
    UNSEEN,
    AnswerFingerprints,
    StepFingerprinter,
    ToolOptions,
    asks_again,
    bad,
    canonical,
    changes,
    done,
    no_news,
    paired,
    refuses,
    tells,
    tells_something,
)
from breakloop.detect.steps.purposes import ONGOING, PLAIN
from breakloop.model.call import Result, Step, ToolCall
from tests.each import each
from tests.unit.detect.steps.stepping import PRINTER, called, digest, prints, spoken
from tests.unit.detect.steps.test_fingerprints import one, printer, step


@each("found, expected", [
    (lambda: changes(CHANGES, b'"mode": "open"'), False),
    (lambda: changes(RUNS, b'"tool_name": "create_file"'), True),
    (lambda: prints(called('"mode": "view"', name="send_mail")).pairs[0].effect, 0),
    (lambda: bad(b"429"), RATE),
    (lambda: tells(PRINTER.incoming("Saved " + "x" * 80), failed=False), False),
])  # fmt: skip
def test_texts_are_read_from_their_first_byte(found: Callable[[], object], expected: object) -> None:
    """What is looked for may be at the beginning (LD-4)."""
    assert found() == expected


@each("text", [
    b"a_b c_d e_f g_h i_j error",  # five words before it, with underscores
    b"a b c d e no such file",
    b"a b c d e timed out again",
])  # fmt: skip
def test_words_before_a_refusal(text: bytes) -> None:
    """Up to five (LD-4)."""
    assert refuses(text)
    assert not refuses(b"more " + text)


def test_results_of_several_calls() -> None:
    """Each call has its own (LD-4)."""
    a, b = ToolCall("a", "{}"), ToolCall("b", "{}")
    pairs = printer().step(step(a, b, results=(Result("first"), Result("second")))).pairs
    assert [(pair.tool.name, pair.text) for pair in pairs] == [("a", b"first"), ("b", b"second")]


def test_an_answer_of_which_one_call_is_kept() -> None:
    """Its result is that with its id, whichever comes first (LD-4)."""
    a, b = ToolCall("a", "{}"), ToolCall("b", "{}")
    results = (Result("2", call_id="y"), Result("1", call_id="x"))
    kept = AnswerFingerprints(NONE, [], printer().answer(step(a)).calls)
    made = printer().step(step(a, b, results=results, ids=("x", "y")), kept)
    assert [pair.text for pair in made.pairs] == [b"1"]


def test_ids_on_one_side_only() -> None:
    """Then results belong to calls by order (LD-4)."""
    a, b = ToolCall("a", "{}"), ToolCall("b", "{}")
    first, second = Result("1", call_id="x"), Result("2", call_id="y")
    assert paired(step(a, results=(first,), ids=("x",))) == [(a, first, 0)]
    for results, ids in (((first, second), ()), ((Result("1"), Result("2")), ("x", "y"))):
        assert paired(step(a, b, results=results, ids=ids)) == [(a, results[0], 0), (b, results[1], 1)]
        assert paired(step(a, results=results[:1], ids=ids[:1])) == [(a, results[0], 0)]
        assert printer().step(step(a, results=results[:1], ids=ids[:1])).pairs[0].text == b"1"


def test_calls_from_kept_fingerprints() -> None:
    """They are the calls that they were computed from, without results (LD-4)."""
    for name, arguments in (
        ("look", '{"n": 1}'),
        ("write_file", "{}"),
        ("sleep", '{"seconds": 60}'),
        ("send_mail", "{}"),
    ):
        made = PRINTER.answer(one(arguments, name=name)).calls[0]
        kept = PRINTER.known_call(
            name, made.a, made.loose_a,
            changes=made.changes, waits=made.waits, wait_s=made.wait_s, effect=made.effect,
        )  # fmt: skip
        assert kept == made
        assert (made.kind, made.failed, made.refused, made.telling, made.text) == (UNSEEN, False, False, False, b"")
        assert made.wait_s == (60 if name == "sleep" else 0)


@each("text, name, telling", [
    ("ab " * 26 + "ab", "look", True),  # 80 bytes with blanks
    ("ab " * 26 + "a", "look", False),
    ("x" * 80, "look", True),
    ("x" * 79, "look", False),
    ("x" * 80, "write_file", False),
    ("short", "write_file", False),
])  # fmt: skip
def test_informative_results(text: str, name: str, *, telling: bool) -> None:
    """Eighty bytes, with single spaces, of a call that changes nothing (LD-4)."""
    assert prints(called(text=text, name=name)).pairs[0].telling is telling


def test_how_long_a_result_is_that_says_something_about_a_job() -> None:
    """120 bytes without white space, and no picture beside it (LD-4)."""
    for size, said in ((120, ONGOING), (121, PLAIN)):
        text = "running " + "x" * (size - 7)
        assert prints(called(text=text)).pairs[0].says == said
    shown = called()._replace(results=(Result("running", media=("image:1",)),))
    assert prints(shown).pairs[0].says == PLAIN


def test_acknowledgements_without_spaces() -> None:
    """They have sixty bytes, too (LD-4)."""
    for size, kind in ((60, ACK), (61, OK)):
        assert prints(called(text="done:" + "x" * (size - 5))).pairs[0].kind == kind


@each("made, is_done", [
    (called(text="all of it", name="write_file"), True),
    (called(text="disk full", name="write_file", error=True), False),
    (called(text="retry after 5 s", name="write_file"), False),  # the tool's own rate limit
    (called(name="write_file")._replace(results=()), False),
])  # fmt: skip
def test_changes_that_were_made(made: Step, *, is_done: bool) -> None:
    """Neither those that failed nor those whose result is not known (LD-4)."""
    assert done(prints(made).pairs[0]) is is_done


@each("made, told", [
    (called(text="nothing" + "!" * 73), False),  # eighty bytes
    (called(text="nothing" + "!" * 74), True),
    (called(text="three files"), True),
    (called(text="three files", error=True), True),
    (called(text="ok"), False),
    (called(text="three files", name="job_status"), False),
])  # fmt: skip
def test_results_to_work_with(made: Step, *, told: bool) -> None:
    """Not the news that there is none, an acknowledgement, or a look at something that goes on (LD-4)."""
    assert tells_something(prints(made).pairs[0]) is told


def test_openings_of_results() -> None:
    """No news, and the verdict that work is to be done again (LD-4)."""
    assert no_news(b"Nothing to do")
    assert not no_news(b"There is nothing to do")
    assert asks_again(b"Your draft is not good enough.")
    assert not asks_again(b"Error: there is no draft")


def test_times_in_the_answer_of_a_call() -> None:
    """A short one may be what was asked for (LD-4)."""
    assert PRINTER.result("12:00:01").key != PRINTER.result("12:00:02").key
    assert PRINTER.result("12:00:01", failed=True).key == PRINTER.result("12:00:02", failed=True).key


def test_words_of_calls() -> None:
    """Only a call that is written as text has words in the text (LD-4)."""
    native = called('["amber bridge"]', said='canal forest ["amber bridge"]')
    assert (prints(native).called, prints(native._replace(as_text=True)).called) == (0, 2)
    assert prints(native._replace(as_text=True)).spoken == [b"canal", b"forest", b"amber", b"bridge"]


def test_comments_outside_of_json() -> None:
    """A command that is no JSON stays as it is (LD-4)."""
    made = [prints(called(f'ls #{at} "x"', name="bash")).pairs[0].a for at in range(2)]
    assert made[0] != made[1]


def test_options_choose_arguments() -> None:
    """Of short and of long calls (LD-4)."""
    for options in (
        ToolOptions(exclude=frozenset(("page", "nonce"))),
        ToolOptions(include=frozenset(("query", "page")), exclude=frozenset(("page",))),
    ):
        make = StepFingerprinter(digest, {"look": options})
        for query in ("x", "x" * 2000):
            given = [json.dumps({"query": query, "page": page}) for page in (1, 2)]
            assert len({make.step(one(text)).pairs[0].a for text in given}) == 1
            assert len({make.step(one(text, name="find")).pairs[0].a for text in given}) == 2
            assert canonical(given[0], options) == canonical(given[1], options)
            assert canonical(given[0]) != canonical(given[1])
    assert canonical('{"nonce": 1, "a": 2}', ToolOptions(include=frozenset(("nonce",)))) == b'{"nonce":1}'


def test_forms_of_arguments_are_cached() -> None:
    """Up to 1024 characters, because the same call is read several times (Y-2)."""
    for size, is_cached in ((1024, True), (1025, False)):
        text = json.dumps({"a": "x" * (size - 9)})
        assert len(text) == size
        assert (canonical(text) is canonical(text)) is is_cached


@pytest.mark.parametrize("depth", [300, 1000])
def test_deeply_nested_arguments(depth: int) -> None:
    """They stay as they are (Y-2)."""
    text = "[" * depth + "]" * depth
    assert canonical(text) == text.encode()


def test_the_digest_of_an_answer_is_computed_once() -> None:
    """The next request contains the same text, and a thousand answers are kept (Y-2)."""
    made: list[bytes] = []

    def counted(data: bytes) -> bytes:
        made.append(data)
        return digest(data)

    make = StepFingerprinter(counted)
    said = Step("Looked at it for 3.2 seconds.", (), (), (), (), (), 1, 1)
    make.said(said.said)
    before = len(made)
    make.answer(said)
    assert len(made) == before
    sizes = []
    for number in range(2500):
        make.said(f"answer {number}")
        sizes.append(len(make._said))
    assert max(sizes) == 1000


def test_words_of_an_answer_whose_text_is_not_known() -> None:
    """None of them is taken for part of a call (LD-4)."""
    assert PRINTER.step(spoken("amber bridge"), AnswerFingerprints(NONE, [1, 2], [])).called == 0
