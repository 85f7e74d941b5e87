"""Trees of agents: how many are alive, how deep they are, how fast they start (LD-12)."""

from __future__ import annotations

import math
from dataclasses import replace
from struct import Struct

import pytest

from breakloop.detect.stateful import Evaluation
from breakloop.detect.trees import ENDED, RunStart, TreeBounds, TreeDetector, TreeEvaluation, TreeEvaluator
from breakloop.model.call import TOOL_DIALECTS, Answer, Call, Chat, Result, Step, ToolCall, Tree, Usage
from breakloop.policy.schema.loops import StepsLoop
from breakloop.store.ops import CountFingerprint, FingerprintCount, Observation
from tests.builders import call
from tests.unit.detect.reading import CONFIG, Reader, digest

NOTHING, NOTICE, BLOCK = range(3)
NOUNS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty")
SIZE_MAX = 5354  # as stated in `detect.trees`
ADVICE = "Start no more agents: work with those that there are, or do the work yourself."
EVALUATOR = TreeEvaluator(digest)
DETECTOR = TreeDetector(CONFIG, Reader(), EVALUATOR)


def limited(agents: float = 61, depth: float = 9, started: float = 31) -> TreeEvaluator:
    limits = TreeBounds((agents, agents), (depth, depth), (started, started))
    return TreeEvaluator(digest, limits=limits)


class Grove:
    """One tree, and a clock."""

    def __init__(self, detector: TreeEvaluator = EVALUATOR) -> None:
        self.detector = detector
        self.window = b""
        self.now = 1_800_000_000.0
        self.depths = {"root": 1}

    def start(self, session: str, parent: str = "root", *, after: float = 5.0, name: str = "") -> Evaluation:
        self.now += after
        depth = self.depths[session] = self.depths.get(parent, 1) + 1
        task = f"Look into the {NOUNS[hash(session) % 10]} of {session}, and write down what you find."
        tree = Tree("root", parent, depth)
        judged = self.detector.evaluate_start(
            self.window, RunStart(session, parent, name or "a", task, "", tree, name), self.now
        )
        self.window = judged.window
        assert len(self.window) <= SIZE_MAX
        return judged

    def works(self, session: str, after: float = 5.0) -> None:
        self.now += after
        tree = Tree("root", "root", self.depths.get(session, 2))
        judged = self.detector.evaluate_work(self.window, RunStart(session, "root", "a", "", "", tree), self.now)
        assert judged.level == NOTHING
        self.window = judged.window

    def ends(self, session: str) -> None:
        self.window = self.detector.ended(self.window, session)


def levels(judged: list[Evaluation]) -> list[int]:
    return [one.level for one in judged]


def test_the_timeline_of_the_docs() -> None:
    """Docs/explanation/loop-detection.md: 2 agents start 10, and these start others, one every five seconds (LD-12)."""
    tree = Grove()
    began = tree.now
    first = [tree.start(f"a{at}", after=0.0) for at in range(2)]
    tree.now = began + 5
    first += [tree.start(f"b{at}", f"a{at % 2}") for at in range(10)]
    assert levels(first) == [NOTHING] * 12
    assert tree.now == began + 55
    found = [tree.start(f"c{at}", f"b{at % 10}") for at in range(48)]
    assert levels(found) == [NOTICE] * 47 + [BLOCK]
    assert found[0].evidence.startswith("agents start agents, 4 deep")
    assert [at + 1 for at, one in enumerate(found) if "25 agents of one tree" in one.evidence] == [12]
    assert found[-1].evidence.startswith("61 agents of one tree are at work (1 > 2 > 10 > 48 by depth, 61 in total")
    assert tree.now == began + 4 * 60 + 55
    tree.now += 5
    tree.ends("b3")
    tree.ends("c7")
    assert levels([tree.start(name, "b1") for name in ("d1", "d2", "d3")]) == [NOTICE, NOTICE, BLOCK]
    assert tree.now == began + 5 * 60 + 15


def test_agents_alive() -> None:
    """Told at 25 agents, the root included; the 61st is not started, and those after it neither (LD-12)."""
    tree = Grove()
    found = [tree.start(f"s{at}") for at in range(2, 70)]
    assert levels(found) == [NOTHING] * 23 + [NOTICE] * 36 + [BLOCK] * 9
    assert {one.kind for one in found[23:]} == {"tree"}
    assert found[23].evidence == "25 agents of one tree are at work (1 > 24 by depth, 25 in total)"
    assert found[-1].evidence == "61 agents of one tree are at work (1 > 60 by depth, 61 in total)"
    assert [at + 2 for at, one in enumerate(found) if one.fresh] == [25, 50, 61]
    assert len({one.identity for one in found[23:]}) == 1


def test_those_at_work_go_on() -> None:
    """A request that is sent again, and another conversation of an agent, start nobody (LD-12)."""
    tree = Grove()
    for at in range(80):
        tree.start(f"s{at}")
    assert levels([tree.start(f"s{at}", after=0.1) for at in range(59)]) == [NOTHING] * 59
    before = tree.window
    assert levels([tree.start(f"s{at}", after=0.1) for at in range(59)]) == [NOTHING] * 59
    assert tree.window is before
    tree.works("s7")
    tree.works("root")


def test_agents_that_ended_make_room() -> None:
    """Known by their final answer, or because nothing was heard of them for ten minutes (LD-12)."""
    tree = Grove(limited(agents=9))
    for at in range(7):
        assert tree.start(f"s{at}").level == NOTHING
    assert tree.start("s7").level == BLOCK
    tree.ends("s0")
    assert tree.start("s8").level == NOTHING
    assert tree.start("s9").level == BLOCK
    tree.works("s0")  # it goes on after all
    tree.ends("s8")
    assert tree.start("s10").level == BLOCK
    for _ in range(3):
        tree.works("s1", after=250.0)
    assert levels([tree.start(f"t{at}") for at in range(7)]) == [NOTHING] * 6 + [BLOCK]


def test_children_show_that_a_parent_is_alive() -> None:
    """One that answered and then starts another has not ended (LD-12)."""
    tree = Grove(limited(agents=5))
    tree.start("a")
    tree.start("b", "a")
    tree.ends("a")
    assert tree.start("c", "a").level == NOTHING
    assert tree.start("d", "a").level == BLOCK


def test_agents_in_turn_are_no_crowd() -> None:
    """Two hundred of them, eight at a time, each gone after its work (LD-12)."""
    tree = Grove()
    for at in range(200):
        assert tree.start(f"s{at}").level == NOTHING
        if at >= 8:
            tree.ends(f"s{at - 8}")


@pytest.mark.parametrize("count", [8, 20])
def test_a_batch_is_untouched(count: int) -> None:
    """Eight children or twenty workers, all at once, three times over (LD-12)."""
    tree = Grove()
    for batch in range(3):
        assert levels([tree.start(f"{batch}.{at}", after=0.01) for at in range(count)]) == [NOTHING] * count
        for at in range(count):
            tree.ends(f"{batch}.{at}")


def test_depth() -> None:
    """Told at the fourth, and the ninth is not started: the root is the first (LD-12)."""
    tree = Grove()
    found = [tree.start(f"s{at}", f"s{at - 1}" if at > 2 else "root", after=90.0) for at in range(2, 12)]
    assert levels(found) == [NOTHING] * 2 + [NOTICE] * 5 + [BLOCK] * 3
    assert found[2].evidence == "agents start agents, 4 deep (1 > 1 > 1 > 1 by depth, 4 in total)"


def test_agents_that_start_agents_fast() -> None:
    """Thirty within a minute; those that the root itself starts are not counted (LD-12)."""
    tree = Grove(limited(agents=500))
    assert levels([tree.start(f"s{at}", after=0.1) for at in range(50)]) == [NOTHING] * 50
    found = [tree.start(f"t{at}", f"s{at}", after=0.5) for at in range(32)]
    assert levels(found) == [NOTHING] * 30 + [BLOCK] * 2
    assert found[-1].evidence.startswith("agents of one tree started 31 others within a minute (1 > 50 > 31 by depth")
    assert tree.start("u", "s1", after=60.0).level == NOTHING
    tree = Grove(TreeEvaluator(digest, limits=TreeBounds(agents=(500, 500))))
    tree.start("s")
    found = [tree.start(f"t{at}", "s", after=1.0) for at in range(32)]
    assert levels(found) == [NOTHING] * 14 + [NOTICE] * 16 + [BLOCK] * 2


def test_a_minute_of_starts() -> None:
    """One that began sixty seconds ago is no longer counted. One that the root starts never is (LD-12)."""
    tree = Grove(TreeEvaluator(digest, limits=TreeBounds(started=(1, 2))))
    assert tree.start("s").level == NOTHING
    assert tree.start("t0", "s").level == NOTICE
    assert tree.start("t1", "s", after=59.0).level == BLOCK
    assert tree.start("s1", after=0.0).level == NOTHING
    assert tree.start("t2", "s", after=1.0).level == NOTICE


def test_a_tree_that_fans_out_is_blocked() -> None:
    """Two, then ten, fifty and two hundred, each with words of its own (LD-12)."""
    for after, expected in ((0.4, 34), (4.0, 61)):
        tree, row, started, refused = Grove(), ["root"], 1, 0
        for children in (2, 5, 5, 4):
            below = [f"{parent}.{at}" for parent in row for at in range(children)]
            row = []
            for session in below:
                judged = tree.start(session, session.rpartition(".")[0], after=after)
                started += judged.level != BLOCK
                refused = refused or (started + 1 if judged.level == BLOCK else 0)
                row += [session] if judged.level != BLOCK else []
        assert refused == expected
        assert started <= 60 or after > 1  # slow ones are inactive in the end


def test_who_started_whom() -> None:
    """Evidence names agents that are named, and counts (LD-12)."""
    tree = Grove(limited(agents=12))
    tree.start("plan", name="planner")
    for at in range(4):
        tree.start(f"r{at}", "plan", name="researcher")
    for at in range(5):
        tree.start(f"w{at}", f"r{at % 2}", name="writer")
    last = tree.start("x", "w0", name="writer")
    assert last.level == BLOCK
    assert last.evidence.endswith(
        "(1 > 1 > 4 > 5 > 1 by depth, 12 in total; researcher started 5; planner started 4; writer started 1)"
    )


def test_what_the_agents_of_a_tree_have_used() -> None:
    """It is added up, and told with the agents; what cannot be read stays as it is (LD-10)."""
    evaluator = TreeEvaluator(digest, limits=TreeBounds((25, 61), (2, 9)))
    window, evidence = b"", []
    for number, (tokens, microusd) in enumerate(((0, 0), (1, 0), (1200, 0), (0, 250_000), (10, 250_000))):
        start = RunStart(f"s{number}", "root", "a", f"Read chapter {number} of it.", "", Tree("root", "root", 2))
        judged = evaluator.evaluate_start(window, start, 1_800_000_000.0 + 5 * number)
        used = evaluator.used(judged.window, tokens, microusd)
        assert (used is judged.window) is (tokens + microusd == 0)
        evidence.append(judged.evidence.partition("in total")[2])
        window = used
    assert evidence == [")", ")", "; 1 token)", "; 1,201 tokens)", "; 1,201 tokens, $0.25)"]
    for other in (bytes((window[0] + 1,)) + window[1:], window[:22], b""):
        assert evaluator.used(other, 7, 7) is other


def test_a_shared_trace_alone_blocks_nobody() -> None:
    """Requests of one trace may be questions that a program asks all at once (LD-12)."""
    window, found = b"", []
    for at in range(100):
        start = RunStart(f"s{at}", "", "a", f"Summarize part {at} of it.", "", Tree("root", "", 2, by_trace=True))
        found.append(EVALUATOR.evaluate_start(window, start, 1e9 + at))
        window = found[-1].window
    assert set(levels(found)) == {NOTHING, NOTICE}


def test_a_request_without_a_session_is_nobodys_work() -> None:
    assert EVALUATOR.evaluate_work(b"", RunStart("", "root", "a", "", "", Tree("root", "root", 2)), 1e9).window == b""


def test_only_the_names_of_the_last_agents_are_known() -> None:
    """Eight names of 32 bytes; of those, evidence has the three that started the most (LD-12, Y-2)."""
    tree = Grove(limited(agents=40))
    for at in range(9):
        tree.start(f"s{at}", name=f"lead {at}")
        for child in range(at % 5 + 1):
            tree.start(f"s{at}.{child}", f"s{at}", name=f"lead {at}")
    for at in range(9):
        tree.start(f"t{at}", name="worker")
    last = tree.start("u", name="worker")
    assert last.level == BLOCK
    assert last.evidence.endswith("; lead 4 started 5; lead 3 started 4; lead 8 started 4)")
    tree = Grove(limited(agents=4))
    tree.start("s", name="a" * 40)
    tree.start("t", "s", name="b")
    assert tree.start("u", "s").evidence.endswith(f"; {'a' * 32} started 2)")
    tree = Grove(limited(agents=11))
    tree.start("s", name="first")
    tree.start("s.0", "s", name="first")
    for at in range(7):
        tree.start(f"t{at}", name=f"other {at}")
    assert tree.start("u", name="other 6").evidence.endswith("; first started 1)")
    tree = Grove(limited(agents=12))
    tree.start("s", name="first")
    tree.start("s.0", "s", name="first")
    for at in range(8):
        tree.start(f"t{at}", name=f"other {at}")
    assert tree.start("u", name="other 7").evidence.endswith("in total)")


def test_the_task_is_told_before_the_depth() -> None:
    """Of two findings of one level, that of the task is reported (LD-4, LD-12)."""
    tree = Grove()
    found = []
    for at in range(4):
        start = RunStart(
            f"s{at + 1}", f"s{at}", "a", "Find out why the build fails.", "", Tree("root", f"s{at}", at + 2)
        )
        found.append(EVALUATOR.evaluate_start(tree.window, start, tree.now))
        tree.window = found[-1].window
    assert [(one.level, one.kind) for one in found[2:]] == [(NOTICE, "tree"), (NOTICE, "spawn")]


def test_an_agent_at_work_for_a_day() -> None:
    """It is alive as long as it sends requests (LD-12)."""
    tree = Grove(limited(agents=4))
    tree.start("a")
    for _ in range(150):
        tree.works("a", after=580.0)
    assert tree.start("b").level == NOTHING
    assert tree.start("c").level == BLOCK


def test_when_activity_is_written() -> None:
    """The window of an agent at work is written every thirty seconds, and not at each request (LD-12, S-2)."""
    tree = Grove()
    tree.start("a")
    for after, written in ((29.0, False), (1.0, True), (29.0, False), (1.0, True)):
        before = tree.window
        tree.works("a", after=after)
        assert (tree.window is not before) is written
    assert EVALUATOR.ended(tree.window, "unknown") is tree.window


def test_agents_that_were_not_seen_to_begin() -> None:
    """They count as alive, and not as started now (LD-12)."""
    tree = Grove(limited(agents=41, started=5))
    for at in range(39):
        tree.depths[f"s{at}"] = 3
        tree.works(f"s{at}", after=0.1)
    refused = tree.start("t0", "s0", after=0.1)
    assert refused.level == BLOCK
    assert refused.evidence == "41 agents of one tree are at work (1 > 39 > 1 by depth, 41 in total)"
    tree.ends("s38")
    assert tree.start("t1", "s0", after=0.1).level == NOTHING


def test_what_is_kept_is_bounded() -> None:
    """Agents that ended are forgotten first; a limit that is higher keeps more (LD-12)."""
    tree = Grove()
    for at in range(400):
        tree.start(f"s{at}", after=0.5, name=f"{NOUNS[at % 10]}-{'x' * 60}")
        if at >= 20:
            tree.ends(f"s{at}")
    assert SIZE_MAX - 100 < len(tree.window) <= SIZE_MAX
    before = tree.window
    for at in range(20):  # none of those at work was forgotten
        tree.works(f"s{at}", after=0.0)
    assert len(tree.window) == len(before)
    assert TreeBounds((25, 501), (4, 9), (15, 501)).kept * 54 < 2**16 - 500


def test_a_full_tree_is_not_tried_again() -> None:
    """Unlike a loop, it denies for as long as it is full; the message says what to do (LD-12)."""
    judged = TreeEvaluation(b"w", BLOCK, "tree", "61 agents of one tree are at work", "ab" * 8, True, refused=True)
    op = DETECTOR.operation(call(), judged, "default", 0)
    assert isinstance(op, CountFingerprint)
    assert (op.spec.limit, op.spec.growth) == (0, 1.0)
    loop = op.owner.finding(op, FingerprintCount(1, wait_s=30.0))
    assert loop.message == f"Not started: 61 agents of one tree are at work. {ADVICE}"
    note = DETECTOR.operation(call(), Evaluation(b"w", NOTICE, "tree", "25 agents work", "ab" * 8, True), "default", 0)
    assert isinstance(note, Observation)
    assert note.owner.note(loop) == f"25 agents work. {ADVICE}"
    same = DETECTOR.operation(call(), Evaluation(b"w", NOTICE, "spawn", "the same task", "cd" * 8, True), "default", 0)
    assert isinstance(same, Observation)
    assert same.owner.note(loop).startswith("You repeat yourself: the same task. ")
    task = DETECTOR.operation(call(), Evaluation(b"w", BLOCK, "spawn", "the same task", "cd" * 8, True), "default", 0)
    assert isinstance(task, CountFingerprint)
    assert task.spec == CONFIG.cooldown
    assert task.owner.finding(task, FingerprintCount(1)).message.startswith("Blocked: the same task.")


BEGINS = Step("", (), (), (), ("Find the bug.",), (), 1, 10)
WORKS = BEGINS._replace(calls=(ToolCall("look", "{}"),))
PLACE = Tree("root", "root", 2)


def asked() -> Call:
    made = call()
    made.tracked = True
    return made


def test_whose_windows_are_read() -> None:
    """That of the tree, for an agent in it; none for anybody else (LD-12, Q-1)."""
    for step in (BEGINS, WORKS):
        assert TreeDetector(CONFIG, Reader(step, place=PLACE), EVALUATOR).owner(asked()) == "c:caller|root"
        for place in (Tree("me", "", 1), Tree("")):
            assert TreeDetector(CONFIG, Reader(step, place=place), EVALUATOR).owner(asked()) == ""
    traced = PLACE._replace(by_trace=True)
    assert TreeDetector(CONFIG, Reader(BEGINS, place=traced), EVALUATOR).owner(asked()) == "c:caller|root"
    assert TreeDetector(CONFIG, Reader(WORKS, place=traced), EVALUATOR).owner(asked()) == ""


def test_only_a_start_has_to_be_written() -> None:
    """That an agent is alive is seen again (LD-12, S-2)."""
    assert TreeDetector(CONFIG, Reader(WORKS, place=PLACE), EVALUATOR).is_advisory(asked())
    assert not TreeDetector(CONFIG, Reader(BEGINS, place=PLACE), EVALUATOR).is_advisory(asked())


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (Answer(200, "I found it.", complete=True), True),
        (Answer(200, "I found it."), False),
        (Answer(200, complete=True), False),
        (Answer(200, "I look.", (ToolCall("look", "{}"),), complete=True), False),
        (Answer(200, "I look.\n```bash\nls -la\n```", complete=True), False),
        (Answer(429, "Too many requests.", complete=True), False),
    ],
)
def test_a_final_answer(answer: Answer, ends: bool) -> None:
    """A whole text without a call or an action in it ends an agent (LD-12)."""
    detector = TreeDetector(CONFIG, Reader(BEGINS, place=PLACE), EVALUATOR)
    begun = detector.evaluate(asked(), b"", 1e9)
    assert begun is not None
    assert detector.awaits_answer(asked(), begun)
    after = detector.answered_call(begun.window, answer, asked())
    assert (after != begun.window) is ends
    assert detector.answered_call(after, answer, asked()) is after


def test_whose_answers_are_awaited() -> None:
    """Those of agents below the root, if they can be followed (LD-12)."""
    begun = Evaluation(b"")
    for place, tracked, awaited in ((PLACE, True, True), (PLACE, False, False), (Tree("root", "", 1), True, False)):
        made = asked()
        made.tracked = tracked
        assert TreeDetector(CONFIG, Reader(BEGINS, place=place), EVALUATOR).awaits_answer(made, begun) is awaited


def test_a_hook_reports_the_end() -> None:
    """The last request of an agent says so in a header field (LD-12)."""
    evaluator = limited(agents=3)
    detector = TreeDetector(CONFIG, Reader(WORKS, session_id="s0", place=PLACE), evaluator)
    tree = Grove(evaluator)
    tree.start("s0")
    for headers, level in (({}, BLOCK), ({ENDED: b"1"}, NOTHING)):
        judged = detector.evaluate(call(headers=headers), tree.window, tree.now)
        assert judged is not None
        tree.window = judged.window
        assert tree.start("s1").level == level


def test_an_agent_beyond_a_limit_is_not_landed() -> None:
    """One that is to finish at once has been started all the same; a loop of tasks is landed (LD-10, LD-12)."""
    config = replace(CONFIG, actions=("warn", "land", "land"), landing=replace(CONFIG.cooldown, land_calls=2))
    detector = TreeDetector(config, Reader(BEGINS, place=PLACE), EVALUATOR)
    for kind, limits in (("tree", CONFIG.cooldown), ("spawn", config.landing)):
        op = detector.operation(asked(), Evaluation(b"w", BLOCK, kind, "the evidence", "ab" * 8, True), "default", 0)
        assert isinstance(op, CountFingerprint)
        assert op.spec == limits


def test_limits_of_a_block() -> None:
    """Told at the usual number, or at half the limit if that is less; `never` for no limit (LD-12)."""
    assert StepsLoop(similarity="steps").tree_limits() == TreeBounds()
    block = StepsLoop(similarity="steps", max_agents_per_tree=200, max_depth=3, max_started_per_minute="never")
    never = float("inf")
    assert block.tree_limits() == TreeBounds((25, 201), (2, 4), (never, never))


@pytest.mark.parametrize("step", [WORKS, BEGINS._replace(said="I look."), BEGINS._replace(results=(Result("text"),))])
def test_which_calls_are_planned(step: Step) -> None:
    """Those that begin a conversation, and those under way whose header fields name their tree (LD-12, Q-1)."""
    for newest, place, planned in (
        (BEGINS, None, True),
        (step, None, False),
        (step, PLACE, True),
        (None, PLACE, False),
    ):
        reader = Reader(newest) if place is None else Reader(newest, place=place)
        slot = TreeDetector(CONFIG, reader, EVALUATOR).plan(asked(), "default", 0, 7.0)
        assert (slot is not None) is planned


def test_requests_for_tools_are_no_work_of_an_agent() -> None:
    """The session may be that of a connection (LD-12)."""
    detector = TreeDetector(CONFIG, Reader(WORKS, place=PLACE), EVALUATOR)
    for dialect, owner in (("openai_chat", "c:caller|root"), *[(one, "") for one in TOOL_DIALECTS]):
        made = asked()
        made.parsed.chat = Chat(dialect, "m", (), 1)
        assert detector.owner(made) == owner


def test_no_step_is_no_sign_of_life() -> None:
    assert not TreeDetector(CONFIG, Reader(None, place=PLACE), EVALUATOR).is_advisory(asked())


def test_without_limits_64_agents_are_known() -> None:
    """So many tasks are compared (LD-4, Y-2)."""
    tree = Grove(limited(math.inf, math.inf, math.inf))
    for at in range(70):
        tree.start(f"s{at}")
    assert len(tree.window) == 23 + 64 * 54


@pytest.mark.parametrize("now", [-5.0, 0.0])
def test_a_clock_before_1970(now: float) -> None:
    """It counts as the beginning of time (Y-2)."""
    start = RunStart("s", "root", "a", "Read it.", "", PLACE)
    assert EVALUATOR.evaluate_start(b"", start, now).window == EVALUATOR.evaluate_start(b"", start, 0.0).window
    assert EVALUATOR.evaluate_work(b"", start, now).window == EVALUATOR.evaluate_work(b"", start, 0.0).window


HEAD = Struct("<BBBIQQ")  # as stated in `detect.trees`


def test_a_tree_whose_agents_were_all_forgotten() -> None:
    """Its sums are still known (LD-10, LD-12)."""
    evaluator = TreeEvaluator(digest, limits=TreeBounds(depth=(2, 9)))
    window = evaluator.used(HEAD.pack(3, 0, 0, 40, 1000, 0), 200, 0)
    start = RunStart("s", "root", "a", "Read it.", "", PLACE)
    found = evaluator.evaluate_start(window, start, 1e9)
    assert found.evidence.endswith("(1 > 1 by depth, 42 in total; 1,200 tokens)")


def test_what_an_answer_has_cost() -> None:
    """Tokens that were sent and received, and the price (LD-10)."""
    detector = TreeDetector(CONFIG, Reader(BEGINS, place=PLACE), EVALUATOR)
    begun, made = detector.evaluate(asked(), b"", 1e9), asked()
    assert begun is not None
    made.decision.microusd = 70
    after = detector.answered_call(begun.window, Answer(200, "I look.", usage=Usage(30, 12)), made)
    assert HEAD.unpack_from(after)[4:] == (42, 70)
