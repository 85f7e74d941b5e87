"""Agents that start agents for the same task, or hand work to each other and back (LD-4)."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from breakloop.detect.stateful import Evaluation
from breakloop.detect.trees import RunStart, TreeBounds, TreeDetector, TreeEvaluator, task_of
from breakloop.model.call import NO_TREE, Step, ToolCall, Tree
from tests.builders import call
from tests.each import each
from tests.unit.detect.reading import CONFIG, Reader, digest

TASK = "Find out why the nightly build fails, and repair it."
NOTHING, NOTICE, BLOCK = range(3)
SIZE_MAX = 5354  # as stated in `detect.trees`
AGENTS = TreeBounds().kept


EVALUATOR = TreeEvaluator(digest)
DETECTOR = TreeDetector(CONFIG, Reader(), EVALUATOR)


class Caller:
    """One caller's memory, and a clock."""

    def __init__(self, detector: TreeEvaluator = EVALUATOR) -> None:
        self.detector = detector
        self.window = b""
        self.now = 1_800_000_000.0

    def begin(
        self, session: str, parent: str = "", task: str = TASK, *, agent: str = "a", root: str = "", after: float = 5.0
    ) -> Evaluation:
        self.now += after
        tree = Tree(root, "", 2, by_trace=True) if root else NO_TREE
        start = RunStart(session, parent, agent, task, "", tree)
        judged = self.detector.evaluate_start(self.window, start, self.now)
        self.window = judged.window
        assert len(self.window) <= SIZE_MAX
        return judged

    def line(self, length: int, task: str = TASK, after: float = 5.0) -> list[Evaluation]:
        """Each starts the next; the first was started by one that nobody saw begin."""
        return [self.begin(f"s{at + 1}", f"s{at}", task, after=after) for at in range(length)]


def levels(judged: list[Evaluation]) -> list[int]:
    return [one.level for one in judged]


@pytest.mark.parametrize("after", [0.1, 5.0, 90.0])
def test_the_same_task_handed_down(after: float) -> None:
    """Notice at the fourth, block at the eighth, however slowly (LD-4, C31)."""
    found = Caller().line(9, after=after)
    assert levels(found) == [NOTHING] * 3 + [NOTICE] * 4 + [BLOCK] * 2
    assert found[4].evidence == "the same task was handed on 5 times, 6 deep"
    assert {one.kind for one in found[3:]} == {"spawn"}
    assert len({one.identity for one in found[3:]}) == 1
    assert [one.fresh for one in found] == [False] * 3 + [True] + [False] * 3 + [True, False]


def test_evidence_tells_how_deep_and_how_often() -> None:
    """What lies above the loop is depth, and no repeat (LD-4)."""
    caller = Caller()
    caller.begin("s1", "s0", "Plan the release of the next version.")
    found = [caller.begin(f"s{at + 1}", f"s{at}") for at in range(1, 6)]
    assert levels(found) == [NOTHING] * 3 + [NOTICE] * 2
    assert found[-1].evidence == "the same task was handed on 5 times, 7 deep"


def test_a_task_that_is_wrapped_anew_or_only_looks_different() -> None:
    """With words before or behind it, other white space, another time in it; not with another number (LD-4)."""
    caller, task = Caller(), TASK
    for at in range(3):
        task = f"Please take this over: {task}" if at % 2 else f"{task} Report to me."
        assert caller.begin(f"s{at + 1}", f"s{at}", task).level == NOTHING
    found = caller.begin("s4", "s3", f"URGENT: {task}")
    assert (found.level, found.evidence) == (NOTICE, "the same task was handed on 4 times, 5 deep")
    assert caller.begin("s5", "s4", f"URGENT: {task} Now!").identity == found.identity
    looks = ("Look at the queue", "look at  the queue", "LOOK AT THE QUEUE", "Look\nat the Queue")
    forms = [f"It is 10:0{at} now. {look}, and empty it." for at, look in enumerate(looks)]
    caller = Caller()
    assert [caller.begin(f"s{at + 1}", f"s{at}", form).level for at, form in enumerate(forms)][-1] == NOTICE
    caller = Caller()
    numbered = [caller.begin(f"s{at + 1}", f"s{at}", f"Look at part {at} of the queue, please.") for at in range(12)]
    assert levels(numbered) == [NOTHING] * 12


def test_the_same_words_in_another_order() -> None:
    """Words that say nothing may come and go; another name, file or number is another task (LD-4)."""
    forms = (
        "Find out why the nightly build fails, and repair it.",
        "Please repair the nightly build: find out why it fails!",
        "The nightly build fails again. Find out why; then repair it.",
        "Why fails the nightly build? Find that out and repair it, please.",
    )
    caller = Caller()
    assert [caller.begin(f"s{at + 1}", f"s{at}", form).level for at, form in enumerate(forms)][-1] == NOTICE
    siblings = Caller()
    assert [siblings.begin(f"s{at}", "boss", form).level for at, form in enumerate(forms)][-1] == NOTICE
    for template in ("Review the file src/{}.py for mistakes.", "Translate chapter {} of the book into Danish."):
        healthy = Caller()
        found = [healthy.begin(f"s{at}", "boss", template.format(at)) for at in range(20)]
        assert levels(found) == [NOTHING] * 20


def siblings(*tasks: str, after: float = 5.0) -> int:
    """Return the level of the last of several agents that one agent starts."""
    caller = Caller()
    return [caller.begin(f"s{at}", "boss", task, after=after) for at, task in enumerate(tasks)][-1].level


def test_what_is_compared_of_a_task() -> None:
    """Twenty bytes are a task. Of four words and more the order does not matter, nor marks between them (LD-4)."""
    assert siblings(*["Sort all the mails!!"] * 4) == NOTICE
    assert siblings(*["Sort all the mails!"] * 4) == NOTHING
    assert siblings(*["nightly build fails badly", "badly fails nightly build"] * 2) == NOTICE
    assert siblings(*["nightly compilation fails", "fails nightly compilation"] * 2) == NOTHING
    assert siblings(*["nightly build - fails badly", "nightly build fails badly."] * 2) == NOTICE


def test_two_seconds_apart_is_one_after_the_other() -> None:
    """Less is at once (LD-4)."""
    assert siblings(*[TASK] * 8, after=1.0) == NOTHING
    assert siblings(*[TASK] * 8, after=2.0) == BLOCK


def test_the_longest_tasks() -> None:
    """16,384 characters are compared, unless they have more than 65,535 bytes (Y-2)."""
    for text, level in (
        ("x" * 70_000, NOTICE),
        ("\U0001f600" * 16_383 + "\u20ac", NOTICE),
        ("\U0001f600" * 16_384, NOTHING),
    ):
        assert siblings(*[text] * 4) == level


def test_an_agent_without_a_task_hands_nothing_on() -> None:
    """Its child is the first that has the task (LD-4)."""
    caller = Caller()
    tasks = ["", TASK, TASK, TASK]
    assert levels([caller.begin(f"s{at + 1}", f"s{at}", task) for at, task in enumerate(tasks)]) == [NOTHING] * 4


def test_an_agent_that_nobody_started_is_nobodys_child() -> None:
    """Others of its trace are not its ancestors, nor are those with another name than the parent that it names (LD-4)."""
    caller = Caller(TreeEvaluator(digest, depth=(2, 8), same_task=(99, 99)))
    assert levels([caller.begin(f"s{at}", root="trace-1") for at in range(4)]) == [NOTHING] * 4
    assert levels([caller.begin(f"t{at}", "unknown", agent=f"b{at}") for at in range(4)]) == [NOTHING] * 4


def test_ancestors_are_looked_for_sixteen_generations_up() -> None:
    """A task that was given further up is another one (LD-4, Y-2)."""
    for between, level in ((15, NOTICE), (16, NOTHING)):
        caller = Caller(TreeEvaluator(digest, depth=(2, 99)))
        tasks = [TASK, *[f"Question number {at}, and no other one." for at in range(between)], TASK]
        assert [caller.begin(f"s{at + 1}", f"s{at}", task) for at, task in enumerate(tasks)][-1].level == level


def test_a_task_that_comes_back_every_other_generation() -> None:
    """One that an ancestor had counts, whatever lies between (LD-4)."""
    caller = Caller()
    tasks = [TASK if at % 2 else "Check what the other one did, and go on." for at in range(1, 9)]
    found = [caller.begin(f"s{at + 1}", f"s{at}", task) for at, task in enumerate(tasks)]
    assert levels(found)[-1] == NOTICE
    assert found[-1].evidence == "the same task was handed on 4 times, 9 deep"
    assert levels(found)[:6] == [NOTHING] * 6


@pytest.mark.parametrize("names", ["session", "agent"])
def test_two_agents_that_hand_on_to_each_other(names: str) -> None:
    """A starts B starts A, whatever they ask of each other; parents named by session or by agent (LD-4)."""
    caller = Caller()
    found = []
    for at in range(8):
        agent, other = ("writer", "critic") if at % 2 else ("critic", "writer")
        parent = f"s{at}" if names == "session" else other
        found.append(caller.begin(f"s{at + 1}", parent, f"Question number {at}, and no other one.", agent=agent))
    assert levels(found) == [NOTHING] * 3 + [NOTICE] * 4 + [BLOCK]
    assert found[3].evidence == "two agents hand on to each other, 4 deep"
    assert len({one.identity for one in found[3:]}) == 1


def test_a_parent_that_was_not_seen_to_begin_hands_nothing_back() -> None:
    """Its first request was not seen, so the third generation is the first that came back (LD-4)."""
    caller = Caller()
    caller.begin("s1", "s0", "Question number one, and no other.", agent="writer")
    worked = RunStart("s2", "s1", "critic", "")
    caller.window = EVALUATOR.evaluate_work(caller.window, worked, caller.now + 5).window
    for at, level in ((3, NOTHING), (4, NOTICE)):
        agent = "writer" if at % 2 else "critic"
        assert caller.begin(f"s{at}", f"s{at - 1}", f"Question number {at}, and no other.", agent=agent).level == level


def test_a_chain_of_different_agents_is_no_swap() -> None:
    """Nor is one agent that starts itself for other tasks, nor a child that names itself its parent (LD-4)."""
    caller = Caller()
    for at in range(12):
        assert caller.begin(f"s{at + 1}", f"s{at}", f"Question number {at}.", agent=f"a{at % 3}").level == NOTHING
    caller = Caller()
    assert levels([caller.begin(f"s{at}", "a", f"Question number {at}.", agent="a") for at in range(12)])[-1] == NOTHING
    assert levels([caller.begin(f"t{at}", f"t{at}", "hello, who is there?") for at in range(12)])[-1] == NOTHING


def test_many_of_one_agent_for_one_task() -> None:
    """Where all agents have one name, that name says nothing about who started whom (LD-4)."""
    caller = Caller()
    assert levels([caller.begin(f"s{at}", "a", after=0.1) for at in range(12)]) == [NOTHING] * 12


def test_a_session_that_names_itself_its_parent() -> None:
    """Nobody started it (LD-4)."""
    caller = Caller()
    assert levels([caller.begin("s", "s", f"{'Again: ' * at}{TASK}") for at in range(12)]) == [NOTHING] * 12


def test_agents_that_go_by_their_names_have_older_parents() -> None:
    """Of two with one name, the parent is the last that had begun by then (LD-4)."""
    caller = Caller(TreeEvaluator(digest, depth=(2, 8)))
    tasks = [TASK, "Check this, and say what is wrong.", "Then write it anew from the start.", TASK]
    found = []
    for at, task in enumerate(tasks):
        agent, parent = ("writer", "critic") if at % 2 else ("critic", "writer")
        found.append(caller.begin(f"s{at}", parent, task, agent=agent))
    assert found[-1].evidence == "the same task was handed on 2 times, 5 deep"


def test_sessions_that_go_by_their_opening() -> None:
    """Two that began alike have one name; another parent or another task makes another conversation of it (LD-4)."""
    caller = Caller()
    for at in range(4):
        caller.begin(f"c{at}", "boss", f"Part {at} of the work, all of it.")
    assert levels([caller.begin("derived", f"c{at}") for at in range(4)]) == [NOTHING] * 3 + [NOTICE]
    caller = Caller()
    caller.begin("s0", "boss", "Something else that has to be done.")
    assert levels([caller.begin(f"s{at}", "boss") for at in range(4)]) == [NOTHING] * 3 + [NOTICE]


def test_healthy_trees() -> None:
    """Fifty tasks at once, and a tree three deep, are work (LD-4)."""
    caller = Caller()
    assert levels([caller.begin(f"s{at}", "boss", f"Read file {at}.", after=0.01) for at in range(50)]) == [0] * 50
    caller = Caller()
    for first in "abc":
        assert caller.begin(first, "boss", f"Part {first} of the work, all of it.").level == NOTHING
        for second in "def":
            assert caller.begin(first + second, first, f"Detail {second} of part {first}.").level == NOTHING
            for third in "gh":
                found = caller.begin(first + second + third, first + second, f"Look up {third} for {first}{second}.")
                assert found.level == NOTHING


@pytest.mark.parametrize(("count", "level"), [(16, NOTHING), (19, NOTHING), (20, NOTICE), (60, NOTICE)])
def test_one_question_asked_often_at_once(count: int, level: int) -> None:
    """Sampling is no loop; a great many are noticed, and never blocked (LD-4)."""
    caller = Caller()
    found = [caller.begin(f"s{at}", "boss", after=0.05) for at in range(count)]
    assert max(levels(found)) == level
    if level:
        assert found[-1].evidence == f"the same task was given to {count} agents"


@pytest.mark.parametrize(("after", "highest"), [(5.0, BLOCK), (30.0, BLOCK), (61.0, NOTHING)])
def test_the_same_task_given_out_one_after_the_other(after: float, highest: int) -> None:
    """With time between them it is no sampling; slow ones hardly count (LD-4)."""
    caller = Caller()
    found = levels([caller.begin(f"s{at}", "boss", after=after) for at in range(20)])
    assert max(found) == highest
    if after < 20:
        assert found[:9] == [NOTHING] * 3 + [NOTICE] * 4 + [BLOCK] * 2


def test_a_tree_that_grows_wide_and_deep() -> None:
    """Each starts three more with its own task, all at once: blocked long before it is eight deep (LD-4)."""
    caller, row, blocked_at = Caller(), ["boss"], 0
    for depth in range(1, 5):
        below = [f"{parent}.{at}" for parent in row for at in range(3)]
        for session in below:
            if caller.begin(session, session.rpartition(".")[0], after=0.01).level == BLOCK and not blocked_at:
                blocked_at = depth
        row = below
    assert blocked_at == 3


def test_only_a_trace_is_known() -> None:
    """Then all of one trace are children of one root; those of another are counted apart (LD-4)."""
    caller = Caller()
    assert levels([caller.begin(f"s{at}", root="trace-1") for at in range(4)])[-1] == NOTICE
    assert levels([caller.begin(f"t{at}", root="trace-2") for at in range(3)])[-1] == NOTHING
    caller = Caller()
    each = [caller.begin(f"s{at}", root=f"trace-{at}") for at in range(12)]
    assert levels(each) == [NOTHING] * 12


@pytest.mark.parametrize("task", ["", "go on", "Begin now."])
def test_words_that_say_nothing(task: str) -> None:
    """The task of such agents stands elsewhere, so that many may begin alike (LD-4)."""
    caller = Caller()
    assert levels([caller.begin(f"s{at}", "boss", task) for at in range(12)]) == [NOTHING] * 12
    assert (Caller().line(4, task)[-1].level == NOTICE) is bool(task)


def test_agents_whose_task_stands_in_their_system_prompt() -> None:
    """They all begin with the same words; the time in a system prompt is no other task (LD-4)."""
    words = "Do what your instructions say, and report."
    for systems, expected in (("Review file {at}.", NOTHING), ("It is 10:0{at}:00. Review all.", NOTICE)):
        window = b""
        for at in range(4):
            begin = RunStart(f"s{at}", "boss", "a", words, systems.format(at=at))
            judged = EVALUATOR.evaluate_start(window, begin, 1e9 + 5 * at)
            window = judged.window
            assert judged.level == (expected if at == 3 else NOTHING)
    window, found = b"", []
    for at in range(4):  # handed down it is the same task, whoever gets it
        found.append(
            EVALUATOR.evaluate_start(window, RunStart(f"s{at + 1}", f"s{at}", "a", TASK, f"You are number {at}."), 1e9)
        )
        window = found[-1].window
    assert levels(found)[-1] == NOTICE


@each(
    "users, task",
    [
        ((), ""),
        ((TASK,), TASK),
        (("# Rules\n<INSTRUCTIONS>...</INSTRUCTIONS>", "<environment_context>\n<cwd>/x</cwd>\n</environment_context>", TASK), TASK),
        ((TASK, "<environment_context>x</environment_context>"), TASK),
        ((f"<system-reminder>\nBe brief.\n</system-reminder>\n{TASK}\n<system-reminder>Today.</system-reminder>",), TASK),
        ((f'<file path="a">x</file> <b>y</b>{TASK}',), TASK),
        ((f"<task>{TASK}</task>",), f"<task>{TASK}</task>"),
        ((f"{TASK} Mind <a>this</a>, too.",), f"{TASK} Mind <a>this</a>, too."),
        (("<open>" + TASK,), "<open>" + TASK),
        ((TASK + "</closed>",), TASK + "</closed>"),
        ((TASK, "<note a=<b>>x</note>"), TASK),
    ],
)  # fmt: skip
def test_what_an_agent_is_to_do(users: tuple[str, ...], task: str) -> None:
    """What a harness puts before it in tags is the same for all agents, and not their task (LD-4)."""
    assert task_of(users) == task


def test_the_same_request_again_starts_nobody() -> None:
    """A retry is judged as it was, is not told again, and nothing is written (LD-4)."""
    caller = Caller()
    found = caller.line(4)
    before = caller.window
    for _ in range(5):
        again = caller.begin("s4", "s3", after=1.0)
        assert again == replace(found[-1], fresh=False)
        assert again.window is before
    assert caller.begin("s5", "s4").evidence == "the same task was handed on 5 times, 6 deep"


def test_a_retry_of_one_of_several_is_not_another_one() -> None:
    """Whichever it is (LD-4)."""
    caller = Caller()
    assert [caller.begin(f"s{at}", "boss") for at in range(5)][-1].level == NOTICE
    for at in range(5):
        assert caller.begin(f"s{at}", "boss", after=0.1).evidence == "the same task was given to 5 agents"


def test_a_task_that_was_not_handed_on() -> None:
    """One agent has it, which is no repeat (LD-4)."""
    caller = Caller(TreeEvaluator(digest, depth=(1, 8), same_task=(99, 99)))
    assert levels(caller.line(2)) == [NOTHING, NOTICE]


def test_generations_whose_first_agents_were_forgotten() -> None:
    """From the third on, each that has the task counts, and no more than those that are known (LD-4)."""
    caller = Caller(TreeEvaluator(digest, depth=(99, 99), same_task=(3, 99)))
    caller.line(3)
    for _ in range(3):
        caller.now += 290.0
        caller.window = caller.detector.evaluate_work(caller.window, RunStart("s3", "s2", "a", ""), caller.now).window
    assert levels([caller.begin(f"s{at}", f"s{at - 1}") for at in (4, 5)]) == [NOTHING, NOTICE]


def test_a_retry_is_a_sign_of_life() -> None:
    """What is forgotten is what nothing was heard of for ten minutes, children and retries included (LD-4)."""
    caller = Caller()
    caller.line(3)
    for _ in range(4):
        caller.begin("s3", "s2", after=300.0)
    assert caller.begin("s4", "s3", after=300.0).level == NOTICE
    caller = Caller()
    caller.line(3)
    for at in range(4):
        caller.begin(f"other-{at}", "s3", f"Something else, number {at}.", after=300.0)
    assert caller.begin("s4", "s3", after=300.0).level == NOTICE
    caller = Caller()
    caller.line(3)
    assert caller.begin("s4", "s3", after=600.0).level == NOTHING


def test_a_loop_is_told_again_at_twice_the_count() -> None:
    """And another loop is told for itself (LD-4)."""
    caller = Caller(TreeEvaluator(digest, depth=(2, 100), same_task=(99, 100)))
    fresh = [one.fresh for one in caller.line(9)]
    assert [at + 1 for at, one in enumerate(fresh) if one] == [2, 4, 8]
    others = [caller.begin(f"t{at + 1}", f"t{at}") for at in range(3)]
    assert [one.fresh for one in others] == [False, True, False]
    assert others[1].identity != caller.begin("s10", "s9").identity


def test_many_loops_of_one_caller() -> None:
    """Only the last few are known to have been told (LD-4)."""
    caller = Caller()
    for name in "abcdef":
        found = [caller.begin(f"{name}{at + 1}", f"{name}{at}") for at in range(4)]
        assert found[-1].fresh
    found = [caller.begin(f"{name}5", f"{name}4") for name in "fcb"]
    assert [(one.level, one.fresh) for one in found] == [(NOTICE, False), (NOTICE, False), (NOTICE, True)]


def test_memory_of_another_version_is_not_read() -> None:
    """It counts as new (S-2)."""
    caller = Caller()
    caller.line(3)
    assert caller.window[0] == 3
    caller.window = b"\x02" + caller.window[1:]
    assert caller.begin("s4", "s3").level == NOTHING


def test_thresholds() -> None:
    """Each of the two counts has its own (LD-4)."""
    assert levels(Caller(TreeEvaluator(digest, depth=(2, 3), same_task=(99, 99))).line(4)) == [
        0,
        1,
        2,
        2,
    ]
    siblings = Caller(TreeEvaluator(digest, depth=(99, 99), same_task=(2, 3)))
    assert levels([siblings.begin(f"s{at}", "boss") for at in range(4)]) == [0, 1, 2, 2]


def test_memory_is_bounded_and_holds_no_words() -> None:
    """The last ones are known; digests only, which another key makes others (LD-4, Y-1)."""
    caller = Caller()
    for at in range(300):
        caller.begin(f"session-{at}", "planner", f"Task number {at} of the many.", agent="worker", after=0.1)
    assert len(caller.window) == 23 + AGENTS * 54
    caller.begin(f"session-{300 - AGENTS}", "planner", f"Task number {300 - AGENTS} of the many.", agent="worker")
    for word in (b"session", b"planner", b"worker", b"many"):
        assert word not in caller.window
    other = TreeEvaluator(lambda data: blake2b(data, digest_size=8, key=b"other").digest())
    begin = RunStart("s", "p", "a", TASK)
    assert other.evaluate_start(b"", begin, 0.0).window != EVALUATOR.evaluate_start(b"", begin, 0.0).window


NAMES = st.sampled_from(["", "a", "b", "c", "s1", "s2"])
TREES = st.builds(Tree, NAMES, NAMES, st.integers(1, 255), st.booleans())
TASKS = st.sampled_from(["", TASK, f"Again: {TASK}", "\ud800", "x" * 70_000])
BEGINS = st.builds(RunStart, NAMES, NAMES, NAMES, TASKS, st.just(""), TREES, NAMES)


@given(st.binary(max_size=400), BEGINS, st.floats(-1e12, 1e12))
def test_any_window_can_be_read(garbage: bytes, begin: RunStart, now: float) -> None:
    """What cannot be read counts as new; judging twice gives the same (LD-4)."""
    head = b"\x02\x01\x00\x01\x00\x00\x00"
    for window in (garbage, head + garbage, head + garbage[: 11 + len(garbage[11:]) // 54 * 54]):
        first = EVALUATOR.evaluate_start(window, begin, now)
        assert first == EVALUATOR.evaluate_start(window, begin, now)
        later = EVALUATOR.evaluate_start(first.window, begin, now)
        assert later.window == first.window
        assert later.level == first.level or (first.kind, later.level) == ("tree", NOTHING)


@given(st.lists(st.tuples(BEGINS, st.floats(0, 700)), max_size=30))
def test_any_order_of_beginnings(begins: list[tuple[RunStart, float]]) -> None:
    """Levels are there or not, memory stays bounded, and a retry at once changes nothing (LD-4)."""
    window, now = b"", 1e9
    for begin, after in begins:
        now += after
        judged = EVALUATOR.evaluate_start(window, begin, now)
        assert (judged.level > 0) == bool(judged.kind) == bool(judged.evidence) == bool(judged.identity)
        window = judged.window
        assert len(window) <= SIZE_MAX
        again = EVALUATOR.evaluate_start(window, begin, now)
        assert again == replace(judged, fresh=False) or (judged.kind == "tree" and again == Evaluation(window))


FIRST = Step("", (), (), (), ("Find the bug.", "<context>of the harness</context>"), (), 1, 10)
UNDER_WAY = (FIRST._replace(said="I look."), FIRST._replace(calls=(ToolCall("look", "{}"),)))


class Recording(TreeEvaluator):
    """Records what it would evaluate."""

    def __init__(self, step: Step | None) -> None:
        super().__init__(digest)
        self.detector = TreeDetector(CONFIG, Reader(step, started_by="parent"), self)
        self.starts: list[RunStart] = []

    def evaluate_start(self, window: bytes, start: RunStart, _now: float) -> Evaluation:
        self.starts.append(start)
        return Evaluation(window, 1, "spawn", "the same task 4 deep", "ab" * 8, True)


def test_a_conversation_that_begins_is_evaluated_by_its_task() -> None:
    detector = Recording(FIRST)
    found = detector.detector.evaluate(call(), b"", 7.0)
    assert found is not None
    assert found.level == 1
    assert detector.starts == [RunStart("me", "parent", "agent", "Find the bug.", "model and prompt", name="agent")]
    place = Tree("root", "boss", 3)
    TreeDetector(CONFIG, Reader(FIRST, place=place), detector).evaluate(call(), b"", 7.0)
    assert detector.starts[-1].parent == "boss"  # as its place in the tree says


@pytest.mark.parametrize("step", [None, *UNDER_WAY, FIRST._replace(users=())])
def test_a_conversation_that_is_under_way_starts_nobody(step: Step | None) -> None:
    detector = Recording(step)
    found = detector.detector.evaluate(call(), b"", 7.0)
    assert found is None or not found.level
    assert detector.starts == []


def test_only_a_beginning_that_another_started_has_an_owner() -> None:
    """No window is read for a conversation that is under way (Q-1)."""
    assert Recording(FIRST).detector.owner(call()) == "c:caller"
    for step in (None, *UNDER_WAY):
        assert Recording(step).detector.owner(call()) == ""
    assert TreeDetector(CONFIG, Reader(FIRST), EVALUATOR).owner(call()) == ""
