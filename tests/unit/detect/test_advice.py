"""What the model is told, by kind of loop."""

from __future__ import annotations

import pytest

from breakloop.detect.advice import ADVICE, GENERAL, POLL, Advice, advice_for, landing_note
from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps.detector import StepEvaluator, StepsDetector
from breakloop.detect.steps.kinds import BY_NAME, StepsSettings
from breakloop.model.call import ToolCall
from breakloop.policy.schema.loops import StepsLoop
from tests.builders import call
from tests.each import each
from tests.unit.detect.reading import CONFIG, STEP, Reader, digest


def test_each_kind_has_its_advice() -> None:
    """And nothing else has, but polls (LD-5)."""
    assert set(ADVICE) == {*BY_NAME, POLL, "tree"}
    assert advice_for("simhash", {}) is GENERAL


@each("text", [text for advice in (*ADVICE.values(), GENERAL) for text in advice])
def test_advice_is_short_and_plain(text: str) -> None:
    """Sentences in the imperative; what is repeated is named by the evidence (LD-5, Y-1)."""
    assert text[0].isupper()
    assert text.endswith(".")
    assert len(text) <= 100
    assert not set(text) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ,.:")


def test_advice_fits_what_is_repeated() -> None:
    """A poll is told to wait, a repeated failure to read the error, a repeated search to answer (LD-5)."""
    assert advice_for(POLL, {}).instead.startswith("Wait once, for as long as it takes")
    assert advice_for("waiting", {}) == advice_for(POLL, {})
    for kind in ("failure", "unmoved", "stubborn"):
        assert "ead the error again" in advice_for(kind, {}).instead
    for kind in ("stagnation", "novelty"):
        assert "Answer with what you have." in advice_for(kind, {}).instead


def test_the_note_of_a_landing() -> None:
    """Why, that tools are off, and what the answer is to contain (LD-10)."""
    assert landing_note("You wait.", ADVICE[POLL]) == (
        "You wait. For this turn, tools are switched off: give your final answer now, with what you have. "
        "Say what is still running, and when to look again."
    )


@pytest.mark.parametrize(
    ("kind", "calls", "advised"),
    [
        ("repeat", [("get_job_status", "{}")], POLL),
        ("interleaved", [("bash", '{"command":"sleep 30 && gh run view 7"}')], POLL),
        ("repeat", [("get_job_status", "{}"), ("read_file", "{}")], "repeat"),
        ("repeat", [("read_file", '{"path":"a"}')], "repeat"),
        ("repeat", [], "repeat"),
        ("failure", [("get_job_status", "{}")], "failure"),
    ],
)
def test_a_repeated_look_is_a_poll(kind: str, calls: list[tuple[str, str]], advised: str) -> None:
    """Whatever the kind is called: something goes on by itself (LD-5)."""
    step = STEP._replace(calls=tuple(ToolCall(*one) for one in calls))
    made = StepsDetector(CONFIG, Reader(step), StepEvaluator(StepsSettings(), digest))
    assert made._advised(call(), Evaluation(b"", 2, kind)) == advised


def test_a_bundle_may_say_it_in_its_own_words() -> None:
    """One sentence is what to do instead; with both, what to finish with as well (LD-5)."""
    block = StepsLoop.model_validate({
        "similarity": "steps", "advice": {"poll": "Use sleep.", "failure": {"finish": "Name the ticket."}},
    })  # fmt: skip
    assert block.advised() == {
        POLL: Advice("Use sleep.", ADVICE[POLL].finish),
        "failure": Advice(ADVICE["failure"].instead, "Name the ticket."),
    }
