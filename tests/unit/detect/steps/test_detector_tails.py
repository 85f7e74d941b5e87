"""Which requests are the same step again, and which belong to another conversation (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps import window as window_module
from breakloop.detect.steps.detector import RequestContext, StepEvaluator
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import CALL, SessionWindow, load
from breakloop.model.call import Answer, Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, called, digest, spoken

DETECTOR = StepEvaluator(StepsSettings(), digest)
UNNAMED = RequestContext(unnamed=True)


def evaluate(steps: list[Step], context: RequestContext = RequestContext()) -> list[Evaluation]:  # noqa: B008 - frozen
    data, judged = b"", []
    for number, step in enumerate(steps):
        judged.append(DETECTOR.evaluate(data, step, 1000.0 + 2 * number, context))
        data = judged[-1].window
    return judged


def after(steps: list[Step], context: RequestContext = RequestContext()) -> SessionWindow:  # noqa: B008 - frozen
    return load(evaluate(steps, context)[-1].window)


def asked(*ids: str, text: str = LONG, messages: int = 2) -> Step:
    """A call for each id, with its result."""
    calls, results = (ToolCall("look", "{}"),) * len(ids), tuple([Result(text, call_id=one) for one in ids])
    return Step("", calls, ids, results, (), (), messages, 100)


@pytest.mark.parametrize(
    ("ids", "again", "same"),
    [
        (("call_000",), ("call_000",), True),  # eight characters
        (("call_00",), ("call_00",), False),  # a number that is the same in each conversation
        (("call_000", "call_111"), ("call_000", "call_111"), True),
        (("call_000", "call_111"), ("call_000", "call_222"), False),
        (("call_000", "call_111"), ("call_333", "call_111"), False),
        (("call_000", "call_1"), ("call_000", "call_1"), False),  # the shortest decides
        (("call_0", "call_1"), ("call_0", "call_1"), False),
    ],
)
def test_ids_of_calls_tell_steps_apart(ids: tuple[str, ...], again: tuple[str, ...], same: bool) -> None:
    """If they are long enough to be random; else what a step contains does (LD-4)."""
    window = after([asked(*ids), asked(*again, text="Something else, " + LONG)])
    assert window.steps == (1 if same else 2)


def test_what_a_step_without_ids_contains() -> None:
    """Its position, its answer, its calls and results, and each text of the user (LD-4)."""
    one = called(said="I look.")._replace(users=("Go on.", "Be quick."))
    others = [
        one._replace(messages=4), one._replace(said="I look again."), one._replace(results=(Result("other"),)),
        one._replace(users=("Go on.",)), one._replace(users=("Go on.", "Be slow.")), one._replace(users=()),
        one._replace(calls=(ToolCall("look", '{"q": 1}'),)),
    ]  # fmt: skip
    assert after([one, one]).steps == 1
    assert [after([one, other]).steps for other in others] == [2] * len(others)


def test_short_ids_of_results_without_their_calls() -> None:
    """Such results are told apart by their ids, too; beside calls, ids that are counted are not compared (LD-4)."""
    results = [Step("", (), (), (Result(LONG, call_id=one),), (), (), 2, 100) for one in ("1", "2", "1")]
    assert after(results).steps == 2
    assert after([asked("1"), asked("2")]).steps == 1


def test_a_conversation_that_begins_again_has_an_empty_window() -> None:
    """Without a name, nothing of the run before it is left, and the pause between them does not matter (C25)."""
    opening = Step("", (), (), (), ("Check the queue, and tell me what is in it.",), (), 1, 100)
    data = evaluate([opening, *[called()._replace(messages=2 * at + 3) for at in range(5)]], UNNAMED)[-1].window
    fresh = DETECTOR.evaluate(b"", opening, 1100.0, UNNAMED)
    assert DETECTOR.evaluate(data, opening, 1100.0, UNNAMED) == fresh
    assert load(DETECTOR.evaluate(data, opening, 1100.0).window).steps == 6, "a named one goes on"


def poll(number: int, messages: int, call_id: str = "") -> Step:
    made = call_id or f"call_{number:06}"
    return asked(made, messages=messages, text=f"{LONG} {number}")


@pytest.mark.parametrize(
    ("messages", "body", "foreign"),
    [
        (7, b"", False),  # it has grown
        (6, b"", True),
        (6, b"call_000001", False),  # it shows the last call, as its first bytes
        (6, b"[call_000001, call_000002]", False),
        (6, b"call_000002", True),
        (2, b"", True),
        (1, b"", False),  # one message shows nothing
    ],
)
def test_a_conversation_that_has_not_grown(messages: int, body: bytes, foreign: bool) -> None:
    """It is another one that opened alike, unless it shows the last call (LD-4)."""
    data = evaluate([poll(0, 4), poll(1, 6)], UNNAMED)[-1].window
    context = RequestContext(unnamed=True, body=body)
    window = load(DETECTOR.evaluate(data, poll(2, messages), 1010.0, context).window)
    assert window.ambiguous_at == (1010.0 if foreign else 0)
    named = RequestContext(body=body)
    assert load(DETECTOR.evaluate(data, poll(2, messages), 1010.0, named).window).ambiguous_at == 0


@pytest.mark.parametrize(("length", "kept"), [(7, False), (8, True), (48, True), (49, False)])
def test_which_ids_show_a_conversation(length: int, kept: bool) -> None:
    """Those that are long enough to be random, and short enough to be kept: of the first call (LD-4)."""
    first, second = "a" * length, "b" * 20
    step = asked(first, second)
    assert after([step], UNNAMED).last_id == (first.encode() if kept else b"")
    assert after([step]).last_id == b"", "a named session needs none"
    assert after([step, spoken("Done.", "Thank you.")._replace(messages=6)], UNNAMED).last_id == b""


def test_a_step_of_another_conversation_counts_a_quarter() -> None:
    """A look counts no more than that either (LD-4)."""
    for name, text in (("look", LONG), ("get_job_status", "running")):
        data = b""
        for number in range(3):
            step = called(name=name, text=text)._replace(messages=3, call_ids=(f"call_{number:06}",))
            data = DETECTOR.evaluate(data, step, 1000.0 + number, UNNAMED).window
        window = load(data)
        assert window.ambiguous_at == 1002.0
        assert window.dry <= 0.25


def test_openings_that_other_conversations_interrupt() -> None:
    """Many people may open a conversation alike; a step in the middle of one is sent again by its own client (LD-4)."""
    interrupted = RequestContext(unnamed=True, interrupted=True)
    opening = Step("", (), (), (), ("Check the queue.",), (), 1, 100)
    for first, context, level, storm in (
        (opening, interrupted, 0, 0), (opening, UNNAMED, 2, 11), (called(), interrupted, 2, 11),
    ):  # fmt: skip
        judged = evaluate([first] * 12, context)
        assert (judged[-1].level, load(judged[-1].window).storm) == (level, storm)
    tracked = RequestContext(tracked=True, unnamed=True)
    data = evaluate([opening] * 3, tracked)[-1].window
    assert load(data).pending_repeats == 2
    assert load(DETECTOR.evaluate(data, opening, 1010.0, interrupted).window).pending_repeats == 0


def stored(*, continues: str | None = None, opens: bool = False) -> Step:
    """A step of a conversation that the provider keeps."""
    step = spoken("", "Sort the orders.") if opens else called()
    return step._replace(stored=True, continues=continues)


def test_which_answers_are_kept() -> None:
    """Those that the next request may leave out: after an opening, or where the client left out one before (LD-4)."""
    opens, shows = stored(opens=True), stored()
    left_out = Step("", (), (), (Result(LONG, call_id="call_000001"),), (), (), 1, 100, continues="x", stored=True)
    for steps, keeps in (
        ([opens], 1), ([shows], 0), ([opens, shows], 0), ([left_out], 2), ([opens, left_out], 2), ([left_out, shows], 1),
        ([left_out, shows, shows._replace(messages=4)], 0), ([opens._replace(stored=False)], 0),
        ([left_out._replace(stored=False)], 0), ([left_out._replace(continues="")], 2),
    ):  # fmt: skip
        assert after(steps).keeps_answers == keeps, steps
    for part in ({"said": "I look."}, {"calls": shows.calls}, {"results": shows.results}):
        assert after([opens._replace(**part)]).keeps_answers == 0, part


def test_answers_of_several_kinds() -> None:
    """Their text, and what they hand to another agent, is known afterwards; what is empty changes nothing (LD-4)."""
    data = evaluate([called()])[-1].window
    task = "Please look into the orders of the last week."
    ask = (ToolCall("ask_agent", f'{{"task": "{task}"}}'),)
    read = (ToolCall("read_file", f'{{"task": "{task}"}}'),)
    field = f'{{"next": "helper", "task": "{task}"}}'

    def is_new(answer: Answer) -> bool:
        heard = DETECTOR.answered(data, answer._replace(complete=True))
        window = load(DETECTOR.evaluate(heard, spoken("", task)._replace(messages=5), 1003.0).window)
        return window.last_new_step == 1

    assert is_new(Answer(200, "I shall see to it."))
    assert not is_new(Answer(200, task))
    assert not is_new(Answer(200, field))
    assert not is_new(Answer(200, "I ask somebody.", ask))
    assert not is_new(Answer(200, "", ask))
    assert is_new(Answer(200, "", read))
    assert is_new(Answer(500, task))
    assert DETECTOR.answered(data, Answer(200, "", read)) is data


def test_the_bytes_of_a_step_in_the_middle_of_two_others() -> None:
    """They are no step that was counted (LD-4)."""
    tail = after([called()]).tail
    for at, steps in ((0, 9), (4, 10), (8, 9), (12, 10)):
        window = load(b"")
        window.steps, window.last_at = 9, 999.0
        window.tails[at : at + 8] = tail
        assert load(DETECTOR.evaluate(window.dump(), called(), 1000.0).window).steps == steps


def test_a_session_that_goes_on_is_not_unpacked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its answers are evaluated or not (Q-1)."""
    unpacked: list[bytes] = []

    def count(data: bytes) -> SessionWindow:
        unpacked.append(data)
        return load(data)

    monkeypatch.setattr(window_module, "load", count)
    detector, data = StepEvaluator(StepsSettings(), digest), b""
    for number in range(6):
        data = detector.evaluate(data, called()._replace(messages=2 * number), 1000.0 + number).window
        if number > 2:
            data = detector.answered(data, Answer(200, f"This is answer {number}.", complete=True))
    assert unpacked == [b""]


@pytest.mark.parametrize(
    ("arguments", "messages", "users", "repeats"),
    [
        ("{}", 6, "Item 2, please.", 0),  # shown again before the next item
        ("{}", 5, "Item 2, please.", 0),
        ("{}", 7, "Item 2, please.", 1),  # the conversation has grown: made again
        ("{}", 7, "", 1),
        ("{}", 5, "", 1),
        ('{"q": 1}', 6, "Item 2, please.", 0),
    ],
)
def test_calls_that_are_shown_again(arguments: str, messages: int, users: str, repeats: float) -> None:
    """Examples before each item of a batch: the same calls at the same position, and only the user's text is new (LD-4)."""
    first = called()._replace(messages=6, users=("Item 1, please.",))
    second = called(arguments)._replace(messages=messages, users=(users,) if users else ())
    window = after([first, second])
    rows = [row[4] for row in CALL.iter_unpack(window.calls)]
    assert rows == ([0.0, 0.0] if arguments != "{}" else [repeats])
    assert window.steps == 2


@pytest.mark.parametrize(
    "step",
    [
        called('{"q": 1}')._replace(results=(), messages=4),  # the result is elsewhere
        called('{"q": 1}')._replace(calls=(), messages=4),  # the call is elsewhere
        spoken("I am looking.")._replace(messages=4),
    ],
)
def test_what_does_not_begin_a_conversation(step: Step) -> None:
    """An answer, a call or a result: without a name, the run goes on with it (LD-4)."""
    assert after([called()._replace(messages=2), step], UNNAMED).steps == 2


def test_an_answer_that_was_not_kept_is_no_other_conversation() -> None:
    """Nothing shows that two conversations share a derived session then (C-7)."""
    context = RequestContext(tracked=True, session="derived:ab12")
    data = DETECTOR.evaluate(b"", stored(opens=True), 1000.0, context).window
    data = DETECTOR.answered(data, Answer(200, "Sorted.", response_id="resp_1", complete=True))
    for number, continues in enumerate(("resp_1", "resp_x")):
        step = Step("", (), (), (), (f"Now the rest, {number}.",), (), 1, 100, continues=continues, stored=True)
        assert load(DETECTOR.evaluate(data, step, 1001.0, context).window).ambiguous_at == 0
