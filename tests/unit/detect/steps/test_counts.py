"""What each kind counts, step by step, as the evaluator reports it: resets, halvings, weights and bounds (LD-4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import NEVER, NORMAL, StepsSettings
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, digest

NEWS = "Leave that. Read the deployment logs of yesterday, which are in the folder of the server."
AGREED = "I have done all of it."


def evaluator(kind: str, tools: dict[str, ToolOptions] | None = None) -> StepEvaluator:
    """Reports one kind, whatever its count."""
    never = (NEVER, NEVER, NEVER)
    thresholds = {name: (0.01, 900.0, 1000.0) if name == kind else never for name in NORMAL}
    return StepEvaluator(StepsSettings(thresholds, tools or {}), digest)


def call(
    name: str = "look", arguments: object = "{}", text: str = LONG, *, error: bool = False, users: tuple[str, ...] = ()
) -> Step:
    return Step("", (ToolCall(name, f"{arguments}"),), (), (Result(text, error),), users, (), 0, 100)


def say(said: str, *users: str) -> Step:
    return Step(said, (), (), (), users, (), 0, 100)


def counts(
    kind: str, steps: Sequence[Step], every_s: float = 3.0, tools: dict[str, ToolOptions] | None = None
) -> list[float]:
    """The count after each step of a conversation that grows."""
    return [one.hits for one in judged(kind, steps, every_s, tools)]


def judged(
    kind: str, steps: Sequence[Step], every_s: float = 3.0, tools: dict[str, ToolOptions] | None = None
) -> list[Evaluation]:
    judge, window, found = evaluator(kind, tools), b"", []
    for number, one in enumerate(steps):
        ids = tuple([f"call_{number:08}_{at}" for at in range(len(one.calls))])
        results = tuple([result._replace(call_id=by) for result, by in zip(one.results, ids, strict=False)])
        step = one._replace(call_ids=ids, results=results or one.results, messages=one.messages or 2 * number + 1)
        found.append(judge.evaluate(window, step, 1000.0 + number * every_s))
        assert found[-1].kind in ("", kind)
        window = found[-1].window
    return found


PERSON = say("It fails.", NEWS)
OTHER_TASK = say("", NEWS)
EDITED = call("edit_file", '{"n": 1}', "ok")
READ = call("read", '{"n": 1}', "The third chapter is about rivers, lakes and what lives in them, page after page.")
NOISY = [call(text=f"nothing to do at 12:00:{at:02}") for at in range(40)]
NUMBERED = [call(arguments=f'{{"page": {at}}}') for at in range(40)]
FAILED = call(error=True)
UNKNOWN = call(text="no such tool: look", error=True)
MAIL = call("send_email", '{"to": "a"}', "sent")
DONE = say(AGREED, "And now?")
WRONG = say(AGREED, "This is not what I asked for.")
SORT = say("Please sort the long list of orders again by their number.", "What is it?")


def edits(number: int) -> list[Step]:
    return [call("edit_file", at, "ok") for at in range(number)]


def others(number: int) -> list[Step]:
    """Calls that return something new."""
    words = [f"chapter{at} is about rivers{at} and lakes{at}, and about what lives in them{at}" for at in range(number)]
    return [call("read", at, text) for at, text in enumerate(words)]


TURNS = [call(arguments=at) for at in (1, 2, 3) * 4]
ERRORS = [call(arguments=at, error=True) for at in (1, 2) * 6]
AFTER = (PERSON, OTHER_TASK, EDITED, READ)
LOOPS: dict[str, tuple[list[Step], str, tuple[str, str, str, str]]] = {
    # Steps and their counts; then the counts of the same steps after new text of a person, after another task, after a
    # change, and after a result that is new, beginning with that step.
    "repeat": ([call()] * 6, "0 2 3 4 5 6", ("0 0 2 3 4 5 6",) * 4),
    "interleaved": ([call()] * 6, "0 2 3 4 5 6", (*("0 0 2 3 4 5 6",) * 3, "0 7 8 9 10 11 12")),
    "failure": ([FAILED] * 6, "0 2 3 4 5 6", (*("0 0 2 3 4 5 6",) * 3, "0 7 8 9 10 11 12")),
    "cycle": (TURNS, "0 0 0 0 0 2 2 2 3 3 3 4", ("0 0 0 0 0 0 2 2 2 3 3 3 4",) * 4),
    "unknown_tool": ([UNKNOWN] * 6, "1 2 3 4 5 6", ("0 1 2 3 4 5 6",) * 4),
    "near": (NUMBERED[:8], "0 0 0 4 5 6 7 8", ("0 0 0 0 0 0 0 0 0",) * 4),
    "cascade": (
        ERRORS,
        "0 0 0 0 5 6 7 8 9 10 10 10",
        (*("0 0 2 3 4 5 6 7 8 9 10 10 10",) * 2, *("0 9 9 9 9 9 9 9 9 9 10 10 10",) * 2),
    ),
    "unmoved": ([FAILED] * 6, "0 1 2 3 4 5", (*("0 1 2 3 4 5 6",) * 2, *("0 6 7 8 9 10 11",) * 2)),
    "monologue": ([DONE] * 6, "0 2 3 4 5 6", ("0 2 3 4 5 6 7",) * 4),
    "continue": ([DONE] * 6, "0 2 3 4 5 6", ("0 0 2 3 4 5 6",) * 4),
    "rejected": (
        [WRONG] * 6,
        "1 2 3 4 5 6",
        ("1 7 8 9 10 11 12", "0 1 2 3 4 5 6", *("0 7 8 9 10 11 12",) * 2),
    ),
    "side_effect": ([MAIL] * 6, "0 2 3 4 5 6", (*("0 0 2 3 4 5 6",) * 2, *("0 7 8 9 10 11 12",) * 2)),
    "stagnation": (
        NUMBERED[:6],
        "0 2 3 4 5 6",
        (*("0 7 8 9 10 11 12",) * 2, "0 4.5 5.5 6.5 7.5 8.5 9.5", "0 7 8 9 10 11 12"),
    ),
    "dry": (NUMBERED[:6], "0 1 2 3 4 5", ("0 0 0 0 0 0 0",) * 4),
    "drift": (NOISY[:6], "0 0 3 4 5 6", (*("0 0 2 3 4 5 6",) * 3, "0 7 8 9 10 11 12")),
    "reword": ([SORT] * 8, "0 0 0 4 5 6 7 8", ("0 9 10 11 12 13 13 13 13",) * 4),
}


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split()]


@pytest.mark.parametrize("kind", LOOPS)
def test_the_same_steps_before_and_after_something_else(kind: str) -> None:
    """New text of a person, another task, a change and a new result end some counts, and not others (LD-4)."""
    steps, plain, after = LOOPS[kind]
    assert counts(kind, steps) == numbers(plain)
    for between, expected in zip(AFTER, after, strict=True):
        assert counts(kind, [*steps, between, *steps]) == numbers(f"{plain} {expected}")


@pytest.mark.parametrize(
    ("kind", "half", "quarter"),
    [
        ("repeat", "0 1 1.5 2 2.5 3", "0 0.5 0.75 1 1.25 1.5"),
        ("interleaved", "0 1 1.5 2 2.5 3", "0 0.5 0.75 1 1.25 1.5"),
        ("failure", "0 1 1.5 2 2.5 3", "0 0.5 0.75 1 1.25 1.5"),
        ("cycle", "0 0 0 0 0 0 0 0 1 1 1 2", "0 0 0 0 0 0 0 0 0 0 0 0"),
        ("unknown_tool", "1 1.5 2 2.5 3 3.5", "1 1.25 1.5 1.75 2 2.25"),
        ("near", "0 0 0 2 2.5 3 3.5 4", "0 0 0 1 1.25 1.5 1.75 2"),
        ("cascade", "0 0 0 0 0 0 7 8 9 10 10 10", "0 0 0 0 0 0 0 0 0 0 10 10"),
        ("unmoved", "0 0.5 1 1.5 2 2.5", "0 0.25 0.5 0.75 1 1.25"),
        ("monologue", "0 1 1.5 2 2.5 3", "0 0.5 0.75 1 1.25 1.5"),
        ("continue", "0 1.5 2 2.5 3 3.5", "0 1.25 1.5 1.75 2 2.25"),
        ("rejected", "1 1.5 2 2.5 3 3.5", "1 1.25 1.5 1.75 2 2.25"),
        ("side_effect", "0 2 3 4 5 6", "0 2 3 4 5 6"),
        ("stagnation", "0 1 1.5 2 2.5 3", "0 0.5 0.75 1 1.25 1.5"),
        ("dry", "0 0.5 1 1.5 2 2.5", "0 0.25 0.5 0.75 1 1.25"),
        ("drift", "0 0 1.5 2 2.5 3", "0 0 0.75 1 1.25 1.5"),
    ],
)
def test_slow_repeats_count_less(kind: str, half: str, quarter: str) -> None:
    """Half from 20 s on, a quarter from a minute on, up to ten minutes; effects count whenever they come (LD-4)."""
    steps, plain, _ = LOOPS[kind]
    for every_s, expected in ((19.9, plain), (20.0, half), (59.9, half), (60.0, quarter), (599.0, quarter)):
        assert counts(kind, steps, every_s) == numbers(expected), every_s


def together(*steps: Step) -> Step:
    """The calls of one answer."""
    calls, results = [one.calls[0] for one in steps], [result for one in steps for result in one.results]
    return Step("", tuple(calls), (), tuple(results), (), (), 0, 100)


def hidden(step: Step) -> Step:
    """A call whose result is not in the request."""
    return step._replace(results=())


LOOK, OTHER = call(), call(text=LONG[::-1])
CLOSED = call(text="cannot open the file: it is locked by someone", error=True)
SHORT = call(text="3 orders")
TOOLS = [call(f"tool{at}", 1, f"{one.results[0].text}, and some more") for at, one in enumerate(others(8))]
POSTED = call("post_message", '{"text": 1}', "posted")
MAILS = [call("send_email", at, "sent") for at in range(12)]


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("repeat", [LOOK, LOOK, OTHER, LOOK, LOOK, OTHER, OTHER], "0 2 0 0 2 0 2"),
        ("failure", [FAILED, CLOSED, FAILED, FAILED, CLOSED, CLOSED], "0 1.5 2 3 3.5 4.5"),
        ("failure", [FAILED, FAILED, LOOK, FAILED, FAILED], "0 2 0 0 2"),
        ("cycle", [call(arguments=at) for at in (1, 2, 1, 2, 1, 2, 9, 1, 2, 1, 2, 1, 2)], "0 0 0 0 0 3 0 0 0 0 0 0 3"),
        ("cycle", [call(arguments=at) for at in (1, 1, 2) * 4], "0 0 0 0 0 2 2 0 3 3 0 4"),
        ("unknown_tool", [together(UNKNOWN, UNKNOWN)] * 3, "1 2 3"),
        ("unknown_tool", [UNKNOWN, together(UNKNOWN, call("read")), UNKNOWN], "1 1 2"),
        ("unknown_tool", [UNKNOWN, hidden(LOOK), UNKNOWN, FAILED, UNKNOWN, LOOK, UNKNOWN], "1 0 2 0 3 0 1"),
        ("near", [*NUMBERED[:5], READ, *NUMBERED[5:11]], "0 0 0 4 5 0 0 0 0 4 5 6"),
        ("near", [*NUMBERED[:5], together(*NUMBERED[5:7]), *NUMBERED[7:12]], "0 0 0 4 5 0 0 0 0 5 6"),
        (
            "near",
            [*NUMBERED[:6], OTHER._replace(calls=NUMBERED[6].calls), *NUMBERED[7:10]],
            "0 0 0 4 5 6 0 4.5 5.5 6.5",
        ),
        ("near", [*NUMBERED[:6], call(arguments='{"q": 1}'), *NUMBERED[7:11]], "0 0 0 4 5 6 0 0 2 3 4"),
        ("cascade", [*ERRORS[:5], together(call("a", error=True), call("a", 2)), *ERRORS[:2]], "0 0 0 0 5 0 6 7"),
        ("cascade", [*ERRORS[:5], together(call("a", 2), call("a", error=True)), *ERRORS[:2]], "0 0 0 0 5 5 6 7"),
        ("cascade", [*ERRORS[:5], together(*[call("a", at, error=True) for at in (1, 2)])], "0 0 0 0 5 6"),
        ("cascade", [*ERRORS[:5], together(*[call(name, error=True) for name in "ab"])], "0 0 0 0 5 7"),
        ("cascade", [*ERRORS[:5], call(text="429 too many requests", error=True), *ERRORS[:2]], "0 0 0 0 5 0 6 7"),
        ("cascade", [*ERRORS[:5], SHORT, *ERRORS[:2]], "0 0 0 0 5 0 6 7"),
        ("cascade", [DONE, *ERRORS[:5], DONE, *ERRORS[:2]], "0 0 0 0 0 5 0 6 7"),
        ("stagnation", [call(name, 1) for name in ("look", "read", "look", "read", "find")], "0 3 5 7 9"),
        ("stagnation", [LOOK, *others(1), call("read", 9), call("find", 1)], "0 0 0 3"),
        ("stagnation", [together(call(arguments=at), call(arguments=-at)) for at in range(1, 5)], "0 2 3 4"),
        ("stagnation", [together(call("look", at), call("find", at)) for at in range(4)], "0 3 4 5"),
        ("stagnation", [*NUMBERED[:2], SHORT, NUMBERED[3]], "0 2 0 0"),
        ("stagnation", [*NUMBERED[:2], *TOOLS[:7], *NUMBERED[2:4]], "0 2 0 0 0 0 0 0 0 3 4"),
        ("stagnation", [*NUMBERED[:2], *TOOLS, *NUMBERED[2:4]], "0 2 0 0 0 0 0 0 0 0 0 2"),
        ("side_effect", [POSTED] * 5, "0 2 2 2 2"),
        ("side_effect", [POSTED, POSTED, EDITED, POSTED, POSTED], "0 2 0 0 2"),
        ("side_effect", [hidden(MAIL)] * 5, "0 1.5 2 2.5 3"),
        ("side_effect", [call("send_email", '{"action": "list"}', "sent")] * 3, "0 0 0"),
        ("side_effect", [MAIL, *MAILS[:8], MAIL], "0 0 0 0 0 0 0 0 0 2"),
        ("side_effect", [MAIL, *MAILS[:9], MAIL], "0 0 0 0 0 0 0 0 0 0 0"),
        ("side_effect", [together(MAIL, MAIL), together(MAIL, MAIL)], "2 3"),
    ],
)
def test_what_comes_between(kind: str, steps: list[Step], expected: str) -> None:
    """Other results, other calls, several calls of one answer, and calls whose results are not known (LD-4)."""
    assert counts(kind, steps) == numbers(expected)


@pytest.mark.parametrize(
    ("kind", "steps", "between", "counted"),
    [
        ("interleaved", [LOOK], 31, [2]),
        ("interleaved", [LOOK], 32, [0]),
        ("side_effect", [MAIL, MAIL], 15, [3, 4]),
        ("side_effect", [MAIL, MAIL], 16, [2, 3]),
    ],
)
def test_how_far_apart(kind: str, steps: list[Step], between: int, counted: list[float]) -> None:
    """The last 32 calls are known; an effect counts one less after 16 other steps (Y-2)."""
    assert counts(kind, [*steps, *others(between), *steps])[-len(steps) :] == counted


@pytest.mark.parametrize("period", [2, 3, 6, 16, 17])
def test_periods_of_cycles(period: int) -> None:
    """From 2 to 16 steps; at least six steps make a cycle (LD-4)."""
    found = counts("cycle", [call(arguments=at % period) for at in range(4 * period)])
    first = next((at for at, one in enumerate(found) if one), len(found))
    assert (first, found[-1]) == ((max(2 * period, 6) - 1, 4) if period < 17 else (68, 0))


@pytest.mark.parametrize("text", ["ok", "[]", "", "3 orders"])
def test_short_results(text: str) -> None:
    """What says nothing is only counted in a row (LD-4)."""
    one = call(text=text)
    assert counts("repeat", [one] * 4) == [0, 2, 3, 4]
    apart = counts("interleaved", [step for other in others(4) for step in (one, other)])
    assert apart == ([0, 0, 2, 0, 3, 0, 4, 0] if text == "3 orders" else [0] * 8)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("already sent", 0),
        ("this is a duplicate", 0),
        ('{"ok": false}', 0),
        ("error: no such address", 0),
        ("Created: the import fails", 2),
        ("queued, not yet sent", 2),
        ("sent " + "x" * 487 + " already", 0),  # of 500 bytes
        ("sent " + "x" * 488 + " already", 2),
    ],
)
def test_effects_that_were_refused(text: str, counted: float) -> None:
    """Nothing was done, unless the result opens with what was done (LD-4)."""
    again = MAIL._replace(results=(Result(text),))
    assert counts("side_effect", [MAIL, again, MAIL]) == [0, counted, 3 if counted else 2]


def test_limits_of_tools() -> None:
    """Each call beyond the limit of a run; new text of a person begins another run, and other effects push no count out
    (LD-4, Y-2)."""
    reads = [call("read", at) for at in range(5)]
    limited = {"read": ToolOptions(max_per_run=3)}
    assert counts("tool_limit", [*reads, PERSON, *reads], tools=limited) == [0, 0, 0, 2, 3, 0, 0, 0, 0, 2, 3]
    assert counts("tool_limit", [reads[0], *MAILS, *reads[:3]], tools=limited)[-3:] == [0, 0, 2]


def written(number: int, words: int) -> str:
    """A text with words that no other has."""
    return " ".join(f"word{number * words + at}" for at in range(words))


def alone(number: int, text: str) -> Step:
    """A result without the answer that asked for it."""
    return Step("", (), (), (Result(text, call_id=f"{number}"),), (), (), 0, 100)


def lines(new: int) -> str:
    """Five lines, of which so many are new."""
    old = [f"this is the old line {letter}" for letter in "abcde"[new:]]
    return "\n".join([*old, *[f"here is the new line {letter}" for letter in "abcde"[:new]]])


REFUSED = "This is not what I asked for."
BESIDE = [call("read", at, users=(REFUSED,)) for at in range(5)]
TASK = "Tell me which of the orders is the largest."
TRY = "That was not valid, try again: "
OLD = others(1)[0]
NEW_TEXTS = [f"Another text of the user, number {at}." for at in range(16)]
SPARSE = [step for pair in zip(BESIDE, others(4), strict=False) for step in pair]


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("monologue", [say(("I am done.", "It is finished.")[at % 2], "And now?") for at in range(6)], "0 0 2 3 4 5"),
        ("monologue", [say(f"Part {['one', 'two', 'three'][at % 3]}.", "And now?") for at in range(6)], "0 0 0 0 0 0"),
        ("monologue", [DONE, DONE, READ, DONE, DONE], "0 2 0 2 3"),
        ("continue", [DONE, DONE, say(AGREED, "Go on!"), say(AGREED, "Go on!"), DONE], "0 2 0 2 0"),
        ("continue", [say(written(at, 20), "And now?") for at in range(4)], "0 0 0 0"),
        ("continue", [DONE, DONE, say(written(1, 20), "And now?"), DONE, DONE], "0 2 0 3 4"),
        ("continue", [say(AGREED, *["Go on!"] * (at + 1)) for at in range(4)], "0 2 3 4"),
        ("rejected", [say(AGREED, *[REFUSED] * (at + 1)) for at in range(4)], "1 2 3 4"),
        ("rejected", [say(AGREED, *NEW_TEXTS[: at + 1]) for at in range(4)], "1 1 1 1"),
        ("rejected", [say(AGREED, *NEW_TEXTS[:2]), DONE, say(AGREED, *NEW_TEXTS[:3])], "1 0 2"),
        ("rejected", [say(AGREED, "x" * 19)] * 3, "0 0 0"),
        ("rejected", [say(AGREED, "x" * 20)] * 3, "1 2 3"),
        ("rejected", [say("", REFUSED), WRONG, WRONG, EDITED, WRONG, WRONG], "0 1 2 0 1 2"),
        ("rejected", [say("", REFUSED), WRONG, WRONG, READ, WRONG, WRONG], "0 1 2 0 3 4"),
        ("rejected", [say(written(at, 99), REFUSED) for at in range(4)], "0.5 1 1.5 2"),
        ("rejected", [say(written(at, 100), REFUSED) for at in range(4)], "0 0 0 0"),
        ("rejected", BESIDE, "1 1 1 1 1"),
        ("rejected", SPARSE, "1 0 2 0 3 0 4 0"),
        ("rejected", [call("bash", at, users=(REFUSED,)) for at in range(3)], "0 0 0"),
        ("rejected", [together(call("bash"), call("read"))._replace(users=(REFUSED,))] * 2, "1 1"),
        ("rejected", [together(call("read"), call("bash"))._replace(users=(REFUSED,))] * 2, "0 0"),
        ("rejected", [call(users=("<system-reminder> be kind",)), WRONG] * 2, "0 1 0 2"),
        ("nested", [say("", TRY * at + TASK) for at in range(5)], "0 1 2 3 4"),
        ("nested", [say("It is seven.", TRY * at + TASK) for at in range(5)], "0 1 2 3 4"),
        ("nested", [say("", TASK + " Once more!" * at) for at in range(5)], "0 0 1 2 3"),
        ("nested", [say("", f"{one}{TASK}") for one in ("", TRY, "No: " + TRY, "No: No: " + TRY)], "0 1 1 2"),
        ("nested", [say("", TRY * at + TASK) for at in (0, 1, 1, 2)], "0 1 0 2"),
        ("nested", [*[say("", TRY * at + TASK) for at in range(3)], OTHER_TASK, say("", TRY * 3 + TASK)], "0 1 2 0 0"),
        ("nested", [say("", "no: " * at + "x" * 19) for at in range(4)], "0 0 1 2"),
        ("nested", [say("", "no: " * at + "x" * 20) for at in range(4)], "0 1 2 3"),
        ("nested", [say("", TASK), call("read", users=(TRY + TASK,)), say("", TRY * 2 + TASK)], "0 0 1"),
        ("dry", [call(name, 1) for name in "abcde"], "0 1.4 2.8 4.2 5.6"),
        ("dry", [say("I think so, and you should agree.", "And now?")] * 4, "0 1 2 3"),
        ("dry", [say("I think so, and you should agree with me.", "And now?")] * 4, "0 1.5 3 4.5"),
        ("dry", [say(written(at, 20), "And now?") for at in range(4)], "0 0 0 0"),
        ("dry", [say(f"{written(at, 2)} alpha gamma", "And now?") for at in range(4)], "0 0 0 0"),
        ("dry", [say(f"{written(at, 2)} alpha beta1 gamma", "And now?") for at in range(4)], "0 1.1 2.2 3.3"),
        ("dry", [call(), OLD, *NUMBERED[:4], OLD._replace(calls=LOOK.calls), NUMBERED[4]], "0 0 1 2 3 4 0 4"),
        ("dry", [LOOK] * 4, "0 0 1 2"),
        ("dry", [call(arguments=at, text="ok") for at in range(4)], "0 0 0 0"),
        ("dry", [call(arguments=at, text="3 orders") for at in range(4)], "0 1 2 3"),
        ("dry", [call(arguments=at, text=f'no "{at}" in line {at}', error=True) for at in range(4)], "0 1 2 3"),
        ("dry", [hidden(call(arguments=at)) for at in range(4)], "0 0 0 0"),
        ("dry", [hidden(call(arguments=at, users=("And now?",))) for at in range(4)], "0 1 2 3"),
        ("dry", [*NUMBERED[:6], READ, NUMBERED[6]], "0 1 2 3 4 5 0 3.5"),
        ("dry", [call(text=lines(0)), call(arguments=1, text=lines(2))], "0 1"),
        ("dry", [call(text=lines(0)), call(arguments=1, text=lines(3))], "0 0"),
        ("dry", [alone(at, LONG) for at in range(5)], "0 0 1 2 3"),
        ("dry", [*[alone(at, LONG) for at in range(6)], alone(6, "ok"), alone(7, LONG)], "0 0 1 2 3 4 0 3"),
        ("dry", [*[alone(at, LONG) for at in range(6)], alone(6, lines(0)), alone(7, LONG)], "0 0 1 2 3 4 0 3"),
        ("dry", [call("todo_write", f'{{"todos": [{at}]}}', "ok") for at in range(4)], "0 1 2 3"),
        ("dry", [*NUMBERED[:4], call("a", 1, "no such thing", error=True), call("a", 2), LOOK], "0 1 2 3 0 0 2.15"),
    ],
)
def test_texts_and_what_is_new(kind: str, steps: list[Step], expected: str) -> None:
    """Answers, prompts, rejections, and turns without anything new (LD-4)."""
    assert counts(kind, steps) == pytest.approx(numbers(expected))


def test_rejections_that_are_minutes_apart() -> None:
    """They count half from two minutes on: there was time to work (LD-4)."""
    steps = [WRONG, *others(11), WRONG]
    assert (counts("rejected", steps, 9.9)[-1], counts("rejected", steps, 10.0)[-1]) == (2, 1.5)
    assert counts("rejected", [READ, WRONG, *others(6), WRONG], 17.0)[-1] == 2  # 119 s, from an odd second on


def test_sixteen_texts_are_known() -> None:
    """Of more, the rarest is forgotten, and of equals the least recent (Y-2)."""
    texts = [say(AGREED, text) for text in NEW_TEXTS]
    assert [counts("rejected", [WRONG, *texts[:number], WRONG])[-1] for number in (15, 16)] == [2, 1]
    assert counts("rejected", [WRONG, WRONG, *texts, WRONG])[-1] == 3
    assert counts("rejected", [WRONG, *texts[:15], WRONG, *texts[:15]])[-15:] == [2] * 15


def fails(text: str) -> Step:
    return call(text=text, error=True)


def made(number: object, text: str = LONG, *, error: bool = True) -> Step:
    return call("bash", f'{{"command": "make {number}"}}', text, error=error)


def tried(steps: Sequence[Step]) -> list[Step]:
    """Each step, and a change after it."""
    return [one for pair in zip(steps, edits(len(steps)), strict=True) for one in pair]


BROKEN = call(text="error: main.c has an undefined reference to parse_line")  # a result, and no error of the tool
PAPER = "the printer is out of paper again"
DRAFTS = [call("review", at, "Rejected: the text needs more work on its second half.") for at in range(3)]
REASONS = [
    call(f"tool{at}", 1, f"it has failed for the reason {'abcdefghijkl'[at] * 6}", error=True) for at in range(12)
]


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("unmoved", [BROKEN] * 4, "0 1 2 3"),
        ("unmoved", [BROKEN, BROKEN, BROKEN, SHORT, BROKEN, BROKEN], "0 1 2 0 1 2"),
        ("unmoved", [*[FAILED] * 4, fails(PAPER), *[FAILED] * 2], "0 1 2 3 0 2.5 3.5"),
        ("unmoved", [fails(f"cannot parse the file: line {at}") for at in range(4)], "0 1 2 3"),
        ("unmoved", [fails(f"{at} tests have failed in the folder") for at in range(4)], "0 0 0 0"),
        ("unmoved", [fails("abcdefghijk")] * 3, "0 0 0"),
        ("unmoved", [fails("abcdefghijkl")] * 3, "0 1 2"),
        ("unmoved", [FAILED, FAILED, fails("429 too many requests"), FAILED], "0 1 0 2"),
        ("unmoved", [together(FAILED, FAILED)] * 3, "0 1 2"),
        ("unmoved", [FAILED, FAILED, *REASONS[:11], FAILED], "0 1 0 0 0 0 0 0 0 0 0 0 0 2"),
        ("unmoved", [FAILED, FAILED, *REASONS, FAILED], "0 1 0 0 0 0 0 0 0 0 0 0 0 0 1"),
        ("stubborn", tried([made(at) for at in range(5)]), "0 0 1 0 2 0 3 0 4 0"),
        ("stubborn", [made(at) for at in range(5)], "0 0 0 0 0"),
        ("stubborn", tried([made(1), made(2), made(3, "fine", error=False), made(4), made(5)]), "0 0 1 0 0 0 1 0 2 0"),
        ("stubborn", tried([made(1), made(2), made(3), made(4, PAPER), made(5)]), "0 0 1 0 2 0 0 0 2 0"),
        ("stubborn", tried(DRAFTS), "0 0 1 0 2 0"),
        ("stubborn", tried([BROKEN._replace(calls=one.calls) for one in DRAFTS]), "0 0 0 0 0 0"),
        ("dry", [call("save_route", f'{{"steps": [{at}]}}', "ok") for at in range(4)], "0 0 0 0"),
        ("dry", tried([call("todo_write", f'{{"todos": [{at}]}}', "ok") for at in range(3)]), "0 0 0 0 0 0"),
    ],
)
def test_ends(kind: str, steps: list[Step], expected: str) -> None:
    """Errors and refusals that stay whatever is changed, and what ends or halves their counts (LD-4)."""
    assert counts(kind, steps) == numbers(expected)


STATUS = [call("get_job_status", '{"job": 7}', text) for text in ("running", "completed", "timeout")]
WAITS = {seconds: call("sleep", f'{{"seconds": {seconds}}}', "done") for seconds in (29, 30, 60)}
TERMINAL = call("write_stdin", '{"chars": ""}', "compiling")


@pytest.mark.parametrize(("size", "counted"), [(120, 0.45), (121, 3)])
def test_how_long_a_result_is_that_says_so(size: int, counted: float) -> None:
    """Of 120 bytes without white space (LD-4)."""
    text = f"running {'x' * (size - 7)}"
    assert counts("repeat", [call(text=text)] * 3, 15.0)[-1] == pytest.approx(counted, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "steps", "every_s", "expected"),
    [
        ("repeat", [STATUS[0]] * 3, 1.0, "0 1.121 1.682"),  # two looks, of 0.6 each, less the share of 30 s
        ("repeat", [STATUS[0]] * 3, 15.0, "0 0.3 0.45"),
        ("repeat", [STATUS[0]] * 3, 30.0, "0 0 0"),
        ("repeat", [call(text="running")] * 3, 15.0, "0 0.3 0.45"),
        ("repeat", [call(text=f"{LONG}; {LONG}; it is running")] * 3, 3.0, "0 2 3"),
        ("repeat", [SHORT._replace(results=(Result("running", media=("image:1",)),))] * 3, 3.0, "0 2 3"),
        ("repeat", [STATUS[1]] * 3, 59.0, "0 2 3"),
        ("repeat", [STATUS[1]] * 3, 60.0, "0 1 1.5"),
        ("repeat", [STATUS[2]] * 3, 3.0, "0 2 3"),
        ("repeat", [STATUS[2]] * 3, 25.0, "0 1 1.5"),
        ("repeat", [TERMINAL] * 3, 5.0, "0 0.3 0.45"),
        ("repeat", [TERMINAL] * 3, 9.0, "0 0.012 0.018"),
        ("repeat", [TERMINAL] * 3, 10.0, "0 0 0"),
        ("repeat", [WAITS[60]] * 3, 1.9, "0 1.2 1.8"),
        ("repeat", [WAITS[60]] * 3, 2.0, "0 0 0"),
        ("repeat", [call("edit_file", 1, "running")] * 3, 3.0, "0 2 3"),
        ("repeat", [call(text="rate limit exceeded")] * 3, 3.0, "0 0 0"),
        ("interleaved", [WAITS[60], STATUS[0]] * 3, 3.0, "0 0 0 0.1 0 0.15"),
        ("interleaved", [WAITS[60], STATUS[0]] * 3, 30.0, "0 0 0 0 0 0"),
        ("interleaved", [WAITS[29], LOOK] * 3, 5.0, "0 0 0 2 0 3"),
        ("interleaved", [WAITS[30], LOOK] * 3, 5.0, "0 0 0 0.1 0 0.15"),
        ("interleaved", [WAITS[29], LOOK] * 3, 29.9, "0 0 0 1 0 1.5"),
        ("interleaved", [WAITS[29], LOOK] * 3, 30.0, "0 0 0 0 0 0"),
        (
            "cascade",
            [*ERRORS[:8], *[STATUS[0]._replace(results=(Result("no", error=True),))] * 9],
            3.0,
            "0 0 0 0 5 6 7 8 9 10 10 10 10 10 10 10 10",
        ),
        ("cascade", [call("get_status", text="no", error=True)] * 9, 30.0, "0 0 0 0 0 0 0 0 0"),
        ("waiting", [STATUS[0]] * 11, 599.0, "0 0 0 0 0 0 0 1 1.25 1.25 1.5"),
        ("waiting", [WAITS[60]] * 11, 599.0, "0 0 0 0 0 0 0 1 1.25 1.25 1.5"),
        ("waiting", [*[STATUS[0]] * 8, STATUS[1], *[STATUS[0]] * 8], 599.0, "0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 1"),
        ("waiting", [*[STATUS[0]] * 8, READ, *[STATUS[0]] * 8], 599.0, "0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 1"),
    ],
)
def test_waits_and_looks(kind: str, steps: list[Step], every_s: float, expected: str) -> None:
    """Time decides what a look counts; what has ended counts like any repeat (LD-4)."""
    assert counts(kind, steps, every_s) == pytest.approx(numbers(expected), rel=1e-3)


def test_polls_that_a_policy_names() -> None:
    """A quarter of a repeat, less the share of 30 s (LD-4)."""
    found = counts("repeat", [LOOK] * 3, 15.0, {"look": ToolOptions(poll=True)})
    assert found == pytest.approx([0, 0.125, 0.1875])


@pytest.mark.parametrize(
    ("kind", "steps", "evidence"),
    [
        ("dry", [LOOK, READ, *NUMBERED[:4]], "nothing new for 4 turns"),
        ("repeat", [LOOK] * 4, "`look` returned the same 89 bytes 4 times in a row"),
        (
            "interleaved",
            [LOOK, READ, LOOK, LOOK],
            "`look` returned the same 89 bytes 3 times; last new result 2 calls ago",
        ),
        ("failure", [FAILED] * 3, "the same call of `look` failed 3 times"),
        ("cycle", [call(arguments=at) for at in (1, 2) * 4], "the same 2 steps in the same order 4 times"),
        ("unknown_tool", [UNKNOWN] * 3, "`look` is not among the tools; called 3 times"),
        ("near", NUMBERED[:5], "`look` called almost alike 5 times"),
        ("cascade", ERRORS[:6], "6 of the last 10 results were errors"),
        ("unmoved", [FAILED] * 3, "`look` ended the same way 2 times more, whatever was changed"),
        (
            "stubborn",
            tried([made(at) for at in range(3)])[:-1],
            "`bash` ended the same way 2 times more, with changes in between",
        ),
        ("monologue", [DONE] * 3, "the same answer 3 times, and nothing called"),
        ("continue", [DONE] * 3, "told the same 3 times, and nothing called"),
        ("rejected", [WRONG] * 3, "the same 29 characters came back 3 times"),
        (
            "side_effect",
            [MAIL] * 3,
            "`send_email` was called with the same arguments 3 times, and it was done each time",
        ),
        ("stagnation", NUMBERED[:3], "`look` returned the same 89 bytes, whatever was called"),
        ("drift", NOISY[:5], "`look` returned the same 5 times, but for times, ids or counters"),
        ("reword", [SORT] * 5, "5 of the last 13 texts say nearly the same"),
        ("nested", [say("", TRY * at + TASK) for at in range(4)], "each prompt contains the previous one, 3 times"),
    ],
)
def test_evidence(kind: str, steps: list[Step], evidence: str) -> None:
    """How often, and since when (LD-4)."""
    assert judged(kind, steps)[-1].evidence.endswith(evidence)


def sized(*sizes: int, steps: Sequence[Step] = NUMBERED) -> list[Step]:
    return [step._replace(size=size) for step, size in zip(steps, sizes, strict=False)]


def spread(apart: int) -> list[int]:
    """The size of a context that is cut every so many steps."""
    return ([5000] * (apart - 1) + [1000]) * 3


OLD_AND_NEW = [step for pair in zip(others(16)[::2], others(16)[1::2], NUMBERED, strict=False) for step in pair]
ONE_NEW = [step for pair in zip(NUMBERED[::2], others(8), NUMBERED[1::2], strict=False) for step in pair]
LINES = [f"{LONG} {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
TURNED = [call(arguments=at, text="\n".join(LINES[at:] + LINES[:at])) for at in range(20)]


@pytest.mark.parametrize(
    ("kind", "steps", "every_s", "expected"),
    [
        ("thrash", sized(*(4096, 1000) * 3), 3.0, "0 0 0 0 0 0"),
        ("thrash", sized(*(4097, 1000) * 3), 3.0, "0 1 0 2 0 3"),
        ("thrash", sized(*(5000, 2500) * 3), 3.0, "0 0 0 0 0 0"),
        ("thrash", sized(*(5000, 2499) * 3), 3.0, "0 1 0 2 0 3"),
        ("thrash", sized(*spread(6)), 3.0, "0 0 0 0 0 1 0 0 0 0 0 2 0 0 0 0 0 3"),
        ("thrash", sized(*spread(7)), 3.0, "0 0 0 0 0 0 1 0 0 0 0 0 0 1 0 0 0 0 0 0 1"),
        ("thrash", sized(*(5000, 1000) * 3), 300.0, "0 1 0 2 0 3"),
        ("thrash", sized(*(5000, 1000) * 3), 300.1, "0 1 0 1 0 1"),
        ("thrash", sized(*(65_536, 58_000) * 3), 3.0, "0 0 0 0 0 0"),
        ("thrash", sized(*(65_537, 58_000) * 7), 3.0, "0 1 0 2 0 3 0 4 0 5 0 5 0 5"),
        ("thrash", sized(*(70_000, 63_000) * 3), 3.0, "0 0 0 0 0 0"),
        ("thrash", sized(*(70_000, 62_999) * 3), 3.0, "0 1 0 2 0 3"),
        ("thrash", sized(*(5000, 5000, 1000) * 5, steps=OLD_AND_NEW), 3.0, "0 0 1 0 0 2 0 0 3 0 0 3.75 0 0 4.5"),
        ("thrash", sized(*(5000, 5000, 1000) * 5, steps=ONE_NEW), 3.0, "0 0 1 0 0 2 0 0 3 0 0 4 0 0 5"),
        ("thrash", sized(*(5000, 1000) * 4, steps=tried(NUMBERED[:4])[1:]), 3.0, "0 1 0 1.5 0 1.75 0"),
        ("thrash", sized(*(5000, 1000) * 3, steps=[alone(at, LONG) for at in range(6)]), 3.0, "0 0 0 0 0 0"),
        ("storm", [hidden(LOOK)] * 4, 1.0, "0 1 2 3"),
        ("storm", [hidden(LOOK)] * 4, 0.5, "0 0.5 1 1.5"),
        ("storm", [hidden(LOOK)] * 4, 6.0, "0 1 2 3"),
        ("storm", [hidden(LOOK)] * 4, 6.1, "0 0 0 0"),
        ("storm", [*[hidden(LOOK)] * 3, hidden(NUMBERED[2]), *[hidden(LOOK)] * 3], 1.0, "0 1 2 0 0 1 2"),
        ("storm", [*[hidden(LOOK)] * 3, LOOK, *[hidden(LOOK)] * 3], 1.0, "0 1 2 0 0 1 2"),
        ("novelty", TURNED[:9], 3.0, "0 0 0 0 1 2 3 4 5"),
        ("novelty", [*TURNED[:9], READ, *TURNED[9:16]], 3.0, "0 0 0 0 1 2 3 4 5 0 0 0 0 1 2 3 4"),
    ],
)
def test_cuts_storms_and_old_lines(kind: str, steps: list[Step], every_s: float, expected: str) -> None:
    """Contexts that are cut, calls that are made again at once, and results without new lines (LD-4)."""
    assert counts(kind, steps, every_s) == numbers(expected)


@pytest.mark.parametrize(("messages", "expected"), [(11, "0 1 0 2 0 3"), (12, "0 1 0 1 0 1")])
def test_a_context_that_is_as_long_as_before_in_one_step(messages: int, expected: str) -> None:
    """It was not cut: another conversation came in between (LD-4)."""
    steps = [(5000, 10), (1000, 5), *[(5000, messages), (1000, 5)] * 2]
    made = [step._replace(size=size, messages=count) for step, (size, count) in zip(NUMBERED, steps, strict=False)]
    assert counts("thrash", made) == numbers(expected)
