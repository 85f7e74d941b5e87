"""Kinds that compare what was said (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import novelty, texts
from breakloop.detect.steps.fingerprints import NONE
from breakloop.detect.steps.window import TEXT, TEXTS, SessionWindow, load
from breakloop.model.call import Step
from tests.unit.detect.steps.stepping import PRINTER, called, hits, prints, spoken, state

REFUSED = "Your patch is empty. Please provide one."


def rejected(window: SessionWindow, step: Step, kept: int = 0, now: float = 0.0) -> float:
    found = hits(texts.rejected(state(window, prints(step), step=step, known=kept, now=now)), "rejected")
    window.steps += 1
    return found


def monologue(window: SessionWindow, step: Step, kept: int = 0) -> float:
    return hits(texts.monologue(state(window, prints(step), step=step, known=kept)), "monologue")


@pytest.mark.parametrize(
    ("before", "messages", "users", "found"),
    [
        (8, 4, ("The first task.", "And a text."), True),
        (8, 5, ("The first task.", "And a text."), False),
        (7, 4, ("The first task.", "And a text."), False),
        (8, 4, ("The first task.",), False),
        (8, 4, ("Another task.", "And a text."), False),
        (1, 4, ("x" * 284 + " <state_snapshot",), True),  # of 300 characters
        (1, 4, ("x" * 285 + " <state_snapshot",), False),
        (1, 4, ("a", "b", "c", "Conversation Summary"), True),  # of four texts
        (1, 4, ("a", "b", "c", "d", "Conversation Summary"), False),
    ],
)
def test_summaries(before: int, messages: int, users: tuple[str, ...], found: bool) -> None:
    """A short request that opens as summaries do, or with the text that opened a long history (LD-4)."""
    window = load(b"")
    window.messages = before
    window.marks.add(*novelty.opening_marks(PRINTER.incoming("The first task.").key))
    step = Step("", (), (), (), users, (), messages, 100)
    assert texts.is_summary(window, step, prints(step)) is found


def test_monologue() -> None:
    """The same words, one's own or in turns with another's; a call ends it (LD-4)."""
    window = load(b"")
    assert [monologue(window, spoken(text)) for text in ("yes", "yes", "no", "yes", "no")] == [0, 2, 0, 2, 3]
    monologue(window, called())
    assert monologue(window, spoken("yes")) == 2


def test_what_is_shown_again_is_not_said_again() -> None:
    """In a conversation that has not grown the last answer is the one that was there before (LD-4)."""
    window, step = load(b""), spoken("")
    for text in ("first item", "second item", "third item"):
        step = spoken("delivery", text)
        assert monologue(window, step) == 0
        window.messages = step.messages
    assert monologue(window, step._replace(messages=step.messages + 2)) == 2


def test_a_tail_that_grows_is_the_same_answer_shown_again() -> None:
    """Where a harness does not hand answers back as the model's own, nothing in the tail is said twice (LD-4)."""
    window, made = load(b""), prints(spoken(""))
    for count in range(1, 8):
        step = spoken("The plan.", *(f"observation number {index}, long enough" for index in range(count)))
        made = prints(step)
        kept = texts.known_texts(window, made)
        assert kept == count - 1
        assert monologue(window, step, kept) == 0
        assert hits(texts.rejected(state(window, made, step=step, known=kept)), "rejected") <= 1
    assert texts.known_texts(window, made) == 0


def nested(*prompts: str) -> list[float]:
    window = load(b"")
    return [hits(texts.nested(window, spoken("", text), PRINTER, 1.0), "nested") for text in prompts]


def test_nested() -> None:
    """A prompt that ends with the one before; another prompt ends it, the same one does not (LD-4)."""
    first = "Give me the ten largest cities."
    second = f"Not valid, try again: {first}"
    third = f"Not valid,  try again:\n{second}"
    assert nested(first, second, second, third) == [0, 1, 0, 2]
    assert nested(first, second, f"Still not valid: {second}") == [0, 1, 1]
    assert nested(first, second, "Something else altogether, please.", f"No: {first}") == [0, 1, 0, 0]
    assert nested("Hm?", "No: Hm?") == [0, 0]


def test_a_prompt_that_grows_at_its_end() -> None:
    """A conversation sent in one message grows so; only where the same is added each time it is a loop (LD-4)."""
    talk, sent = "Let us talk about cities.", []
    for line in ("\nAgent: yes", "\nUser: which is the largest?", "\nAgent: that one", "\nUser: and the next?"):
        talk += line
        sent.append(talk)
    assert nested(*sent) == [0, 0, 0, 0]
    retry, sent = "Give me the ten largest cities.", []
    for number in range(6):
        sent.append(retry)
        retry += f"{' ' * number}\nThat was not valid, try again."
    assert nested(*sent) == [0, 0, 1, 2, 3, 4]
    assert nested(*sent[:4], sent[3] + " Or tell me a story.", sent[3] + " Or tell me a story. Please!") == [
        0,
        0,
        1,
        2,
        0,
        0,
    ]


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_log_that_grows(newest_first: bool) -> None:
    """Lines that differ in their numbers only are different lines (LD-4)."""
    log, sent = "step 0 loss 0.99 accuracy 0.10", []
    for number in range(1, 9):
        line = f"step {number} loss 0.{99 - number} accuracy 0.{10 + number}"
        log = f"{line}\n{log}" if newest_first else f"{log}\n{line}"
        sent.append(log)
    assert max(nested(*sent)) <= 1


def test_nested_needs_little() -> None:
    """Whatever remembers the last prompt can be asked, not only a session's window (LD-4)."""

    class Series:
        prompt, prompt_size, added, nested = NONE, 0, NONE, 0.0

    series = Series()
    found = [
        list(texts.nested(series, spoken("", f"{'Again: ' * at}Ten large cities, please"), PRINTER, 0.5))
        for at in range(3)
    ]
    assert [len(one) for one in found] == [0, 1, 1]
    assert (series.nested, series.prompt_size) == (1.0, 38)


def test_continued() -> None:
    """The same cue in a row, nothing called (LD-4)."""
    window = load(b"")
    cues = ["continue", "continue", "continue", "go on", "continue"]
    found = [
        hits(texts.continued(state(window, prints(spoken(f"part {at}", cue)))), "continue")
        for at, cue in enumerate(cues)
    ]
    assert found == [0, 2, 3, 0, 0]
    shown = [
        hits(texts.continued(state(window, prints(spoken("part", "continue")), known=1)), "continue") for _ in range(5)
    ]
    assert shown == [0] * 5  # it was in an earlier request, too
    assert hits(texts.continued(state(window, prints(spoken("part", "continue")))), "continue") == 2


def test_a_call_between_is_work_that_went_on() -> None:
    """The text "continue" after each piece of work is how some harnesses drive an agent (LD-4)."""
    window = load(b"")
    for _ in range(6):
        assert hits(texts.continued(state(window, prints(spoken("done", "continue")))), "continue") == 0
        assert list(texts.continued(state(window, prints(called())))) == []


def test_who_writes_new_matter_goes_on() -> None:
    """The text "continue" is no loop while the model does; what counted before stays (LD-4)."""
    window, step = load(b""), prints(spoken("part", "continue"))
    worded = [False, False, True, True, True, False, False]
    found = [hits(texts.continued(state(window, step, worded=one)), "continue") for one in worded]
    assert found == [0, 2, 0, 0, 0, 3, 4]


def test_rejected_whatever_happens_between() -> None:
    """The same long text again; short ones, reminders beside each result and shells do not count (LD-4)."""
    window = load(b"")
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


def test_the_same_text_after_new_content_counts_half() -> None:
    """A learner who asks for the next question in the same words rejects nothing (LD-4)."""
    window = load(b"")

    def counted(step: Step, *, worded: bool) -> float:
        return hits(texts.rejected(state(window, prints(step), step=step, worded=worded)), "rejected")

    asked = [counted(spoken(f"part {at}", REFUSED), worded=at % 2 == 1) for at in range(4)]
    assert asked == [1, 1.5, 2.5, 3]
    done = called(name="task_done")._replace(users=(REFUSED,))
    assert counted(done, worded=True) == 1  # beside the result of a call


def test_the_same_text_minutes_apart_counts_half() -> None:
    """There was time to work in between; what replies to a call counts however long that took (LD-4)."""
    window = load(b"")
    at = (0.0, 100.0, 220.0, 400.0, 419.0)
    assert [rejected(window, spoken("part", REFUSED), now=now) for now in at] == [1, 2, 2.5, 3, 4]
    done = called(name="task_done")._replace(users=(REFUSED,))
    found = []
    for now in (0.0, 300.0, 600.0):
        found.append(rejected(window, done, now=now))
        rejected(window, called())
    assert found == [1, 2, 3]


def test_an_order_given_again() -> None:
    """The text that opened the session is an order: it counts only if nothing was changed since it last came (LD-4)."""
    window, order = load(b""), "Take the next item of the plan, do it, and commit."
    rejected(window, spoken("", order))
    found = []
    for _ in range(6):
        found.append(rejected(window, spoken("Done.", order)))
        window.epoch += 1
    assert found == [1] * 6
    assert [rejected(window, spoken("Done.", order)) for _ in range(4)] == [1, 2, 3, 4]
    found = []
    for _ in range(4):
        found.append(rejected(window, spoken("Done.", REFUSED)))
        window.epoch += 1
    assert found == [1, 2, 3, 4]


def test_answers_of_the_session_are_not_rejections() -> None:
    """Agents that hand each other the same answer are judged by other kinds (LD-4)."""
    window = load(b"")
    for mark in novelty.marks(PRINTER.incoming(REFUSED).key):
        window.marks.add(mark)
    assert rejected(window, spoken("part", REFUSED)) == 0


def test_texts_are_bounded() -> None:
    """The rarest goes first (LD-4)."""
    window = load(b"")
    rejected(window, spoken("part 1", REFUSED))
    rejected(window, spoken("part 2", REFUSED))
    for index in range(TEXTS + 5):
        rejected(window, spoken("part", f"an entirely different remark {index}"))
    assert len(window.texts) == TEXTS * TEXT.size
    assert rejected(window, spoken("part 3", REFUSED)) == 3


def test_texts_are_known_while_they_follow_the_same_answer() -> None:
    """Also in a window that was stored in between; a step without texts begins again (LD-4)."""
    window, remarks = load(b""), ("first remark", "second remark", "third remark")
    found = []
    for count in (1, 2, 3):
        found.append(texts.known_texts(window, prints(spoken("The plan.", *remarks[:count]))))
        window = load(window.dump())
    assert found == [0, 1, 2]
    assert texts.known_texts(window, prints(called())) == 0
    window = load(window.dump())
    assert texts.known_texts(window, prints(spoken("The plan.", *remarks, "fourth remark"))) == 0
    assert texts.known_texts(window, prints(spoken("Another plan.", *remarks, "fourth remark", "fifth remark"))) == 0
    assert texts.known_texts(window, prints(spoken("Another plan.", "other", *remarks, "fourth", "fifth"))) == 0


def test_an_answer_that_only_repeats_the_text_shows_nothing_about_the_texts_after_it() -> None:
    """They are all new (LD-4)."""
    window = load(b"")
    assert [texts.known_texts(window, prints(spoken("ping", "ping", *["more"] * count))) for count in (0, 1)] == [0, 0]


def test_text_beside_a_call_is_no_monologue() -> None:
    """Nor is a request without an answer (LD-4)."""
    window = load(b"")
    assert [monologue(window, called(said="Let me look.")) for _ in range(3)] == [0, 0, 0]
    assert [monologue(window, spoken("", "Go on.")) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(("size", "found"), [(19, 0), (20, 1), (21, 1)])
def test_a_prompt_of_twenty_bytes_can_be_contained_in_another(size: int, found: float) -> None:
    """A shorter one is contained by chance (LD-4)."""
    assert nested("x" * size, f"Try again: {'x' * size}")[-1] == found


def test_which_prompts_are_compared() -> None:
    """The last text of a request, unless it belongs to a call (LD-4)."""
    window, first = load(b""), "Give me the ten largest cities."
    second = f"Not valid, try again: {first}"

    def found(step: Step) -> float:
        return hits(texts.nested(window, step, PRINTER, 1.0), "nested")

    assert [found(spoken("", first)), found(spoken("Paris.")), found(called()._replace(users=(second,)))] == [0, 0, 0]
    assert found(spoken("", "A remark before it.", second)) == 1
    assert found(spoken("", "Something else altogether, please.")) == 0
    assert window.nested == 0


def test_a_cue_after_a_call_counts_from_the_first_time() -> None:
    """And the last text of a request is the cue (LD-4)."""
    window = load(b"")

    def found(*users: str) -> float:
        return hits(texts.continued(state(window, prints(spoken("part", *users)))), "continue")

    assert [found("continue") for _ in range(3)] == [0, 2, 3]
    list(texts.continued(state(window, prints(called()))))
    assert [found("remark one", "continue"), found("remark two", "continue")] == [0, 2]
    assert found("continue", "go on") == 0


def chapter(words: int) -> str:
    return " ".join(f"chapter{number}" for number in range(words))


@pytest.mark.parametrize(
    ("words", "worded", "calls", "found"),
    [(100, True, False, 0), (99, True, False, 0.5), (100, False, False, 1), (100, True, True, 1)],
)
def test_who_writes_a_chapter_was_not_rejected(words: int, worded: bool, calls: bool, found: float) -> None:
    """A hundred words of new content, and no call (LD-4)."""
    window = load(b"")
    step = spoken(chapter(words), REFUSED)
    if calls:
        step = called(name="task_done", said=chapter(words))._replace(users=(REFUSED,))
    assert hits(texts.rejected(state(window, prints(step), step=step, worded=worded)), "rejected") == found


@pytest.mark.parametrize(("text", "found"), [("x" * 19, 0), ("x" * 20, 1)])
def test_short_texts_are_not_rejections(text: str, found: float) -> None:
    """Such as "go on" (LD-4)."""
    assert rejected(load(b""), spoken("part", text)) == found


def test_texts_beside_the_one_that_rejects() -> None:
    """What is not counted hides nothing behind it (LD-4)."""
    window = load(b"")
    assert [rejected(window, spoken("part", "go on", REFUSED)) for _ in range(2)] == [1, 2]
    window = load(b"")
    reminded = called(name="task_done")._replace(users=("<system-reminder>Be brief.</system-reminder>", REFUSED))
    assert rejected(window, reminded) == 1


@pytest.mark.parametrize(("names", "found"), [(("bash", "task_done"), 1), (("task_done", "bash"), 0)])
def test_a_text_after_several_calls_belongs_to_the_last_one(names: tuple[str, ...], found: float) -> None:
    """Beside the result of a command, it is part of the output (LD-4)."""
    step = called()._replace(
        calls=tuple(called(name=name).calls[0] for name in names), results=called().results * 2, users=(REFUSED,)
    )
    assert rejected(load(b""), step) == found


@pytest.mark.parametrize(("after_s", "count"), [(119.0, 2), (120.0, 1.5)])
def test_two_minutes_are_time_to_work(after_s: float, count: float) -> None:
    """The same text counts half then (LD-4)."""
    for began in (1000.0, 1001.0):
        window = load(b"")
        assert [rejected(window, spoken("part", REFUSED), now=now) for now in (began, began + after_s)] == [1, count]


def test_slow_texts_count_less() -> None:
    """Not those that reply to a call: it took that long (LD-4)."""
    done = called(name="task_done")._replace(users=(REFUSED,))
    for step, count in ((spoken("part", REFUSED), 0.25), (done, 1)):
        found = texts.rejected(state(load(b""), prints(step), step=step, weight=0.25))
        assert hits(found, "rejected") == count


def test_texts_that_came_more_than_once_are_kept() -> None:
    """Of those that came once, the latest ones are (LD-4)."""
    window, often = load(b""), [f"a remark that comes more than once, number {number}" for number in range(TEXTS - 2)]
    for text in often * 2:
        rejected(window, spoken("part", text))
    for index in range(9):
        rejected(window, spoken("part", f"a remark that comes once, number {index}"))
    assert [rejected(window, spoken("part", f"a remark that comes once, number {index}")) for index in (8, 7)] == [2, 2]
    assert [rejected(window, spoken("part", text)) for text in often] == [3] * len(often)
