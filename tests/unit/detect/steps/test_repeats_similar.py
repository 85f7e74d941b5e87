"""Almost the same again (LD-4)."""

from __future__ import annotations

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
