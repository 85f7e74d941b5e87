"""The watches of one stream: what watch, how much was written, and when that is too much."""

from __future__ import annotations

import pytest

from breakloop.detect.stream import (
    MAX_OPEN_CHOICES,
    MAX_PROBED_CHOICES,
    CapReached,
    CompletionWatch,
    RepetitionWatch,
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
    watch.on_text(0, 0, "x" * 40)
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
