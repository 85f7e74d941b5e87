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


# What each kind is told to do, by the words that a model acts on, and what its final answer is to contain.
FITS = {
    POLL: ("Wait once", "still running"),
    "tool_limit": ("Do not call this tool again", "missing"),
    "side_effect": ("do not do it again", "what was done"),
    "repeat": ("Use the result you have", "missing"),
    "cycle": ("do the step that is missing", "which step is missing"),
    "failure": ("Read the error again", "which error"),
    "unknown_tool": ("Call only tools that are declared", "needed the tool for"),
    "interleaved": ("change what it depends on", "missing"),
    "drift": ("Only times, ids or counters differ", "missing"),
    "unmoved": ("look for its cause somewhere else", "what still fails"),
    "stubborn": ("what all your attempts have in common", "what still fails"),
    "stagnation": ("Answer with what you have", "did not find"),
    "nested": ("Send only what is new", "missing"),
    "continue": ("Take the next step, or say that you are done", "what is done"),
    "rejected": ("Do exactly what this message asks", "why you cannot"),
    "monologue": ("Do not say this again", "missing"),
    "storm": ("Send nothing before something has changed", "missing"),
    "cascade": ("correct what they have in common", "which error"),
    "reword": ("Do not ask for the same again", "missing"),
    "dry": ("Get new input from a tool or a person", "missing"),
    "novelty": ("These results add nothing new", "did not find"),
    "near": ("Try another way", "missing"),
    "thrash": ("Read less at a time", "missing"),
    "spawn": ("Do this task yourself", "missing"),
    "rerun": ("start it when there is something new to do", "nothing has changed"),
    "tree": ("Start no more agents", "missing"),
    "waiting": ("Wait once", "still running"),
}


@each("kind", sorted({*FITS, *ADVICE}))
def test_advice_fits_what_is_repeated(kind: str) -> None:
    """A poll is told to wait, a repeated failure to read the error, a repeated search to answer; no kind has the general
    advice, and no two have the same but those that wait (LD-5)."""
    instead, finish = FITS[kind]
    advice = advice_for(kind, {})
    assert instead in advice.instead
    assert finish in advice.finish
    assert advice.instead != GENERAL.instead
    assert [other for other, one in ADVICE.items() if one.instead == advice.instead] in ([kind], [POLL, "waiting"])
    own = Advice("Ask a person.", "Name the ticket.")
    assert advice_for(kind, {kind: own}) is own


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
