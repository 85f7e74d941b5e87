"""Unnamed conversations that belong together, by copies of answers (LD-4)."""

from __future__ import annotations

import json
from dataclasses import replace
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from breakloop.detect import joins
from breakloop.detect.counting import EXPECT_REPEATS_HEADER
from breakloop.detect.joins import Conversation, JoinDetector, JoinedStepsDetector
from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.detect.steps.window import load
from breakloop.model.call import Answer, Call, Result, Step, ToolCall
from tests.builders import call
from tests.unit.detect.reading import CONFIG, Reader, allowing, digest

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


@pytest.mark.parametrize("end", ["x", "}"])
@pytest.mark.parametrize(("size", "joined"), [(19, False), (20, True)])
def test_texts_of_twenty_characters_join(size: int, joined: bool, end: str) -> None:
    """As a message, and as the result of a call."""
    text = "x" * (size - 1) + end
    for sent in ({"users": (text,)}, {"results": (Result(text),)}):
        here = Caller()
        here.turn("a", TASK, answer=text)
        assert bool(here.turn("b", **sent)) is joined


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
    assert dry(looked, copied=True) == 2
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
    assert both == one  # that of the answer which the request continues
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


def test_an_agent_of_a_team_whose_calls_have_ids() -> None:
    """It goes on in its team, with and without a copy (LD-4)."""
    here = Caller()
    here.turn("planner", TASK, answer=PLAN)
    team = here.turn("archivist", PLAN, answer=REPORT)
    assert here.request("archivist", "Go on.", said=REPORT, call_ids=("call_1",)) == team != ""
    assert here.request("planner", REPORT, said=PLAN, call_ids=("call_1",)) == team


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
    conversation = structs.replace(here.open.pop(), has_ids=has_ids, is_team=is_team)
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
    for pause, joins_it in ((597.5, True), (598.0, False)):
        here = Caller()
        here.turn("a", TASK, answer=PLAN)
        here.now += pause  # and two seconds before each request
        assert bool(here.turn("b", PLAN)) is joins_it
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
        asked.tracked = True
        for group in (0, 2):
            slot = made.plan(asked, "project", group, 7.0)
            assert slot is not None
            assert slot.group == group


def test_an_agent_that_is_on_the_allow_list_is_not_planned() -> None:
    """By both detectors (LD-6)."""
    config, evaluator = allowing(CONFIG), StepEvaluator(StepsSettings().of_teams(), digest)
    asked = call()
    asked.tracked = True
    for made in (JoinDetector(config, Reader(), digest), JoinedStepsDetector(config, Reader(), evaluator)):
        assert made.plan(asked, "project", 0, 7.0) is None


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


TEXT = Struct("<8s4sBB")  # digest, group, number of the answer, flags, as stated in `detect.joins`
WHOLE, SAID, TEAM = 1, 2, 4
KEY, ONE, TWO, NOBODY = b"12345678", b"AAAA", b"BBBB", bytes(4)


def stored(*texts: tuple[bytes, bytes, int, int]) -> bytes:
    return b"".join([TEXT.pack(*text) for text in texts])


ACROSS = (b"....1234", b"5678", 9, 0)  # the bytes of `KEY`, where no text begins


def test_a_text_is_found_where_it_begins() -> None:
    """Equal bytes that lie across two fields are another text; answers as they are continued are kept apart (LD-4)."""
    both = stored((KEY, ONE, 3, SAID), (KEY, TWO, 4, WHOLE))
    assert [joins._position(both, KEY, said) for said in (SAID, 0)] == [0, 14]
    assert [joins._position(stored(ACROSS) + both, KEY, said) for said in (SAID, 0)] == [14, 28]
    assert joins._position(stored(ACROSS), KEY, 0) == -1
    rows = stored((b"AAAA...A", ONE, 1, 0), (b"1234....", TWO, 2, 0), (b"1234AAAA", ONE, 3, 0))
    assert list(joins._rows_with(rows, ONE, 8)) == [0, 28]  # it begins one byte earlier, too
    assert list(joins._rows_with(rows, b"1234", 0)) == [14, 28]
    assert list(joins._rows_with(rows, ONE, 0)) == [0]


def test_where_a_text_comes_from() -> None:
    """The group and the number of its answer, unless it joins nobody or has another flag (LD-4)."""
    first = (b"other...", TWO, 7, WHOLE)
    for before in ((), (first,), (ACROSS, first)):
        rows = stored(*before, (KEY, ONE, 5, WHOLE | TEAM))
        assert joins._find(rows, KEY, 0) == joins._find(rows, KEY, WHOLE) == (ONE, 5)
        assert joins._find(stored(*before, (KEY, ONE, 5, 0)), KEY, 0) == (ONE, 5)
        assert joins._find(stored(*before, (KEY, ONE, 5, 0)), KEY, WHOLE) is None
        assert joins._find(stored(*before, (KEY, NOBODY, 5, WHOLE)), KEY, WHOLE) is None
        assert joins._find(stored(*before, (KEY, ONE, 5, SAID)), KEY, 0) is None
        assert joins._find(stored(*before), KEY, 0) is None


def test_which_answer_is_continued() -> None:
    """The same one, or else the newest of its session; none if it joins nobody (LD-4)."""
    last, older = (b"1234last", ONE, 6, SAID), (b"1234old.", TWO, 4, SAID)
    for before in ((), (ACROSS,), ((b"1234whol", TWO, 9, WHOLE), (b"1234none", NOBODY, 8, SAID))):
        assert joins._continued(stored(*before, last, (KEY, TWO, 5, SAID)), KEY) == (TWO, 5)
        assert joins._continued(stored(*before, (KEY, TWO, 5, SAID), last), KEY) == (TWO, 5)
        assert joins._continued(stored(*before, last, older), KEY) == (ONE, 6)
        assert joins._continued(stored(*before, (KEY, NOBODY, 7, SAID), last), KEY) is None
        assert joins._continued(stored(*before), KEY) is None


@pytest.mark.parametrize(
    ("rows", "alone"),
    [
        ([(KEY, ONE, 5, SAID)], True),
        ([(b"1234last", ONE, 6, SAID), ACROSS, (KEY, ONE, 5, SAID)], True),
        ([(b"1234text", TWO, 6, WHOLE), (KEY, ONE, 5, SAID)], True),  # no answer of such a session
        ([(b"1234last", TWO, 6, SAID), (KEY, ONE, 5, SAID)], False),
        ([(b"1234last", b"AAAB", 6, SAID), (KEY, ONE, 5, SAID)], False),
        ([(b"1234last", ONE, 6, SAID)], False),  # another answer
        ([(KEY, NOBODY, 5, SAID)], False),
        ([(KEY, ONE, 5, WHOLE)], False),
        ([], False),
    ],
)
def test_whether_a_conversation_is_alone(rows: list[tuple[bytes, bytes, int, int]], alone: bool) -> None:
    """Its answer is known, and all answers in sessions that open alike are of one group (LD-4)."""
    assert joins._is_alone(stored(*rows), KEY) is alone


def test_the_two_newest_answers_of_a_group() -> None:
    """An answer may have several texts, and other groups may have answered in between (LD-4)."""
    texts = [(b"AAAA....", TWO, 12, 0), *[(KEY, ONE, number, 0) for number in (9, 9, 8, 8, 7)]]
    assert joins._newest(stored(*texts), ONE) == [9, 8]
    assert joins._newest(stored(*texts), TWO) == [12]


def test_which_group_is_a_team() -> None:
    """Each text of a team has the flag (LD-4)."""
    rows = stored((KEY, ONE, 9, WHOLE), (KEY, TWO, 8, WHOLE | TEAM), (KEY, TWO, 8, WHOLE))
    assert (joins._is_team(rows, ONE), joins._is_team(rows, TWO)) == (False, True)
    assert not joins._is_team(stored((KEY, ONE, 5, WHOLE)), ONE)


def kept(here: Caller) -> list[tuple[bytes, int]]:
    """Group and flags of the texts that are kept, the newest first."""
    return [(group, flags) for _, group, _, flags in TEXT.iter_unpack(here.window[11:])]


@pytest.mark.parametrize(
    ("answer", "flags"),
    [
        (Answer(200, ""), []),
        (Answer(200, "Yes."), [SAID]),
        (Answer(200, PLAN), [WHOLE, SAID]),
        (Answer(200, TASK), [SAID]),  # a quote
        (Answer(200, f'{{"next": "{PLAN}"}}'), [0, WHOLE, SAID]),
        (Answer(200, REPORT, (_ASKS,)), [0, WHOLE, SAID]),
        (Answer(200, REPORT, (_READS,)), [WHOLE, SAID]),
        (Answer(200, "", (_READS,)), [SAID]),
    ],
)
def test_what_is_kept_of_an_answer(answer: Answer, flags: list[int]) -> None:
    """The parts that are handed on, the whole text, and what the next request of the conversation has (LD-4)."""
    here = Caller()
    here.request("a", TASK)
    here.window = here.detector.keep(here.window, here.open.pop(), answer)
    (first, *rest) = kept(here)
    assert first == (NOBODY, 0)  # the text with which the conversation begins
    assert [one for _, one in rest] == flags


def test_a_request_without_copies_is_in_no_team() -> None:
    """Neither the first one nor the next (LD-4)."""
    here = Caller()
    for sent in ({}, {"said": PLAN, "call_ids": ("call_1",)}, {"said": PLAN}):
        here.request("a", TASK, **sent)
        found = here.open.pop()
        assert (found.is_team, found.copied, found.alone) == (False, False, False)


def test_the_newest_texts_of_a_request_are_compared() -> None:
    """32 of them, of the user and of tools (Y-2)."""
    for number, joined in ((31, True), (32, False)):
        others = [f"This is another text, number {at}." for at in range(number)]
        for sent in ({"users": (PLAN, *others)}, {"results": tuple([Result(text) for text in (PLAN, *others)])}):
            here = Caller()
            here.turn("planner", TASK, answer=PLAN)
            assert bool(here.request("archivist", **sent)) is joined


def test_four_texts_with_which_a_conversation_begins() -> None:
    """They join nobody, whoever repeats them later; a fifth one does (LD-4, Y-2)."""
    texts = [f"This is text number {at} of the task." for at in range(5)]
    for text, joined in ((texts[3], False), (texts[4], True)):
        here = Caller()
        here.turn("first run", *texts, answer=REPORT)
        here.turn("first run", "Repeat it.", said=REPORT, answer=text)
        assert bool(here.turn("second run", text)) is joined


def test_an_answer_that_several_agents_get() -> None:
    """It joins each of them: that one began with it does not make it a common text (LD-4)."""
    here = Caller()
    here.turn("planner", TASK, answer=PLAN)
    team = here.turn("first archivist", PLAN, answer=REPORT)
    assert here.turn("second archivist", PLAN) == team != ""


def test_an_answer_that_is_given_twice_in_a_conversation() -> None:
    """It joins as before, and so do the others (LD-4)."""
    here = Caller()
    here.turn("planner", TASK, answer="Let me look at the archive first.")
    here.turn("planner", "Go on.", said="Let me look at the archive first.", answer=PLAN)
    here.turn("planner", "Go on.", said=PLAN, answer=PLAN)
    groups = {group for group, _ in kept(here)} - {NOBODY}
    assert len(groups) == 1
    team = here.request("archivist", PLAN)
    assert team == groups.pop().hex()
    here.turn("cook", "What is for dinner today?", answer="Soup, as on any other day.")
    assert here.request("other archivist", "Soup, as on any other day.")


def test_a_conversation_keeps_its_group() -> None:
    """Whatever others have said in between, unless it goes back to an answer that is not one of its two newest (LD-4)."""
    here = Caller()
    answers = [f"This is answer number {at} of it." for at in range(4)]
    here.turn("cook", "What is for dinner today?", answer="Soup, as on any other day.")
    here.turn("a", TASK, answer=answers[0])
    group = kept(here)[1][0]
    for at in (1, 2):
        here.turn(f"other {at}", f"Something else, number {at}.", answer=f"An answer to number {at}.")
        here.turn("a", "Go on.", said=answers[at - 1], answer=answers[at], call_ids=("call_1",))
        assert kept(here)[0][0] == group
    here.turn("a", "Go on.", said=answers[1], answer=answers[3], call_ids=("call_1",))
    assert kept(here)[0][0] == group  # one of the two newest
    here.turn("a", "Go back.", said=answers[0], answer="Then I begin again from here.", call_ids=("call_1",))
    assert group not in {one for one, _ in kept(here)}  # the others go with it
    assert sum(one == kept(here)[0][0] for one, _ in kept(here)) == 10


def test_the_id_of_a_group_has_four_bytes() -> None:
    """Two conversations rarely share one (LD-4)."""
    here = Caller()
    for number in range(20):
        here.turn(f"other {number}", f"Something else, number {number}.", answer=f"An answer to number {number}.")
    groups = {group for group, _ in kept(here)} - {NOBODY}
    assert [len({group[at] for group in groups}) > 10 for at in range(4)] == [True] * 4


def test_calls_with_ids_show_which_conversation_is_continued() -> None:
    """Also where two open alike (LD-4)."""
    here = Caller()
    asks = [ToolCall("ask", json.dumps({"whom": name, "order": f"{PLAN} ({name})"})) for name in ("archive", "ledger")]
    for ask in asks:
        here.request("planner", TASK)
        here.answer("", ask)
    groups = [group for group, flags in kept(here) if flags == SAID][::-1]
    for ask, group in zip(asks, groups, strict=True):
        here.request("planner", calls=(ask,), call_ids=("call_1",), results=(Result("It was asked."),))
        here.answer(f"I asked for {ask.arguments}.")
        assert kept(here)[0][0] == group


def test_the_text_beside_a_call_shows_it_too() -> None:
    """Two that open alike make the same call (LD-4)."""
    here = Caller()
    for text in ("First I look.", "Then I look."):
        here.request("planner", TASK)
        here.answer(text, _READS)
    here.request("planner", said="First I look.", calls=(_READS,), results=(Result("No such file."),))
    found = here.open.pop()
    assert found.group == [group for group, flags in kept(here) if flags == SAID][1]


def test_calls_that_are_written_as_text_are_the_text() -> None:
    """The answer had no others (LD-4)."""
    here = Caller()
    here.turn("a", TASK, answer=PLAN)
    here.request("a", said=PLAN, calls=(_READS,), results=(Result("No such file."),), as_text=True)
    assert here.open.pop().alone


def test_ids_of_calls_distinguish_conversations() -> None:
    """So it need not be known whether there is one only (LD-4)."""
    here = Caller()
    here.turn("planner", TASK, answer=PLAN)
    here.turn("archivist", PLAN, answer=REPORT)
    here.turn("a", "Something else, please.", answer="This is something else.")
    for ids, alone in (((), True), (("call_1",), False)):
        here.request("a", "Go on.", said="This is something else.", call_ids=ids)
        assert here.open.pop().alone is alone


def test_an_answer_that_is_kept_after_the_next_request_has_come() -> None:
    """The group is looked up when the answer is there (LD-4)."""
    here = Caller()
    here.request("a", TASK)
    here.request("a", "Go on.", said=PLAN)
    here.answer(PLAN, at=0)
    group = kept(here)[1][0]
    here.answer(REPORT)
    assert kept(here)[0][0] == group


@pytest.mark.parametrize("damage", ["version", "count", "size"])
def test_texts_that_cannot_be_read_are_forgotten(damage: str) -> None:
    """Of another version, more than are kept, or cut short (S-2)."""
    here = Caller()
    here.turn("a", TASK, answer=PLAN)
    head, rows = here.window[:9], here.window[11:]
    match damage:
        case "version":
            here.window = b"\x02" + here.window[1:]
        case "count":
            here.window = head + (193).to_bytes(2, "little") + rows + rows[14:28] * 190
        case "size":
            here.window = here.window[:-14]
    assert here.request("b", PLAN) == ""


def sent(session: str, *users: str, said: str = "") -> Call:
    asked = call()
    asked.tracked = True
    asked.identity.session = session
    asked.parsed.step = Step(said, (), (), (), users, (), 1, 100)
    return asked


def test_what_is_noted_in_a_call() -> None:
    """Its conversation and team, whether it has a copy, and whether it is alone (LD-4)."""
    detector, window, now = JoinDetector(CONFIG, Reader(), digest), b"", 1e9
    found = []
    for session, said, text, answer in (
        ("planner", "", TASK, PLAN),
        ("planner", PLAN, "Go on.", "Then ask for the letters."),
        ("archivist", "", "Then ask for the letters.", REPORT),
        ("archivist", REPORT, "Go on.", "There is a second archive."),
    ):
        now += 2.0
        asked = sent(session, text, said=said)
        changed = detector.locate(asked, window, now)
        state = asked.decision
        found.append((changed, bool(state.joined), state.copied, state.alone))
        assert not detector.locate(asked, window, now)  # the same team
        assert detector.is_advisory(asked)
        window = detector.answered_call(window, Answer(200, answer), asked)
    assert found == [
        (False, False, False, False),
        (False, False, False, True),
        (True, True, True, False),
        (True, True, False, False),
    ]
    assert JoinDetector(CONFIG, Reader(None), digest).locate(call(), window, now) is False
    assert not detector.reads_answer(call(), Answer(200, PLAN))


def test_what_is_kept_for_speed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners, and digests of sessions and texts (Y-2)."""
    monkeypatch.setattr(joins, "_KEPT_MAX", 2)
    reader, sizes = Reader(), []
    detector = JoinDetector(CONFIG, reader, digest)
    for number in (0, 0, 1, 2):
        reader.caller_id = f"caller {number}"
        asked = sent(f"session {number}", f"What is the number {number} in words, please?")
        detector.locate(asked, b"", 1e9)
        assert detector.owner(asked) == f"j:caller {number}|agent"
        sizes.append((len(detector._owners), len(detector._sessions), len(detector._texts)))
    assert sizes == [(1, 1, 1), (1, 1, 1), (2, 2, 2), (1, 1, 1)]


def test_the_window_of_a_team() -> None:
    """It has one if the call belongs to a team, and its answer is awaited (LD-4)."""
    detector = JoinedStepsDetector(CONFIG, Reader(), StepEvaluator(StepsSettings().of_teams(), digest))
    asked = call()
    assert detector.owner(asked) == ""
    asked.decision.joined = "0a0b"
    assert detector.owner(asked) == "s:caller%7Cjoined%3A0a0b"
    assert detector.awaits_answer(asked, Evaluation(b""))
