"""Kinds that compare how calls end (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps import ends
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.findings import Finding
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import COUNT_MAX, END, ENDS, SessionWindow, load
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


def test_an_end_that_repeats_a_line() -> None:
    """Up to two thousand bytes, how often it does makes another end (LD-4)."""
    once, more = b"Error: retry\n" * 90, b"Error: retry\n" * 100
    assert ends.digest(PRINTER, once) != ends.digest(PRINTER, more)


@pytest.mark.parametrize(
    ("size", "at", "compared"),
    [
        (2000, 999, True), (2000, 1000, True),
        (2001, 999, True), (2001, 1000, False), (2001, 1001, True),
        (4000, 1000, False), (4000, 2999, False), (4000, 3000, True),
    ],
)  # fmt: skip
def test_a_long_end_is_compared_by_its_first_and_last_thousand_bytes(size: int, at: int, compared: bool) -> None:
    """What differs in between is another log of the same failure (LD-4)."""
    text = b"x" * size
    other = text[:at] + b"y" + text[at + 1 :]
    assert (ends.digest(PRINTER, text) != ends.digest(PRINTER, other)) is compared


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("1" * 400, False),
        ("1" * 401, True),  # too long for a status
        ("\u0440" * 6, True),  # twelve bytes of letters: other scripts have two and more for each
        ("\u0440" * 5 + "a", False),
        ("abcdefghijk\x7f", False),
        ("abcdefghijk[12]", False),
    ],
)
def test_what_tells_more_than_a_status(text: str, tells: bool) -> None:
    """Twelve letters in any script; digits, brackets and control characters are none (LD-4)."""
    assert (ends.digest(PRINTER, text.encode()) != b"") is tells


def together(*steps: Step) -> Step:
    """One step with the calls of all of them."""
    calls, results = [one.calls[0] for one in steps], [one.results[0] for one in steps]
    return steps[0]._replace(calls=tuple(calls), results=tuple(results))


LIMITED = called(name="run_search", text="Error: too many requests, please wait a moment", error=True)
FAILS = called('{"command": "make"}', WRONG, name="bash", error=True)


def test_calls_beside_others_that_are_no_ends() -> None:
    """A rate limit or a change does not hide the end of the call after it, nor a call without a result (LD-4)."""
    change = called('{"command": "rm old.py"}', "old.py: permission was denied to remove it", name="bash", error=True)
    for first in (LIMITED, change):
        window = load(b"")
        assert [stubborn(window, together(first, FAILS)) for _ in range(3)] == [0, 1, 2]
    window = load(b"")
    assert [unmoved(window, together(LIMITED, FAILS)) for _ in range(3)] == [0, 1, 2]
    half = FAILS._replace(calls=(*FAILS.calls, *called("{}", name="look").calls))
    window = load(b"")
    assert [unmoved(window, half) for _ in range(3)] == [0, 1, 2]


def test_a_change_that_fails_is_not_stubborn() -> None:
    """Only what is tried after a change counts, not the change itself (LD-4)."""
    window = load(b"")
    change = called('{"command": "rm old.py"}', WRONG, name="bash", error=True)
    assert [stubborn(window, change) for _ in range(3)] == [0, 0, 0]


def test_the_count_of_the_call_that_ended_least_recently_goes_on() -> None:
    """With twelve calls that end by turns, each has its count; with thirteen, none has (LD-4)."""
    for calls, found in ((12, 2), (13, 1)):
        window = load(b"")
        steps = [called(f'{{"q": {at}}}', WRONG, error=True) for at in range(calls)]
        laps = [[unmoved(window, step) for step in steps] for _ in range(3)]
        assert laps[2] == [found] * calls


def test_counts_of_ends_are_bounded() -> None:
    """They stay within what a window can store (LD-4)."""
    window, step = load(b""), called(text=WRONG, error=True)
    assert [unmoved(window, step, weight=600.0) for _ in range(3)] == [0, 600, COUNT_MAX]
    assert unmoved(window, step) == COUNT_MAX


def test_evidence_of_ends() -> None:
    """It names the tool and the number, and nothing of what was returned (Y-1)."""
    window, step = load(b""), called('{"command": "make"}', WRONG, name="bash", error=True)
    found: list[Finding] = []
    for _ in range(4):
        window.epoch += 1
        made = state(window, prints(step), step=step)
        found = [*ends.unmoved(made), *ends.stubborn(made)]
    assert [(one.kind, one.evidence) for one in found] == [
        ("unmoved", "`bash` ended the same way 3 times more, whatever was changed"),
        ("stubborn", "`bash` ended the same way 3 times more, with changes in between"),
    ]
    assert len({one.key for one in found}) == 2
