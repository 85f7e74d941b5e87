"""Kinds that compare how calls end (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import ends
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import END, ENDS, SessionWindow, load
from breakloop.model.call import Step
from tests.each import each
from tests.unit.detect.steps.stepping import PRINTER, called, digest, hits, prints, spoken, state

WRONG = "AssertionError: expected four, got three"


def unmoved(window: SessionWindow, step: Step, weight: float = 1.0) -> float:
    return hits(ends.unmoved(state(window, prints(step), step=step, weight=weight)), "unmoved")


def stubborn(window: SessionWindow, step: Step, *, changed: bool = True) -> float:
    window.epoch += changed
    return hits(ends.stubborn(state(window, prints(step), step=step)), "stubborn")


def test_the_same_call_ends_the_same_way() -> None:
    """Whatever is changed in between; the count is how often the end came back (LD-4, C6)."""
    window = load(b"")
    found = []
    for _ in range(9):
        found.append(unmoved(window, called(text=WRONG, error=True)))
        unmoved(window, called(name="edit_file", text="edited"))
        window.epoch += 1
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert unmoved(window, called(text=WRONG, error=True), weight=0.25) == 8.25


def test_numbers_of_places_and_attempts_do_not_make_another_end() -> None:
    """Other numbers do: fewer failures are progress (LD-4)."""

    def last(*texts: str) -> float:
        window = load(b"")
        return [unmoved(window, called(text=one, error=True)) for one in texts][-1]

    assert last(*[f'File "app.py", line {at}: cannot parse the total' for at in range(4)]) == 3
    assert last(*[f"app.c:{at}:{at + 3}: total undeclared, attempt {at} in {at}.2 s" for at in range(4)]) == 3
    assert last(*[f"{9 - at} of 20 tests failed in the module of totals" for at in range(4)]) == 0


def test_an_end_that_is_new_halves() -> None:
    """Ends that came before count, whichever of them (LD-4)."""
    window = load(b"")
    texts = [WRONG] * 5 + ["TypeError: a number is needed here"] + [WRONG, "TypeError: a number is needed here"]
    assert [unmoved(window, called(text=one, error=True)) for one in texts] == [0, 1, 2, 3, 4, 0, 3, 4]


def test_success_resets() -> None:
    """A result that is no end is what the attempts were for (LD-4)."""
    window = load(b"")
    for _ in range(5):
        unmoved(window, called(text=WRONG, error=True))
    assert unmoved(window, called(text="12 passed")) == 0
    assert len(window.ends) == ENDS * END.size
    assert unmoved(window, called(text=WRONG, error=True)) == 1


REFUSED = (
    "Error: the branch is protected", "Output does not match the schema", "REVISE: needs a clearer structure",
    "patch rejected: hunk 2 does not apply", "Not yet convincing.", "[tool] failed to reach the host", "no such table: orders",
)  # fmt: skip
NOT_REFUSED = (
    "0 failed, 12 passed", "no errors in 14 files", "zero failures", "preview rendered: slide-3.png", "edited", "",
    "The report was sent, and an error was logged", "error " * 100,
)  # fmt: skip


@each("text", REFUSED)
def test_words_of_refusal(text: str) -> None:
    """They count at the beginning of a short result, with a few words before them (LD-4)."""
    window = load(b"")
    assert [unmoved(window, called(text=text)) for _ in range(3)] == [0, 1, 2]


@each("text", NOT_REFUSED)
def test_words_of_refusal_elsewhere(text: str) -> None:
    """Reports are full of them (LD-4)."""
    window = load(b"")
    assert [unmoved(window, called(text=text)) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "exit code: 1",
        "<returncode>1</returncode>\n<output>\n</output>",
        "Process exited with code 1\nOutput:",
        "(empty)",
    ],
)
def test_a_status_alone_is_no_end(text: str) -> None:
    """A search for a name that is gone ends with status 1, and so it should (LD-4)."""
    window = load(b"")
    step = called(name="bash", text=text, error=True)
    assert [unmoved(window, step) for _ in range(3)] == [0, 0, 0]
    assert [stubborn(window, step) for _ in range(3)] == [0, 0, 0]


def test_a_few_words_are_an_end() -> None:
    """Twelve letters besides the status tell something (LD-4)."""
    for text, ends_so in (("exit code 1: abcdef ghijk", False), ("exit code 1: abcdef ghijkl", True)):
        window = load(b"")
        found = [unmoved(window, called(name="bash", text=text, error=True)) for _ in range(2)]
        assert found == [0, ends_so], text


def test_a_rate_limit_is_no_end() -> None:
    """It asks to wait, not to do something else (LD-4)."""
    window = load(b"")
    step = called(name="run_search", text="Error: too many requests, please wait a moment", error=True)
    assert [unmoved(window, step) for _ in range(3)] == [0, 0, 0]
    assert [stubborn(window, step) for _ in range(3)] == [0, 0, 0]


def test_other_commands_with_the_same_error() -> None:
    """With changes in between, the same error of other commands counts too (LD-4)."""
    window = load(b"")
    steps = [called(f'{{"command": "python fix_{at}.py"}}', WRONG, name="bash", error=True) for at in range(5)]
    assert [stubborn(window, step) for step in steps] == [0, 1, 2, 3, 4]
    assert stubborn(window, called("{}", WRONG, name="bash", error=True), changed=False) == 4
    assert stubborn(window, called('{"command": "ls"}', "app.py", name="bash")) == 0
    assert stubborn(window, steps[0]) == 1


def test_a_sweep_changes_nothing_in_between() -> None:
    """Twenty items that are all missing are a result; a tool's refusal is no verdict (LD-4)."""
    window = load(b"")
    sweep = [
        called(f'{{"id": {at}}}', "Error: there is no such record", name="run_lookup", error=True) for at in range(20)
    ]
    assert max(stubborn(window, step, changed=False) for step in sweep) == 0
    checks = [
        called(f'{{"id": {at}}}', "Error: there is no such record", name="get_user", error=True) for at in range(20)
    ]
    assert max(stubborn(window, step) for step in checks) == 0


def test_a_verdict_that_does_not_change() -> None:
    """Another draft each time, and the critic says the same; another verdict halves, approval resets (LD-4)."""
    window = load(b"")

    def judged(at: int, text: str) -> float:
        return stubborn(window, called(f'{{"draft": "version {at}"}}', text, name="critique"))

    found = [judged(at, "REVISE: it needs more detail and a clearer structure.") for at in range(5)]
    assert found == [0, 1, 2, 3, 4]
    assert judged(5, "REVISE: the second part is too long.") == 0
    assert judged(6, "REVISE: it needs more detail and a clearer structure.") == 3
    assert judged(7, "APPROVED: a good read.") == 0
    assert judged(8, "REVISE: it needs more detail and a clearer structure.") == 1


def test_a_round_counts_each_call_once() -> None:
    """What is asked at once is asked before anybody can learn from it (LD-4, C16)."""
    window, one = load(b""), called(text=WRONG, error=True)
    both = one._replace(calls=one.calls * 2, results=one.results * 2)
    assert [unmoved(window, both) for _ in range(3)] == [0, 1, 2]
    hidden = one._replace(results=())
    assert unmoved(window, hidden) == 0


def test_ends_are_bounded() -> None:
    """The call that ended least recently is forgotten (LD-4)."""
    window = load(b"")
    for _ in range(3):
        unmoved(window, called(text=WRONG, error=True))
    for at in range(ENDS):
        unmoved(window, called(f'{{"q": {at}}}', WRONG, error=True))
    assert len(window.ends) == ENDS * END.size
    assert unmoved(window, called(text=WRONG, error=True)) == 1


def test_success_of_the_call_that_ended_least_recently() -> None:
    """It resets as any other (LD-4)."""
    window = load(b"")
    for _ in range(3):
        unmoved(window, called(text=WRONG, error=True))
    for at in range(ENDS - 1):
        unmoved(window, called(f'{{"q": {at}}}', WRONG, error=True))
    unmoved(window, called(text="12 passed"))
    assert unmoved(window, called(text=WRONG, error=True)) == 1


def test_new_text_of_the_user_resets() -> None:
    """A person has seen it (LD-4)."""
    evaluator, data = StepEvaluator(StepsSettings(), digest), b""
    for at in range(6):
        step = called(text=WRONG, error=True)._replace(messages=2 * at, call_ids=(f"call-number-{at}",))
        edit = called(f'{{"new": {at}}}', "edited", name="edit_file")._replace(call_ids=(f"edit-number-{at}",))
        data = evaluator.evaluate(data, step, 0.0).window
        data = evaluator.evaluate(data, edit, 0.0).window
    assert any(load(data).ends)
    data = evaluator.evaluate(
        data, spoken("I am stuck.", "Then leave the total alone and look at the rest."), 0.0
    ).window
    assert not any(load(data).ends)


def test_an_end_has_a_fingerprint_of_its_edges() -> None:
    """The totals of a report are at its end (LD-4)."""
    text = b"tests of the module\n" + b"." * 5000 + b"\n3 failed"
    assert ends.digest(PRINTER, text) != ends.digest(PRINTER, text.replace(b"3 failed", b"2 failed"))
