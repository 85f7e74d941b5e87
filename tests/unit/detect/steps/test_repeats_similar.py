"""Almost the same again (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import repeats
from breakloop.detect.steps.fingerprints import ranked, word_digests
from breakloop.detect.steps.repeats import alike, sample
from breakloop.detect.steps.window import SKETCH, SKETCH_ROW, SKETCHES, SessionWindow, load
from breakloop.model.call import Step, ToolCall
from tests.unit.detect.steps.stepping import called, hits, prints, spoken, state

VARIANTS = [
    f"Please search the {where} for the number of reference works on life sciences"
    for where in ("library", "database", "web", "index")
]


def reword(window: SessionWindow, step: Step) -> float:
    return hits(repeats.reword(state(window, prints(step), step=step)), "reword")


def test_near() -> None:
    """One tool in a row, alike but for numbers, and only where nothing new comes (LD-4)."""
    window = load(b"")
    found = [
        hits(repeats.near(state(window, prints(called(f'{{"page": {at}}}')), dried=True)), "near") for at in range(5)
    ]
    assert found == [0, 0, 0, 4, 5]
    assert hits(repeats.near(state(window, prints(called('{"page": 9}')))), "near") == 0
    list(repeats.near(state(window, prints(called(name="other")), dried=True)))
    assert hits(repeats.near(state(window, prints(called('{"page": 9}')), dried=True)), "near") == 0


def test_reword_only_while_dry() -> None:
    """Reworded instructions count once nothing new has come for four turns (LD-4)."""
    window = load(b"")
    assert [reword(window, spoken(text)) for text in VARIANTS] == [0, 0, 0, 0]
    window.dry = 4
    assert [reword(window, spoken(text)) for text in VARIANTS] == [5, 6, 7, 8]
    assert reword(window, spoken("Something quite different about unrelated matters entirely")) == 0
    assert len(window.sketches) == 9 * SKETCH_ROW.size


def test_reword_leaves_tool_arguments_and_code_alone() -> None:
    """Near-same arguments are how honest work looks; instructions to a colleague are text (LD-4)."""
    window = load(b"")
    window.dry = 8
    for text in VARIANTS:
        assert reword(window, called(said=text)) == 0
        bash = Step(text, (ToolCall("bash", "ls"),), (), (), (), (), 1, 1, as_text=True)
        assert reword(window, bash) == 0
        search = Step(text, (ToolCall("lookup", text),), (), (), (), (), 1, 1, as_text=True)
        assert reword(window, search) == 0
    assert window.sketches == b""
    ask = [Step(text, (ToolCall("ask_expert", text),), (), (), (), (), 1, 1, as_text=True) for text in VARIANTS]
    assert [reword(window, step) for step in ask] == [0, 2, 3, 4]
    both = ask[0]._replace(calls=(*ask[0].calls, ToolCall("bash", "ls")))
    assert reword(window, both) == 5


def test_only_the_last_texts_are_kept() -> None:
    """Constant memory (LD-4)."""
    window = load(b"")
    for index in range(30):
        reword(window, spoken(f"entirely different subject number {index * 37} {'abcdefgh'[index % 8] * 6}"))
    assert len(window.sketches) == SKETCHES * SKETCH_ROW.size


def test_alike() -> None:
    """Shared words by all words, from samples (LD-4)."""
    assert alike((1, 2, 3, 4), (1, 2, 3, 4)) == 1
    assert alike((1, 2, 3, 4), (3, 4, 5, 6)) == 2 / 6
    assert alike((), ()) == 0
    assert alike((1, 2), (3, 4)) == 0


def test_the_sample_does_not_depend_on_the_key() -> None:
    """Which words are compared is the same in every installation; what is stored of them is not (LD-4)."""
    words = [f"word{number}".encode() for number in range(100)]
    chosen = []
    for seed in (7, 8):
        digests = word_digests(words, seed)
        kept = sample(ranked(words, digests))
        assert len(kept) == SKETCH
        chosen.append({words[[one & 0xFFFF for one in digests].index(digest)] for digest in kept})
    assert chosen[0] == chosen[1]
    assert ranked(words, word_digests(words, 7)) != ranked(words, word_digests(words, 8))
    assert ranked((), [3, 2]) == [3, 2]
    assert sample([1, 2, 3]) == []


def test_reword_looks_at_one_recipient() -> None:
    """The same words to somebody else are another matter (LD-4)."""
    window = load(b"")
    window.dry = 8
    found = [
        reword(window, Step(VARIANTS[0], (ToolCall(f"ask_{who}", ""),), (), (), (), (), 1, 1, as_text=True))
        for who in "abac"
    ]
    assert found == [0, 0, 2, 0]


def near(window: SessionWindow, *steps: Step, dried: bool = True) -> list[float]:
    return [hits(repeats.near(state(window, prints(step), dried=dried)), "near") for step in steps]


PAGES = [called(f'{{"page": {number}}}') for number in range(9)]


def test_several_calls_in_one_answer_begin_the_run_again() -> None:
    """Four calls of one tool in a row, one in each answer (LD-4)."""
    window = load(b"")
    assert near(window, *PAGES[:5]) == [0, 0, 0, 4, 5]
    both = PAGES[0]._replace(calls=PAGES[0].calls * 2, results=PAGES[0].results * 2)
    assert near(window, both, *PAGES[5:]) == [0, 0, 0, 0, 5]


def test_calls_of_another_tool_do_not_belong_to_the_run() -> None:
    """Nor do calls with other words belong to the count (LD-4)."""
    window = load(b"")
    near(window, *[called(f'{{"page": {number}}}', name="list") for number in range(4)])
    assert near(window, *PAGES[:4]) == [0, 0, 0, 4]
    words = [called(f'{{"word": "tea", "page": {number}}}') for number in range(2)]
    assert near(window, *words) == [0, 2]


def test_a_call_with_news_halves_the_count_of_near_calls() -> None:
    """It is not reported, and the next one without is (LD-4)."""
    window = load(b"")
    assert near(window, *PAGES[:5])[-1] == 5
    assert near(window, PAGES[5], dried=False) == [0]
    assert near(window, PAGES[6]) == [4]


@pytest.mark.parametrize(("more", "found"), [("", 2), (" kilowatt", 0)])
def test_texts_are_similar_if_they_share_three_words_of_ten(more: str, found: float) -> None:
    """Not three of eleven (LD-4)."""
    window = load(b"")
    window.dry = 4
    reword(window, spoken("alpha bravo charlie delta echo foxtrot"))
    assert reword(window, spoken(f"alpha bravo charlie golf hotel india juliet{more}")) == found


@pytest.mark.parametrize(("dry", "found"), [(3.75, 0), (4.0, 2)])
def test_reword_begins_after_three_turns_without_anything_new(dry: float, found: float) -> None:
    """Texts before that are compared with, all the same (LD-4)."""
    window = load(b"")
    reword(window, spoken(VARIANTS[0]))
    window.dry = dry
    assert reword(window, spoken(VARIANTS[1])) == found


@pytest.mark.parametrize(("text", "found"), [("look into every corner", 2), ("look into every one", 0)])
def test_texts_of_fewer_than_four_words_are_not_compared(text: str, found: float) -> None:
    """Words of three letters are none (LD-4)."""
    window = load(b"")
    window.dry = 4
    reword(window, spoken(text))
    assert reword(window, spoken(text)) == found


def test_the_evidence_of_reword() -> None:
    """The newest text, and the twelve that are kept (LD-4)."""
    window = load(b"")
    window.dry = 4
    reword(window, spoken(VARIANTS[0]))
    step = spoken(VARIANTS[1])
    found = list(repeats.reword(state(window, prints(step), step=step)))
    assert [one.evidence for one in found] == ["2 of the last 13 texts say nearly the same"]
    for _ in range(20):
        assert reword(window, spoken(VARIANTS[2])) <= 13
    assert reword(window, spoken(VARIANTS[2])) == 13
