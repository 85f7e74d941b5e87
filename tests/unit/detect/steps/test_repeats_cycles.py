"""Cycles (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import repeats
from breakloop.detect.steps.window import NONE, RING, SessionWindow, load
from breakloop.model.call import Step
from tests.unit.detect.steps.stepping import called, hits, prints, spoken, state


def walk(window: SessionWindow, names: str, weight: float = 1.0) -> list[float]:
    found = []
    for name in names:
        found.append(hits(list(repeats.find_cycle(window, name.encode() * 8, weight)), "cycle"))
        window.steps += 1
    return found


def test_laps() -> None:
    """Laps are counted when they are complete (LD-4)."""
    assert walk(load(b""), "abababab") == [0, 0, 0, 0, 0, 3, 3, 4]
    assert walk(load(b""), "abcabcabc")[-1] == 3


def test_one_step_again_and_again_is_no_cycle() -> None:
    """The smallest period wins, and a period of one is a repeat (LD-4)."""
    assert set(walk(load(b""), "a" * 12)) == {0}


def test_another_step_breaks_it() -> None:
    """A step out of order ends a cycle (LD-4)."""
    assert walk(load(b""), "ababXabab")[4:] == [0, 0, 0, 0, 0]


def test_slow_cycles_count_less() -> None:
    """Steps a minute apart count a quarter (LD-4)."""
    assert max(walk(load(b""), "ab" * 5, 0.25)) == 0


def test_the_longest_period() -> None:
    """Up to sixteen steps (LD-4)."""
    names = "abcdefghijklmnop"
    assert walk(load(b""), names * 3)[-1] == 3
    assert set(walk(load(b""), (names + "q") * 3)) == {0}


def test_a_step_that_is_not_known_ends_a_cycle() -> None:
    """It equals no other, and takes one place of the ring (LD-4)."""
    window = load(b"")
    walk(window, "ab" * 9)
    repeats.add_unknown_step(window)
    assert len(window.ring) == 8 * RING
    window.steps += 1
    assert repeats.last_step(window) == bytes(8)
    assert walk(window, "abab") == [0, 0, 0, 0]


def test_identity_is_the_same_from_each_rotation() -> None:
    """One cycle has one identity (LD-4)."""
    window = load(b"")
    walk(window, "abcabcab")
    keys = {next(iter(repeats.find_cycle(window, name.encode() * 8, 1.0))).key for name in "c" if not walk(window, "")}
    window.steps += 1
    keys |= {next(iter(repeats.find_cycle(window, b"a" * 8, 1.0))).key}
    assert keys == {b"a" * 8 + b"b" * 8 + b"c" * 8}


def test_forget() -> None:
    """A person's word begins anew (LD-4)."""
    window = load(b"")
    walk(window, "abababab")
    repeats.reset_cycles(window)
    assert window.cycle_counts == bytes(2 * RING)
    assert not repeats.is_repeated(window)
    assert set(walk(window, "ab")) == {0}


def test_a_step_of_which_nothing_is_known() -> None:
    """It ends a cycle, and is like no other (LD-4)."""
    window = load(b"")
    walk(window, "ababababab")
    repeats.add_unknown_step(window)
    window.steps += 1
    assert walk(window, "ab") == [0, 0]
    for _ in range(20):
        repeats.add_unknown_step(window)
        window.steps += 1
    assert walk(window, "a") == [0]


@pytest.mark.parametrize(
    ("names", "weight", "found"),
    [
        ("abab", 1.0, 0),  # four steps show nothing yet
        ("ababab", 1.0, 3),
        ("abcab", 1.0, 0),
        ("abcabc", 1.0, 2),
        ("abcdabcd", 1.0, 2),
        ("abababa", 0.5, 0),
        ("ababababab", 0.5, 2),  # eight steps that count half are two laps
    ],
)
def test_when_a_cycle_begins(names: str, weight: float, found: float) -> None:
    """After two laps, and six steps at least (LD-4)."""
    assert walk(load(b""), names, weight)[-1] == found


def test_a_new_step_ends_a_cycle_wherever_it_comes() -> None:
    """Also if the step after it is the one that was to come (LD-4)."""
    assert walk(load(b""), "abababXb")[-2:] == [0, 0]
    window = load(b"")
    walk(window, "ababab")
    repeats.add_unknown_step(window)
    window.steps += 1
    assert walk(window, "b") == [0]


@pytest.mark.parametrize("steps", [3, RING, RING + 5])
def test_the_last_step_again(steps: int) -> None:
    """It takes one place of the ring, wherever that is, and leaves the others as they are (LD-4)."""
    window = load(b"")
    names = "abcdefghijklmnopqrstuvwxyz"[:steps]
    walk(window, names)
    repeats.add_last_step(window)
    window.steps += 1
    assert len(window.ring) == 8 * RING
    assert repeats.last_step(window) == names[-1].encode() * 8
    window.steps -= 1
    assert repeats.last_step(window) == names[-1].encode() * 8
    window.steps -= 1
    assert repeats.last_step(window) == names[-2].encode() * 8


def cycle(
    window: SessionWindow, *steps: Step, tracked: bool = False, answers: tuple[bytes, ...] = (b"",)
) -> list[float]:
    """The count after each step, and after its answer if there are some."""
    found = []
    for step in steps:
        one = state(window, prints(step), step=step)
        one.tracked = tracked
        found.append(hits(repeats.cycle(one), "cycle"))
        window.last_answer = answers[window.steps % len(answers)] or NONE
        window.steps += 1
    return found


def test_texts_in_turns_are_a_cycle() -> None:
    """Answers without calls have no results to be compared (LD-4)."""
    assert cycle(load(b""), *[spoken(text) for text in ("yes", "no") * 3])[-1] == 3


def test_calls_whose_results_are_not_seen_are_a_cycle_by_their_answers() -> None:
    """They need an answer to be one, and somebody who reads answers (LD-4)."""
    steps = [called(f'{{"b": {number}}}')._replace(results=()) for number in (1, 2)] * 3
    seen = [steps[0]._replace(calls=steps[0].calls + called().calls, results=called().results), steps[1]] * 3
    assert cycle(load(b""), *steps, tracked=True, answers=(b"answered",))[-1] == 3
    assert cycle(load(b""), *steps, tracked=True)[-1] == 0
    assert cycle(load(b""), *steps, answers=(b"answered",))[-1] == 0
    ids = [one._replace(call_ids=("a", "b"), results=(one.results[0]._replace(call_id="b"),)) for one in (seen[0],)]
    assert cycle(load(b""), *[ids[0], called()] * 3)[-1] == 3  # one of the results is seen


def test_results_without_their_calls_end_a_cycle() -> None:
    """The provider keeps the conversation: what was called is not known (LD-4)."""
    window = load(b"")
    results = called()._replace(calls=())
    assert cycle(window, *[spoken(text) for text in ("yes", "no") * 9])[-1] == 9
    assert cycle(window, results) == [0]
    assert repeats.last_step(window) == NONE
    assert cycle(window, *[results] * 12) == [0] * 12
    assert cycle(window, *[spoken(text) for text in ("yes", "no")]) == [0, 0]
