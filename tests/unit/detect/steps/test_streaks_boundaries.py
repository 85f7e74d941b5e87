"""Boundaries of the kinds that are one count each (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import repeats, streaks
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.fingerprints import StepFingerprints
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import TOOLS, SessionWindow, load
from breakloop.model.call import Answer, Step
from tests.unit.detect.steps.stepping import LONG, at_once, called, digest, hits, prints, spoken, state

BAD = called(text="boom", error=True)
LIMITED = "429 rate limit exceeded"
OTHER = LONG[::-1]


def cascade(window: SessionWindow, *steps: Step, weight: float = 1.0) -> list[float]:
    return [hits(streaks.cascade(state(window, prints(step), step=step, weight=weight)), "cascade") for step in steps]


def stagnation(window: SessionWindow, *steps: Step, news: bool = False, weight: float = 1.0) -> list[float]:
    found = []
    for step in steps:
        found.append(hits(streaks.stagnation(state(window, prints(step), news=news, weight=weight)), "stagnation"))
        window.steps += 1
    return found


# --- cascade


@pytest.mark.parametrize(
    ("dry", "weight", "found"), [(2.0, 1.0, 2), (1.75, 1.0, 0), (2.0, 0.25, 2), (2.0, 0.24, 0), (2.0, 0.0, 0)]
)
def test_errors_count_after_two_turns_without_anything_new(dry: float, weight: float, found: float) -> None:
    """Errors that were waited for, with a weight of less than a quarter, are not counted (LD-4)."""
    window = load(b"")
    window.dry = dry
    assert cascade(window, BAD, BAD, weight=weight)[-1] == found


def test_steps_that_say_nothing_about_errors() -> None:
    """A step without calls, and the rate limit of a tool, are neither a success nor an error (LD-4)."""
    window = load(b"")
    window.dry = 2
    limited = called(text=LIMITED, error=True)
    both = at_once(limited, limited._replace(calls=called(name="find").calls))
    assert cascade(window, BAD, BAD, spoken("Let me see."), BAD) == [0, 2, 0, 3]
    cascade(window, limited, both)
    assert cascade(window, BAD) == [4]


def test_each_tool_of_a_round_is_one_of_the_last_ten_results() -> None:
    """Five rounds of two tools that fail are ten errors; a success of the same tool, first or last, is none (LD-4)."""
    window = load(b"")
    window.dry = 2
    two = at_once(BAD, called(text="boom", error=True, name="find"))
    assert cascade(window, *[two] * 6) == [2, 4, 6, 8, 10, 10]
    for round_ in (at_once(called(), BAD), at_once(BAD, called())):
        window.error_bits = 0
        assert cascade(window, round_, BAD) == [0, 0]


# --- stagnation


def test_news_begin_the_count_of_a_tool_again() -> None:
    """The result that came with the news is compared with the next one (LD-4)."""
    window = load(b"")
    assert stagnation(window, called(text=OTHER), news=True) == [0]
    assert stagnation(window, called(), called()) == [0, 2]
    assert stagnation(window, called(text=OTHER), news=True) == [0]
    assert stagnation(window, called(text=OTHER), called(text=OTHER)) == [2, 3]


@pytest.mark.parametrize("news", [True, False])
def test_another_result_in_the_same_round_is_the_one_that_is_compared(news: bool) -> None:
    """Of two calls of a tool, one of which returns what the tool returned before (LD-4)."""
    window = load(b"")
    assert stagnation(window, called()) == [0]
    assert stagnation(window, at_once(called('{"q": 1}'), called('{"q": 2}', OTHER)), news=news) == [0]
    assert stagnation(window, called(text=OTHER)) == [2]


def test_of_the_first_round_the_first_result_is_compared() -> None:
    """A tool that was not called before (LD-4)."""
    window = load(b"")
    both = at_once(called('{"q": 1}'), called('{"q": 2}', OTHER))
    assert stagnation(window, both, called()) == [0, 2]


def test_each_tool_of_a_round_is_compared() -> None:
    """Also if the round has news (LD-4)."""
    window = load(b"")
    stagnation(window, called())
    both = at_once(called(), called(name="find", text=OTHER))
    assert stagnation(window, both, news=True) == [0]
    assert stagnation(window, called(name="find", text=OTHER)) == [2]


def test_a_short_result_beside_an_informative_one() -> None:
    """Only the informative one is compared (LD-4)."""
    window = load(b"")
    both = at_once(called('{"q": 1}', "ok"), called('{"q": 2}'))
    assert stagnation(window, called(), both) == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "text", "error", "kept"),
    [
        ('{"command": "rm -r build"}', "ok", False, True),  # a change
        ('{"command": "cat c"}', LIMITED, False, True),
        ('{"command": "cat c"}', "no", True, True),
        ('{"command": "cat c"}', "ok", False, False),
    ],
)
def test_which_short_results_end_stagnation(arguments: str, text: str, error: bool, kept: bool) -> None:
    """A success of a call that changes nothing; not a change, an error or a rate limit (LD-4)."""
    window = load(b"")
    stagnation(window, called(name="find", text=OTHER))
    stagnation(window, *[called('{"command": "cat a"}', name="bash")] * 2)
    stagnation(window, called(arguments, text, name="bash", error=error), news=True)
    assert stagnation(window, called('{"command": "cat a"}', name="bash")) == ([3] if kept else [0])
    assert stagnation(window, called(name="find", text=OTHER)) == [2]


def test_the_rate_limit_of_a_tool_is_not_stagnation() -> None:
    """However long its message is (LD-4)."""
    window = load(b"")
    limited = called(text=f"{LIMITED}: {LONG}", error=True)
    assert stagnation(window, *[limited] * 3) == [0, 0, 0]
    assert stagnation(window, at_once(limited, called('{"q": 1}'), limited), called()) == [0, 2]


def test_slow_results_of_another_tool_count_less() -> None:
    """Twice their weight (LD-4)."""
    window = load(b"")
    assert stagnation(window, called(), called(name="find"), weight=0.5) == [0, 1.5]


def test_as_many_tools_as_fit_are_remembered() -> None:
    """None of them is dropped before there is one more (LD-4)."""
    window = load(b"")
    names = [f"tool{number}" for number in range(TOOLS)]
    for number, name in enumerate(names):
        stagnation(window, called(name=name, text=f"{LONG} {number}"))
        window.steps += 1
    assert [stagnation(window, called(name=name, text=f"{LONG} {at}")) for at, name in enumerate(names)] == [
        [2]
    ] * TOOLS


def test_a_change_halves_what_stagnation_has_counted() -> None:
    """The next result may differ because of it (LD-4)."""
    window = load(b"")
    assert stagnation(window, *[called()] * 5)[-1] == 5
    streaks.add_change(window)
    assert stagnation(window, called()) == [4]


# --- storm


@pytest.mark.parametrize(("gap_s", "hits_after"), [(60.0, 4), (60.5, 1), (-0.5, 1), (-30.0, 1)])
def test_what_begins_a_storm_again(gap_s: float, hits_after: float) -> None:
    """A minute, or a clock that was set back: nothing of what was counted, answered or not, is left (LD-4, S-2)."""
    window = load(b"")
    window.last_at, window.storm_at = 100.0, 0.0
    window.storm, window.forgiven_repeats = 3.0, 4
    assert hits(streaks.storm(window, 100.0 + gap_s, tracked=False), "storm") == hits_after
    assert window.forgiven_repeats == (4 if hits_after > 1 else 0)


def test_repeats_without_an_answer_fit_into_a_byte() -> None:
    """However many requests are sent before the first answer, the window can be stored (LD-4)."""
    window = load(b"")
    for second in range(300):
        window.last_at = float(second)
        streaks.storm(window, float(second), tracked=True)
    assert load(window.dump()).pending_repeats == 2**8 - 1


def test_ten_repeats_of_a_request_that_fails_are_not_counted() -> None:
    """Those after them are (LD-4)."""
    evaluator, window, found = StepEvaluator(StepsSettings(), digest), load(b""), []
    for _ in range(12):
        window.pending_repeats = 1
        window = load(evaluator.answered(window.dump(), Answer(500)))
        found.append(window.storm)
    assert found == [0] * 10 + [1, 2]


HIDDEN = called()._replace(results=())


def hidden_storm(window: SessionWindow, made: StepFingerprints, gap_s: float) -> float:
    """The count after one more call whose result is not in the request."""
    list(repeats.find_cycle(window, made.round, 1.0))
    found = hits(streaks.call_storm(state(window, made, now=window.last_at + gap_s)), "storm")
    window.last_at += gap_s
    window.steps += 1
    return found


def test_a_pause_of_more_than_six_seconds_begins_a_storm_of_calls_again() -> None:
    """Ten a minute (LD-4)."""
    window, made = load(b""), prints(HIDDEN)
    window.last_at = 100.0
    found = [hidden_storm(window, made, gap_s) for gap_s in (1.0, 1.0, 6.0, 6.5, 1.0, 0.5)]
    assert found == [0, 1, 2, 0, 1, 1.5]


@pytest.mark.parametrize(
    ("calls", "results", "awaits"),
    [("a", "a", 0), ("a", "", 1), ("", "", 0), ("ab", "a", 0), ("ab", "b", 1), ("ab", "", 1)],
)
def test_whether_the_answer_has_the_result_of_a_call(calls: str, results: str, awaits: int) -> None:
    """If that of the first call is not in the request; a storm needs that none is (LD-4)."""
    window = load(b"")
    window.last_at = 100.0
    step = called()._replace(
        calls=tuple(called(name=f"look_{name}").calls[0] for name in calls),
        call_ids=tuple(f"call_{name}" for name in calls),
        results=tuple(called().results[0]._replace(call_id=f"call_{name}") for name in results),
    )
    found = [hidden_storm(window, prints(step), 1.0) for _ in range(3)]
    assert window.awaits_result == awaits
    assert found[-1] == (2 if calls and not results else 0)
    assert load(window.dump()).awaits_result == awaits


# --- thrash


def test_requests_of_text_only_are_cut_too() -> None:
    """A conversation without calls (LD-4)."""
    window = load(b"")
    steps = [spoken("Yes.", "Go on.")._replace(size=size) for size in (60_000, 10_000)]
    assert [hits(streaks.thrash(state(window, step=step)), "thrash") for step in steps] == [0, 1]


@pytest.mark.parametrize(("size", "found"), [(65_536, 0), (65_537, 1)])
def test_a_tenth_is_only_a_cut_of_more_than_64_kb(size: int, found: float) -> None:
    """Smaller requests lose as much for other reasons (LD-4)."""
    window = load(b"")
    window.size = size
    assert hits(streaks.thrash(state(window, step=called()._replace(size=55_000))), "thrash") == found


@pytest.mark.parametrize(
    ("calls", "results", "users", "most"), [(0, 0, 1, 4), (1, 1, 0, 6), (2, 1, 1, 9), (3, 3, 0, 12)]
)
def test_how_many_messages_a_step_may_add(calls: int, results: int, users: int, most: int) -> None:
    """Its text, two items of reasoning, two for each call, its results and texts. With more, the conversation that is
    as long as before the cut is another one (LD-4)."""
    for before, added, goes_on in ((most, most, True), (most + 1, most + 1, False), (most + 2, most + 1, True)):
        window = load(b"")
        window.cuts, window.messages, window.messages_before_cut = 1.0, 10, 10 + before
        step = called()._replace(
            said="Yes.", calls=called().calls * calls, results=called().results * results, users=("Go on.",) * users
        )
        streaks.thrash(state(window, step=step._replace(messages=10 + added, size=60_000)))
        assert (window.cuts == 1.0) is goes_on
        assert hits(streaks.cut(window, step, 0.0), "thrash") == (2 if goes_on else 1)


def test_the_length_before_the_last_cut_counts() -> None:
    """A conversation that has as many messages again after some steps was cut (LD-4)."""
    window, found = load(b""), []
    for messages, size in (
        (20, 60_000),
        (5, 10_000),
        (19, 50_000),
        (5, 10_000),
        (18, 50_000),
        (19, 60_000),
        (5, 9_000),
    ):
        step = called()._replace(messages=messages, size=size)
        found.append(hits(streaks.thrash(state(window, step=step)), "thrash"))
        window.steps += 1
    assert found == [0, 1, 0, 2, 0, 0, 3]


def test_a_cut_before_the_last_one_by_the_clock_begins_again() -> None:
    """The clock of a shared store was set back (S-2)."""
    for back, expected in ((0.0, 2), (0.5, 1), (30.0, 1)):
        window = load(b"")
        streaks.cut(window, called(), 100.0)
        assert hits(streaks.cut(window, called(), 100.0 - back), "thrash") == expected


def test_each_change_halves_what_cuts_have_counted() -> None:
    """So that cuts after changes never add up to two (LD-4)."""
    window, found = load(b""), []
    for _ in range(4):
        streaks.add_change(window)
        found.append(hits(streaks.cut(window, called(), 0.0), "thrash"))
    assert found == [1, 1.5, 1.75, 1.875]


def test_one_new_result_is_not_work() -> None:
    """Two are, and who has done it reads again after a cut (LD-4)."""
    for results, epochs in ((1, 0), (2, 1)):
        window = load(b"")
        window.messages = 60
        for _ in range(results):
            streaks.add_result(window)
        streaks.cut(window, called()._replace(messages=3), 0.0)
        assert window.epoch == epochs
