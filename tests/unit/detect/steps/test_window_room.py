"""What a window has room for: how long ago something may be to be counted as the same again (LD-4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakloop.detect.steps import effects, repeats, streaks, texts
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.findings import Finding, Novelty
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import CALL, SessionWindow, load, run_so_far
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, called, digest, hits, spoken, state

Count = Callable[[SessionWindow, int], float]


def call_again(window: SessionWindow, number: int) -> float:
    return hits(repeats.count_calls(state(window, step=called(f'{{"q": {number}}}'))), "interleaved")


def text_again(window: SessionWindow, number: int) -> float:
    step = spoken("Here it is.", f"This is text number {number} of the user.")
    found = hits(texts.rejected(state(window, step=step)), "rejected")
    return found if found > 1 else 0.0


def tool_again(window: SessionWindow, number: int) -> float:
    step = called("{}", f"{LONG} {number}", name=f"look_{number}")
    return hits(streaks.stagnation(state(window, step=step, novelty=Novelty(True, False, False))), "stagnation")


def effect_again(window: SessionWindow, number: int) -> float:
    step = called(f'{{"to": "person {number}"}}', "sent", name="send_email")
    return hits(effects.findings(state(window, step=step)), "side_effect")


@pytest.mark.parametrize(("count", "between"), [(call_again, 31), (text_again, 15), (tool_again, 7), (effect_again, 8)])
def test_how_many_others_may_come_in_between(count: Count, between: int) -> None:
    """With one more, what came first is forgotten, and is counted as new (LD-4)."""
    for others, again in ((between, 2), (between + 1, 0)):
        window = load(b"")
        for number in range(others + 1):
            assert count(window, number) == 0
            window.steps += 1
        assert count(window, 0) == again


@pytest.mark.parametrize(("period", "found"), [(2, True), (15, True), (16, True), (17, False)])
def test_the_longest_cycle(period: int, found: bool) -> None:
    """Up to sixteen steps (LD-4)."""
    window, laps = load(b""), list[Finding]()
    for number in range(5 * period):
        laps += repeats.find_cycle(window, digest(b"%d" % (number % period)), 1.0)
        window.steps += 1
    assert bool(laps) is found


@pytest.mark.parametrize(("others", "steps"), [(15, 16), (16, 18)])
def test_a_retry_after_other_steps(others: int, steps: int) -> None:
    """One of the last sixteen steps is not counted when it is sent again (LD-4)."""
    detector, window = StepEvaluator(StepsSettings(), digest), b""
    for number in (*range(others + 1), 0):
        call_id = f"call_{number:08}"
        made, got = ToolCall("look", f'{{"q": {number}}}'), Result(f"{LONG} {number}", call_id=call_id)
        step = Step("", (made,), (call_id,), (got,), (), (), 2 * number, 100)
        window = detector.evaluate(window, step, 1000.0 + number).window
    assert load(window).steps == steps


def test_the_words_of_a_text_that_are_compared() -> None:
    """Sixteen of them: texts that differ in the others are taken for the same (LD-4)."""
    assert [len(repeats.sample(range(words))) for words in (15, 16, 17)] == [15, 16, 16]


def test_evidence_is_cut_between_characters() -> None:
    """At 200 bytes, in whatever script a tool is named (LD-4)."""
    for name, size in (("\U0001f600" * 48, 200), ("x" + "\U0001f600" * 47, 200), ("look", 0)):
        detector, window = StepEvaluator(StepsSettings(), digest), b""
        for number in range(2):
            window = detector.evaluate(window, called(name=name)._replace(messages=2 * number), 1000.0).window
        judged = detector.evaluate(window, called(name=name)._replace(messages=4), 1000.0)
        assert judged.level == 1
        assert not size or len(judged.evidence.encode()) == size
        assert load(judged.window).evidence == judged.evidence.encode()


def test_what_a_run_has_done_so_far() -> None:
    """Stored windows contain these numbers: called 1, read 2, changed 4 (S-1)."""
    detector = StepEvaluator(StepsSettings(), digest)
    assert run_so_far(b"") == (0, 0, [])
    window, found = b"", []
    steps = [
        spoken("", "Please do the work."),
        called("{}", "", name="list_files"),
        called("{}", LONG, name="read_file"),
        called('{"new": 1}', "The file was written.", name="write_file"),
        spoken("Done.", "Now do the other work."),
        called('{"new": 2}', "The file was written.", name="write_file"),
    ]
    for number, step in enumerate(steps):
        window = detector.evaluate(window, step._replace(messages=2 * number, size=100 + number), 1000.0).window
        sent, work, results = run_so_far(window)
        found.append((sent, work, len(results)))
    assert found == [(100, 0, 0), (201, 1, 1), (303, 3, 2), (406, 7, 3), (104, 0, 3), (209, 5, 4)]
    rows = CALL.iter_unpack(load(window).calls)
    assert run_so_far(window)[2] == [result for _, result, *_ in rows]
