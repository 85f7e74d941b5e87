"""Sessions that are named after how they open. What opens alike is not always one conversation (C-7, LD-4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps.detector import RequestContext, StepEvaluator
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import load
from breakloop.model.call import Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, digest

Make = Callable[[str, int], Step]

DETECTOR = StepEvaluator(StepsSettings(), digest)
OPENING = Step("", (), (), (), ("Check the queue.",), (), 1, 100)


class Program:
    """A program that begins the same conversation, once or several times."""

    def __init__(self, *, unnamed: bool = True) -> None:
        self.window = b""
        self.now = 1000.0
        self.unnamed = unnamed

    def send(self, step: Step, *ids: str) -> Evaluation:
        """Send a request whose history shows these call ids."""
        self.now += 1.0
        view = RequestContext(unnamed=self.unnamed, body=" ".join(ids).encode())
        judged = DETECTOR.evaluate(self.window, step, self.now, view)
        self.window = judged.window
        return judged


def poll(run: str, number: int) -> Step:
    """The queue is looked at, and is as it was."""
    by = f"call_{run}_{number:06}"
    return Step("", (ToolCall("look", "{}"),), (by,), (Result(LONG, call_id=by),), (), (), 2 + 2 * number, 100)


def counted(run: str, number: int) -> Step:
    """The same with an id as some servers count them."""
    return poll(run, number)._replace(said=f"run {run}", call_ids=(f"c{number}",))


def written(run: str, number: int) -> Step:
    """The same as an action that is written as text."""
    return poll(run, number)._replace(said=f"run {run}", call_ids=(), as_text=True)


def ids(run: str, upto: int) -> list[str]:
    return [f"call_{run}_{number:06}" for number in range(upto + 1)]


def test_one_conversation_that_goes_on_is_judged_as_ever() -> None:
    """Each request shows the step before it (C1)."""
    program = Program()
    program.send(OPENING)
    judged = [program.send(poll("a", number), *ids("a", number)) for number in range(6)]
    assert [one.level for one in judged] == [0, 0, 1, 1, 2, 2]
    assert not any(one.ambiguous for one in judged)


def test_beginning_again_is_another_run() -> None:
    """A program that is started ten times does the same ten times (C25)."""
    program = Program()
    levels = []
    for run in range(10):
        levels.append(program.send(OPENING).level)
        levels += [program.send(poll(str(run), number), *ids(str(run), number)).level for number in range(2)]
    assert set(levels) == {0}
    assert load(program.window).steps == 3


def test_the_opening_again_and_nothing_between_is_the_same_request() -> None:
    """A client that only asks the same question again does not begin a new run: `storm` (LD-4)."""
    program = Program()
    assert [program.send(OPENING).level for _ in range(12)][-1] == 2


def test_a_named_session_does_not_begin_anew() -> None:
    """The threads of one session are joined; another agent of the team opens its own conversation (LD-4)."""
    program = Program(unnamed=False)
    levels = []
    for run in range(6):
        program.send(OPENING._replace(users=(f"You are helper {run}.",)))
        levels.append(program.send(poll(str(run), 0), *ids(str(run), 0)).level)
    assert levels[-1] >= 1


@pytest.mark.parametrize("make", [poll, counted, written])
@pytest.mark.parametrize("runs", [5, 8, 24])
def test_runs_side_by_side_are_not_added_up(make: Make, runs: int) -> None:
    """Sampling; replicas of one agent do the same at the same time, each once. Whether calls have ids that tell them
    apart, ids that are counted, or none (LD-4)."""
    program = Program()
    for _ in range(runs):
        program.send(OPENING)
    program.now += 60.0
    found = []
    for number in range(6):
        for run in range(runs):
            step = make(str(run), number)._replace(results=(Result(f"{LONG} {number}"),))
            found.append(program.send(step, *ids(str(run), number)))
    assert all(one.level < (3 if one.ambiguous else 2) for one in found)
    assert runs > 8 or max(one.level for one in found) < 2


@pytest.mark.parametrize("make", [poll, counted, written])
def test_runs_side_by_side_that_loop_are_stopped_in_the_end(make: Make) -> None:
    """Rather a block than a night of burning money; until then it is said that they are several (LD-4)."""
    program = Program()
    found = []
    for number in range(20):
        found += [program.send(make(run, number), *ids(run, number)) for run in "abcde"]
    first = next(at for at, one in enumerate(found) if one.level == 2)
    assert found[first].ambiguous
    assert 3 in [one.level for one in found[first:40]]


def test_a_client_that_shows_its_last_step_only() -> None:
    """It cannot be told from another conversation each time, and counts a quarter (LD-4)."""
    program = Program()
    found = [program.send(poll("a", number)._replace(messages=3), f"call_a_{number:06}") for number in range(40)]
    assert [one.level for one in found[:8]] == [0] * 8
    assert found[-1].level == 3
    assert found[-1].ambiguous


def test_a_client_that_draws_new_ids_for_each_request() -> None:
    """A conversation that grows goes on, whatever its ids (C1)."""
    program = Program()
    program.send(OPENING)
    found = [program.send(poll("a", number), f"call_{number}_other") for number in range(6)]
    assert [one.level for one in found] == [0, 0, 1, 1, 2, 2]
    assert not any(one.ambiguous for one in found)


def test_requests_without_a_history() -> None:
    """Tool calls of MCP, and results after `previous_response_id`, are a message each (LD-4)."""
    program = Program()
    for number in range(6):
        program.send(poll("a", number)._replace(calls=(), call_ids=(), messages=3))
    assert load(program.window).ambiguous_at == 0
    for number in range(6):
        program.send(poll("a", number)._replace(results=(), messages=1))
    assert load(program.window).ambiguous_at == 0


def test_ten_minutes_later_one_of_them_is_judged_again() -> None:
    """A stuck one that is left over is stopped in the end (LD-4)."""
    program = Program()
    program.send(OPENING)
    program.send(poll("a", 0), *ids("a", 0))
    program.send(poll("b", 0), *ids("b", 0))
    found = []
    for number in range(1, 60):
        program.now += 14.0
        found.append(program.send(poll("b", number), *ids("b", number)))
    assert found[5].ambiguous
    assert [found[at].ambiguous for at in (38, 39)] == [True, False]  # the second is ten minutes after it
    assert (found[-1].ambiguous, found[-1].level) == (False, 3)


def test_a_history_that_was_cut_is_no_other_conversation() -> None:
    """Compaction rewrites history (LD-4)."""
    program = Program()
    program.send(OPENING)
    program.send(poll("a", 0)._replace(size=60_000), *ids("a", 0))
    later = [program.send(poll("a", n)._replace(size=9000), *ids("a", n)[1:]) for n in range(1, 6)]
    assert (later[-1].level, later[-1].ambiguous) == (2, False)


@pytest.mark.parametrize(("size", "cut"), [(29_999, True), (30_000, False)])
def test_a_shorter_history_was_cut_if_less_than_half_is_left(size: int, cut: bool) -> None:
    """Otherwise it is another conversation, unless it shows the last call (LD-4)."""
    program = Program()
    program.send(OPENING)
    program.send(poll("a", 20)._replace(size=60_000), *ids("a", 20))
    program.send(poll("a", 21)._replace(size=size, messages=6), "call_a_000021")
    assert (load(program.window).ambiguous_at == 0) is cut


def test_where_calls_have_no_ids_nothing_is_taken_for_another() -> None:
    """Actions that are written as text (LD-4)."""
    program = Program()
    program.send(OPENING)
    found = [program.send(poll("a", number)._replace(call_ids=())) for number in range(6)]
    assert (found[-1].level, found[-1].ambiguous) == (2, False)


def test_another_voice_reads_a_stuck_transcript() -> None:
    """A judge with a system prompt of its own is answered, while the agent stays blocked (C24)."""
    window, view = b"", RequestContext(system=lambda: "model\0You are an agent.")
    for number in range(5):
        window = DETECTOR.evaluate(window, poll("a", number), 1000.0 + number, view).window
    stuck = poll("a", 4)
    assert DETECTOR.evaluate(window, stuck, 1006.0, view).level == 2
    assert DETECTOR.evaluate(window, stuck, 1006.0, RequestContext(system=lambda: "model\0You are a judge.")).level == 0
