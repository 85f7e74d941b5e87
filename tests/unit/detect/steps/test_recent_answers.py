"""Conversations that the provider keeps: requests have results, and the answers that asked for them were seen (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import RUN_IDLE_S, Evaluation
from breakloop.detect.steps import recent_answers
from breakloop.detect.steps.detector import RequestContext, StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions, ranked
from breakloop.detect.steps.kinds import NEVER, NORMAL, StepsSettings
from breakloop.detect.steps.window import KEPT_MAX, load
from breakloop.model.call import Answer, Result, Step, ToolCall
from tests.unit.detect.steps.stepping import LONG, PRINTER, called, digest

DETECTOR = StepEvaluator(StepsSettings(), digest)
TASK = Step("", (), (), (), ("Sort the orders.",), (), 1, 100, stored=True)
LOOK = ToolCall("look", '{"at": 7}')


class Agent:
    """A program that sends results, or a text, and the id of the response before them."""

    def __init__(self, detector: StepEvaluator = DETECTOR, session: str = "mine", every_s: float = 3.0) -> None:
        self.detector, self.session, self.every_s = detector, session, every_s
        self.window, self.now, self.turn, self.run = b"", 1000.0, 0, ""

    def send(self, step: Step) -> Evaluation:
        self.now += self.every_s
        judged = self.detector.evaluate(self.window, step, self.now, RequestContext(tracked=True, session=self.session))
        self.window = judged.window
        return judged

    def answer(self, *calls: ToolCall, text: str = "") -> None:
        self.turn += 1
        ids = tuple([f"call_{self.run}{self.turn:06}_{at}" for at in range(len(calls))])
        answer = Answer(200, text, calls, response_id=f"resp_{self.run}{self.turn}", complete=True, call_ids=ids)
        self.window = self.detector.answered(self.window, answer)

    def next(self, *results: str, continues: str | None = None, users: tuple[str, ...] = ()) -> Step:
        """The request after the last answer."""
        sent = [Result(text, call_id=f"call_{self.run}{self.turn:06}_{at}") for at, text in enumerate(results)]
        named = f"resp_{self.run}{self.turn}" if continues is None else continues
        return Step("", (), (), tuple(sent), users, (), 1, 100, continues=named, stored=True)

    def play(self, turns: int, *calls: ToolCall, result: str = LONG) -> list[Evaluation]:
        judged = []
        for _ in range(turns):
            self.answer(*calls)
            judged.append(self.send(self.next(*[result] * len(calls))))
        return judged


def levels(judged: list[Evaluation]) -> list[int]:
    return [one.level for one in judged]


@pytest.mark.parametrize("result", [LONG, "3 orders", ""])
def test_results_are_paired_with_the_calls_of_the_answer(result: str) -> None:
    """The same call with the same result is counted as it is where the request shows both (C1)."""
    agent = Agent()
    agent.send(TASK)
    judged = agent.play(8, LOOK, result=result)
    assert levels(judged) == [0, 0, 1, 1, 2, 2, 2, 3]
    assert judged[-1].kind == "repeat"
    assert judged[-1].evidence.startswith("`look` returned the same")


def test_different_calls_are_work() -> None:
    """Six results "ok" of six different calls (C10)."""
    agent = Agent()
    agent.send(TASK)
    for number in range(30):
        agent.answer(ToolCall("move", f'{{"order": {number}}}'))
        assert not agent.send(agent.next("ok")).level


def test_several_calls_of_one_answer() -> None:
    """Each result belongs to the call with its id, in whatever order they come (C16)."""
    agent = Agent()
    agent.send(TASK)
    judged = []
    for _ in range(5):
        agent.answer(LOOK, ToolCall("read", "{}"))
        sent = agent.next("one", "another")
        judged.append(agent.send(sent._replace(results=sent.results[::-1])))
    assert levels(judged) == [0, 0, 1, 1, 2]
    assert "`look` returned the same 3 bytes" in judged[-1].evidence


def test_answers_that_are_texts() -> None:
    """They count as where requests show them: in a chain, and in a conversation that has an id (C21)."""
    said, cue = "You are welcome, and do come back.", "Is there anything else to be done?"
    shown = Agent()
    shown.send(TASK)
    expected = [shown.send(Step(said, (), (), (), (cue,), (), 3 + 2 * at, 100 + at)) for at in range(8)]
    assert max(levels(expected)) >= 2
    for continues in (None, ""):
        agent, judged = Agent(), []
        agent.send(TASK)
        for _ in range(8):
            agent.answer(text=said)
            judged.append(agent.send(agent.next(continues=continues, users=(cue,))))
        assert [(one.level, one.kind) for one in judged] == [(one.level, one.kind) for one in expected]


def test_actions_in_texts() -> None:
    """The text after an action is its result, as in requests that show both (LD-4)."""
    agent = Agent()
    agent.send(TASK)
    judged = []
    for _ in range(6):
        agent.answer(text="Thought: I look.\nAction: look\nAction Input: here")
        judged.append(agent.send(agent.next(users=(f"Observation: {LONG}",))))
    assert levels(judged)[:5] == [0, 0, 1, 1, 2]
    assert judged[4].kind == "repeat"


def only(kind: str) -> StepEvaluator:
    """An evaluator that reports one kind."""
    never = (NEVER, NEVER, NEVER)
    return StepEvaluator(StepsSettings({name: one if name == kind else never for name, one in NORMAL.items()}), digest)


def test_kept_calls_without_results() -> None:
    """A call whose result the client leaves out has not returned the same again (LD-4)."""
    agent = Agent(only("stagnation"))
    agent.send(TASK)
    for number in range(12):
        agent.answer(ToolCall("look", f'{{"at": {number}}}'), ToolCall("read", f'{{"at": {number}}}'))
        assert not agent.send(agent.next("3 orders")).level


NUMBERED = [(ToolCall("look", f'{{"page": {page}}}'), LONG) for page in range(8)]
EDITS = [(ToolCall("edit_file", f'{{"n": {at}}}'), "ok") for at in range(9)]
FAILS = (ToolCall("bash", '{"command": "make"}'), "error: main.c: undefined reference to parse_line in every file")
LATER = (ToolCall("get_job_status", '{"job": 7}'), "running")


@pytest.mark.parametrize(
    ("steps", "every_s", "kind", "loops"),
    [
        (NUMBERED, 3.0, "near", True),  # which compares the arguments without their numbers
        ([one for at in range(9) for one in (EDITS[at], FAILS)], 3.0, "unmoved", True),
        ([one for at in range(9) for one in (EDITS[at], FAILS)], 3.0, "interleaved", False),  # changes reset it
        ([LATER] * 12, 3.0, "repeat", True),  # looks count less
        ([(ToolCall("sleep", '{"seconds": 60}'), "done"), LATER] * 8, 5.0, "cycle", False),  # and less after a wait
        ([(ToolCall("send_email", '{"to": "a"}'), "sent")] * 4, 3.0, "side_effect", True),
    ],
)
@pytest.mark.parametrize("said", ["", "I look at it once more."])
def test_kept_calls_count_like_those_in_requests(
    steps: list[tuple[ToolCall, str]], every_s: float, kind: str, loops: bool, said: str
) -> None:
    """What a call is for, and what it compares by, is kept with it (LD-4)."""
    shown, kept = [Agent(only(kind), every_s=every_s) for _ in range(2)]
    shown.send(TASK._replace(stored=False))
    kept.send(TASK)
    found = []
    for at, (made, text) in enumerate(steps, 1):
        kept.answer(made, text=said)
        one = kept.send(kept.next(text))
        ids = (f"call_{at:06}_0",)
        step = Step(said, (made,), ids, (Result(text, call_id=ids[0]),), (), (), 1 + 2 * at, 100 + 100 * at)
        other = shown.send(step)
        assert (one.level, one.kind, one.hits, one.evidence) == (other.level, other.kind, other.hits, other.evidence)
        found.append(one.level)
    assert any(found) is loops


def test_the_newest_of_equal_ids() -> None:
    """A provider that numbers its responses anew, and one that names neither response nor calls (LD-4)."""
    agent = Agent()
    agent.send(TASK)
    for number in range(3):
        agent.turn = 0
        agent.answer(ToolCall("look", f'{{"at": {number}}}'))
    window = load(agent.window)
    found = recent_answers.find(window.recent_answers, agent.next(LONG), PRINTER)
    assert found is not None
    answer, is_newest = found
    assert (is_newest, answer.calls[0].a) == (True, PRINTER.step(called('{"at": 2}')).pairs[0].a)
    kept = b""
    for number in range(3):
        kept = recent_answers.add(kept, Answer(200, calls=(LOOK, LOOK), complete=True), number, 0, PRINTER)
    newest = Step("", (), (), (Result(LONG),), (), (), 1, 100, continues="", stored=True)
    found = recent_answers.find(kept, newest, PRINTER)
    assert found is not None
    assert (found[0].messages, len(found[0].calls), found[1]) == (3, 2, True)
    assert recent_answers.restored(newest, found[0], PRINTER).call_ids == ()


def test_half_of_the_calls_if_there_is_no_room_for_all() -> None:
    """The first ones (Y-2)."""
    calls = tuple(
        [ToolCall(f"a_tool_with_a_name_of_sixty_four_characters_and_even_more_{at:06}", "{}") for at in range(12)]
    )
    kept = recent_answers.add(b"", Answer(200, calls=calls, complete=True), 1, 100, PRINTER)
    found = recent_answers.find(kept, Step("", (), (), (), ("x",), (), 1, 1, continues="", stored=True), PRINTER)
    assert found is not None
    assert [one.tool for one in found[0].calls] == [one.name for one in calls[:6]]


def test_the_size_of_a_conversation_that_is_kept() -> None:
    """That of its requests, one after the other (LD-4)."""
    kept = recent_answers.add(b"", Answer(200, calls=(LOOK,), complete=True), 3, 250, PRINTER)
    step = Step("", (), (), (Result(LONG),), (), (), 2, 100, continues="", stored=True)
    found = recent_answers.find(kept, step, PRINTER)
    assert found is not None
    whole = recent_answers.restored(step, found[0], PRINTER)
    assert (whole.messages, whole.size, whole.said, whole.calls) == (6, 350, "", (ToolCall("look", ""),))


def test_call_ids_suffice() -> None:
    """A client that names the session itself need not name the response (LD-4)."""
    agent = Agent()
    agent.send(TASK)
    judged = []
    for _ in range(5):
        agent.answer(LOOK)
        judged.append(agent.send(agent.next("3 orders")._replace(continues=None)))
    assert levels(judged) == [0, 0, 1, 1, 2]


def test_any_of_the_last_four_answers_may_be_continued() -> None:
    """By the id of the response or of its calls; a fifth is forgotten (LD-4)."""
    agent = Agent()
    agent.send(TASK)
    for number in range(5):
        agent.answer(ToolCall("look", f'{{"at": {number}}}'))
    kept = load(agent.window).recent_answers
    for named in (True, False):
        found = []
        for agent.turn in range(1, 6):
            step = agent.next(LONG) if named else agent.next(LONG)._replace(continues=None)
            found.append(recent_answers.find(kept, step, PRINTER))
        assert [one and one[1] for one in found] == [None, False, False, False, True]
        assert len({one[0].calls[0].a for one in found if one}) == 4


def test_answers_that_were_not_seen() -> None:
    """Results without their calls are judged by what they show (LD-4)."""
    agent = Agent()
    agent.send(TASK)
    judged = []
    for _ in range(12):
        agent.turn += 1
        judged.append(agent.send(agent.next("3 orders")))
    assert not any(levels(judged))
    agent.answer(LOOK)
    agent.send(agent.next("3 orders"))
    assert len(load(agent.window).calls) > 0


def test_a_text_that_begins_anew_continues_nothing() -> None:
    """Without the id of a response or a conversation, it is another conversation of the session (LD-4)."""
    agent = Agent()
    agent.send(TASK)
    agent.answer(text="Done.")
    assert recent_answers.find(load(agent.window).recent_answers, TASK, PRINTER) is None


def test_the_same_request_again_is_a_retry() -> None:
    """Also once its answer is known (C22)."""
    agent = Agent()
    agent.send(TASK)
    agent.answer(LOOK)
    sent = agent.next(LONG)
    agent.send(sent)
    for _ in range(3):
        agent.answer(LOOK)
        agent.send(sent)
    assert load(agent.window).steps == 2


def test_a_long_wait_for_the_result() -> None:
    """The run has ended meanwhile, but the result still has its call (LD-4)."""
    agent = Agent()
    agent.send(TASK)
    agent.answer(LOOK)
    agent.now += RUN_IDLE_S
    agent.send(agent.next(LONG))
    assert len(load(agent.window).calls) > 0


def test_two_conversations_that_open_alike() -> None:
    """They share one window, so their counts may be of both. A client that names its session has one (C-7)."""
    for session, ambiguous in (("derived:ab12", True), ("mine", False)):
        agent = Agent(session=session)
        agent.send(TASK)
        for run in ("a", "b"):
            agent.run = run
            agent.answer(LOOK)
        agent.run = "a"
        agent.turn = 1
        assert agent.send(agent.next(LONG)).ambiguous is False
        assert bool(load(agent.window).ambiguous_at) is ambiguous


def test_requests_that_show_the_conversation_keep_nothing() -> None:
    """Nor do those after which the provider keeps nothing (`store: false`)."""
    agent = Agent()
    agent.send(TASK)
    agent.answer(LOOK)
    assert load(agent.window).recent_answers
    shown = agent.next(LONG, continues="")._replace(calls=(LOOK,), call_ids=("call_000001_0",), continues=None)
    agent.send(shown)
    agent.answer(LOOK)
    assert not load(agent.window).recent_answers
    other = Agent()
    other.send(TASK._replace(stored=False))
    other.answer(LOOK)
    assert not load(other.window).recent_answers


def test_a_chain_that_begins_again_with_a_summary() -> None:
    """A client whose context is full sends a summary and the newest step as a whole; then it continues answers."""
    agent = Agent()
    agent.send(TASK)
    agent.play(2, LOOK)
    agent.answer(LOOK)
    shown = agent.next(LONG, continues="")._replace(calls=(LOOK,), call_ids=("call_000003_0",), continues=None)
    agent.send(shown._replace(messages=4))
    agent.answer(LOOK)
    assert load(agent.window).recent_answers
    assert agent.send(agent.next(LONG)).kind == "repeat"
    agent.answer(LOOK)
    agent.send(shown._replace(messages=4, call_ids=("call_000009_0",)))
    agent.send(shown._replace(messages=6, call_ids=("call_000010_0",)))
    agent.answer(LOOK)
    assert not load(agent.window).recent_answers


def test_tools_with_options() -> None:
    """What a policy says of a tool holds for its kept calls (LD-4)."""
    agent = Agent(StepEvaluator(StepsSettings(NORMAL, {"look": ToolOptions(exempt=True)}), digest))
    agent.send(TASK)
    assert not any(levels(agent.play(12, LOOK)))


def test_it_is_bounded_and_has_no_content() -> None:
    """Whatever an answer has, at most 1 KB is kept, and nothing of what was written but names of tools (Y-1)."""
    agent = Agent()
    agent.send(TASK)
    words = " ".join(f"secret{number}" for number in range(3000))
    for number in range(6):
        agent.answer(*[ToolCall("look" * 40, f'{{"secret": "{words}{number}{at}"}}') for at in range(200)], text=words)
        kept = load(agent.window).recent_answers
        assert 0 < len(kept) <= KEPT_MAX
        assert b"secret" not in kept
        agent.send(agent.next(*[LONG] * 200))
    for number in range(40):
        agent.answer(ToolCall("look", f'{{"at": {number}}}'))
    assert 3 * 40 < len(load(agent.window).recent_answers) <= 400


ONE = recent_answers.add(b"", Answer(200, calls=(LOOK,), complete=True), 1, 100, PRINTER)


@pytest.mark.parametrize(
    "kept",
    [b"x", b"\x91\x90", b"\x90", bytes(KEPT_MAX), ONE.replace(b"look", b"\xff\xff\xff\xff")],
    ids=["no list", "no answer", "no answers", "zeros", "no text"],
)
def test_what_cannot_be_read_is_not_used(kept: bytes) -> None:
    """Another version may have written it, or not all of it is text (S-2)."""
    step = Agent().next(LONG)
    assert recent_answers.find(kept, step, PRINTER) is None
    assert recent_answers.add(kept, Answer(200, "Done.", complete=True), 1, 100, PRINTER)


def newest(users: tuple[str, ...] = (), results: tuple[Result, ...] = ()) -> Step:
    """A request that continues the newest answer."""
    return Step("", (), (), results, users, (), 1, 100, continues="", stored=True)


def kept_of(answer: Answer, before: bytes = b"") -> bytes:
    return recent_answers.add(before, answer._replace(complete=True), 1, 100, PRINTER)


def continued(kept: bytes, step: Step) -> Step:
    """The step with the answer that it continues."""
    found = recent_answers.find(kept, step, PRINTER)
    assert found is not None
    return recent_answers.restored(step, found[0], PRINTER)


@pytest.mark.parametrize(("calls", "number"), [(19, 19), (20, 20), (21, 20)])
def test_the_first_twenty_calls_of_an_answer(calls: int, number: int) -> None:
    """More of them are not kept, even if there is room (Y-2)."""
    made = tuple([ToolCall(f"t{at}", "{}") for at in range(calls)])
    assert continued(kept_of(Answer(200, calls=made)), newest()).calls == tuple(
        [ToolCall(one.name, "") for one in made[:number]]
    )


@pytest.mark.parametrize(("words", "number"), [(99, 99), (100, 100), (101, 100)])
def test_a_hundred_words_of_an_answer(words: int, number: int) -> None:
    """They are the same ones that are compared where requests contain the answer (LD-4)."""
    text = " ".join(f"word{at}" for at in range(words))
    found = recent_answers.find(kept_of(Answer(200, text)), newest(), PRINTER)
    assert found is not None
    shown = PRINTER.step(Step(text, (), (), (), (), (), 1, 100))
    assert recent_answers.fingerprints(found[0], PRINTER).words == ranked(shown.spoken, shown.words)[:number]


@pytest.mark.parametrize("length", [63, 64, 65])
def test_names_of_kept_tools(length: int) -> None:
    """Only the first 64 characters of a name are kept (Y-2)."""
    step = continued(kept_of(Answer(200, calls=(ToolCall("n" * length, "{}"),))), newest())
    assert [len(one.name) for one in step.calls] == [min(length, 64)]


def test_the_room_for_answers_is_used_to_its_last_byte() -> None:
    """Calls are only dropped if they exceed it (Y-2)."""
    sizes = []
    for length in range(1, 60):
        names = ["n" * 40] * 14 + ["n" * length]
        sizes.append(len(kept_of(Answer(200, calls=tuple([ToolCall(name, "{}") for name in names])))))
    assert max(sizes) == KEPT_MAX
    assert min(sizes) < KEPT_MAX / 2


def test_the_oldest_answer_makes_room_for_the_newest() -> None:
    """If both do not fit, the calls of the newest one are kept, all of them (Y-2)."""
    calls = tuple([ToolCall(f"a_tool_with_a_long_name_{at}", "{}") for at in range(12)])
    kept = kept_of(Answer(200, calls=calls, response_id="resp_1"))
    kept = kept_of(Answer(200, calls=calls[::-1], response_id="resp_2"), kept)
    found = [recent_answers.find(kept, newest()._replace(continues=one), PRINTER) for one in ("resp_1", "resp_2")]
    assert found[0] is None
    assert found[1] is not None
    assert [one.tool for one in found[1][0].calls] == [one.name for one in calls[::-1]]


def test_an_answer_that_is_sent_again_replaces_itself() -> None:
    """It takes the place of the newest one, and no other is forgotten for it (LD-4)."""
    kept = b""
    for number in (1, 2, 3, 4, 2):
        kept = kept_of(Answer(200, f"Answer {number}.", response_id=f"resp_{number}"), kept)
    found = [recent_answers.find(kept, newest()._replace(continues=f"resp_{one}"), PRINTER) for one in (1, 2, 3, 4)]
    assert [one and one[1] for one in found] == [False, True, False, False]


def test_an_answer_without_text_and_calls_is_not_kept() -> None:
    """There is nothing to compare (LD-4)."""
    kept = kept_of(Answer(200, "Done."))
    assert kept_of(Answer(200), kept) is kept
    assert kept_of(Answer(200, calls=(LOOK,)), kept) is not kept


ACTION = Answer(200, "Thought: I look.\nAction: look\nAction Input: here")


def test_only_the_first_text_after_an_action_is_its_result() -> None:
    """What the user adds after it stays a text of the user (LD-4)."""
    both = continued(kept_of(ACTION), newest(("Observation: 3 orders", "Go on, please.")))
    assert ([one.text for one in both.results], both.users) == (["Observation: 3 orders"], ("Go on, please.",))
    assert (both.as_text, len(both.calls)) == (True, 1)
    returned = (Result("3 orders"),)
    shown = continued(kept_of(ACTION), newest(("Go on, please.",), returned))
    assert (shown.results, shown.users) == (returned, ("Go on, please.",))
    silent = continued(kept_of(ACTION), newest())
    assert (silent.results, silent.users) == ((), ())
    spoken = continued(kept_of(Answer(200, "I looked.")), newest(("Go on, please.",)))
    assert (spoken.results, spoken.users, spoken.as_text) == ((), ("Go on, please.",), False)


def test_ids_of_kept_calls() -> None:
    """Calls have the ids of their results, as the client sent them; the others have one that is not theirs (LD-4)."""
    calls = (LOOK, ToolCall("read", "{}"), ToolCall("list", "{}"))
    kept = kept_of(Answer(200, calls=calls, call_ids=("call_a", "call_b", "call_c")))
    step = continued(kept, newest((), (Result("one", call_id="call_c"), Result("two", call_id="call_a"))))
    assert (step.call_ids[0], step.call_ids[2]) == ("call_a", "call_c")
    assert step.call_ids[1] not in {"", "call_a", "call_b", "call_c"}
    assert [one.name for one in step.calls] == ["look", "read", "list"]


def test_ids_that_do_not_match_the_calls_are_not_used() -> None:
    """Which of the calls they belong to is not known (LD-4)."""
    kept = kept_of(Answer(200, calls=(LOOK, LOOK), call_ids=("call_a",)))
    by_id = newest((), (Result("one", call_id="call_a"),))
    assert recent_answers.find(kept, by_id, PRINTER) is None
    assert continued(kept, newest((), (Result("one"),))).call_ids == ()


def test_a_response_that_is_not_kept_is_found_by_the_ids_of_its_calls() -> None:
    """A gateway in between may rename responses. Without either, nothing is continued (LD-4)."""
    kept = b""
    for name in ("a", "b"):
        answer = Answer(200, calls=(LOOK,), call_ids=(f"call_{name}",), response_id=f"resp_{name}")
        kept = kept_of(answer, kept)
    renamed = newest((), (Result("one", call_id="call_a"),))._replace(continues="resp_x")
    found = recent_answers.find(kept, renamed, PRINTER)
    assert found is not None
    assert found[1] is False
    assert recent_answers.find(kept, renamed._replace(results=(Result("one", call_id="call_x"),)), PRINTER) is None
    assert recent_answers.find(kept, renamed._replace(results=()), PRINTER) is None
    assert recent_answers.find(kept, renamed._replace(results=(), continues=None), PRINTER) is None
    assert recent_answers.find(b"", newest(), PRINTER) is None
