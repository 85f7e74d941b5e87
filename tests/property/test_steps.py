"""What must never change a verdict of the `steps` detector, and what may only lower it (LD-4)."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps import StepEvaluator, StepsSettings
from breakloop.model.call import Result, Step, ToolCall

DETECTOR = StepEvaluator(StepsSettings(), lambda data: blake2b(data, digest_size=8, key=b"test").digest())

ARGUMENTS: list[dict[str, Any]] = [
    {"path": "a", "page": 1},
    {"path": "b", "page": 1},
    {"q": "words", "deep": {"x": [1, 2], "y": None}},
    {},
]
RESULTS = [
    "one line of text that says something\nand another line of it",
    "a second result, which is of about the same length\nas the first one",
    "ok",
    "",
    "Error: no such file",
]
SAID = ["", "I will look at it once more.", "Let me try something else instead now."]

Choice = tuple[int, int, int, bool]  # arguments, result, said, failed
choices = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2), st.booleans())
runs = st.lists(choices, min_size=1, max_size=24)
patterns = st.builds(lambda lap, laps: lap * laps, st.lists(choices, min_size=1, max_size=4), st.integers(1, 8))
histories = st.one_of(runs, patterns)


def step(number: int, choice: Choice, *, by: str = "call_", spelling: str = "") -> Step:
    arguments, result, said, failed = choice
    made = json.dumps(ARGUMENTS[arguments]) if not spelling else spelled(ARGUMENTS[arguments], spelling)
    key = f"{by}{number:08}"
    text = RESULTS[result]
    return Step(
        SAID[said], (ToolCall("look", made),), (key,), (Result(text, failed, key),), (), ("look",), number * 2 + 1, 1000
    )


def spelled(value: dict[str, Any], spelling: str) -> str:
    """The same arguments with other key order and other white space."""
    turned = dict(reversed(value.items()))
    return spelling + json.dumps(turned, separators=(f",{spelling}", f"{spelling}:"), indent=2) + spelling


def judged(steps: list[Step]) -> list[Evaluation]:
    window, found = b"", []
    for number, one in enumerate(steps):
        found.append(DETECTOR.evaluate(window, one, 1000.0 + number))
        window = found[-1].window
        assert len(window) <= 6 * 1024
    return found


def verdicts(steps: list[Step]) -> list[tuple[object, ...]]:
    return [astuple(one)[1:] for one in judged(steps)]


@given(histories, st.sampled_from(["toolu_", "call-x-", "f47ac10b"]))
def test_renaming_ids_changes_nothing(history: list[Choice], by: str) -> None:
    """Call ids tell retries from steps, and nothing else (LD-4)."""
    plain = [step(number, choice) for number, choice in enumerate(history)]
    assert verdicts([step(number, choice, by=by) for number, choice in enumerate(history)]) == verdicts(plain)


@example([(0, 4, 0, True), (0, 4, 0, False), (0, 2, 0, False)] * 3, " ")  # drift
@given(histories, st.sampled_from([" ", "\n", "\t  "]))
def test_spelling_changes_nothing(history: list[Choice], spelling: str) -> None:
    """Neither the order of keys nor white space in arguments, results or words (LD-4)."""
    plain = [step(number, choice) for number, choice in enumerate(history)]
    other = [
        one._replace(
            said=one.said.replace(" ", f" {spelling}"),
            results=tuple(
                result._replace(text=f"{result.text.replace(' ', ' ' + spelling.replace(chr(10), ' '))}{spelling}")
                for result in one.results
            ),
        )
        for one in (step(number, choice, spelling=spelling) for number, choice in enumerate(history))
    ]
    assert [(one.level, one.kind, one.identity) for one in judged(other)] == [
        (one.level, one.kind, one.identity) for one in judged(plain)
    ]


@given(histories, st.integers(0, 1000))
def test_a_fresh_result_never_raises_the_level(history: list[Choice], salt: int) -> None:
    """The last step with a result never seen before is judged no harder than with the one it had (LD-4)."""
    steps = [step(number, choice) for number, choice in enumerate(history)]
    fresh = "\n".join(f"unheard-of line {salt}{letter * 9} in this result" for letter in "qwertz")
    last = steps[-1]
    better = last._replace(results=(Result(fresh, call_id=last.call_ids[0]),))
    assert judged([*steps[:-1], better])[-1].level <= judged(steps)[-1].level


@given(histories)
def test_a_retry_changes_nothing_that_follows(history: list[Choice]) -> None:
    """A tail is counted once (LD-4)."""
    steps = [step(number, choice) for number, choice in enumerate(history)]
    window = b""
    found = []
    for number, one in enumerate(steps):
        judgement = DETECTOR.evaluate(window, one, 1000.0 + number)
        found.append(astuple(judgement)[1:])
        window = DETECTOR.evaluate(judgement.window, one, 1000.0 + number).window
    assert found == verdicts(steps)


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40)), max_size=8))
@settings(max_examples=60)
def test_whatever_comes_is_judged(texts: list[tuple[str, str, str]]) -> None:
    """No text breaks it, and the window stays readable (LD-4)."""
    for one in judged(
        [
            Step(said, (ToolCall(said, result),), (), (Result(result),), (user,), (), number, 1)
            for number, (said, result, user) in enumerate(texts)
        ]
    ):
        assert one.level in range(4)
