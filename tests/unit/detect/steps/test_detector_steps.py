"""One step judged; the conformance cases are in tests/contract/test_steps.py (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import BLOCK, RUN_IDLE_S, Evaluation
from breakloop.detect.steps.detector import RequestContext, StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import NORMAL, StepsSettings
from breakloop.detect.steps.window import load
from breakloop.model.call import Answer, Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, digest, spoken

DETECTOR = StepEvaluator(StepsSettings(), digest)


def step(number: int, arguments: str = "{}", text: str = LONG) -> Step:
    by = f"call_{number:08}"
    return Step("", (ToolCall("look", arguments),), (by,), (Result(text, call_id=by),), (), (), number * 2, 100)


def run(detector: StepEvaluator, steps: list[Step], every_s: float = 1.0) -> list[Evaluation]:
    window, judged = b"", []
    for number, one in enumerate(steps):
        judged.append(detector.evaluate(window, one, 1000.0 + number * every_s))
        window = judged[-1].window
    return judged


def test_told_once_a_level_and_again_at_twice_the_count() -> None:
    """One loop is not reported at each step (LD-4)."""
    judged = run(DETECTOR, [step(number) for number in range(20)])
    assert [number for number, one in enumerate(judged, start=1) if one.fresh] == [3, 5, 8, 16]
    assert len({one.identity for one in judged[2:]}) == 1
    assert len(judged[5].identity) == 16


def test_a_tail_is_counted_once() -> None:
    """The same call ids again are a retry, however often another request stands between (LD-4)."""
    same = step(1)
    judged = run(DETECTOR, [same, step(2, '{"b": 1}', "other"), same, same, step(3)])
    assert [one.level for one in judged] == [0] * 5
    assert load(judged[-1].window).steps == 3


def test_other_text_beside_the_same_results_is_no_repeat() -> None:
    """The same calls with another text of the user, or with another history, are another request (LD-4)."""
    for change, counted in (
        ([{"users": (f"Item number {at}, please.",)} for at in range(8)], 0),
        ([{"users": ("Go on, please.", f"Item number {at}.")} for at in range(8)], 0),
        ([{"size": 100 + at} for at in range(8)], 0),
        ([{"users": ("Go on, please.",)} for _ in range(8)], 7),
        ([{"users": ("Go on, please.", "Item number 1.")} for _ in range(8)], 7),
    ):
        judged = run(only("storm"), [step(1)._replace(**one) for one in change], every_s=2.0)
        assert load(judged[-1].window).storm == counted


def test_the_same_request_again_elsewhere() -> None:
    """Another instance that reads the window finds the same block (C24, S-2)."""
    window = run(DETECTOR, [step(number) for number in range(5)])[-1].window
    others = StepEvaluator(StepsSettings(), digest)
    asked = RequestContext(system=lambda: "model and system prompt")
    assert others.evaluate(window, step(4), 1009.0).level == 2
    assert others.evaluate(window, step(4), 1009.0, asked).level == 0


def test_counted_ids_are_told_apart_by_the_length_of_the_conversation() -> None:
    """Servers that number calls from 0 in each answer are not taken for retries (LD-4)."""
    steps = [
        step(number)._replace(call_ids=("call_0",), results=(Result(LONG, call_id="call_0"),)) for number in range(5)
    ]
    assert [one.level for one in run(DETECTOR, steps)] == [0, 0, 1, 1, 2]


def test_a_run_ends_after_ten_idle_minutes() -> None:
    """What was counted before is another run's, and a repeat after such a pause counts nothing (LD-4)."""
    judged = run(DETECTOR, [step(number) for number in range(40)], every_s=RUN_IDLE_S)
    assert {one.level for one in judged} == {0}
    judged = run(DETECTOR, [spoken(f"Answer {number}.", f"And {number}?") for number in range(4)], every_s=RUN_IDLE_S)
    assert load(judged[-1].window).steps == 1


@pytest.mark.parametrize(
    ("users", "results", "steps"),
    [
        ((), True, 3),
        (("Please go on with it.",), True, 3),
        (("Now something else.",), True, 1),
        (("Please go on with it.",), False, 1),
    ],
)
def test_a_call_that_takes_longer_than_ten_minutes_does_not_end_the_run(
    users: tuple[str, ...], results: bool, steps: int
) -> None:
    """Unless a person writes something new, or no result comes with it (LD-4)."""
    before = run(DETECTOR, [step(0)._replace(users=("Please go on with it.",)), step(1)])[-1].window
    late = step(2, text="at last")._replace(users=users)
    late = late if results else late._replace(results=())
    assert load(DETECTOR.evaluate(before, late, 1001.0 + RUN_IDLE_S).window).steps == steps


def test_who_was_told_gets_a_turn_before_findings_add_up() -> None:
    """The step after a notice was on its way when the notice came (LD-4)."""
    steps = [
        step(number, f'{{"city": {city}}}')._replace(results=(Result(LONG, error=True, call_id=f"call_{number:08}"),))
        for number, city in enumerate((1, 1, 2, 3, 1))
    ]
    judged = run(DETECTOR, steps)
    assert [one.level for one in judged] == [0, 1, 0, 0, 2]
    assert judged[-1].kind == "failure"
    window = load(judged[3].window)
    window.told_step = window.steps  # as if the first notice had just come
    assert DETECTOR.evaluate(window.dump(), steps[4], 1004.0).level == 1


def test_answers_heard_make_copies_known() -> None:
    """Threads of one session are joined: a peer's copy of an answer is not new (LD-4)."""
    answers = [f"Let us think about the {word} next, everyone." for word in ("cost", "time", "risk", "plan")]

    def level(hear: bool) -> float:
        window = b""
        for number in range(24):
            said, heard = answers[number % 4], answers[(number + 1) % 4]
            window = DETECTOR.evaluate(
                window, spoken(said, f"{heard}")._replace(messages=number), 1000.0 + number
            ).window
            if hear:
                window = DETECTOR.answered(window, Answer(200, answers[(number + 2) % 4]))
        return load(window).dry

    assert level(hear=True) >= level(hear=False) > 8


def test_exempt_tools() -> None:
    """Tools that a policy exempts are not counted (LD-4)."""
    detector = StepEvaluator(StepsSettings(NORMAL, {"look": ToolOptions(exempt=True)}), digest)
    assert {one.level for one in run(detector, [step(number) for number in range(20)])} == {0}


def test_an_exempt_tool_ends_a_storm() -> None:
    """Repeats of the call before it are not added to repeats of its own request (LD-4)."""
    detector = StepEvaluator(StepsSettings(NORMAL, {"wait": ToolOptions(exempt=True)}), digest)
    looks = [step(at)._replace(results=()) for at in range(7)]
    wait = step(7)._replace(calls=(ToolCall("wait", "{}"),), results=())
    judged = run(detector, [*looks, *[wait] * 6])
    assert [(one.kind, one.hits) for one in judged[5:7]] == [("storm", 5), ("storm", 6)]
    assert [one.level for one in judged[7:]] == [0, 0, 0, 0, 0, 1]


def only(*kinds: str) -> StepEvaluator:
    """With the thresholds of `normal` for these kinds, and no others."""
    never = (float("inf"),) * 3
    return StepEvaluator(StepsSettings({name: NORMAL[name] if name in kinds else never for name in NORMAL}), digest)


def test_new_text_of_the_user_ends_a_cascade() -> None:
    """Errors before it are not added to errors after it (LD-4)."""
    failed = [
        step(at, f'{{"q": {at % 2}}}')._replace(results=(Result("boom", error=True, call_id=f"call_{at:08}"),))
        for at in range(20)
    ]
    news = "Leave that. Read the deployment logs of yesterday, which are in the folder of the server."
    judged = run(only("cascade"), [*failed[:9], spoken("It fails.", news)._replace(messages=50), *failed[9:14]])
    assert [one.level for one in judged[7:9]] == [2, 2]
    assert [one.level for one in judged[9:]] == [0, 0, 0, 0, 0, 1]
    assert judged[-1].hits == 5


def test_results_with_hardly_a_new_line() -> None:
    """Noticed after eight in a row, blocked after sixteen (LD-4)."""
    lines = [f"{LONG} {chr(97 + at)}" for at in range(40)]
    steps = [step(at, f'{{"q": {at}}}', "\n".join(lines[at:] + lines[:at])) for at in range(40)]
    judged = run(only("novelty"), steps)
    first = next(at for at, one in enumerate(judged) if one.level)
    assert (judged[first].kind, judged[first].hits, judged[first].level) == ("novelty", 8, 1)
    assert [one.level for one in judged[first : first + 10]] == [1] * 8 + [2] * 2
    assert judged[first + 8].hits == 16


def test_tools_that_are_made_for_polling() -> None:
    """Their repeats weigh less than a quarter, and nothing after 30 s; a step with another call is no look (LD-4)."""
    detector = StepEvaluator(StepsSettings(NORMAL, {"lo*": ToolOptions(poll=True)}), digest)
    looks = [step(number) for number in range(40)]
    levels = [one.level for one in run(detector, looks)]
    assert (levels[10], levels[13], levels[22]) == (0, 1, 2)
    assert {one.level for one in run(detector, looks, every_s=30.0)} == {0}
    calls = (ToolCall("look", "{}"), ToolCall("find", "{}"))
    both = [step(number)._replace(calls=calls, results=(Result(LONG),) * 2, call_ids=()) for number in range(5)]
    assert run(detector, both)[-1].level == 2


@pytest.mark.parametrize(("options", "one", "other", "same"), [
    (ToolOptions(), '{"q": 1, "page": 1}', '{"q": 1, "page": 2}', False),
    (ToolOptions(include=frozenset({"q"})), '{"q": 1, "page": 1}', '{"q": 1, "page": 2}', True),
    (ToolOptions(include=frozenset({"q"})), '{"q": 1}', '{"q": 2}', False),
    (ToolOptions(include=frozenset({"ts"})), '{"q": 1, "ts": 1}', '{"q": 1, "ts": 2}', False),
    (ToolOptions(exclude=frozenset({"page"})), '{"q": 1, "page": 1}', '{"page": 2, "q": 1, "nonce": 3}', True),
    (ToolOptions(exclude=frozenset({"page"})), '{"q": {"page": 1}}', '{"q": {"page": 2}}', False),
    (ToolOptions(include=frozenset({"q", "p"}), exclude=frozenset({"p"})), '{"q": 1, "p": 1}', '{"q": 1, "p": 2}', True),
    (ToolOptions(include=frozenset({"q"})), "[1]", "[2]", False),
])  # fmt: skip
def test_arguments_that_a_policy_names(options: ToolOptions, one: str, other: str, same: bool) -> None:
    """Include and exclude lists say which of the arguments tell one call from another (LD-4)."""
    detector = StepEvaluator(StepsSettings(NORMAL, {"look": options}), digest)
    judged = run(detector, [step(number, (one, other)[number % 2]) for number in range(5)])
    assert (judged[-1].kind == "repeat") == same


def test_a_judge_of_a_stuck_transcript_is_answered() -> None:
    """The same tail with other tools declared, or none, is not denied by the block that stands (C24)."""
    steps = [step(number)._replace(tools=("look", "find")) for number in range(5)]
    window = run(DETECTOR, steps)[-1].window
    stuck = steps[-1]
    for tools in ((), ("look",), ("look", "find", "grade")):
        judged = DETECTOR.evaluate(window, stuck._replace(tools=tools), 1010.0)
        assert judged.level == 0
        window = judged.window
    assert DETECTOR.evaluate(window, stuck._replace(tools=("find", "look", "look")), 1011.0).level == 2


def failing(times: int, answer: Answer, every_s: float = 2.0) -> list[int]:
    """The levels of one request that is sent again and again, with the same answer each time."""
    window, levels = b"", []
    for number in range(times):
        judged = DETECTOR.evaluate(window, step(1), 1000.0 + number * every_s, RequestContext(tracked=True))
        levels.append(judged.level)
        window = DETECTOR.answered(judged.window, answer)
    return levels


@pytest.mark.parametrize("answer", [Answer(429), Answer(500), Answer(0), Answer(200, "I", error="overloaded")])
def test_a_request_that_failed_may_be_sent_again(answer: Answer) -> None:
    """Ten times it is nothing, thirty times in a minute it is blocked (C22)."""
    levels = failing(30, answer)
    assert set(levels[:11]) == {0}
    assert levels[21:] == [2] * 9


def test_a_request_that_was_answered_may_not() -> None:
    """After a proper answer each repeat counts; what came all at once, and failed, takes nothing back (C22, C23)."""
    assert failing(11, Answer(200, "yes", complete=True))[10] == 2
    window = run(DETECTOR, [step(1)] * 6, every_s=2.0)[-1].window  # nobody will tell how they were answered
    assert load(window).storm == 5
    assert DETECTOR.answered(window, Answer(500)) is window


def test_the_clock_of_a_shared_store_is_set_back() -> None:
    """A storm is counted anew from there, and not only when the clock has caught up (S-2)."""
    window, levels = run(DETECTOR, [step(1)] * 6, every_s=2.0)[-1].window, []
    for number in range(12):
        judged = DETECTOR.evaluate(window, step(1), 1010.0 - 3600.0 + number * 2.0)
        levels.append(judged.level)
        window = judged.window
    assert levels[-1] == 2


def test_what_is_denied_does_not_count() -> None:
    """During a cooldown requests have no answer, and after it the first passes (LD-2)."""
    window, levels = b"", []
    for number in range(40):
        judged = DETECTOR.evaluate(window, step(1), 1000.0 + number, RequestContext(tracked=True))
        levels.append(judged.level)
        window = judged.window
    assert set(levels) == {0}


def test_what_failed_answers_took_back_is_counted_for_a_minute() -> None:
    """Slow retries go on for ever, as long as the upstream fails (C22)."""
    assert set(failing(60, Answer(503), every_s=7.0)) == {0}


def test_a_failed_answer_is_not_remembered() -> None:
    """Nor does an answer without words, or one to an unknown window, change anything (LD-4)."""
    window = DETECTOR.evaluate(b"", step(1), 1000.0).window
    assert DETECTOR.answered(window, Answer(500, "The server is overloaded.")) is window
    assert DETECTOR.answered(window, Answer(200, "")) is window
    assert DETECTOR.answered(b"foreign", Answer(200, "x")) == b"foreign"
    assert DETECTOR.answered(window, Answer(200, "The server is fine.")) != window


def test_a_foreign_window_is_new() -> None:
    """What cannot be read is forgotten, and nothing fails (LD-4)."""
    judged = DETECTOR.evaluate(b"\x07nonsense", step(1), 1000.0)
    assert judged.level == 0
    assert load(judged.window).steps == 1


def test_evidence_quotes_nothing() -> None:
    """Neither arguments nor results nor words are in the evidence or the window (Y-1)."""
    secret = "the-secret-word"
    judged = run(DETECTOR, [step(number, f'{{"q": "{secret}"}}', f"{secret} {LONG}") for number in range(6)])
    assert judged[-1].level == 2
    assert secret not in judged[-1].evidence
    assert secret.encode() not in judged[-1].window


def test_odd_texts_do_not_break_it() -> None:
    """Lone surrogates, NUL, very long lines (LD-4)."""
    odd = step(1, '{"a": "\ud800"}', "\ud800\x00" + "x" * 100_000)._replace(
        said="\ud800 word word", users=("\udfff" * 30,)
    )
    assert DETECTOR.evaluate(b"", odd, 1.0).level == 0
    assert DETECTOR.evaluate(b"", odd._replace(calls=(ToolCall("\ud800", "{"),)), 1.0).level == 0


def test_another_step_settles_what_is_owed() -> None:
    """A failure is taken for the repeat of another request by nobody (C22)."""
    window = run(DETECTOR, [step(1), step(1), step(2, '{"b": 1}')], every_s=2.0)[-1].window
    assert (load(window).pending_repeats, load(window).forgiven_repeats, load(window).storm) == (0, 0, 0)


def chained(number: int, text: str, by: str = "call_{:08}") -> Step:
    """A result after `previous_response_id`: what asked for it is not in the request."""
    return Step("", (), (), (Result(text, call_id=by.format(number)),), (), (), 1, 100)


@pytest.mark.parametrize("by", ["call_{:08}", "{}"])
def test_results_alone_are_steps(by: str) -> None:
    """A tail of results is told from the next by their ids, and by what they say; the same one is a retry (LD-4)."""
    judged = run(DETECTOR, [chained(number, f"{LONG} {number}", by) for number in range(40)], every_s=3.0)
    assert {one.level for one in judged} == {0}
    assert load(judged[-1].window).steps == 40
    judged = run(DETECTOR, [chained(number, "ok", by) for number in range(40)], every_s=3.0)
    assert ({one.level for one in judged}, load(judged[-1].window).steps) == ({0}, 40)
    judged = run(DETECTOR, [chained(number, LONG, by) for number in range(20)], every_s=3.0)
    assert [at for at, one in enumerate(judged) if one.fresh] == [6, 9, 17]
    assert {one.kind for one in judged[6:]} == {"dry"}
    assert load(run(DETECTOR, [chained(1, LONG, by)] * 3)[-1].window).steps == 1


def test_results_alone_are_no_cycle() -> None:
    """Edit and test, edit and test: who does not see the edits must not count the tests (LD-4)."""
    steps = [chained(number, (FAILED, "The file was edited.")[number % 2]) for number in range(40)]
    assert {one.level for one in run(DETECTOR, steps)} == {0}


FAILED = "FAILED tests/test_app.py::test_total - assert 11 == 12, and seven others passed as they did before"


def mcp(answers: list[str], *, tracked: bool = True) -> list[Evaluation]:
    """Two calls by turns whose results are seen in the answers at best."""
    window, judged = b"", []
    for number, answer in enumerate(answers):
        asked = step(number, f'{{"q": {number % 2}}}')._replace(results=(), messages=1)
        judged.append(DETECTOR.evaluate(window, asked, 1000.0 + 2 * number, RequestContext(tracked=tracked)))
        window = DETECTOR.answered(judged[-1].window, Answer(200, answer)) if tracked else judged[-1].window
    return judged


def test_calls_whose_results_are_in_their_answers() -> None:
    """They go in a circle only where their answers are heard, and came before (MCP) (LD-4)."""
    judged = mcp(["running", "slept"] * 8)
    assert [at for at, one in enumerate(judged) if one.fresh] == [5, 9, 15]
    assert {one.kind for one in judged[5:]} == {"cycle"}
    assert {one.level for one in mcp([f"running, {99 - at} s left" for at in range(40)])} == {0}
    assert {one.level for one in mcp([f"part {at // 2} is done" if at % 2 else "slept" for at in range(40)])} == {0}
    assert {one.level for one in mcp(["running", "slept"] * 8, tracked=False)} == {0}
    assert {one.level for one in mcp([""] * 16)} == {0}


def test_after_hours_without_news_a_person_is_heard() -> None:
    """Whoever says something new gets more than one step, however long nothing new had come (LD-4)."""
    steps = [step(number, f'{{"q": {number % 3}}}') for number in range(60)]
    news = "Forget that. Look into the deployment logs of yesterday instead, in the folder of the server."
    steps.append(spoken("I am stuck.", news)._replace(messages=200))
    steps += [step(number, f'{{"q": {number % 3}}}') for number in range(110, 120)]
    judged = run(DETECTOR, steps)
    assert load(judged[59].window).dry == 32
    assert [one.level for one in judged[60:64]] == [0, 1, 1, 1]
    assert judged[-1].level == 2
    patient = StepEvaluator(StepsSettings({**NORMAL, "dry": (20.0, 30.0, float("inf"))}), digest)
    assert load(run(patient, steps[:60])[-1].window).dry > 32


def test_chapter_after_chapter() -> None:
    """The same words of the user while the model writes a book are not `rejected`; few new words are (LD-4)."""

    def levels(words: int) -> set[int]:
        steps = []
        for number in range(12):
            said = " ".join(f"word{number * words + at}" for at in range(words))
            steps.append(spoken(said, "Please continue with the next chapter.")._replace(messages=2 * number))
        return {one.level for one in run(DETECTOR, steps)}

    assert levels(150) == {0}
    assert max(levels(20)) >= 2


def test_what_is_found_does_not_depend_on_what_is_kept_unpacked() -> None:
    """An instance that has judged the session's steps and one that never saw it come to the same bytes (LD-4, S-2)."""
    texts = [f"line {number}\n{LONG[number % 7 :]}\n{number * number}" for number in range(60)]
    steps = [
        step(number, f'{{"page": {number % 3}}}', texts[number % (3 if number > 30 else 13)]) for number in range(60)
    ]
    window = b""
    judged = run(DETECTOR, steps, every_s=25.0)
    for number, one in enumerate(steps):
        alone = StepEvaluator(StepsSettings(), digest).evaluate(window, one, 1000.0 + number * 25.0)
        assert alone == judged[number]
        window = alone.window
    assert max(one.level for one in judged) > 0


SUMMARY = "The work is continued from a previous conversation. Summary: {}"


def continued(number: int) -> Step:
    """The first request after the history was compacted."""
    words = " ".join(f"word{number}x{at}" for at in range(40))
    return Step("", (), (), (), (SUMMARY.format(words),), (), 1, 500)


def after_cut(number: int, arguments: str = "{}", text: str = LONG) -> Step:
    """The step after it: the history is short."""
    return step(number, arguments, text)._replace(messages=3)


def test_a_summary_is_not_a_person() -> None:
    """Counts go on over a compaction, whatever the summary says; new text of a person resets them (LD-4)."""
    steps, task = [], Step("", (), (), (), ("Please do this now: count every page of the book.",), (), 1, 100)
    for number in range(8):
        steps += [after_cut(number), continued(number)]
    judged = run(DETECTOR, steps)
    assert [one.level for one in judged[::2]][:5] == [0, 0, 1, 1, 2]
    assert load(judged[-1].window).steps == 8
    window = DETECTOR.evaluate(judged[7].window, task, 1100.0).window
    assert DETECTOR.evaluate(window, step(50), 1101.0).level < BLOCK


def test_a_summary_brings_nothing_new() -> None:
    """It is the model's own words (LD-4)."""
    window = run(DETECTOR, [step(number) for number in range(6)])[-1].window
    after = load(DETECTOR.evaluate(window, continued(1), 1010.0).window)
    assert (after.dry, after.epoch, after.last_new_step) == (load(window).dry, load(window).epoch, 0)


def test_laps_are_counted_over_cuts() -> None:
    """The same three steps after each compaction are a cycle (LD-4)."""
    steps = []
    for number in range(15):
        steps += [continued(number)] if number and number % 3 == 0 else []
        steps.append(step(number, f'{{"file": {number % 3}}}', f"{LONG} {number % 3}"))
    assert "cycle" in {one.kind for one in run(DETECTOR, steps)}


def test_the_opening_kept_before_a_summary() -> None:
    """A long history that is replaced by its opening and another text was compacted, whatever the words (LD-4)."""
    opening = "Find out which of the pages is the longest."

    def epochs(first: str, length: int) -> int:
        begun = Step("", (), (), (), (opening,), (), 1, 100)
        window = run(DETECTOR, [begun, *[step(number) for number in range(1, length)]])[-1].window
        cut = Step("", (), (), (), (first, "So far: pages one to five were read, the third is longest."), (), 2, 300)
        return load(DETECTOR.evaluate(window, cut, 1020.0).window).epoch - load(window).epoch

    assert epochs(opening, 6) == 0
    assert epochs("Another task, which is about chapters.", 6) == 1
    assert epochs(opening, 3) == 1


def test_summaries_that_are_sent_again_count_once() -> None:
    """A retry of the first request after a compaction is not another one (LD-4)."""
    window, found = (
        run(DETECTOR, [step(number, f'{{"a": {number}}}', f"{number} {LONG}") for number in range(4)])[-1],
        [],
    )
    data = window.window
    for at in range(3):
        data = DETECTOR.evaluate(data, continued(1), 1010.0 + at).window
        found.append(load(data).cuts)
    assert found == [1, 1, 1]
    data = DETECTOR.evaluate(data, after_cut(9, '{"a": 9}', f"9 {LONG}"), 1020.0).window
    assert load(DETECTOR.evaluate(data, continued(1), 1021.0).window).cuts == 2


def test_compaction_after_compaction_is_blocked_in_the_end() -> None:
    """Told at the third, blocked at the tenth if there was nothing new in between, stopped at the twentieth (LD-4)."""
    window, levels = b"", []
    for number in range(20):
        window = DETECTOR.evaluate(
            window, after_cut(number, f'{{"a": {number}}}', "the same page"), 1000.0 + 9 * number
        ).window
        found = DETECTOR.evaluate(window, continued(number), 1005.0 + 9 * number)
        window = found.window
        levels.append(found.level)
        assert not found.level or found.kind == "thrash"
    assert levels == [0] * 2 + [1] * 7 + [2] * 10 + [3]
