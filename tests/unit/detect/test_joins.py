"""Unnamed conversations that belong together, by copies of answers (LD-4)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.counting import EXPECT_REPEATS_HEADER
from breakloop.detect.joins import Conversation, JoinDetector, JoinedStepsDetector
from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import load
from breakloop.model.call import Answer, Result, Step, ToolCall
from tests.builders import call
from tests.unit.detect.reading import CONFIG, Reader, digest

SIZE_MAX = 2699
TASK = "Find out why the invoices of March are missing."
PLAN = "Ask the archive for the list of all invoices of March."
REPORT = "The archive has no list of invoices for that month."
_READS = ToolCall("read_file", '{"path": "ledger.txt"}')
_ASKS = ToolCall("ask_archivist", json.dumps({"message": PLAN}))


class Caller:
    """One caller and agent: what is kept of its answers, and a clock."""

    def __init__(self) -> None:
        self.detector = JoinDetector(CONFIG, Reader(), digest)
        self.window = b""
        self.now = 1_800_000_000.0
        self.open: list[Conversation] = []

    def request(self, session: str, *users: str, said: str = "", **more: object) -> str:
        """Send a request that waits for its answer; return the team that it is counted with."""
        self.now += 2.0
        step = Step(said, (), (), (), users, (), 1, 100)._replace(**more)  # type: ignore[arg-type]
        conversation, joined = self.detector.find(self.window, digest(session.encode()), step, self.now)
        self.open.append(conversation)
        return joined

    def answer(self, text: str = "", *calls: ToolCall, at: int = -1) -> None:
        """Answer the request that came last, or another one that waits."""
        self.window = self.detector.keep(self.window, self.open.pop(at), Answer(200, text, calls))
        assert len(self.window) <= SIZE_MAX

    def turn(self, session: str, *users: str, said: str = "", answer: str = "", **more: object) -> str:
        joined = self.request(session, *users, said=said, **more)
        self.answer(answer)
        return joined


def test_an_answer_in_another_conversation_joins_them() -> None:
    """Two agents that tell each other what to do are one team, from the first copy on."""
    here = Caller()
    assert here.turn("planner", TASK, answer=PLAN) == ""
    team = here.turn("archivist", PLAN, answer=REPORT)
    assert team
    assert here.turn("planner", REPORT, said=PLAN, answer="Then ask for the invoices one by one.") == team
    assert here.turn("archivist", "Then ask for the invoices one by one.", said=REPORT, answer=REPORT) == team


def test_white_space_makes_no_difference() -> None:
    """Programs trim and wrap what they hand on."""
    here = Caller()
    here.turn("planner", TASK, answer=PLAN)
    assert here.turn("archivist", f"\n{PLAN.replace(' ', '  ')}\n", answer=REPORT)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, f"Ledger:\n{json.dumps({'next': {'name': 'archivist', 'order': PLAN}})}"),
        Answer(200, "", (ToolCall("ask_archivist", json.dumps({"message": PLAN})),)),
    ],
)
def test_what_is_handed_on_joins_too(answer: Answer) -> None:
    """A field of a JSON answer, and an argument of a call."""
    here = Caller()
    here.request("planner", TASK)
    here.window = here.detector.keep(here.window, here.open.pop(), answer)
    assert here.turn("archivist", PLAN)


def test_what_is_written_to_a_file_is_not_handed_on() -> None:
    """Another agent that gets the text of a file is not told what to do."""
    here = Caller()
    here.request("writer", TASK)
    here.answer("", ToolCall("write_file", json.dumps({"path": "a.md", "content": PLAN})))
    assert here.turn("reader", PLAN) == ""


def test_an_answer_as_the_result_of_a_call() -> None:
    """An agent that is called as a tool: only whole answers count, because tools return all kinds of texts."""
    here = Caller()
    here.turn("helper", TASK, answer=f'{{"report": "{REPORT}"}}')
    assert here.turn("manager", "", results=(Result(REPORT),)) == ""
    told = (Result(f'{{"report": "{REPORT}"}}'),)
    assert here.turn("manager", "", calls=(_READS,), results=told) == ""  # what a file contains is told by nobody
    assert here.turn("manager", "", calls=(_READS, _ASKS), results=told)
    assert here.turn("manager", "", results=told)


def test_other_conversations_stay_apart() -> None:
    """Whatever people ask at the same time over one key."""
    here = Caller()
    for turn in range(9):
        for one in ("a", "b", "c"):
            before = f"{one}: an answer with the number {turn - 1}" if turn else ""
            assert here.turn(one, f"{one}: {TASK} {turn}", said=before, answer=before.replace("-1", str(turn))) == ""


def test_short_texts_join_nobody() -> None:
    """Everybody says yes."""
    here = Caller()
    here.turn("a", TASK, answer="Yes, I agree.")
    assert here.turn("b", "Yes, I agree.") == ""


@pytest.mark.parametrize(("size", "joins"), [(19, False), (20, True)])
def test_texts_of_twenty_characters_join(size: int, joins: bool) -> None:
    """As a message, and as the result of a call."""
    for sent in ({"users": ("x" * size,)}, {"results": (Result("x" * size),)}):
        here = Caller()
        here.turn("a", TASK, answer="x" * size)
        assert bool(here.turn("b", **sent)) is joins


def test_an_answer_that_the_client_changed() -> None:
    """The next request continues the last answer of its own session, not that of another."""
    here = Caller()
    here.turn("planner", TASK, answer=PLAN)
    team = here.turn("archivist", PLAN, answer=REPORT)
    assert (
        here.turn("cook", "What is for dinner today?", said="I changed this.", answer="Soup, as on any other day.")
        == ""
    )
    assert here.turn("archivist", "Go on.", said="(shortened)", answer="There is a second archive.") == team
    assert here.turn("cook", "And what is for dessert?", said="(shortened)", answer="Figs.") == ""


def test_conversations_that_open_alike() -> None:
    """Each request continues the answer that it shows."""
    here = Caller()
    here.turn("planner", TASK, answer=PLAN)
    here.turn("planner", TASK, answer="Ask somebody else for a list of invoices.")
    team = here.turn("archivist", PLAN, answer=REPORT)
    assert here.request("planner", "Go on.", said="Ask somebody else for a list of invoices.") == ""
    assert here.request("planner", "Go on.", said=PLAN) == team != ""


def test_repeats_of_own_tools_do_not_count_for_the_team() -> None:
    """They count in the window of the conversation; what an agent was told by another counts here."""
    looked = Step("", (ToolCall("look", "{}"),), (), (Result("nothing"),), (), (), 2, 100)

    def dry(step: Step, *, copied: bool) -> float:
        reader = Reader()
        detector = JoinedStepsDetector(CONFIG, reader, StepEvaluator(StepsSettings().of_teams(), digest))
        asked, window = call(), b""
        asked.decision.copied = copied
        for number in range(4):
            reader.newest = step._replace(messages=2 + 2 * number)
            found = detector.evaluate(asked, window, 1000.0 + 3 * number)
            assert found is not None
            window = found.window
        return load(window).dry

    assert dry(looked, copied=False) == 0
    assert dry(looked, copied=True) > 1
    assert dry(looked._replace(calls=(), results=(), said="Hm.", users=("Go on.",)), copied=False) > 1


def test_repeats_that_were_announced() -> None:
    """A caller that may do so is believed, also where it works in a team (LD-6)."""
    config = replace(CONFIG, expect_repeats=frozenset(("caller",)))
    detector = JoinedStepsDetector(config, Reader(), StepEvaluator(StepsSettings().of_teams(), digest))
    found = Evaluation(b"w", 2, "repeat", "the same", "ab" * 8, True, 6)
    for number, announced in ((b"5", False), (b"6", True)):
        asked = call(headers={EXPECT_REPEATS_HEADER: number})
        asked.decision.joined = "team"
        assert (detector.operation(asked, found, "default", 0) is None) is announced


def test_what_is_no_conversation_is_not_evaluated() -> None:
    evaluator = StepEvaluator(StepsSettings().of_teams(), digest)
    assert JoinedStepsDetector(CONFIG, Reader(None), evaluator).evaluate(call(), b"", 0.0) is None


def test_a_text_that_two_have_answered_joins_nobody() -> None:
    """Phrases of the model, and conversations that open alike."""
    here = Caller()
    here.turn("a", "What is in the first room?", answer=PLAN)
    here.turn("b", "What is in the second room?", answer=PLAN)
    assert here.turn("c", PLAN) == ""
    assert here.turn("a", "And then?", said=PLAN, answer=REPORT) == ""


def test_a_task_that_an_answer_quotes_joins_nobody() -> None:
    """Several runs of one task: one of them hands it on in the words in which the others begin."""
    here = Caller()
    here.turn("first run", TASK, answer=f'{{"goal": "{TASK}", "next": "{PLAN}"}}')
    assert here.turn("second run", TASK, answer="Let me think about this for a while.") == ""
    assert here.turn("worker of the first run", PLAN)


def test_later_quotes_do_not_either() -> None:
    """The task that a conversation began with is known, whoever repeats it."""
    here = Caller()
    here.turn("first run", TASK, answer=REPORT)
    here.turn("first run", "Repeat your task to me.", said=REPORT, answer=TASK)
    assert here.turn("second run", TASK) == ""


def test_workers_at_the_same_time_are_not_counted_together() -> None:
    """A manager that starts five workers at once: they may all do the same. It goes on with its team afterwards."""
    here = Caller()
    here.request("manager", TASK)
    orders = [f"Read the log of machine number {number}." for number in range(5)]
    here.answer("", *[ToolCall("delegate", json.dumps({"task": order})) for order in orders])
    assert all(here.request(f"worker {number}", order) for number, order in enumerate(orders))
    for number in range(5):
        here.answer(f"I begin with the log of {number}.", at=0)
    counted = [
        here.request(f"worker {number}", "Go on.", said=f"I begin with the log of {number}.") for number in range(5)
    ]
    assert counted[:3] == ["", "", ""]
    for number in range(5):
        here.answer(f"There is nothing wrong with machine {number}.", at=0)
    results = tuple([Result(f"There is nothing wrong with machine {number}.") for number in range(5)])
    assert here.turn("manager", results=results)


def test_two_teams_that_meet_are_one() -> None:
    """Both had a history of their own."""
    here = Caller()
    here.turn("a", TASK, answer=PLAN)
    one = here.turn("b", PLAN, answer=REPORT)
    here.turn("c", "Write a letter to the customers.", answer="Dear customers, we are sorry.")
    other = here.turn("d", "Dear customers, we are sorry.", answer="The letter is fine as it is.")
    assert one != other
    both = here.turn("a", REPORT, "The letter is fine as it is.", said=PLAN, answer="Send the letter, please.")
    assert both in (one, other)
    assert here.turn("d", "Send the letter, please.", said="The letter is fine as it is.") == both


def test_a_conversation_is_alone_if_no_other_opens_alike() -> None:
    """Its derived session is its own then, whatever else happens over the key."""
    here = Caller()
    here.turn("a", TASK, answer=PLAN)
    here.turn("b", "Something else, please.", answer=REPORT)
    here.request("a", "Go on.", said=PLAN)
    assert here.open.pop().alone
    here.request("a", "Go on.", said="Words that a client has changed.")
    assert not here.open.pop().alone
    here.turn("a", TASK, answer="Another run of the same task.")
    here.request("a", "Go on.", said=PLAN)
    assert not here.open.pop().alone


def test_answers_that_only_call_tools() -> None:
    """Which conversation is continued shows in the calls, too."""
    here = Caller()
    for name in ("archive", "ledger"):
        here.request("planner", TASK)
        here.answer("", ToolCall("ask", json.dumps({"whom": name, "order": f"{PLAN} ({name})"})))
    team = here.turn("archivist", f"{PLAN} (archive)", answer=REPORT)
    for name, joined in (("archive", team), ("ledger", "")):
        calls = (ToolCall("ask", json.dumps({"order": f"{PLAN} ({name})", "whom": name})),)
        assert here.request("planner", calls=calls, results=(Result("It was asked."),)) == joined


def test_the_same_answer_of_two_that_open_alike() -> None:
    """It shows neither which of them is continued, nor that there is one only."""
    here = Caller()
    for _ in range(2):
        here.turn("planner", TASK, answer=PLAN)
    groups = {bytes(4)}
    for said in ("(shortened)", PLAN):
        here.request("planner", "Go on.", said=said)
        found = here.open.pop()
        assert (found.alone, found.is_team, found.merged) == (False, False, ())
        assert found.group not in groups
        groups.add(found.group)
    here.turn("planner", TASK, answer=REPORT)
    here.request("planner", "Go on.", said="(shortened)")
    last = here.open.pop()
    assert last.group not in groups
    here.request("planner", "Go on.", said=REPORT)
    assert here.open.pop().group == last.group


def test_in_a_team_nobody_is_alone() -> None:
    """The agents may open alike."""
    here = Caller()
    here.turn("a", TASK, answer=PLAN)
    here.turn("a", TASK, PLAN, answer=REPORT)
    here.request("a", REPORT, said=PLAN)
    assert not here.open.pop().alone


def test_an_answer_that_failed_is_not_kept() -> None:
    """Nobody has read it."""
    here = Caller()
    asked = call()
    here.request("a", TASK)
    state = type("State", (), {"conversation": here.open.pop()})()
    asked.decision = state
    assert not here.detector.reads_answer(asked, Answer(500, PLAN))
    assert here.detector.reads_answer(asked, Answer(200, PLAN))
    assert here.detector.answered_call(here.window, Answer(200, PLAN), asked) != here.window


@pytest.mark.parametrize(
    ("has_ids", "is_team", "answer", "kept"),
    [
        (True, False, Answer(200, "", (_READS,)), False),
        (False, False, Answer(200, "", (_READS,)), True),
        (True, True, Answer(200, "", (_READS,)), True),
        (True, False, Answer(200, "", (_READS, _ASKS)), True),
        (True, False, Answer(200, "Let me look.", (_READS,)), True),
    ],
)
def test_calls_of_own_tools_are_not_kept(has_ids: bool, is_team: bool, answer: Answer, kept: bool) -> None:
    """They hand nothing on. They are kept in a team, which takes turns, and where no ids show what continues them."""
    here = Caller()
    asked = call()
    here.request("a", TASK)
    conversation = here.open.pop()._replace(has_ids=has_ids, is_team=is_team)
    asked.decision = type("State", (), {"conversation": conversation})()
    assert here.detector.reads_answer(asked, answer) is kept


def test_an_agent_that_calls_tools_stays_in_its_conversation() -> None:
    """Its calls are not kept, so a later request continues the text before them."""
    here = Caller()
    here.turn("a", TASK, answer=PLAN)
    group = here.window[-6:-2]  # of its answer, as the next request has it
    here.request("a", calls=(_READS,), call_ids=("call_1",), results=(Result("No such file."),))
    here.answer(REPORT)
    assert here.window[11 + 8 : 11 + 12] == group


def test_old_answers_are_forgotten() -> None:
    """After ten minutes without an answer, and when many others have come."""
    here = Caller()
    here.turn("a", TASK, answer=PLAN)
    here.now += 601.0
    assert here.turn("b", PLAN) == ""
    here.turn("a", TASK, answer=REPORT)
    number = 0
    while len(here.window) < SIZE_MAX or number < 100:
        number += 1
        here.turn(
            f"other {number}",
            f"What is the number {number} in words, please?",
            answer=f"In words it is the {number}th.",
        )
    assert here.window[0] == 1  # another version would drop what is stored
    assert here.request("b", REPORT) == ""
    assert here.request("c", f"In words it is the {number - 50}th.")


@given(st.binary(max_size=64))
def test_what_cannot_be_read_is_forgotten(data: bytes) -> None:
    """A damaged window, or one of another version."""
    here = Caller()
    here.window = data
    assert here.turn("a", PLAN, answer=REPORT) == ""


def test_only_unnamed_sessions_with_known_answers() -> None:
    """A named session needs no joins, and without answers there are none."""
    asked = call()
    asked.tracked = True
    owner = JoinDetector(CONFIG, Reader(), digest).owner(asked)
    assert owner == "j:caller|agent"
    assert JoinDetector(CONFIG, Reader(caller_id="other"), digest).owner(asked) != owner
    assert JoinDetector(CONFIG, Reader(unnamed=False), digest).owner(asked) == ""
    assert JoinDetector(CONFIG, Reader(None), digest).owner(asked) == ""
    asked.tracked = False
    assert JoinDetector(CONFIG, Reader(), digest).owner(asked) == ""


def test_only_calls_with_known_answers_are_planned() -> None:
    """Of both detectors (Q-1)."""
    evaluator = StepEvaluator(StepsSettings().of_teams(), digest)
    for made in (JoinDetector(CONFIG, Reader(), digest), JoinedStepsDetector(CONFIG, Reader(), evaluator)):
        asked = call()
        for asked.tracked in (True, False):
            assert (made.plan(asked, "project", 0, 7.0) is not None) is asked.tracked


@pytest.mark.parametrize("said", [REPORT, "(shortened)"])
def test_turns_of_a_team_after_many_answers(said: str) -> None:
    """Who continues one of its two newest answers belongs to it, and who continues an older one does not."""
    here = Caller()
    for number in range(9):
        here.turn(f"cook {number}", f"What is for dinner on day {number}?", answer=f"Soup number {number}, as always.")
    here.turn("planner", TASK, answer=PLAN)
    team = here.turn("archivist", PLAN, answer=REPORT)
    assert here.request("archivist", "Go on.", said=said) == team != ""
    assert here.request("planner", "Go on.", said=PLAN) == team
    for number in range(2):
        here.turn("archivist", "Go on.", said=REPORT, answer=f"There is an archive number {number}.")
    assert here.request("planner", "Go on.", said=PLAN) == ""
