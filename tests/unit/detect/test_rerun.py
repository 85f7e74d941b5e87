"""Runs that are started again and again with the same outcome (LD-11)."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.counting import EXPECT_REPEATS_HEADER
from breakloop.detect.rerun import OPENINGS, RerunDetector, RunOpening, opens_run, trigger_of
from breakloop.detect.stateful import Evaluation, section_tags
from breakloop.detect.steps import StepEvaluator, StepsSettings
from breakloop.detect.steps.window import run_so_far
from breakloop.model.call import Answer, Chat, Result, Step, ToolCall, Usage
from tests.builders import call
from tests.each import each
from tests.unit.detect.reading import CONFIG, Reader, digest

NOTHING, NOTICE, BLOCK = range(3)
TASK = "Review commit 4f21c9ab, and report what is wrong."
DETECTOR = RerunDetector(CONFIG, Reader(), digest)
EVALUATOR = StepEvaluator(StepsSettings(), digest)
DIFF = "the change of the basket:\n" + "a line of it\n" * 12
EIGHTH, SIXTEENTH = [NOTHING] * 7 + [NOTICE], [NOTHING] * 7 + [NOTICE] * 8 + [BLOCK]


class Agent:
    """One agent's memory, and a clock."""

    def __init__(self, detector: RerunDetector = DETECTOR, **opening: Any) -> None:
        self.detector = detector
        self.window = b""
        self.now = 1_800_000_000.0
        self.opening = RunOpening(TASK, has_tools=True)._replace(**opening)
        self.runs = 0

    def begin(self, after: float = 300.0, **opening: Any) -> Evaluation:
        self.now += after
        self.runs += 1
        self.opening = self.opening._replace(session=f"run {self.runs}", **opening)
        judged = self.detector.evaluate_opening(self.window, self.opening, self.now)
        self.window = judged.window
        assert len(self.window) <= 2929
        return judged

    def end(
        self, said: str = "No remarks.", *results: str, tool: str = "read_change", usage: Usage | None = None
    ) -> None:
        steps = EVALUATOR.evaluate(b"", Step("", (), (), (), (TASK,), (), 1, 4000), self.now).window
        for number, result in enumerate(results or (DIFF,)):
            got = (Result(result, call_id=f"call_{number:08}"),)
            made = (ToolCall(tool, f'{{"part":{number}}}'),)
            step = Step("", made, (f"call_{number:08}",), got, (), (), 2 * number + 3, 8000)
            steps = EVALUATOR.evaluate(steps, step, self.now + number).window
        self.answer(said, steps, usage)

    def answer(self, said: str, steps: bytes = b"", usage: Usage | None = None) -> None:
        answer = Answer(200, said, usage=usage, complete=True)
        self.window = self.detector.end_run(self.window, b"", self.opening.session, run_so_far(steps), answer)

    def run(self, times: int, after: float = 300.0, said: str = "No remarks.", *results: str) -> list[int]:
        """Return the level of each run. A blocked one does not happen."""
        found: list[int] = []
        for _ in range(times):
            found.append(self.begin(after).level)
            if found[-1] < BLOCK:
                self.end(said, *results)
        return found


@pytest.mark.parametrize("after", [5.0, 60.0, 300.0, 900.0])
def test_told_at_the_eighth_blocked_at_the_sixteenth(after: float) -> None:
    """Runs at regular intervals, with the same opening and the same outcome (LD-11)."""
    agent = Agent()
    assert agent.run(16, after) == SIXTEENTH


def test_evidence_has_count_time_cost_and_trigger() -> None:
    """What people need to find the cause: how often, in which time, at what cost, started by what (LD-11)."""
    agent = Agent(trigger="webhook")
    for _ in range(15):
        agent.begin()
        agent.end(usage=Usage(60_000, 20_000))
    found = agent.begin()
    assert found.evidence == (
        "the same run was started 16 times in 75 minutes with the same outcome; about 1.2 million tokens; "
        "trigger webhook"
    )
    assert (found.level, found.kind, found.hits, found.fresh) == (BLOCK, "rerun", 16.0, True)


def test_tokens_are_estimated_from_what_was_sent() -> None:
    """Where the provider reports no use, four bytes are a token (LD-11)."""
    agent = Agent()
    agent.run(7)
    assert "about 21,000 tokens" in agent.begin().evidence  # 7 runs with requests of 4,000 and 8,000 bytes


def test_evidence_of_the_first_run() -> None:
    """A policy may report from the first run on; then none has ended, and their tokens are not known (LD-11)."""
    found = Agent(RerunDetector(CONFIG, Reader(), digest, (1, 16)), trigger="cron").begin()
    assert found.evidence == "the same run was started once in 1 minute with the same outcome; trigger cron"


def test_evidence_rounds_minutes_and_tokens() -> None:
    """Minutes are whole, one at least; from a million tokens on, they are told in millions (LD-11)."""
    for after, minutes in ((1.0, "1 minute "), (12.0, "1 minute "), (13.0, "2 minutes ")):
        agent = Agent(trigger="webhook")
        agent.run(7, after)
        assert f"8 times in {minutes}with" in agent.begin(after).evidence
    for runs, used, tokens in (
        (7, 142_857, "999,999"),
        (8, 125_000, "1.0 million"),
        (7, 142_858, "1.0 million"),
        (7, 0, "21,000"),
    ):
        agent = Agent(trigger="webhook")
        for _ in range(runs):
            agent.begin()
            agent.end(usage=Usage(used, 0))
        assert f"about {tokens} tokens" in agent.begin().evidence


def test_eight_in_four_hours() -> None:
    """Fewer in the same time, or as many in a longer one, are not reported (LD-11)."""
    for last, level in ((2058.0, NOTICE), (2059.0, NOTHING)):
        agent = Agent(trigger="webhook")
        agent.run(7, 2057.0)
        assert agent.begin(last).level == level  # the first was four hours ago, or a second longer


def test_tokens_of_the_last_four_hours() -> None:
    """As if the runs had begun at equal intervals (LD-11)."""
    agent = Agent(trigger="heartbeat")
    for _ in range(72):
        agent.begin()
        agent.end(usage=Usage(10_000, 0))
    assert "49 times in 240 minutes" in (said := agent.begin().evidence)
    assert "about 480,000 tokens" in said


def test_an_hour_is_the_longest_pause() -> None:
    """Runs an hour apart are compared; a second more, and the count begins again (LD-11)."""
    for pause, level in ((3600.0, NOTICE), (3601.0, NOTHING)):
        agent = Agent(RerunDetector(CONFIG, Reader(), digest, (2, 9)), trigger="webhook")
        agent.run(1)
        assert agent.begin(pause).level == level


@pytest.mark.parametrize("back", [1.0, 10.0])
def test_the_clock_is_set_back(back: float) -> None:
    """Then the count begins again (LD-11)."""
    agent = Agent(trigger="webhook")
    agent.run(7)
    assert agent.begin(-back).level == NOTHING
    agent.end()
    assert agent.run(7)[-2:] == [NOTHING, NOTICE]


def test_a_clock_before_1970() -> None:
    """It counts as the beginning of time (Y-2)."""
    agent = Agent(RerunDetector(CONFIG, Reader(), digest, (2, 9)), trigger="webhook")
    agent.now = -100.0
    assert agent.run(2, 5.0) == [NOTHING, NOTICE]


def test_runs_within_one_second() -> None:
    """Each that ends before the next one begins is counted (LD-11)."""
    agent = Agent(trigger="webhook")
    agent.now = 1_800_000_000.1
    assert agent.run(16, 0.01) == SIXTEENTH


def test_it_stays_blocked_until_the_count_is_old() -> None:
    """A blocked run is not a run: the count falls with time, and one more passes then. Another outcome frees it."""
    agent = Agent()
    assert agent.run(48)[15:] == [BLOCK] * 33  # for four hours
    assert agent.run(12).count(NOTICE) == 4  # sixteen in four hours
    while agent.begin().level == BLOCK:
        pass
    agent.end("There is a mistake in the third file.")
    assert agent.begin().level == NOTHING


def test_each_level_and_each_doubling_is_reported_once() -> None:
    agent = Agent(trigger="heartbeat")
    fresh = []
    for _ in range(34):
        fresh.append(agent.begin().fresh)
        agent.end()
    assert [at + 1 for at, one in enumerate(fresh) if one] == [8, 16, 32]


def test_another_outcome_begins_the_count_again() -> None:
    agent = Agent()
    assert agent.run(7) + agent.run(1, 300.0, "There is a mistake.") + agent.run(8) == [NOTHING] * 7 + [NOTICE] + [
        NOTHING
    ] * 7 + [NOTICE]


def test_a_change_begins_the_count_again() -> None:
    """A run that did something is not counted, whatever it says (LD-11)."""
    agent = Agent()
    levels = []
    for _ in range(20):
        levels.append(agent.begin().level)
        agent.end("Done.", "written: 4 lines", tool="write_report")
    assert set(levels) == {NOTHING}


def test_runs_after_a_change() -> None:
    """The first one after it is the first that is counted (LD-11)."""
    agent = Agent(trigger="webhook")
    agent.run(3)
    agent.begin()
    agent.end("No remarks.", "written: 4 lines", tool="write_report")
    assert agent.run(9) == [*EIGHTH, NOTICE]


def test_something_new_begins_the_count_again() -> None:
    """An inbox with other mails is other work, even if each run says "Done." (LD-11)."""
    agent = Agent()
    levels = []
    for number in range(20):
        levels.append(agent.begin().level)
        agent.end("Done.", f"mail {number}: {DIFF}")
    assert set(levels) == {NOTHING}


def test_a_run_that_goes_on_after_an_answer() -> None:
    """What it read before that answer was new all the same (LD-11)."""
    agent = Agent(trigger="webhook")
    levels = []
    for number in range(20):
        levels.append(agent.begin().level)
        agent.end("Done.", f"mail {number}: {DIFF}")
        agent.end("Done.", DIFF)
    assert set(levels) == {NOTHING}


def test_new_results_are_noticed_after_many_others() -> None:
    """What is kept of results has a fixed size, and begins anew before it takes everything for known (LD-11, Y-2)."""
    agent = Agent(trigger="webhook")
    for number in range(500):
        assert agent.begin(60.0).level == NOTHING
        agent.end("Done.", f"mail {number}: {DIFF}")


def test_many_files_are_known_again() -> None:
    """Of many results, each that is new is noticed, and the others are known (LD-11)."""
    files = [f"file {at}: {DIFF}" for at in range(80)]
    assert Agent(trigger="webhook").run(8, 300.0, "Done.", *files) == EIGHTH
    agent = Agent(trigger="webhook")
    levels = []
    for number in range(20):
        levels.append(agent.begin().level)
        agent.end("Done.", *files[:20], f"mail {number}: {DIFF}")
    assert set(levels) == {NOTHING}


def test_every_bit_of_what_is_kept_of_results() -> None:
    """The digests with the lowest and the highest bits are known again, and no other is for them (LD-11)."""
    bits = [sum(place * 576**at for at, place in enumerate(places)) for places in ((0, 0, 0), (575, 575, 575))]
    lowest, highest, between = [one.to_bytes(6, "little") + bytes(2) for one in (*bits, 7 * 576**2 + 8 * 576 + 9)]
    agent = Agent(trigger="webhook")

    def levels(times: int, *results: bytes) -> list[int]:
        found = []
        for _ in range(times):
            found.append(agent.begin().level)
            answer = Answer(200, "Done.", complete=True)
            read = (100, 3, list(results))
            agent.window = agent.detector.end_run(agent.window, b"", agent.opening.session, read, answer)
        return found

    assert levels(8, lowest, highest) == EIGHTH
    assert levels(2, highest, lowest) == [NOTICE, NOTICE]
    assert levels(2, between) == [NOTICE, NOTHING]


def digest_of(*places: int) -> bytes:
    """The digest of a result that has these three bits."""
    number = 0
    for place in reversed(places):
        number = number * 576 + place
    return number.to_bytes(8, "little")


class Reading(Agent):
    """An agent that is told of at three runs, and reads results with the given digests."""

    def __init__(self) -> None:
        super().__init__(RerunDetector(CONFIG, Reader(), digest, (3, 99)), trigger="webhook")

    def read(self, *results: bytes) -> int:
        found = self.begin().level
        answer = Answer(200, "Done.", complete=True)
        self.window = self.detector.end_run(self.window, b"", self.opening.session, (100, 3, list(results)), answer)
        return found


@each(
    "result, new",
    [
        (digest_of(1, 2, 3), False),
        (digest_of(1, 5, 3), False),  # each of its bits is that of another one
        (digest_of(7, 2, 3), True),
        (digest_of(1, 7, 3), True),
        (digest_of(1, 2, 7), True),
        (digest_of(1, 2, 3)[:5] + b"\x01\x00\x00", True),  # six bytes of the digest count
        (digest_of(1, 2, 3)[:6] + b"\x01\x00", False),
    ],
)
def test_a_result_is_known_by_three_bits(result: bytes, new: bool) -> None:
    """One that is not set shows that it is new, and the count begins again (LD-11)."""
    agent, known = Reading(), (digest_of(1, 2, 3), digest_of(4, 5, 6))
    assert [agent.read(*known) for _ in range(2)] == [NOTHING, NOTHING]
    assert agent.read(result) == NOTICE
    assert agent.read(*known) == (NOTHING if new else NOTICE)


def test_half_of_the_bits() -> None:
    """With more, what was read is forgotten, and begins to be new (LD-11, Y-2)."""
    results = [digest_of(3 * at + 10, 3 * at + 11, 3 * at + 12) for at in range(97)]
    for count, level in ((96, NOTICE), (97, NOTHING)):
        agent = Reading()
        assert [agent.read(*results[:count]) for _ in range(4)][-1] == level
    agent = Reading()
    agent.read(*results)
    agent.read(digest_of(0, 0, 0))
    assert agent.read() == NOTHING  # nothing at all is known


def test_the_rhythm_is_that_of_the_last_runs() -> None:
    """Of 64 intervals, half are forgotten, so that one more out of step shows earlier (LD-11)."""
    agent = Agent()
    pauses = [100.0, *[100.0] * 49]  # 49 are as long as the one before
    while len(pauses) < 65:  # 15 are not
        pauses += [200.0 if pauses[-1] == 100.0 else 100.0]
    agent.run(1)
    found = []
    for pause in (*pauses, 300.0, 300.0):
        found.append(agent.begin(pause).level)
        agent.end()
    assert found[-3] >= NOTICE
    assert found[-2] == NOTHING


def test_the_order_of_what_is_read_does_not_matter() -> None:
    agent = Agent()
    levels = []
    for number in range(9):
        levels.append(agent.begin().level)
        agent.end("Done.", *[f"file {(number + at) % 5}: {DIFF}" for at in range(5)])
    assert levels[-2:] == [NOTICE, NOTICE]


def test_times_and_ids_in_order_and_answer_are_masked() -> None:
    agent = Agent()
    levels = []
    for number in range(8):
        levels.append(agent.begin(task=f"{TASK} Started at 2027-01-15 10:{number:02}:07.").level)
        agent.end(f"No remarks, after {number}.5 seconds.")
    assert levels == EIGHTH


def test_model_and_system_prompt_belong_to_the_opening() -> None:
    """The time in a system prompt does not (LD-11)."""
    for system, expected in (("You are number {}.", [NOTHING] * 8), ("It is 10:0{}:00. Review all.", EIGHTH)):
        agent = Agent(trigger="webhook")
        levels = []
        for number in range(8):
            levels.append(agent.begin(system=system.format(number)).level)
            agent.end()
        assert levels == expected


def test_runs_at_once_are_samples() -> None:
    """A run that begins before the last one has ended is not counted."""
    agent = Agent(trigger="eval")
    for _ in range(5):
        for at in range(20):
            found = agent.begin(0.1 if at else 120.0)
            assert found.level == NOTHING
        agent.end()


def test_runs_that_never_end_are_not_counted() -> None:
    agent = Agent(trigger="webhook")
    assert {agent.begin().level for _ in range(30)} == {NOTHING}


def test_an_hour_apart_is_not_compared() -> None:
    """A person who asks the same each morning, and a job that runs every hour (LD-11)."""
    agent = Agent(trigger="cron")
    assert set(agent.run(40, 3601.0)) == {NOTHING}
    assert set(Agent(trigger="cron").run(40, 2400.0)) == {NOTHING}  # six in four hours


PAUSES = (20.0, 400.0, 90.0, 10.0, 700.0, 45.0, 150.0)


def test_people_come_when_they_like() -> None:
    """Without a trigger and without a rhythm, runs may be those of people: an agent that has a name is reported, and one
    without a name is not (LD-11)."""
    for named, level in ((False, NOTHING), (True, NOTICE)):
        agent = Agent(agent_named=named)
        for number in range(40):
            agent.begin(PAUSES[number % 7])
            agent.end()
        found = agent.begin()
        assert found.level == level
        assert ("people may have started it" in found.evidence) is named


@pytest.mark.parametrize(
    ("pauses", "level"),
    [
        ((100.0, 125.0), NOTICE),  # a quarter longer
        ((100.0, 127.0), NOTHING),
        ((100.0, 100.0, 100.0, 100.0, 300.0), NOTHING),  # three of five
        ((*[100.0] * 9, 300.0), NOTICE),  # eight of ten
        ((100.0, 100.0, 300.0, 300.0), NOTHING),
    ],
)
def test_what_is_regular(pauses: tuple[float, ...], level: int) -> None:
    """Three quarters of the intervals are as long as the one before, give or take a quarter (LD-11)."""
    agent = Agent()
    found = []
    for number in range(160):
        found.append(agent.begin(pauses[number % len(pauses)]).level)
        agent.end()
    assert {one > NOTHING for one in found[80:]} == {level > NOTHING}


def test_seven_intervals_show_a_rhythm() -> None:
    """Fewer do not, whatever the thresholds are (LD-11)."""
    agent = Agent(RerunDetector(CONFIG, Reader(), digest, (2, 99)))
    assert agent.run(9) == [NOTHING] * 7 + [NOTICE] * 2
    for pauses, level in (
        ([100.0] * 6 + [300.0], NOTICE),  # five of six are as long as the one before
        ([100.0] * 5 + [300.0, 100.0], NOTHING),  # four of six
        ([100.0] * 7 + [300.0, 100.0], NOTICE),  # six of eight
        ([100.0] * 6 + [300.0, 100.0, 100.0, 300.0], NOTHING),  # six of nine
    ):
        agent = Agent()
        agent.run(1)
        found = []
        for pause in pauses:
            found.append(agent.begin(pause).level)
            agent.end()
        assert found[-1] == level


def test_memory_of_another_version_is_not_read() -> None:
    """It counts as new (S-2)."""
    agent = Agent(trigger="webhook")
    agent.run(7)
    assert agent.window[0] == 1
    agent.window = b"\x02" + agent.window[1:]
    assert agent.begin().level == NOTHING


@each("opening", [{"trigger": "heartbeat"}, {"trigger": "cron: every 5 minutes"}, {"task": "HEARTBEAT: look around."}])
def test_a_heartbeat_is_only_reported(opening: dict[str, Any]) -> None:
    """What says that it is one, five minutes apart or more (LD-11)."""
    agent = Agent(**opening)
    assert agent.run(40)[7:] == [NOTICE] * 33
    assert "because it is a heartbeat" in agent.begin().evidence
    assert Agent(**opening).run(16, 240.0) == SIXTEENTH
    assert Agent(**opening).run(16, 285.0)[-1] == NOTICE  # a timer is not exact
    assert Agent(**opening).run(16, 284.0) == SIXTEENTH


@each(
    "trigger, result, after, level",
    [
        ("monitor", DIFF, 57.0, NOTICE),
        ("monitor", DIFF, 56.0, BLOCK),
        ("health check", "ok", 57.0, NOTICE),
        ("cron", "ok", 57.0, NOTICE),  # it is timed, and reads nothing
        ("cron", "ok", 56.0, BLOCK),
        ("cron", DIFF, 57.0, BLOCK),
        ("webhook", "ok", 57.0, BLOCK),
    ],
)
def test_what_watches_something_is_only_reported(trigger: str, result: str, after: float, level: int) -> None:
    """A monitor, or a timer whose runs read nothing, a minute apart or more (LD-11)."""
    agent = Agent(trigger=trigger)
    agent.run(15, after, "All is well.", result)
    found = agent.begin(after)
    assert (found.level, "because it watches something" in found.evidence) == (level, level == NOTICE)


@each(
    "trigger, has_tools, calls, level",
    [
        ("", False, False, NOTICE),
        ("webhook", False, False, BLOCK),
        ("", True, False, BLOCK),
        ("", False, True, BLOCK),
    ],
)
def test_a_program_has_a_trigger_or_tools(trigger: str, has_tools: bool, calls: bool, level: int) -> None:
    """Without them, the runs may be questions that somebody asks at regular intervals (LD-11)."""
    agent, levels = Agent(trigger=trigger, has_tools=has_tools), []
    for _ in range(16):
        levels.append(agent.begin(60.0).level)
        if calls:
            agent.end()
        else:
            agent.answer("OK")
    assert levels[-1] == level


@each("result", ["No messages.", "[]", "nothing to do", "0 open alerts", "ok"])
def test_a_run_that_finds_nothing_is_a_heartbeat(result: str) -> None:
    """A look that returns nothing to work with, five minutes apart or more (LD-11)."""
    assert Agent().run(40, 300.0, "Nothing urgent.", result)[7:] == [NOTICE] * 33
    assert Agent().run(16, 240.0, "Nothing urgent.", result) == SIXTEENTH


def test_without_tools_and_trigger_it_is_only_reported() -> None:
    agent = Agent()
    agent.opening = RunOpening(TASK)
    levels = []
    for _ in range(20):
        levels.append(agent.begin(60.0).level)
        agent.answer("OK")
    assert levels == [NOTHING] * 7 + [NOTICE] * 13
    assert agent.begin(60.0).evidence == (
        "the same run was started 21 times in 20 minutes with the same outcome; only reported, because it has no tools"
    )


def test_end_users_have_their_own_runs() -> None:
    agent = Agent(trigger="webhook")
    levels = []
    for number in range(40):
        levels.append(agent.begin(user=f"user:{number % 8}").level)
        agent.end()
    assert set(levels) == {NOTHING}


def test_answers_of_other_conversations_of_a_session_do_not_end_its_run() -> None:
    """A title or a summary in between, in the same session, has its own opening and its own answer."""
    agent = Agent(trigger="webhook")
    levels = []
    for _ in range(8):
        levels.append(agent.begin().level)
        title = agent.opening._replace(task="Give this conversation a title.", has_tools=False)
        window = agent.detector.evaluate_opening(agent.window, title, agent.now).window
        answer = Answer(200, f"Title {agent.runs}", complete=True)
        key = agent.detector.opening_id(title)
        agent.window = agent.detector.end_run(window, key, agent.opening.session, (0, 0, []), answer)
        agent.end()
    assert levels == EIGHTH


ROW = Struct("<6s4s6s6sBBefIIHBBfI72s")  # as stated in `detect.rerun`


def ended(agent: Agent) -> list[bool]:
    """Whether the last run of each opening has ended."""
    return [row[3] != bytes(6) for row in ROW.iter_unpack(agent.window[1:])]


def test_which_run_an_answer_ends() -> None:
    """Of the runs of a session, the last one that has not ended; of another session, none (LD-11)."""
    agent = Agent(trigger="webhook")
    for task in ("First", "Second", "Third"):
        agent.opening = agent.opening._replace(task=task, session="s")
        agent.window = agent.detector.evaluate_opening(agent.window, agent.opening, agent.now).window
    found = []
    for number in range(4):
        agent.answer(f"Answer {number}")
        found.append(ended(agent))
    assert found == [[False, False, True], [False, True, True], [True, True, True], [True, True, True]]
    for session, opening in (("other", b""), ("s", b"unknown"), ("other", agent.detector.opening_id(agent.opening))):
        answer = Answer(200, "Done.", complete=True)
        assert agent.detector.end_run(agent.window, opening, session, (0, 0, []), answer) is agent.window


@pytest.mark.parametrize(("action", "happens"), [("reject", False), ("warn", True)])
def test_the_answer_of_a_run_that_was_blocked(action: str, happens: bool) -> None:
    """There is none, unless the block is only reported (LD-11)."""
    config = replace(CONFIG, actions=("warn", action, action))
    agent = Agent(RerunDetector(config, Reader(), digest), trigger="webhook")
    agent.run(15)
    assert agent.begin().level == BLOCK
    before = agent.window
    agent.answer("There is a mistake.")
    assert (agent.window is not before) is happens


@pytest.mark.parametrize(
    ("hits", "tokens", "read"),
    [
        (20_000.0, 0.0, True),
        (20_008.0, 0.0, False),
        (-0.5, 0.0, False),
        (20_000.0, 9e14, True),
        (20_000.0, 1.1e15, False),
        (20_000.0, -0.5, False),
        (float("nan"), 0.0, False),
    ],
)
def test_counts_that_no_opening_has(hits: float, tokens: float, read: bool) -> None:
    """Whatever wrote them, they block nobody (LD-11)."""
    agent = Agent(trigger="webhook")
    agent.run(1)
    (row,) = ROW.iter_unpack(agent.window[1:])
    agent.window = agent.window[:1] + ROW.pack(*row[:7], hits, *row[8:13], tokens, *row[14:])
    before = agent.window
    agent.answer("Done.")
    assert (agent.window is not before) is read


def test_the_highest_count() -> None:
    """It stays where it is (Y-2)."""
    agent = Agent(trigger="webhook")
    agent.run(2)
    (row,) = ROW.iter_unpack(agent.window[1:])
    agent.window = agent.window[:1] + ROW.pack(*row[:7], 20_000.0, *row[8:])
    assert agent.begin().hits == 20_001.0


@pytest.mark.parametrize(("announced", "acts"), [(b"15", True), (b"16", False)])
def test_runs_that_were_announced(announced: bytes, acts: bool) -> None:
    """A caller that may do so is believed (LD-6)."""
    config = replace(CONFIG, expect_repeats=frozenset(("caller",)))
    detector = RerunDetector(config, Reader(), digest)
    asked = call(headers={EXPECT_REPEATS_HEADER: announced})
    found = Evaluation(b"w", BLOCK, "rerun", "the same run", "ab" * 8, True, 16.0)
    assert (detector.operation(asked, found, "default", 0) is not None) is acts
    assert detector.operation(call(), Evaluation(b"w", hits=1.0), "default", 0) is None


@pytest.mark.parametrize(("agent_id", "level"), [("nightly", NOTICE), ("caller", NOTHING)])
def test_a_named_agent_is_one_that_is_not_the_caller(agent_id: str, level: int) -> None:
    """Its runs are reported even if they begin when somebody likes (LD-11)."""
    detector, window, now, found = RerunDetector(CONFIG, Reader(TOOLS, agent_id=agent_id), digest), b"", 1e9, []
    for pause in (*PAUSES, *PAUSES):
        now += pause
        asked = call()
        judged = detector.evaluate(asked, window, now)
        assert judged is not None
        found.append(judged.level)
        answer = Answer(200, "Done.", complete=True)
        window = detector.end_run(judged.window, asked.decision.opening, "me", (0, 0, []), answer)
    assert found == [NOTHING] * 7 + [level] * 7


def test_where_the_steps_of_a_run_are() -> None:
    """In the window of its session (LD-11)."""
    assert DETECTOR.steps_of(call()) == ("s:me", section_tags(CONFIG))


def test_only_the_last_orders_are_kept() -> None:
    agent = Agent(trigger="webhook")
    for number in range(3 * OPENINGS):
        agent.begin(1.0, task=f"Order {number}")
        agent.end()
    assert (len(agent.window) - 1) % OPENINGS == 0
    agent.opening = agent.opening._replace(task=TASK)
    assert agent.run(8) == EIGHTH
    for others, level in ((23, NOTICE), (24, NOTHING)):
        agent = Agent(trigger="webhook")
        agent.run(7)
        for number in range(others):
            agent.begin(1.0, task=f"Order {number}")
            agent.end()
        assert agent.begin(task=TASK).level == level


def test_the_answer_after_the_last_one_belongs_to_the_same_run() -> None:
    """A session that goes on is the run that it opened: its last answer is the outcome (LD-11)."""
    agent = Agent(trigger="webhook")
    levels = []
    for number in range(8):
        levels.append(agent.begin().level)
        agent.end(f"Part {number} is done.")
        agent.end("All is done.")
    assert levels == EIGHTH


def test_thresholds_are_those_of_the_block() -> None:
    agent = Agent(RerunDetector(CONFIG, Reader(), digest, (3, 5)), trigger="webhook")
    assert agent.run(5) == [NOTHING, NOTHING, NOTICE, NOTICE, BLOCK]


def test_the_trigger_is_bounded_and_printable() -> None:
    """Evidence has no more of a header than a name."""
    assert trigger_of(call(headers={"x-agent-trigger": b"mail"})) == "mail"
    assert trigger_of(call(headers={"x-agent-trigger": b'web<hook>\xff"\n' + b"x" * 90})) == "webhook" + "x" * 28
    assert trigger_of(call()) == ""


def test_a_ping_is_no_run() -> None:
    """A small request for one token: something looks whether the model is there."""
    asked = call(body=b"{}")
    asked.parsed.chat = Chat("openai_chat", "m", (), 1, max_tokens=1)
    assert DETECTOR.evaluate(asked, b"", 1e9) is None
    assert RerunDetector(CONFIG, Reader(None), digest).evaluate(call(), b"", 1e9) is None
    asked.parsed.chat = Chat("openai_chat", "m", (), 1, max_tokens=2)
    assert DETECTOR.evaluate(asked, b"", 1e9) is not None


NO_TOOLS = Step("", (), (), (), ("Begin.",), (), 1, 10)
TOOLS = NO_TOOLS._replace(tools=("look",))
UNDER_WAY = TOOLS._replace(calls=(ToolCall("look", "{}"),), results=(Result("text"),))


@each(
    "step, trigger, planned, kept",
    [
        ({"newest": TOOLS, "unnamed": False, "agent_id": "caller"}, "", True, True),
        ({"newest": TOOLS, "unnamed": True, "agent_id": "caller"}, "", False, False),  # visits of many people
        ({"newest": NO_TOOLS, "unnamed": False, "agent_id": "caller"}, "", False, False),
        ({"newest": NO_TOOLS, "agent_id": "caller"}, "cron", True, True),
        ({"newest": NO_TOOLS, "agent_id": "caller"}, "Person", False, False),
        ({"newest": NO_TOOLS, "agent_id": "nightly"}, "", True, True),
        ({"newest": UNDER_WAY, "agent_id": "nightly"}, "", False, True),  # no opening, but it may end the run
        ({"newest": None, "agent_id": "nightly"}, "cron", False, False),
    ],
)
def test_whose_runs_are_judged(step: dict[str, Any], trigger: str, planned: bool, kept: bool) -> None:
    """Those of a named agent or trigger, and those with tools and named sessions, if the answer will be known (LD-11)."""
    for tracked in (True, False):
        asked = call(headers={"x-agent-trigger": trigger.encode()} if trigger else {})
        asked.tracked = tracked
        slot = RerunDetector(CONFIG, Reader(**step), digest).plan(asked, "project", 0, 7.0)
        assert (slot is not None, len(asked.decision.runs)) == (planned and tracked, int(kept and tracked))


def test_an_order_is_text_of_the_user_without_results() -> None:
    begun = Step("", (), (), (), ("Begin.",), (), 1, 10)
    assert opens_run(begun)
    assert opens_run(begun._replace(said="Done."))
    assert not opens_run(begun._replace(calls=(ToolCall("look", "{}"),)))
    assert not opens_run(begun._replace(results=(Result("text"),)))
    assert not opens_run(begun._replace(users=()))


@given(st.binary(max_size=600), st.integers(0, 2**33))
def test_any_section_can_be_read(window: bytes, now: int) -> None:
    """A section that cannot be read counts as new."""
    for data in (window, b"\x01" + window, b"\x01" + (window * 30)[: 122 * 3]):
        found = DETECTOR.evaluate_opening(data, RunOpening(TASK, trigger="mail"), now)
        DETECTOR.end_run(found.window, b"", "", (0, 0, []), Answer(200, "Done."))
