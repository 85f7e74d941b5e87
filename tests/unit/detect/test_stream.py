"""The stream guard's probe: what is cut, what never is, and what it keeps."""

from __future__ import annotations

import base64
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.stream import PROBE_CHARS, REPEATED_CHARS, StreamProbe, is_prose
from tests.each import each

SENTENCE = "I should check the configuration file again before I go on with the migration. "
PARAGRAPH = (
    "Let me look at this from another side. The parser fails because the token is not known, and the token is not "
    "known because the table was built before it was read.\n\nSo the table has to be built again.\n\n"
)
PAGE = " ".join(f"In step {number} we move a box to the shelf, and note it." for number in range(99))[:1023] + " "
CODE = "```\n" + "x = run(1)\n" * 40 + "```"
TABLE = "| item | state |\n" * 60
INTRO = "Here is what I found out about the build, step by step, and what I would do about it next.\n\n"


def cut_at(text: str, piece: int = 5) -> int:
    """How many characters had come when the answer was to be cut; 0 where it was not."""
    probe = StreamProbe()
    for at in range(0, len(text), piece):
        if probe.feed(text[at : at + piece]):
            return at + piece
    return 0


def rows(row: str, count: int = 400) -> str:
    return row * count


@each(
    "unit",
    [
        SENTENCE,
        PARAGRAPH,
        "the ",
        "and so on and so on ",
        "All work and no play makes Jack a dull boy\n",
        "I will try again.\n",
        "I am sorry, but I can't do that. Let me try once more with `parse(text)` and see.\n\n",
        "* **Next:** I will read the file, then I will write it.\n",
        "我需要再次检查配置文件。",
        "Я проверю файл ещё раз. ",
        "설정 파일을 다시 확인하겠습니다. ",
        "ฉันจะตรวจสอบไฟล์อีกครั้ง",
        "I have to look into this before I answer.\n</think>\n",
        "<think>\nLet me paste the text once more, as it was asked for.\n",
        "Sure, I can help you with that today.<|im_end|>\n<|im_start|>assistant\n",
        "</think>\n",
        "I'll run the tests now:\n```python\nrun(tests)\n```\nThat did not work, so I will try it in another way.\n",
    ],
)
def test_repeating_prose_is_cut(unit: str) -> None:
    """At eight repeats and 1,200 characters, and not much later (LD-8, C32)."""
    text = INTRO + unit * (6000 // len(unit))
    cut = cut_at(text)
    due = len(INTRO) + max(8 * len(unit), 1200)
    assert due <= cut <= due + 2 * PROBE_CHARS


def test_the_bar() -> None:
    """1,200 characters, and eight repeats (LD-8)."""
    assert not StreamProbe().feed((SENTENCE * 20)[:1199])
    assert StreamProbe().feed((SENTENCE * 20)[:1200])
    assert not StreamProbe().feed((PARAGRAPH * 8)[1:])
    assert StreamProbe().feed(PARAGRAPH * 8)


@each(
    "sample, prose",
    [
        ("why.. why.. why.. why.. why..", True),  # three of five characters are letters
        ("why.. why.. why.. why.. why...", False),
        ("We look at the long river and then at the lake of it x= now.", True),  # code, once in 60 characters
        ("We look at the long river and then at the lake of it = now.", False),
        ("We go on with it.\nstop", True),  # half of the lines
        ("stop\nWe go on with it.\nstop now\nstop", True),
        ("stop\nWe go on with it.\nstop now\nstop it\nstop", False),
        ("We go on with it.\nstop\nstop", False),  # the first and the last line are not read
        ("stop\nWe go on with it.\nstop", True),
        ("one line of words.\n\n1 2 3", False),
        ("river river river river river river river 12x 12x 12x.", True),  # seven of ten words
        ("river river river river river river 12x 12x 12x 12x.", False),
        ("we go on.", True),  # three words
        ("go on.", False),
        ("we all go on now", True),  # five without a mark at the end
        ("we go on now", False),
        ("we, all, go on and on", True),  # a comma for each third word
        ("we, all, go on now", False),
        ("we do it to me.", True),  # two letters a word
        ("I do it to me.", False),
        (f"{'x' * 15} {'x' * 15} {'x' * 15} .", True),  # fifteen
        (f"{'x' * 16} {'x' * 15} {'x' * 15} .", False),
        ("\u4e2d" * 6 + "abcdefghij", True),  # a third of the letters is of a script without spaces
        ("\u4e2d" * 5 + "abcdefghij", False),
        ("null none true river.", True),
        ("null none true false.", False),
        ("feed the bad cat a bug for it.", True),
        ("feed a bad cat a bug.", False),  # hex digits and bases
    ],
)
def test_where_prose_ends(sample: str, prose: bool) -> None:
    """Shares of letters, words and sentences (LD-8)."""
    assert is_prose(sample) is prose


@pytest.mark.parametrize("intro", [INTRO, ""])
@pytest.mark.parametrize(
    ("unit", "times"), [(SENTENCE, 20), (PARAGRAPH, 8), ("and so on ", 130), ("\u54c8", 1300), (PAGE, 8)]
)
def test_what_it_found_is_told_exactly(unit: str, times: int, intro: str) -> None:
    """Evidence names how long the repeated text is, and how often it came: from one character to 1,024 (LD-8)."""
    probe = StreamProbe()
    assert (probe.period, probe.times, probe.what) == (0, 0, "")
    assert probe.feed(intro + unit * times)
    assert (probe.period, probe.times) == (len(unit), times)
    assert probe.what == f"the same {len(unit)} characters"
    probe.feed(unit * 8)
    assert probe.times == times


def test_it_looks_whenever_256_characters_have_come() -> None:
    """The characters of a look do not count for the next one (LD-8)."""
    probe, looked = StreamProbe(), []
    for size in (255, 1, 255, 1):
        probe.feed("x" * size)
        looked.append(probe.chars)
    assert looked == [0, 256, 256, 512]


def test_a_phrase_that_is_repeated_for_a_while_is_not_cut() -> None:
    """Nine hundred characters of it, at the end of a text (LD-8)."""
    assert not StreamProbe().feed(PAGE + "and so on " * 90)


@pytest.mark.parametrize(("run", "found"), [(223, True), (224, False)])
def test_where_the_end_of_a_text_occurs_sixteen_times(run: int, found: bool) -> None:
    """Each place where the last 64 characters occur may be where the repeated text begins. Sixteen are tried (Y-2)."""
    unit = "I have to look at the parser before I can say more about it, so I look at it!" + ("again and " * 30)[-run:]
    assert StreamProbe().feed(unit * 8) is found


@pytest.mark.parametrize(("after", "cut"), [(28, False), (29, True)])
def test_the_last_400_characters_are_judged(after: int, cut: bool) -> None:
    """The text has a mark of code every 62 characters. With the seventh, 400 characters are no longer prose (LD-8)."""
    text = "so we write that x = the one that we had before and look back " * 30
    text = text[: text.rindex("=") + after]
    assert StreamProbe().feed(text) is cut


@pytest.mark.parametrize(
    ("unit", "cut"),
    [
        ("I will run all the tests again and see." + CODE, True),  # and a line break: forty characters
        ("I will run all the tests again and see" + CODE, False),
        ("</think>" * 50 + "1" * 39, True),  # marks of the model, and less than forty characters of anything
        ("</think>" * 50 + "1" * 40, False),
    ],
)
def test_forty_characters_outside_of_code(unit: str, cut: bool) -> None:
    """What is between code blocks decides, if there is enough of it (LD-8)."""
    assert StreamProbe().feed(unit * 8) is cut


def test_two_fences_in_one_look() -> None:
    """They open a code block and close it (LD-8)."""
    assert StreamProbe().feed("```\nprint(1)\n```\n" + SENTENCE * 20)


def test_more_than_is_kept_is_counted_as_far_as_it_is() -> None:
    """The last 8 KB (Y-2)."""
    probe = StreamProbe()
    assert probe.feed("and so on " * 2000)
    assert probe.times == 8 * 1024 // 10


def test_a_value_of_json_that_does_not_end_is_cut() -> None:
    """What repeats is prose, wherever it stands (LD-8)."""
    assert cut_at('{"thought": "' + SENTENCE * 40)


@each(
    "text",
    [
        base64.b64encode(bytes(9000)).decode(),
        rows("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0\n"),
        rows("0 0 0 0 0 0 0 0 0 0\n"),
        rows("[0, 0, 0, 0],\n"),
        rows("0.0, "),
        rows("True True False True True False\n"),
        rows("null null null null null null\n"),
        rows(".", 9000),
        rows(". . . . . . . . . . . . . . . . "),
        rows("Name: ______________ Date: ______________\n"),
        rows("----------------------------------------\n"),
        rows("| yes | the same words in every row | no |\n"),
        rows("yes\tthe same words in every row\tno\n"),
        rows("anna        engineer     berlin      yes\n"),
        rows("Anna Smith, engineer, Berlin, Germany, active, permanent\n"),
        rows('{"name": "the same words in every row", "done": true},\n'),
        rows('"the same rather long sentence stands in every one of these lines, as a value of JSON",\n'),
        rows("    mov eax, ebx\n"),
        rows("        result.append(value)\n"),
        rows("x = x + 1; "),
        rows("for item in items: total = total + item; "),
        rows("<tr><td>the same words</td><td>in every row</td></tr>\n"),
        rows("- name: the same\n"),
        rows("<p>\nThe same words stand in every paragraph.\n</p>\n"),
        rows("<answer><item>the same words</item></answer>\n"),
        rows("return value\n"),
        rows("ff ff ff ff de ad be ef\n"),
        rows("acgtacgtac gtacgtacgt acgtacgtac\n"),
        rows("\n", 9000),
        rows("ha", 4000),
        "```\n" + rows(SENTENCE + "\n", 100),
        "```text\n" + rows("the quick brown fox jumps over the lazy dog\n", 100),
        "Before.\n```python\na = 1\n```\nBetween.\n```\n" + rows("# " + SENTENCE + "\n", 100),
    ],
)
@each("piece", [3, 64, 5000])
def test_what_repeats_for_good_reasons_is_never_cut(text: str, piece: int) -> None:
    """base64, grids, dot leaders, tables, code, JSON (LD-8, C32)."""
    assert not cut_at(INTRO + text, piece)


_VERBS = ("look at", "check", "go through", "read")
_AGAIN = ("again", "once more", "one more time")
_THINGS = ("the configuration file", "the log of the service", "the table of users")


def reworded(number: int) -> str:
    """One thought, in words that change and come back."""
    verb, again = _VERBS[number % 4], _AGAIN[number * 7 % 3]
    thing = _THINGS[number * 5 % 3]
    return (
        f"Before I answer, I should {verb} {thing} {again}, because the error may well come from there. "
        f"So let me {verb} {thing} {again} and then decide what has to be done about the error.\n\n"
    )


def test_paragraphs_that_are_almost_the_same_are_cut() -> None:
    """Eight of them in a row whose words and word trigrams are known, whatever their order (LD-8)."""
    text = INTRO + "".join(map(reworded, range(60)))
    for piece in (3, 64, 5000):
        assert 0 < cut_at(text, piece) <= max(6000, piece + 5000)
    probe = StreamProbe()
    probe.feed(text)
    assert probe.found
    assert probe.times >= 8
    assert "almost the same" in probe.what


_ONE = "The parser fails again, so I should look at the table that it was built from, and then at the token."
_OTHER = "I should look at the token again, and then at the parser that fails, so it was the table that was built."


def alternating(count: int, size: int) -> str:
    """Paragraphs of one size; from the third one on, each was there before."""
    return "".join(f"{(_ONE, _OTHER)[number % 2].ljust(size)}\n\n" for number in range(count))


@each(
    "text, cut",
    [
        (alternating(10, 150), True),  # eight again, with 1,200 characters
        (alternating(9, 150) + _OTHER.ljust(149) + "\n\n", False),
        (alternating(9, 200), False),
        (TABLE + alternating(10, 150), True),  # what was before them is not judged
    ],
)
def test_the_bar_for_paragraphs(text: str, cut: bool) -> None:
    """Eight of them, and 1,200 characters (LD-8)."""
    probe = StreamProbe()
    assert probe.feed(text) is cut
    if cut:
        assert (probe.period, probe.times) == (150, 8)
        assert probe.what == "paragraphs of 150 characters, almost the same,"


def test_a_loop_after_a_table_is_cut() -> None:
    """What was before it is not judged (LD-8)."""
    assert StreamProbe().feed(TABLE + SENTENCE * 20)


_NAMES = [f"{first}{last}" for first in ("Al", "Be", "Co", "Du", "El") for last in ("ba", "den", "fro", "gust", "hild")]
_CLAUSE = (
    "The Tenant shall pay the rent for {} to the Landlord on the first day of each month, without notice and without "
    "deduction, and shall keep the premises in good repair at all times."
)


@each(
    "paragraphs",
    [
        [_CLAUSE.format(name) for name in _NAMES],  # boilerplate with other names
        [f"{number}. " + _CLAUSE.format("the premises") for number in range(1, 40)],  # numbered clauses
        [part for name in _NAMES for part in (f"**{name}.py**", _CLAUSE.format("this file"))],  # one verdict for each
        [
            part for name in _NAMES for part in (reworded(0).strip(), f"Then {name} came, and there was a verse.")
        ],  # refrain
        ["- " + _CLAUSE.format("rent") + "\n- and so on"] * 2 + [PARAGRAPH.strip()] * 3,
        ["```\n" + reworded(number) + "```" for number in range(40)],  # quoted
        [f"    total = add(total, {one}, {other})" for one in "abcd" for other in "abcd"] * 3,
        [
            f'{{"name": "the same words", "kind": "{kind}", "text": "and a long text in each of these objects"}}'
            for kind in "abca" * 8
        ],
        ["2026-11-16 INFO the worker has begun with the queue\n2026-11-16 INFO the worker has ended"] * 6,
    ],
)
@each("piece", [3, 64, 5000])
def test_paragraphs_that_bring_something_are_not_cut(paragraphs: list[str], piece: int) -> None:
    """Templates with other names or numbers, headings between equal verdicts, refrains, code, JSON, logs (LD-8, C32)."""
    assert not cut_at(INTRO + "\n\n".join(paragraphs) + "\n\n", piece)


def test_a_table_of_four_hundred_rows() -> None:
    """With rows that differ, and with rows that do not (LD-8, C32)."""
    table = "| item | state |\n|---|---|\n" + "".join(f"| item {row} | done |\n" for row in range(400))
    assert not cut_at(table)
    assert not cut_at("Item: one, state: done\n" * 400)


def test_prose_that_says_something_is_not_cut() -> None:
    """A long text, and one that says a thing seven times over (LD-8)."""
    text = " ".join(
        f"In step {number} we move item {number * 7 % 31} to the shelf, and note it." for number in range(300)
    )
    assert not cut_at(text)
    assert not cut_at(INTRO + PARAGRAPH * 7 + INTRO)
    assert not cut_at(SENTENCE * (REPEATED_CHARS // len(SENTENCE) - 1) + "And that is all I know about it. " + INTRO)


def test_it_is_cut_after_code_was_closed() -> None:
    """Fences are followed however they are split (LD-8)."""
    code = "```python\nprint(1)\n```\n"
    for piece in (1, 2, 3, 7):
        assert cut_at(code * 3 + SENTENCE * 40, piece)
        assert not cut_at(code * 3 + "```\n" + SENTENCE * 40, piece)


def test_a_fence_at_the_end_of_a_look() -> None:
    """It opens a code block once (LD-8)."""
    probe = StreamProbe()
    probe.feed("x" * (PROBE_CHARS - 3) + "```")
    assert not probe.feed(SENTENCE * 30)


def test_a_fence_between_two_looks() -> None:
    """One that comes in two pieces is one (LD-8)."""
    probe = StreamProbe()
    assert not probe.feed("y" * (PROBE_CHARS - 2) + "``")
    assert not probe.feed("`\n" + SENTENCE * 40)
    assert probe.feed("```\n" + SENTENCE * 40)


def test_a_repeat_within_what_repeats_does_not_hide_it() -> None:
    """The unit ends as it goes on, and its length is a multiple of the probe's distance (LD-8)."""
    unit = (
        "I have to look at the parser before I can say more about it, so I look at it ".ljust(106, "!")
        + "again and " * 15
    )
    assert len(unit) == PROBE_CHARS
    assert cut_at(unit * 20, 8)
    assert cut_at(unit[:-30] * 20, 8)


def test_once_found_it_stays_so() -> None:
    """The caller may look later (LD-8)."""
    probe = StreamProbe()
    assert not probe.feed(INTRO)
    assert probe.feed(SENTENCE * 40)
    assert probe.feed("x")
    assert probe.found
    assert probe.feed(INTRO * 100)


def test_memory_is_bounded() -> None:
    """A megabyte passes, some kilobytes are kept (Y-2)."""
    probe = StreamProbe()
    for number in range(40_000):
        probe.feed(f"{number} and something else, ")
    assert sys.getsizeof(probe._tail) + sum(map(sys.getsizeof, probe._new)) < 20_000


@pytest.mark.slow
@given(st.lists(st.text(max_size=30), max_size=60), st.integers(1, 40))
def test_whatever_comes(pieces: list[str], times: int) -> None:
    """Nothing fails, and how the text is split changes nothing about what is kept (Y-2)."""
    one, other = StreamProbe(), StreamProbe()
    for piece in pieces * times:
        one.feed(piece)
    other.feed("".join(pieces * times) + "x" * PROBE_CHARS)
    one.feed("x" * PROBE_CHARS)
    assert one._tail == other._tail
    assert one._fenced == other._fenced


def test_prose() -> None:
    """What counts as prose at all (LD-8)."""
    assert is_prose(SENTENCE)
    assert not is_prose("")
    assert not is_prose("\n\n\n")
    assert not is_prose("x y z x y z")
    assert is_prose("of the\nThis is a whole sentence of some words.\nand then")
    assert is_prose("of the\nThis is a whole sentence of some words.\nand then\nwith")
    assert not is_prose("of the\nThis is a whole sentence of some words.\nand then\nwith the\nlast")
    assert is_prose("I am sure.")
    assert is_prose("We saw the a1 b2 c3 cat at home today.")
    assert not is_prose("We saw the a1 b2 c3 d4 cat at home.")
