"""The watches of one stream: what watch, how much was written, and when that is too much."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.detector import CUT_STREAM, REPORT_STREAM
from breakloop.detect.stream import (
    MAX_OPEN_CHOICES,
    MAX_PROBED_CHOICES,
    CapReached,
    CompletionWatch,
    RepetitionWatch,
    StreamFinding,
    watch_stream,
)
from breakloop.model.call import CompletionCap
from tests.unit.gateway.repeating import LOOPED, PROSE, UNIT


def capped(tokens: int, action: str = "", answers: int = 1, reports: list[str] | None = None) -> CapReached:
    def tell(cap: CompletionCap, what: str) -> None:
        if reports is not None:
            reports.append(f"{cap.tokens} {what}")

    return CapReached(CompletionCap(tokens, "p", "r", cuts=not action), answers, tell, action)


@pytest.mark.parametrize(
    ("piece", "fits"),
    [
        ("abcd", 10),  # a token
        ("abc", 13),
        ("中", 13),  # counts three times
        ("é", 40),
    ],
)
def test_a_token_is_four_characters(piece: str, fits: int) -> None:
    """Exactly as much passes; one piece more is too much (L-3)."""
    watch = CompletionWatch([capped(10)])
    for _ in range(fits):
        watch.on_text(0, 0, piece)
    assert not watch.found
    watch.on_text(0, 0, piece)
    assert watch.found


def test_reasoning_and_arguments_count() -> None:
    """They are paid for like what is said (L-3)."""
    watch = CompletionWatch([capped(10)])
    watch.on_text(0, 0, "x" * 10)
    watch.on_reasoning(0, 1, "x" * 20)
    watch.on_arguments(0, "x" * 10)
    assert (watch.found, watch.chars, watch.reasoning_chars) == (False, 40, 20)
    watch.on_arguments(0, "x")
    assert watch.found


def test_all_answers_together() -> None:
    """A request for three may have three times as much, whoever of them says it (L-3)."""
    watch = CompletionWatch([capped(10, answers=3)])
    for choice in (0, 1, 2):
        watch.on_text(choice, 0, "x" * 40)
    assert (watch.found, watch.open) == (False, [0, 1, 2])
    watch.on_finish(1)
    watch.on_text(2, 0, "x")
    assert (watch.found, watch.open) == (True, [0, 2])


@pytest.mark.parametrize("answers", [0, 1])
def test_one_answer_at_least(answers: int) -> None:
    """A request that asks for none gets one (L-3)."""
    watch = CompletionWatch([capped(10, answers=answers)])
    watch.on_text(0, 0, "x" * 40)
    assert not watch.found
    watch.on_text(0, 0, "x")
    assert watch.found


def test_several_caps() -> None:
    """The lower one comes first; each is told once (L-3, E-3)."""
    reports: list[str] = []
    watch = CompletionWatch(
        [capped(20, reports=reports), capped(10, "cut", reports=reports), capped(30, reports=reports)]
    )
    watch.on_text(0, 0, "x" * 41)
    (first,) = watch.findings()
    assert (first.action, first.reported) == ("cut", False)
    for _ in range(2):
        first.report("cut")
    assert (first.reported, reports) == (True, ["10 cut"])
    watch.on_text(0, 0, "x" * 39)
    assert len(watch.findings()) == 1  # exactly as much as the second one allows
    watch.on_text(0, 0, "x")
    assert [one.action for one in watch.findings()] == ["cut", ""]
    watch.on_text(0, 0, "x" * 4000)
    assert len(watch.findings()) == 3


def test_a_watch_for_caps_passes_everything_on_to_that_for_repetitions() -> None:
    """Both on one stream (LD-8, L-3)."""
    watch = CompletionWatch([capped(10_000)], RepetitionWatch(lambda *_: None))
    for _ in range(LOOPED):
        watch.on_reasoning(0, 0, UNIT)
        watch.on_arguments(0, UNIT)
    found = [watch.found]
    (finding,) = watch.findings()
    assert isinstance(finding, RepetitionWatch)
    watch.on_finish(0)
    found.append(watch.found)
    for _ in range(LOOPED):
        watch.on_text(1, 0, UNIT)
    assert [*found, watch.found] == [True, False, True]


def test_only_thoughts() -> None:
    """A thought that repeats itself, as long as there is neither text, nor a call, nor another answer (LD-8)."""
    thinking, capping = RepetitionWatch(lambda *_: None), CompletionWatch([capped(10_000)])
    both = CompletionWatch([capped(1000)], RepetitionWatch(lambda *_: None))
    for number in range(LOOPED):
        assert number > 3 or (thinking.only_thinks, both.only_thinks) == (False, False)
        for watch in (thinking, capping, both):
            watch.on_reasoning(0, 0, UNIT)
    assert (thinking.only_thinks, capping.only_thinks, both.only_thinks) == (True, False, True)
    both.on_reasoning(0, 0, UNIT * 60)
    assert (both.found, both.only_thinks) == (True, False)  # beyond the cap
    for more in ("text", "call", "answer", "later answer"):
        watch = RepetitionWatch(lambda *_: None)
        for _ in range(LOOPED):
            watch.on_reasoning(1 if more == "later answer" else 0, 0, UNIT)
        match more:
            case "text":
                watch.on_text(0, 1, "So")
            case "call":
                watch.on_call(0, "look", "{}")
            case "answer":
                watch.on_reasoning(1, 0, UNIT)
        assert not watch.only_thinks, more


def test_answers_without_end_are_not_all_kept() -> None:
    """An upstream may number them as it likes (Y-2)."""
    watch = CompletionWatch([])
    for choice in range(2 * MAX_OPEN_CHOICES):
        watch.on_text(choice, 0, "x")
    assert (len(watch.open), watch.chars, watch.found) == (MAX_OPEN_CHOICES, 2 * MAX_OPEN_CHOICES, False)


def test_only_some_choices_are_probed() -> None:
    """An upstream may number them as it likes (Y-2)."""
    watch = RepetitionWatch(lambda *_: None)
    for choice in range(5000):
        watch.on_text(choice, 0, UNIT)
        watch.on_reasoning(-choice, 0, UNIT)
    assert (len(watch.open), watch.found) == (1000, False)
    assert len(watch._texts) + len(watch._reasoning) == 2 * MAX_PROBED_CHOICES
    called = RepetitionWatch(lambda *_: None)
    for choice in range(2 * MAX_OPEN_CHOICES):
        called.on_call(choice, "look", "{}")
    assert len(called.open) == MAX_OPEN_CHOICES


@pytest.mark.parametrize(("choices", "found"), [(16, True), (17, False)])
def test_sixteen_choices_that_all_repeat_themselves(choices: int, found: bool) -> None:
    """With one more, the stream is not cut (LD-8, Y-2)."""
    watch = RepetitionWatch(lambda *_: None)
    for _ in range(LOOPED):
        for choice in range(choices):
            watch.on_text(choice, 0, UNIT)
    assert watch.found is found


def test_a_choice_that_does_not_repeat_itself() -> None:
    """It keeps the stream open until it has ended (LD-8)."""
    for of_other in ("text", "reasoning", "call"):
        watch = RepetitionWatch(lambda *_: None)
        match of_other:
            case "text":
                watch.on_text(1, 0, "So")
            case "reasoning":
                watch.on_reasoning(1, 0, "So")
            case "call":
                watch.on_call(1, "look", "{}")
        for _ in range(LOOPED):
            watch.on_text(0, 0, UNIT)
        assert not watch.found, of_other
        watch.on_finish(1)
        assert watch.found, of_other


def test_a_new_part_is_another_text() -> None:
    """What is said before and after a tool's call is not one text (LD-8)."""
    watch = RepetitionWatch(lambda *_: None)
    for part in range(LOOPED):
        watch.on_text(0, part, UNIT)
    assert (watch.found, watch.probe) == (False, None)
    for _ in range(LOOPED):
        watch.on_text(0, LOOPED, UNIT)
    assert (watch.found, watch.open) == (True, [0])
    watch.on_finish(0)
    assert (watch.found, watch.open) == (False, [])


def test_how_much_was_said_and_thought() -> None:
    """For a guess at the tokens, so it may lag behind by less than a look, for each text (LD-8)."""
    watch = RepetitionWatch(lambda *_: None)
    for number in range(40):
        watch.on_text(0, 0, PROSE.format(number))
        watch.on_reasoning(1, 0, PROSE.format(number))
    watch.on_text(0, 1, PROSE * 10)
    length = 2 * sum(len(PROSE.format(number)) for number in range(40)) + 10 * len(PROSE)
    assert length - 2 * 256 < watch.chars <= length
    watch = RepetitionWatch(lambda *_: None)
    for part in range(3):
        watch.on_text(0, part, "x" * 256)
        watch.on_reasoning(0, part, "x" * 512)
    assert (watch.chars, watch.reasoning_chars) == (3 * 768, 512)


def test_eight_equal_calls_of_one_answer() -> None:
    """The eighth is one too many; calls with other arguments, of other tools and of other answers are not (LD-8)."""
    told: list[tuple[str, str, int]] = []
    watch = RepetitionWatch(lambda *what: told.append(what))
    for number in range(40):
        watch.on_call(0, "look", f'{{"at": {number}}}')
        watch.on_call(0, f"tool_{number}", "{}")
        watch.on_call(number, "list", "{}")
    assert (watch.found, watch.open) == (False, list(range(40)))
    for number in range(1, 40):
        watch.on_finish(number)
    found = []
    for _ in range(7):
        watch.on_call(0, "list", "{}")
        found.append(watch.found)
    assert found == [False] * 6 + [True]
    watch.report("cut")
    assert told == [("cut", "the same call of `list`", 8)]


def test_a_watch_for_caps_passes_calls_on() -> None:
    """Both on one stream (LD-8, L-3)."""
    watch = CompletionWatch([capped(10)], RepetitionWatch(lambda *_: None))
    for _ in range(8):
        watch.on_call(0, "look", "{}")
    assert watch.found
    CompletionWatch([capped(10)]).on_call(0, "look", "{}")


def test_calls_without_end_are_not_all_kept() -> None:
    """A model may call as many as it likes (Y-2)."""
    watch = RepetitionWatch(lambda *_: None)
    for number in range(5000):
        watch.on_call(0, "look", str(number))
    assert len(watch._calls) == 100
    for _ in range(7):
        assert not watch.found
        watch.on_call(0, "look", "99")  # the last of those that are counted
    assert watch.found


def test_what_is_reported_of_a_text() -> None:
    """The length of what is repeated, and how often it came; nothing as long as nothing was found (LD-8)."""
    told: list[tuple[str, str, int]] = []
    watch = RepetitionWatch(lambda *what: told.append(what))
    assert (watch.findings(), watch.what, watch.times) == ((), "", 0)
    watch.report("cut")
    assert told == []
    watch = RepetitionWatch(lambda *what: told.append(what))
    watch.on_text(0, 0, UNIT * 20)
    (found,) = watch.findings()
    found.report("warn")
    assert told == [("warn", f"the same {len(UNIT)} characters", 20)]


@pytest.mark.parametrize(
    ("guards", "cuts", "can_cut", "actions"),
    [
        (CUT_STREAM, True, True, ["", ""]),
        (REPORT_STREAM, True, True, ["", "cut"]),  # a shadow detector, and a cap
        (CUT_STREAM, False, True, ["cut", ""]),
        (REPORT_STREAM, False, True, ["cut", "cut"]),
        (CUT_STREAM, True, False, ["warn", "warn"]),
        (0, True, True, [""]),
        (CUT_STREAM, None, True, [""]),
        (REPORT_STREAM, None, True, ["cut"]),
    ],
)
def test_what_is_done_about_a_cap_and_a_repetition(
    guards: int, cuts: bool | None, can_cut: bool, actions: list[str]
) -> None:
    """What does not cut in shadow mode is reported as if it had; where nothing can be cut, it is a warning (LD-8, L-3)."""
    caps = [CompletionCap(10, "p", "r", cuts=cuts)] if cuts is not None else []
    watch = watch_stream(guards, caps, 1, can_cut=can_cut, repeated=lambda *_: None, capped=lambda *_: None)
    watch.on_text(0, 0, UNIT * 20)
    found: list[StreamFinding] = list(watch.findings())
    assert [one.action for one in found] == actions
