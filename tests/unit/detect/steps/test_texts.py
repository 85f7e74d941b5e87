"""SPEC LD-4: kinds that compare what was said."""

from __future__ import annotations

from breakloop.detect.steps import dry, texts
from breakloop.detect.steps.window import TEXTS, Window
from breakloop.model.step import Step
from tests.unit.detect.steps.stepping import PRINTER, called, hits, prints, spoken

REFUSED = "Your patch is empty. Please provide one."


def rejected(window: Window, step: Step, kept: int = 0) -> float:
    found = hits(texts.rejected(window, step, prints(step), kept, 1.0), "rejected")
    window.steps += 1
    return found


def test_monologue() -> None:
    """LD-4: the same words, one's own or in turns with another's; a call ends it."""
    window = Window()
    said = [prints(spoken(text)) for text in ("yes", "yes", "no", "yes", "no")]
    assert [hits(texts.monologue(window, one, 0, 1.0), "monologue") for one in said] == [0, 2, 0, 2, 3]
    list(texts.monologue(window, prints(called()), 0, 1.0))
    assert hits(texts.monologue(window, said[0], 0, 1.0), "monologue") == 2


def test_a_tail_that_grows_is_the_same_answer_shown_again() -> None:
    """LD-4: where a harness does not hand answers back as the model's own, nothing in the tail is said twice."""
    window, made = Window(), prints(spoken(""))
    for count in range(1, 8):
        step = spoken("The plan.", *(f"observation number {index}, long enough" for index in range(count)))
        made = prints(step)
        kept = texts.growing(window, made)
        assert kept == count - 1
        assert hits(texts.monologue(window, made, kept, 1.0), "monologue") == 0
        assert hits(texts.rejected(window, step, made, kept, 1.0), "rejected") <= 1
    assert texts.growing(window, made) == 0


def test_nested() -> None:
    """LD-4: a prompt that begins or ends with the one before; another prompt ends it, the same one does not."""
    window = Window()
    first = "Give me the ten largest cities."
    second = f"Not valid, try again: {first}"
    third = f"{second} And mind the format."
    found = [
        hits(texts.nested(window, spoken("", text), PRINTER, 1.0), "nested") for text in (first, second, second, third)
    ]
    assert found == [0, 1, 0, 2]
    assert hits(texts.nested(window, spoken("", "Something else altogether, please."), PRINTER, 1.0), "nested") == 0
    assert window.nested == 0


def test_continued() -> None:
    """LD-4: the same cue in a row, nothing called."""
    window = Window()
    cues = ["continue", "continue", "continue", "go on", "continue"]
    found = [
        hits(texts.continued(window, prints(spoken(f"part {at}", cue)), 0, 1.0), "continue")
        for at, cue in enumerate(cues)
    ]
    assert found == [0, 2, 3, 0, 0]
    assert list(texts.continued(window, prints(called()), 0, 1.0)) == []


def test_rejected_whatever_happens_between() -> None:
    """LD-4: the same long text again; short ones, reminders beside each result and shells do not count."""
    window = Window()
    assert [rejected(window, spoken(f"part {at}", REFUSED)) for at in range(3)] == [1, 2, 3]
    assert rejected(window, spoken("part", "go on")) == 0
    done = called(name="task_done")._replace(users=(REFUSED,))
    found = []
    for _ in range(3):
        found.append(rejected(window, done))
        rejected(window, called())
    assert found == [1, 2, 3]
    assert [rejected(window, done) for _ in range(3)] == [4, 4, 4]
    assert rejected(window, called(name="bash")._replace(users=(REFUSED,))) == 0
    assert rejected(window, called()._replace(users=("<system-reminder>Be brief.</system-reminder>",))) == 0


def test_answers_of_the_session_are_not_rejections() -> None:
    """LD-4: agents that hand each other the same answer are judged by other kinds."""
    window = Window()
    dry.heard(window, REFUSED, PRINTER)
    assert rejected(window, spoken("part", REFUSED)) == 0


def test_texts_are_bounded() -> None:
    """LD-4: the rarest goes first."""
    window = Window()
    rejected(window, spoken("part 1", REFUSED))
    rejected(window, spoken("part 2", REFUSED))
    for index in range(TEXTS + 5):
        rejected(window, spoken("part", f"an entirely different remark {index}"))
    assert len(window.texts) == TEXTS
    assert rejected(window, spoken("part 3", REFUSED)) == 3
