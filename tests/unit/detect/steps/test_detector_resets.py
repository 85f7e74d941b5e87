"""What resets the counts of a session, what a step weighs, and which counts a step is compared with (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import RUN_IDLE_S, Evaluation
from breakloop.detect.steps.detector import RequestContext, StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import NEVER, NORMAL, StepsSettings
from breakloop.detect.steps.window import (
    BYTES_MAX,
    CALL,
    COUNTS,
    EFFECT,
    END,
    ENDS,
    SKETCH_ROW,
    TEXT,
    TOOL,
    SessionWindow,
    load,
    run_so_far,
)
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, called, digest, spoken

DETECTOR = StepEvaluator(StepsSettings(), digest)
NEWS = "Leave that. Read the deployment logs of yesterday, which are in the folder of the server."


def run(
    steps: list[Step], detector: StepEvaluator = DETECTOR, every_s: float = 1.0, weight: float = 1.0, data: bytes = b""
) -> list[Evaluation]:
    """Evaluate steps of a conversation that grows, or begins again with one message."""
    judged: list[Evaluation] = []
    context = RequestContext(weight=weight)
    for number, step in enumerate(steps):
        grown = step if step.messages == 1 else step._replace(messages=2 * number + 1)
        judged.append(detector.evaluate(data, grown, 1000.0 + number * every_s, context))
        data = judged[-1].window
    return judged


def after(steps: list[Step], detector: StepEvaluator = DETECTOR, every_s: float = 1.0) -> SessionWindow:
    return load(run(steps, detector, every_s)[-1].window)


def only(*kinds: str) -> StepEvaluator:
    never = (NEVER, NEVER, NEVER)
    return StepEvaluator(StepsSettings({name: NORMAL[name] if name in kinds else never for name in NORMAL}), digest)


def counted(window: SessionWindow) -> dict[str, object]:
    """What new text of the user resets."""
    return {
        "texts": len(window.texts), "cue": window.cue_count, "effects": len(window.effects),
        "answer": window.answer_count, "epoch": window.epoch, "cycles": any(window.cycle_counts),
        "errors": window.error_bits, "unknown": window.unknown_tools, "near": window.near_count,
        "dry": window.dry, "stagnation": [row[2] for row in TOOL.iter_unpack(window.tools)], "ends": any(window.ends),
    }  # fmt: skip


def busy(epoch: int = 7) -> bytes:
    """A window in which everything was counted several times."""
    window = load(b"")
    window.steps, window.last_at, window.messages, window.epoch = 9, 999.0, 30, epoch
    window.cue_count = window.answer_count = window.unknown_tools = window.near_count = 5.0
    window.error_bits, window.dry, window.cycle_counts = 31, 16.0, COUNTS.pack(*[5.0] * 16)
    window.texts += TEXT.pack(b"the text", 4.0, 8, epoch, 990)
    window.effects += EFFECT.pack(b"a letter", 2, epoch, 8)
    for count in (9.0, 4.5, 4.0):
        window.tools += TOOL.pack(b"tool", b"returned", count, 8)
    window.ends[:] = END.pack(b"call", 5.0) * ENDS
    return window.dump()


RESET = {
    "texts": 0, "cue": 0, "effects": 0, "answer": 0, "epoch": 8, "cycles": False, "errors": 0, "unknown": 0, "near": 0,
    "dry": 4, "stagnation": [4.5, 4.5, 4], "ends": False,
}  # fmt: skip


def test_new_text_of_the_user_resets_counts() -> None:
    """All but half of what blocks, where nothing new for a long time should not begin from nothing (LD-4)."""
    window = load(DETECTOR.evaluate(busy(), spoken("", NEWS)._replace(messages=31), 1000.0).window)
    assert counted(window) == RESET
    again = load(DETECTOR.evaluate(busy(0xFFFF), spoken("", NEWS)._replace(messages=31), 1000.0).window)
    assert again.epoch == 0, "it begins again"


def test_new_text_after_an_answer_keeps_the_texts_before_it() -> None:
    """The task goes on: the same question again is one that came before (LD-4)."""
    window = load(DETECTOR.evaluate(busy(), spoken("I am stuck.", NEWS)._replace(messages=31), 1000.0).window)
    kept = {"texts": 2 * TEXT.size, "cue": 1}  # the text itself is one of them
    assert counted(window) == {**RESET, **kept}


@pytest.mark.parametrize(
    "step",
    [
        called('{"q": 1}', "Something new, " + LONG)._replace(users=(NEWS,)),
        Step("", (), (), (Result("Something new, " + LONG),), (NEWS,), (), 1, 100),
        called('{"q": 1}', "Something new, " + LONG),
    ],
)
def test_new_text_beside_results_resets_less(step: Step) -> None:
    """A harness may write it, and new results are no order of a person (LD-4)."""
    window = load(DETECTOR.evaluate(busy(), step._replace(messages=31), 1000.0).window)
    assert (window.epoch, len(window.effects), any(window.ends)) == (7, EFFECT.size, True)


def test_text_that_is_known_resets_nothing() -> None:
    """Only new text of the user does (LD-4)."""
    window = load(busy())
    first = DETECTOR.evaluate(window.dump(), spoken("", NEWS)._replace(messages=31), 1000.0).window
    again = load(DETECTOR.evaluate(first, spoken("", NEWS)._replace(messages=33), 1001.0).window)
    assert again.epoch == load(first).epoch == 8


def test_what_is_left_after_new_text_depends_on_the_thresholds() -> None:
    """Half of a block; everything, where nothing is blocked (LD-4)."""
    for block, left in ((6.0, 3.0), (NEVER, 8.0)):
        detector = StepEvaluator(StepsSettings({**NORMAL, "dry": (2.0, block, NEVER)}), digest)
        window = load(detector.evaluate(busy(), spoken("", NEWS)._replace(messages=31), 1000.0).window)
        assert window.dry == left


@pytest.mark.parametrize(
    ("levels", "most"), [((5, 8, 16), 32), ((5, 8, NEVER), 16), ((5, NEVER, NEVER), 10), ((NEVER,) * 3, 50)]
)
def test_how_far_turns_without_anything_new_are_counted(levels: tuple[float, float, float], most: float) -> None:
    """To twice the highest threshold, so that news ends a long loop soon; without a threshold, on and on (LD-4)."""
    detector = StepEvaluator(StepsSettings({**NORMAL, "dry": levels}), digest)
    window = after([called(f'{{"q": {at % 3}}}') for at in range(60)], detector)
    assert window.dry == most if most < 50 else window.dry > 40


@pytest.mark.parametrize(
    ("every_s", "weight", "hits"),
    [
        (19.9, 1.0, 16), (20.0, 1.0, 8), (59.9, 1.0, 8), (60.0, 1.0, 4), (599.9, 1.0, 4),
        (1.0, 0.5, 8), (20.0, 0.5, 4), (60.0, 2.0, 8),
    ],
)  # fmt: skip
def test_slow_repeats_count_less(every_s: float, weight: float, hits: float) -> None:
    """By the time since the last step, and by what the request weighs (LD-4)."""
    judged = run([called()] * 16, only("repeat"), every_s, weight)
    assert judged[-1].hits == hits


def test_a_loop_that_has_ended_leaves_nothing_behind() -> None:
    """The step after it is no loop, also when it is sent again (LD-4)."""
    judged = run([*[called()] * 5, called('{"q": 1}', "Something new, " + LONG)])
    assert judged[4].level == 2
    window = load(judged[5].window)
    assert (judged[5].level, window.level, window.kind, window.evidence) == (0, 0, 0, b"")


def test_a_retry_of_a_loop_is_not_reported_again() -> None:
    """It has the same level, kind, evidence and count, and is not fresh (C24)."""
    judged = run([called()] * 5)
    again = DETECTOR.evaluate(judged[-1].window, called()._replace(messages=9), 1004.5)
    assert (judged[-1].fresh, again.fresh) == (True, False)
    for name in ("level", "kind", "evidence", "identity", "hits"):
        assert getattr(again, name) == getattr(judged[-1], name) != 0


def test_retries_of_a_loop_are_another_kind_once_they_are_worse() -> None:
    """At the same level the kind stays what it was (LD-4)."""
    data = run([called()] * 3)[-1].window
    found = []
    for number in range(12):
        judged = DETECTOR.evaluate(data, called()._replace(messages=5), 1004.0 + 2 * number)
        found.append((judged.level, judged.kind))
        data = judged.window
    assert found[:9] == [(1, "repeat")] * 9
    assert found[9:] == [(2, "storm")] * 3


@pytest.mark.parametrize(("told", "level"), [(0, 1), (1, 2), (3, 2), (4, 1), (5, 1)])
def test_findings_add_up_from_the_second_step_after_a_notice(told: int, level: int) -> None:
    """`told` is the number of the step with the first notice; the fifth step is evaluated (LD-4)."""
    steps = [called(f'{{"city": {city}}}', error=True) for city in (1, 1, 2, 3, 1)]
    window = load(run(steps)[3].window)
    window.told_step = told
    assert DETECTOR.evaluate(window.dump(), steps[4]._replace(messages=9), 1004.0).level == level


def test_the_first_notice_of_a_session() -> None:
    """Later ones do not change its step (LD-4)."""
    judged = run([called()] * 6)
    assert [load(one.window).told_step for one in judged] == [0, 0, 3, 3, 3, 3]


REVISE = "REVISE: it needs more detail and a clearer structure."


def critic(number: int, text: str) -> Step:
    return called(f'{{"draft": "version {number}"}}', text, name="critique")


def test_counts_of_refusals_are_reset_by_a_success() -> None:
    """Also where no call has failed (LD-4)."""
    steps = [critic(1, REVISE)] * 3
    assert not after(steps).error_bits
    assert max(count for _, count in END.iter_unpack(after(steps).ends)) == 2
    assert max(count for _, count in END.iter_unpack(after([*steps, critic(1, "APPROVED: a good read.")]).ends)) == 0


def test_a_tool_that_exists_resets_calls_of_others() -> None:
    """Whatever failed before it (LD-4)."""
    window = load(b"")
    window.steps, window.last_at, window.unknown_tools = 3, 999.0, 3.0
    assert load(DETECTOR.evaluate(window.dump(), called(), 1000.0).window).unknown_tools == 0


@pytest.mark.parametrize("name", ["cue_count", "answer_count"])
def test_a_call_ends_a_conversation_without_calls(name: str) -> None:
    """The same answer, or the same words of the user, are counted anew after it (LD-4)."""
    window = load(b"")
    window.steps, window.last_at = 3, 999.0
    setattr(window, name, 3.0)
    assert getattr(load(DETECTOR.evaluate(window.dump(), called(), 1000.0).window), name) == 0


@pytest.mark.parametrize(("name", "value"), [("awaits_result", 1), ("storm", 4.0)])
def test_a_call_with_its_result_ends_a_storm(name: str, value: float) -> None:
    """And its answer is not taken for the result of a call (LD-4)."""
    window = load(b"")
    window.steps, window.last_at = 3, 999.0
    setattr(window, name, value)
    found = load(DETECTOR.evaluate(window.dump(), called(), 1000.0).window)
    assert (found.awaits_result, found.storm) == (0, 0)


LATER = called('{"job": 7}', "running", name="get_job_status")
SLEEP = called('{"seconds": 60}', "done", name="sleep")


def test_other_work_ends_a_wait() -> None:
    """Hours are counted from the first look after it (LD-4)."""
    assert after([LATER, LATER]).waiting_since == 1000
    assert after([LATER, LATER, called()]).waiting_since == 0
    assert after([LATER, LATER, called(), LATER]).waiting_since == 1003


def repeats_of(step: Step, window: SessionWindow) -> float:
    """How often the call of a step has returned the same again, in all."""
    a = DETECTOR._fingerprinter.step(step).pairs[0].a
    return next(float(row[3]) for row in CALL.iter_unpack(window.calls) if row[0] == a)


@pytest.mark.parametrize(("every_s", "count"), [(31.0, 0.0), (1.0, 0.0625)])
def test_a_look_after_a_wait_counts_little_whatever_was_read_since(every_s: float, count: float) -> None:
    """Nothing if the wait took its time, and a twentieth if it only said so (LD-4)."""
    other = called('{"q": 1}', "Something new, " + LONG)
    steps = [called(), SLEEP, other, called()]
    window = after(steps, every_s=every_s)
    assert repeats_of(called(), window) == pytest.approx(count, abs=0.02)
    assert repeats_of(called(), after([called(), other, called()])) == 1


def test_texts_after_a_wait_count_as_ever() -> None:
    """Who talks does not wait (LD-4)."""
    said = [spoken("I cannot go on.", "Please do go on.")] * 8
    talk = run([SLEEP, *said], only("monologue"), every_s=31.0)
    assert talk[-1].hits == run([called(), *said], only("monologue"), every_s=31.0)[-1].hits > 0


def test_calls_that_are_refused_for_their_rate_are_not_counted() -> None:
    """However long the refusal is: it was waited for, or should have been (LD-4)."""
    limited = "Error: too many requests were sent to this server, " + "and so this one was not answered. " * 12
    assert after([called(text=limited, error=True)] * 8).dry == 0
    assert after([called(text=limited.replace("too many", "malformed"), error=True)] * 8).dry > 3


def test_an_answer_without_text_of_the_user() -> None:
    """The same answer again is a monologue, also if nothing is said in between (LD-4)."""
    judged = run([spoken("I am thinking about it, one moment please.")] * 6, only("monologue"))
    assert [one.level for one in judged] == [0, 0, 1, 1, 2, 2]


def test_texts_in_a_history_that_got_shorter() -> None:
    """Calls may be shown again as examples; texts without calls are a turn without anything new (LD-4)."""
    data, found = b"", []
    for number in range(10):
        step = spoken("I cannot go on.", "Please do go on.")._replace(messages=40 - 2 * number)
        judged = only("dry").evaluate(data, step, 1000.0 + number)
        found.append(judged.level)
        data = judged.window
    assert found[-1] == 2


CHANGE = called('{"new": 1}', "The file was written.", name="write_file")


@pytest.mark.parametrize(
    ("steps", "epoch", "work"),
    [
        ([CHANGE], 1, 5),
        ([CHANGE, CHANGE], 1, 5),
        ([CHANGE, called('{"new": 2}', "The file was written.", name="write_file")], 2, 5),
        ([called('{"new": 1}', "Error: the disk is full", name="write_file", error=True)], 0, 3),
        ([called("{}", "The file was written.", name="read_file")], 0, 1),
        ([called()], 0, 3),
    ],
)
def test_what_counts_as_a_change(steps: list[Step], epoch: int, work: int) -> None:
    """A call that may change something, that succeeded, and that did not do the same before (LD-4)."""
    judged = run(steps)[-1].window
    assert (load(judged).epoch, run_so_far(judged)[1]) == (epoch, work)


def test_bytes_of_a_run() -> None:
    """Requests with calls or results add up, with and without the other, and after a cut; a text begins anew (LD-4)."""
    summary = "This session is continued from a previous conversation. Summary: the pages were read."
    steps = [
        (spoken("", "Please do the work."), 100),
        (called()._replace(results=()), 200),
        (called()._replace(calls=()), 300),
        (called('{"q": 1}'), 400),
        (spoken("", summary)._replace(messages=1), 500),
        (spoken("Done.", "Thank you."), 100),
    ]
    judged = run([step for step, _ in steps])
    assert [run_so_far(one.window)[0] for one in judged] == [sent for _, sent in steps]
    window = load(judged[1].window)
    for before, sent in ((BYTES_MAX - 101, BYTES_MAX - 1), (BYTES_MAX - 100, BYTES_MAX), (BYTES_MAX - 1, BYTES_MAX)):
        window.run_bytes = before
        assert run_so_far(DETECTOR.evaluate(window.dump(), called('{"q": 1}'), 1002.0).window)[0] == sent


def test_a_summary_after_a_long_pause_begins_a_run() -> None:
    """There is nothing left that it could continue (LD-4)."""
    data = run([called()] * 3)[-1].window
    summary = spoken("", "This session is continued from a previous conversation. Summary: the pages were read.")
    window = load(DETECTOR.evaluate(data, summary._replace(messages=1), 1002.0 + RUN_IDLE_S).window)
    assert (window.steps, window.cuts) == (1, 0)
    assert load(DETECTOR.evaluate(data, summary._replace(messages=1), 1001.9 + RUN_IDLE_S).window).cuts == 1


def test_options_of_tools_decide_what_a_call_is() -> None:
    """A limit makes it an effect, a poll a look; other tools are not concerned (LD-4)."""
    options = {"look": ToolOptions(max_per_run=2), "peek": ToolOptions(poll=True)}
    detector = StepEvaluator(StepsSettings(NORMAL, options), digest)
    calls = [called(f'{{"q": {at}}}', f"{at} {LONG}") for at in range(3)]
    assert [one.kind for one in run(calls, detector)] == ["", "", "tool_limit"]
    assert not any(one.level for one in run(calls))
    peeks = [called(name="peek")] * 6
    assert (run(peeks, detector)[-1].level, run(peeks)[-1].level) == (0, 2)
    both = [ToolCall("look", "{}"), ToolCall("peek", "{}")]
    mixed = called()._replace(calls=tuple(both), results=(Result(LONG), Result(LONG)))
    exempt = StepEvaluator(StepsSettings(NORMAL, {"look": ToolOptions(exempt=True)}), digest)
    assert run([mixed] * 6, exempt)[-1].level == 2, "one that is not exempt is enough"


def test_a_summary_that_is_no_cut() -> None:
    """The first request of a session, and one with an answer or a call, are steps whatever the text says (LD-4)."""
    text = "This session is continued from a previous conversation. Summary: the pages were read."
    for before, step, cuts in (
        ([], spoken("", text), 0),
        ([called()], spoken("", text), 1),
        ([called()], spoken("I have read the pages.", text), 0),
        ([called()], called('{"q": 1}')._replace(users=(text,)), 0),
        ([called()], spoken("", "Something else to do, and no summary of anything."), 0),
    ):
        window = after([*before, step._replace(messages=1)])
        assert (window.cuts, window.steps) == (cuts, len(before) + 1 - cuts)


@pytest.mark.parametrize(("as_text", "texts"), [(True, 6), (False, 0)])
def test_instructions_to_an_agent_that_are_written_as_text(as_text: bool, texts: int) -> None:
    """They are compared with each other, as answers without calls are (LD-4)."""
    said = "Action: ask_agent\nPlease look into the orders of the last week once more"
    steps = [called(f'{{"task": {at}}}', name="ask_agent", said=said)._replace(as_text=as_text) for at in range(6)]
    assert len(after(steps).sketches) == texts * SKETCH_ROW.size
