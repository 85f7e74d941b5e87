"""What counts as new in a step, at the bounds (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import novelty, streaks
from breakloop.detect.steps.window import load
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, PRINTER, called, prints, spoken, state
from tests.unit.detect.steps.test_novelty_dry import results, take


def several(*calls: tuple[str, str, str | None], users: tuple[str, ...] = ()) -> Step:
    """One answer with several calls: names, arguments and results; None for a result that is not known."""
    ids = tuple(f"call_{at}" for at in range(len(calls)))
    made = tuple(ToolCall(name, arguments) for name, arguments, _ in calls)
    got = [Result(text, call_id=by) for (*_, text), by in zip(calls, ids, strict=True) if text is not None]
    return Step("", made, ids, tuple(got), users, (), 2, 100)


@pytest.mark.parametrize(("new", "news"), [(8, False), (9, True)])
def test_how_much_has_to_be_new(new: int, news: bool) -> None:
    """More than 0.4 of the lines (LD-4)."""
    window = load(b"")
    take(window, called('{"q": 0}', "k" * 12))
    look = take(window, called('{"q": 1}', f"{'k' * 12}\n{'n' * new}"))
    assert (look.news, look.dried) == (news, not news)


@pytest.mark.parametrize(
    ("said", "worded"),
    [
        ("amber bridge copper dragon", True),  # a half of four
        ("amber bridge canal dragon", False),
        ("amber copper dragon", False),  # too few words to tell
    ],
)
def test_how_many_words_have_to_be_new(said: str, worded: bool) -> None:
    """A half of at least four words (LD-4)."""
    window = load(b"")
    take(window, spoken("amber bridge canal forest"))
    look = take(window, spoken(said))
    assert (look.worded, look.dried) == (worded, not worded)


@pytest.mark.parametrize(
    ("thought", "draft", "worded"),
    [
        ("amber bridge copper dragon", "engine forest", True),  # a half of what is not in the call
        ("amber bridge canal dragon", "engine forest garden", False),
        ("amber copper dragon", "engine forest", False),  # too few words beside the call
        ("copper dragon engine forest", "amber bridge canal harbour", True),  # a half of all
        ("amber bridge canal harbour", "copper dragon engine forest", False),
        ("copper dragon engine forest", "amber bridge canal harbour meadow", False),
    ],
)
def test_words_beside_a_call_that_is_written_as_text(thought: str, draft: str, worded: bool) -> None:
    """A half of all words has to be new, and a half of at least four that are not part of the call (LD-4)."""
    window = load(b"")
    take(window, spoken("amber bridge canal harbour meadow"))
    step = called(f'["{draft}"]', "The field is required.", said=f'{thought}\n["{draft}"]')._replace(as_text=True)
    assert take(window, step).worded is worded


def test_evidence_counts_from_the_last_news() -> None:
    """Whenever they came (LD-4)."""
    window = load(b"")
    for text in ("the first result", "the second result, which is another one"):
        take(window, called(f'["{text}"]', text))
    look = [take(window, called('["again"]', "the first result")) for _ in range(4)][-1]
    (found, *_) = novelty.findings(state(window, novelty=look))
    assert found.evidence == "nothing new for 5 turns"


def test_a_dry_spell_is_named_after_its_first_step() -> None:
    """A later one has another identity (LD-4)."""
    window = load(b"")
    take(window, called())
    take(window, called('{"q": 1}'))
    first = window.dry_key
    assert first == prints(called('{"q": 1}')).round
    take(window, called('{"q": 2}'))
    assert (window.dry, window.dry_key) == (2, first)
    for text in ("something new, which halves it", "and another one, which does so again"):
        take(window, called(f'["{text}"]', text))
    assert window.dry == 0.5
    take(window, called('{"q": 3}'))
    assert window.dry_key == prints(called('{"q": 3}')).round


@pytest.mark.parametrize(("weight", "counted"), [(0.25, 4), (0.24, 3)])
def test_what_was_waited_for_is_neither_new_nor_stale(weight: float, counted: int) -> None:
    """That is what counts less than a quarter (LD-4)."""
    window = load(b"")
    take(window, called('{"q": 0}', f"{LONG}\nthe end"))
    window.line_novelty, window.stale_steps = 0.0, 3
    take(window, called('{"q": 1}', f"the end\n{LONG}"), weight)
    assert window.stale_steps == counted


def test_steps_without_lines_are_not_stale() -> None:
    """A step whose texts were all seen has no lines to compare, and ends the count (LD-4)."""
    window = load(b"")
    take(window, called())
    window.stale_steps = 9
    take(window, called())
    assert window.stale_steps == 0


def test_novelty_of_a_tenth_is_not_low() -> None:
    """It has to be below (LD-4)."""
    window = load(b"")
    take(window, called('{"q": 0}', f"{LONG}\nthe end"))
    window.line_novelty = 0.1 / 0.75
    take(window, called('{"q": 1}', f"the end\n{LONG}"))
    assert (window.line_novelty, window.stale_steps) == (0.1, 0)


def test_empty_results_are_compared_by_form() -> None:
    """Another exit status without output is no other result (LD-4)."""
    window = load(b"")
    take(window, called("{}", "Exit code: 0"))
    assert take(window, called("{}", "Exit code: 1")).dried


def test_a_success_after_an_error_of_the_same_tool_is_news() -> None:
    """As after a refusal in words. An empty result is no success (LD-4)."""
    window = load(b"")
    take(window, called('{"n": 1}', "ok"))
    take(window, called('{"n": 2}', "timeout", error=True))
    assert not take(window, called('{"n": 3}', "")).news
    take(window, called('{"n": 4}', "timeout", error=True))
    assert take(window, called('{"n": 5}', "ok")).news


def test_a_tool_without_a_name() -> None:
    """A new call of it is no success after an error: none has failed (LD-4)."""
    window = load(b"")
    take(window, called())
    assert not take(window, called(name="")).news


def test_a_call_without_a_result_beside_one_that_fails() -> None:
    """It changes nothing about the others, wherever it stands (LD-4)."""
    for order in (1, -1):
        window = load(b"")
        take(window, called('{"n": 1}', "ok"))
        take(window, several(*[("find", "{}", None), ("look", '{"n": 2}', "Error: no such thing")][::order]))
        assert take(window, called('{"n": 3}', "ok")).news


def test_new_calls_without_results_are_unknown() -> None:
    """A call that was not made before, and whose result is not there, is no turn without news (LD-4)."""
    window = load(b"")
    take(window, called())
    assert not take(window, called('{"new": 1}')._replace(results=())).dried
    text = "Go on with it, please."
    take(window, spoken("", text))
    assert take(window, called('{"new": 2}')._replace(results=(), users=(text,))).dried  # something came back


def test_texts_that_have_one_mark_of_an_answer() -> None:
    """They are no answers: filters take every twentieth mark for known by mistake (LD-4)."""
    for one in (0, 1):
        window, text = load(b""), "The population of the town is twelve thousand."
        key = PRINTER.incoming(text).key
        window.marks.add(novelty.marks(key)[one])
        assert not novelty.is_answer(window, key)
        assert take(window, spoken("Please look it up", text)).news


def test_new_text_behind_what_is_not_new() -> None:
    """An empty result and a copy of an answer do not hide what comes after them (LD-4)."""
    answer = "The population of the town is twelve thousand."
    for before in ("", answer):
        window = load(b"")
        take(window, spoken(answer, "How many people live in that town?"))
        assert take(window, results(before, f"{LONG}, which nobody has seen")).news


def test_new_pictures() -> None:
    """They are new as a whole, whatever is written beside them (LD-4)."""

    def shot(*media: str) -> Step:
        return called()._replace(results=(Result("a screenshot", media=media),))

    window = load(b"")
    take(window, shot("image:1"))
    assert window.line_novelty == 0.25
    assert take(window, shot("image:2")).news
    assert take(window, shot("image:3", "image:1")).news
    assert take(window, shot("image:1", "image:4")).news
    assert window.line_novelty == 1 - 0.75**4
    assert not take(window, shot("image:4", "image:2")).news


def dryness(*steps: Step) -> float:
    """What the last of some steps counts as a turn without anything new."""
    window, before = load(b""), 0.0
    for step in steps:
        before = window.dry
        new = novelty.compare(window, step, prints(step), PRINTER.seed, 1.0)
        streaks.stagnation(state(window, prints(step), step=step, novelty=new))
        window.steps += 1
    return round(window.dry - before, 3)


def test_what_the_same_result_of_another_tool_counts() -> None:
    """The last call of an answer decides; short results and those of earlier steps do not count more (LD-4)."""
    first, other = called(), called('{"q": 1}', name="find")
    assert dryness(first, other) == 1.4
    assert dryness(first, several(("look", "{}", LONG), ("find", '{"q": 1}', LONG))) == 1.4
    assert dryness(first, several(("find", '{"q": 1}', LONG), ("look", "{}", LONG))) == 1.0
    short = called(text="nothing"), called('{"q": 1}', "nothing", name="find")
    assert dryness(*short) == 1.0
    pages = [f"{LONG}\nfirst\n", f"first\n{LONG}"]
    assert dryness(called(text=pages[0]), called('{"q": 1}', pages[1], name="find")) == 1.0
    lines = "k" * 30
    beside = several(("read", "{}", f"{lines}\n{'n' * 10}"), ("find", '{"q": 1}', LONG))
    assert dryness(called('{"q": 0}', lines), first, beside) == 1.15  # a quarter of the lines is new


def test_long_texts_of_the_user_are_no_chapters() -> None:
    """Only copies of answers are (LD-4)."""
    prompt = " ".join(f"word{number}" for number in range(150))
    window = load(b"")
    assert [take(window, spoken("Well then", prompt)).dried for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize(("words", "dried"), [(100, False), (99, True)])
def test_how_long_a_chapter_is(words: int, dried: bool) -> None:
    """A hundred words that were not written before (LD-4)."""
    window = load(b"")
    answer = " ".join(f"word{number}" for number in range(words))
    window.marks.add(*novelty.marks(PRINTER.incoming(answer).key))
    take(window, spoken("Please write the next chapter"))
    assert take(window, spoken("Please write the next chapter", answer)).dried is dried


@pytest.mark.parametrize(("new", "dried"), [(4, False), (3, True)])
def test_how_many_words_of_a_report_have_to_be_new(new: int, dried: bool) -> None:
    """A half of eight (LD-4)."""
    words = ["amber", "bridge", "canal", "dragon", "engine", "forest", "garden", "harbour"]
    window, report = load(b""), " ".join(words)
    take(window, spoken(" ".join(words[: 8 - new])))
    window.marks.add(*novelty.marks(PRINTER.incoming(report).key))
    assert take(window, called(text=report)).dried is dried


def test_plans_that_are_written_again_and_again() -> None:
    """A list of things to do that is written right after another one changes nothing. With another call beside it,
    after another call, with other arguments or under another name, it does (LD-4)."""

    def plan(at: int, name: str = "todo_write", arguments: str = '{{"todos": [{}]}}') -> Step:
        return called(arguments.format(at), "ok", name=name)

    def last(*steps: Step, run: float = 1.0, tool: str = "todo_write") -> tuple[bool, bool]:
        window, looks = load(b""), []
        for step in steps:
            window.same_tool_run, window.near_tool = run, PRINTER.tool(tool).key
            looks.append(take(window, step))
        return looks[-1].news, looks[-1].dried

    assert last(plan(0), plan(1)) == (False, True)
    assert last(plan(0), plan(1), run=0.0) == (True, False)
    assert last(plan(0), plan(1), tool="other") == (True, False)
    assert last(plan(0), plan(1, arguments='{{"text": {}}}')) == (True, False)
    assert last(plan(0, "write_file"), plan(1, "write_file"), tool="write_file") == (True, False)
    beside = several(("todo_write", '{"todos": [1]}', "ok"), ("todo_write", '{"todos": [2]}', "ok"))
    assert last(plan(0), beside) == (True, False)


def test_several_calls_of_one_answer() -> None:
    """Each is known or not by itself, and the step as a whole (LD-4)."""
    write, look = ("write_file", '{"n": 1}', "written"), ("look", "{}", "nothing")
    other = ("write_file", '{"n": 2}', "written")
    window = load(b"")
    take(window, called("{}", "nothing"))
    assert take(window, several(look, write)).news  # the call that was not made before changes something
    assert take(window, several(other, look)).news
    assert not take(window, called('{"n": 1}', "written", name="write_file")).news  # made with others before
    window = load(b"")
    assert [take(window, several(look, ("find", "{}", "nothing"))).dried for _ in range(4)] == [
        False,
        False,
        True,
        True,
    ]


def test_steps_that_are_made_twice() -> None:
    """Hardly any is taken for one that was made more often, after a hundred others (LD-4)."""
    window, dried = load(b""), 0
    for number in range(150):
        step = called(f'{{"n": {number}}}', f"result number {number}")
        take(window, step)
        dried += take(window, step).dried
    assert dried <= 5


def test_marks_of_different_texts() -> None:
    """They are different (LD-4)."""
    keys = [PRINTER.incoming(f"text {number}").key for number in range(1000)]
    made = [(*novelty.marks(key), *novelty.opening_marks(key), *novelty.result_marks(key)) for key in keys]
    assert [len(set(one)) for one in zip(*made, strict=True)] == [1000] * 5
    assert {len(set(one)) for one in made} == {5}
