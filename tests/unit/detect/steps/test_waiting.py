"""Waiting: time decides, not the number of looks (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import BLOCK, NOTHING, NOTICE, Evaluation
from breakloop.detect.steps import repeats, waiting
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import NEVER, NORMAL, StepsSettings
from breakloop.detect.steps.window import load
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, called, digest, prints, state

DETECTOR = StepEvaluator(StepsSettings(), digest)
LOOK = ("job_status", '{"job": 12}')


class Session:
    """Calls with their results, and how long each took."""

    def __init__(self, detector: StepEvaluator = DETECTOR) -> None:
        self.detector = detector
        self.window = b""
        self.now = 1000.0
        self.steps = 0
        self.found: list[Evaluation] = []

    def call(self, after_s: float, name: str, arguments: str, *results: str, failed: bool = False) -> Evaluation:
        """One answer with a call for each result."""
        self.steps += 1
        self.now += after_s
        ids = tuple(f"call_{self.steps:06}_{at}" for at in range(len(results)))
        calls = tuple(ToolCall(name, arguments) for _ in results)
        back = tuple(Result(text, failed, by) for text, by in zip(results, ids, strict=True))
        step = Step("", calls, ids, back, (), (), 2 * self.steps, 100)
        self.found.append(self.detector.evaluate(self.window, step, self.now))
        self.window = self.found[-1].window
        return self.found[-1]

    @property
    def highest(self) -> int:
        return max(one.level for one in self.found)

    def first(self, level: int) -> int:
        """The number of the first step with this level."""
        return [one.level >= level for one in self.found].index(True) + 1


def looks(every_s: float, count: int, result: str = "[]", *call: str) -> Session:
    session = Session()
    name, arguments = call or LOOK
    for _ in range(count):
        session.call(every_s, name, arguments, result)
    return session


def test_looks_that_take_their_time_count_nothing() -> None:
    """A look every 30 s for an hour is no loop, and is not even told (LD-4)."""
    assert looks(30.0, 120).highest == NOTHING


@pytest.mark.parametrize(("every_s", "first"), [(1.0, 9), (6.0, 14), (15.0, 34)])
def test_the_sooner_a_look_comes_the_more_it_counts(every_s: float, first: int) -> None:
    """Less than another repeat, but a tight loop of looks is stopped (LD-4)."""
    assert looks(every_s, 60).first(BLOCK) == first


def test_a_read_of_a_terminal_waits_by_itself() -> None:
    """Empty input every 10 s is waiting; without a pause it is a loop; and so is the same input (LD-4)."""
    read = ("write_stdin", '{"session_id": 7, "chars": ""}')
    assert looks(10.0, 60, "", *read).highest == NOTHING
    assert looks(0.5, 12, "", *read).highest >= BLOCK
    assert looks(10.0, 60, "", "write_stdin", '{"session_id": 7, "chars": "y"}').highest >= BLOCK


@pytest.mark.parametrize("how", [("sleep", '{"seconds": 60}'), ("bash", '{"command": "sleep 60"}'), ("wait", "{}")])
def test_any_look_after_a_wait_counts_nothing(how: tuple[str, str]) -> None:
    """Whatever is called, and however many calls there are between two waits (LD-4)."""
    session = Session()
    for _ in range(20):
        session.call(61.0, *how, "waited")
        session.call(2.0, "read_report", "{}", LONG)
        session.call(2.0, "read_other", "{}", LONG[::-1])
    assert session.highest == NOTHING


def test_a_wait_beside_a_look() -> None:
    """Both in one answer (LD-4)."""
    session = Session()
    for number in range(20):
        ids = (f"call_{number:06}_a", f"call_{number:06}_b")
        calls = (ToolCall("sleep", '{"seconds": 60}'), ToolCall("read_report", "{}"))
        results = (Result("slept", call_id=ids[0]), Result(LONG, call_id=ids[1]))
        step = Step("", calls, ids, results, (), (), 2 * number, 100)
        session.found.append(DETECTOR.evaluate(session.window, step, 1000.0 + 61 * number))
        session.window = session.found[-1].window
    assert session.highest == NOTHING


def test_a_wait_that_takes_no_time() -> None:
    """A wait is believed for long if the times do not show it, not forever; one that is over at once is none (LD-4)."""
    announced = Session()
    for _ in range(400):
        announced.call(3.0, "sleep", '{"seconds": 60}', "slept")
        announced.call(3.0, "read_report", "{}", LONG)
    assert announced.first(NOTICE) > 100
    assert announced.highest >= BLOCK
    assert looks(0.5, 12, "waited", "wait", "{}").highest >= BLOCK
    assert looks(3.0, 500, "waited", "wait", "{}").highest == NOTHING


def test_a_change_between_looks_is_no_wait() -> None:
    """A call that changes something is never a look, wait or not (LD-4)."""
    session = Session()
    for _ in range(6):
        session.call(61.0, "sleep", '{"seconds": 60}', "slept")
        for _ in range(5):
            session.call(1.0, "save_note", '{"text": "tea"}', "saved")
    assert session.highest >= BLOCK


def test_a_final_answer_needs_no_further_look() -> None:
    """Asked for again and again it is a loop after a few, however slowly, and the evidence says why (LD-4)."""
    assert looks(3.0, 9, "exited with code 0").first(BLOCK) == 5
    slow = looks(120.0, 12, '{"status": "failed"}')
    assert slow.first(BLOCK) == 10
    assert slow.found[-1].evidence.endswith("; this answer is final")
    slept = Session()
    for _ in range(40):
        slept.call(60.0, "sleep", '{"seconds": 60}', "slept")
        slept.call(2.0, "get_job", "{}", "the job was completed on the second of March, by the night shift")
    assert slept.first(BLOCK) == 56


def test_a_look_that_times_out_counts_as_any_slow_repeat() -> None:
    """It may have ended or not (LD-4)."""
    assert looks(60.0, 30, "timeout, no new output", "process", '{"action": "poll"}').first(BLOCK) == 20


def test_results_that_say_that_it_goes_on() -> None:
    """They make any call a look (LD-4)."""
    assert looks(30.0, 60, "state: RUNNING", "get_thing", "{}").highest == NOTHING
    assert looks(30.0, 60, "state: cold", "get_thing", "{}").highest >= BLOCK


def test_evidence_tells_to_wait_once() -> None:
    """A model that polls is told what to do instead (LD-4)."""
    assert looks(1.0, 6).found[-1].evidence.endswith("; wait once, for as long as it takes")
    assert "wait" not in looks(1.0, 6, LONG, "look", "{}").found[-1].evidence


def test_looks_in_turn_are_timed_one_by_one() -> None:
    """Three jobs every two minutes: each look is two minutes after the same look (LD-4)."""
    session = Session()
    for _ in range(30):
        for job in range(3):
            session.call(114.0 if not job else 3.0, "job_status", f'{{"job": {job}}}', "no change")
    assert session.highest == NOTHING


def test_slow_looks_take_back_what_fast_ones_counted() -> None:
    """What counts is looks per hour (LD-4)."""
    only = {name: levels if name == "repeat" else (NEVER, NEVER, NEVER) for name, levels in NORMAL.items()}
    session = Session(StepEvaluator(StepsSettings(only), digest))
    for _ in range(40):
        session.call(60.0, *LOOK, "[]")
        session.call(60.0, *LOOK, "[]")
        session.call(1.0, *LOOK, "[]")
    assert session.highest == NOTHING


def test_waiting_has_an_upper_bound_in_hours() -> None:
    """Told after two hours and blocked after six, if the answer is the same; a new one begins anew (LD-4)."""
    session = looks(300.0, 100, "running")
    assert (session.first(NOTICE), session.first(BLOCK)) == (25, 73)
    assert session.found[72].kind == "waiting"
    assert (
        session.found[72].evidence
        == "`job_status` has returned nothing new for 6 h; wait once, for as long as it takes"
    )
    moving = Session()
    for number in range(200):
        moving.call(300.0, *LOOK, f"running, {number // 20 * 10} %")
    assert moving.highest == NOTHING
    working = Session()
    for number in range(200):
        working.call(300.0, *LOOK, "running")
        if number % 20 == 0:
            working.call(5.0, "read_file", f'{{"path": "{number}.txt"}}', f"{LONG} {number}")
    assert working.highest == NOTHING


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("text", ["429 rate limit exceeded, retry later", "Too Many Requests", '{"retry_after": 20}'])
def test_the_rate_limit_of_a_tool_is_no_evidence(text: str, failed: bool) -> None:
    """Neither the same call again, nor others with the same end, and it changes nothing (LD-4)."""
    session = Session()
    for _ in range(12):
        session.call(3.0, "find_customer", '{"q": "acme"}', text, failed=failed)
    for number in range(12):
        session.call(3.0, "find_customer", f'{{"q": "{number}"}}', text, failed=failed)
    assert session.highest == NOTHING
    again = Session()
    for _ in range(5):
        again.call(3.0, "find_customer", '{"q": "acme"}', "nobody")
        again.call(3.0, "save_note", '{"text": "tea"}', text, failed=failed)
    assert again.highest >= NOTICE


def test_tools_of_a_policy_are_looks_at_any_interval() -> None:
    """`poll: true`, for tools that no name shows: also for one that sounds like a change (LD-4)."""
    polled = StepEvaluator(StepsSettings(NORMAL, {"update_board": ToolOptions(poll=True)}), digest)
    for every_s in (30.0, 90.0):
        session = Session(polled)
        for _ in range(60):
            session.call(every_s, "update_board", "{}", LONG)
        assert session.highest == NOTHING
    fast = Session(polled)
    for _ in range(40):
        fast.call(1.0, "update_board", "{}", LONG)
    assert fast.first(BLOCK) > 20


@pytest.mark.parametrize(
    ("call", "after_s", "weight"),
    [
        (LOOK, 0.0, 0.6),
        (LOOK, 15.0, 0.15),
        (LOOK, 29.0, 0.6 / 900),
        (LOOK, 30.0, 0.0),
        (("write_stdin", '{"session_id": 7, "chars": ""}'), 5.0, 0.15),
        (("write_stdin", '{"session_id": 7, "chars": ""}'), 9.0, 0.006),
        (("write_stdin", '{"session_id": 7, "chars": ""}'), 10.0, 0.0),
        (("wait", "{}"), 1.0, 0.6),
        (("wait", "{}"), 2.0, 0.0),
    ],
)
def test_what_a_look_counts(call: tuple[str, str], after_s: float, weight: float) -> None:
    """Less the longer the same look was ago: nothing after 30 s, at a terminal after 10 s; and a wait of less than two
    seconds is a look (LD-4)."""
    window = load(b"")
    name, arguments = call
    made = prints(called(arguments, "[]", name=name))
    window.last_at = 1000.0
    repeats.count_calls(state(window, made, step=called(arguments, "[]", name=name), now=1000.0))
    found = waiting.of_step(window, made.pairs, 1000.0 + after_s)
    assert found is not None
    assert found.weight == pytest.approx(weight)


@pytest.mark.parametrize(
    ("gap_s", "weight"), [(0, 1), (19.9, 1), (20, 0.5), (59.9, 0.5), (60, 0.25), (599, 0.25), (600, 0), (3600, 0)]
)
def test_slow_repeats_count_less(gap_s: float, weight: float) -> None:
    """Half after twenty seconds, a quarter after a minute, nothing after ten minutes (LD-4)."""
    assert waiting.weight_of(gap_s) == weight


@pytest.mark.parametrize(("hours", "quarters"), [(0.9999, 0), (1, 4), (1.2499, 4), (1.25, 5), (6, 24)])
def test_hours_are_counted_in_quarters(hours: float, quarters: int) -> None:
    """From the first hour on (LD-4)."""
    window = load(b"")
    window.waiting_since = 1000
    found = waiting.hours(state(window, now=1000 + 3600 * hours))
    assert [one.hits for one in found] == ([quarters / 4] if quarters else [])
    if found:
        assert found[0].evidence == f"`look` has returned nothing new for {int(hours)} h"


class Steps:
    """A window, and what its steps of waiting count."""

    def __init__(self) -> None:
        self.window = load(b"")
        self.window.last_at = 1000.0

    def call(self, after_s: float, *calls: tuple[str, str, str | None]) -> waiting.Waiting | None:
        """One answer with these calls: name, arguments, and result or None."""
        step = called()._replace(
            calls=tuple(ToolCall(name, arguments) for name, arguments, _ in calls),
            call_ids=tuple(f"call_{at}" for at in range(len(calls))),
            results=tuple(
                Result(text, call_id=f"call_{at}") for at, (_, _, text) in enumerate(calls) if text is not None
            ),
        )
        now, made = self.window.last_at + after_s, prints(step)
        found = waiting.of_step(self.window, made.pairs, now)
        repeats.count_calls(state(self.window, made, step=step, now=now))
        self.window.last_at = now
        self.window.steps += 1
        return found

    def weight(self, after_s: float, *calls: tuple[str, str, str | None]) -> float | None:
        found = self.call(after_s, *calls)
        return None if found is None else round(found.weight, 6)


STATUS = (*LOOK, "[]")
SLEEP = ("sleep", '{"seconds": 60}', "slept")
REPORT = ("read_report", "{}", LONG)
LIMITED = ("find_customer", "{}", "429 rate limit exceeded")


def at_age(age_s: float) -> float:
    """What a look counts after this time."""
    return round(0.6 * (1 - age_s / 30) ** 2, 6)


def test_a_look_that_was_not_made_before_counts_by_the_last_step() -> None:
    """There is no earlier one to measure from; a call that is no look is none (LD-4)."""
    steps = Steps()
    steps.call(0.0, REPORT)
    assert steps.weight(6.0, STATUS) == at_age(6)
    assert steps.weight(5.0, ("build_status", "{}", None)) == at_age(5)
    assert steps.weight(5.0, ("build_status", "{}", None)) == at_age(5)
    assert steps.weight(1.0, STATUS) == at_age(11)


def test_only_a_call_that_was_made_before_a_wait_is_a_look_after_it() -> None:
    """Another one is work (LD-4)."""
    steps = Steps()
    steps.call(60.0, SLEEP)
    assert steps.weight(2.0, REPORT) is None
    assert steps.weight(60.0, SLEEP) == 0
    assert steps.weight(2.0, REPORT) == 0
    assert steps.weight(2.0, REPORT) is None


@pytest.mark.parametrize(
    ("took_s", "seconds", "weight"), [(30.0, 1, 0.0), (29.0, 1, None), (29.0, 30, 0.05), (29.0, 29, None)]
)
def test_a_wait_of_half_a_minute(took_s: float, seconds: int, weight: float | None) -> None:
    """If it took that long, the look after it counts nothing; if its arguments say so, next to nothing (LD-4)."""
    steps = Steps()
    steps.call(1.0, REPORT)
    steps.call(took_s, ("sleep", f'{{"seconds": {seconds}}}', "slept"))
    assert steps.weight(3.0, REPORT) == weight


def test_a_wait_before_the_last_look_is_over() -> None:
    """Announced or taken, it counts for one look of each kind (LD-4)."""
    for took_s in (3.0, 60.0):
        steps = Steps()
        steps.call(1.0, STATUS)
        steps.call(took_s, SLEEP)
        assert steps.weight(3.0, STATUS) == (0.05 if took_s == 3.0 else 0)
        assert steps.weight(3.0, STATUS) == at_age(3)


def test_a_wait_that_is_announced_beside_a_look() -> None:
    """Both in one answer, which is over sooner than it says (LD-4)."""
    steps = Steps()
    assert [steps.weight(3.0, SLEEP, REPORT) for _ in range(3)] == [None, 0.05, 0.05]


def test_each_call_of_an_answer_is_looked_at() -> None:
    """A wait or a rate limit before a look hides it as little as one behind it (LD-4)."""
    for other in (("wait", "{}", "waited"), LIMITED):
        for calls in ((other, STATUS), (STATUS, other)):
            steps = Steps()
            steps.call(3.0, *calls)
            assert steps.weight(3.0, *calls) == at_age(3)
        steps = Steps()
        steps.call(3.0, other, REPORT)
        assert steps.weight(3.0, other, REPORT) is None


def test_a_rate_limit_counts_nothing() -> None:
    """However long its message is; a step without calls is no step of waiting (LD-4)."""
    steps = Steps()
    failed = called(text=f"429 rate limit exceeded: {LONG} {LONG}", error=True)
    found = waiting.of_step(steps.window, prints(failed).pairs, 1001.0)
    assert found == waiting.Waiting(0.0, "", new=False)
    assert waiting.of_step(steps.window, (), 1002.0) is None
    assert steps.window.waiting_since == 0


@pytest.mark.parametrize(("after_s", "known", "other"), [(59.0, 1.0, 0.5), (60.0, 0.5, 0.25), (61.0, 0.5, 0.25)])
def test_a_final_answer_counts_by_the_age_of_the_look(after_s: float, known: float, other: float) -> None:
    """Half from a minute on, and half if the call is only a look because somebody waited (LD-4)."""
    steps = Steps()
    steps.call(3.0, ("job_status", "{}", "exited with code 0"))
    assert steps.weight(after_s, ("job_status", "{}", "exited with code 0")) == known
    steps = Steps()
    steps.call(3.0, ("get_thing", "{}", "exited with code 0"))
    steps.call(after_s - 2, SLEEP)
    assert steps.weight(2.0, ("get_thing", "{}", "exited with code 0")) == other


def test_the_last_call_names_the_wait() -> None:
    """It is what was looked at after the others (LD-4)."""
    window = load(b"")
    window.waiting_since = 1000
    both = called(name="first")._replace(calls=(ToolCall("first", "{}"), ToolCall("last", "{}")), results=())
    keys = []
    for step in (both, called(name="last"), called(name="first")):
        (found,) = waiting.hours(state(window, prints(step), step=step, now=1000 + 3600 * 2))
        keys.append((found.key, found.evidence))
    assert keys[0] == keys[1] != keys[2]
    assert keys[0][1] == "`last` has returned nothing new for 2 h"
