"""Conformance cases of the `steps` detector (LD-4, docs/explanation/detection-study.md), one test a case, and what must
not be flagged.

Cases that need more than a window are proved where that lives: C22 to C24 (requests that failed or are under way) and
C33 (run ceilings) with the engine, C31 (spawn) with the trace, C32 with the stream guard.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import count

import pytest

from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps import StepEvaluator, StepsSettings
from breakloop.model.call import Result, Step, ToolCall

NOTHING, NOTICE, BLOCK, STOP = range(4)
RESULT = "three lines of text\nthat say something\nabout the matter at hand"
PAGES = [f"line {number}: {'abcdefgh'[number % 8] * 5} and {number * 7919 % 1000}" for number in range(240)]


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8, key=b"test").digest()


class Session:
    """One session, one step after the other; remembers what was judged."""

    def __init__(self, every_s: float = 1.0) -> None:
        self.detector = StepEvaluator(StepsSettings(), digest)
        self.window = b""
        self.now = 1_000_000.0
        self.every_s = every_s
        self.ids = count()
        self.messages = 1
        self.seen: list[Evaluation] = []

    def judge(self, step: Step) -> Evaluation:
        self.now += self.every_s
        judged = self.detector.evaluate(self.window, step, self.now)
        self.window = judged.window
        assert len(judged.window) <= 6 * 1024
        self.seen.append(judged)
        return judged

    def calls(
        self, *made: tuple[str, str, str | Result], said: str = "", size: int = 0, tools: tuple[str, ...] = ()
    ) -> Evaluation:
        ids = tuple(f"call_{next(self.ids):08}" for _ in made)
        self.messages += 1 + len(made)
        results = tuple(
            (one if isinstance(one, Result) else Result(one))._replace(call_id=by)
            for (_, _, one), by in zip(made, ids, strict=True)
        )
        calls = tuple(ToolCall(name, arguments) for name, arguments, _ in made)
        return self.judge(Step(said, calls, ids, results, (), tools, self.messages, size))

    def call(self, arguments: str, result: str | Result = RESULT, name: str = "look") -> Evaluation:
        return self.calls((name, arguments, result))

    def text(self, said: str, *users: str) -> Evaluation:
        self.messages += 1 + len(users)
        return self.judge(Step(said, (), (), (), users, (), self.messages, 0))

    @property
    def levels(self) -> list[int]:
        return [one.level for one in self.seen]


def new(index: int) -> str:
    return "\n".join(PAGES[index * 3 % 240 : index * 3 % 240 + 3]) + f"\nand number {index}"


def error(text: str) -> Result:
    return Result(text, error=True)


def test_c1_repeat() -> None:
    """The same call with the same result: notice at 3, block at 5, stop at 8 (C1)."""
    session = Session()
    for _ in range(8):
        session.call('{"a": 1}')
    assert session.levels == [0, 0, NOTICE, NOTICE, BLOCK, BLOCK, BLOCK, STOP]
    assert session.seen[4].kind == "repeat"
    assert session.seen[4].evidence == f"`look` returned the same {len(RESULT)} bytes 5 times in a row"


def test_c2_new_results_are_progress() -> None:
    """The same call with a new result each time is polling that works (C2)."""
    session = Session()
    for index in range(50):
        session.call('{"a": 1}', new(index))
    assert set(session.levels) == {NOTHING}


@pytest.mark.parametrize(("period", "laps", "least"), [
    (2, 3, NOTICE), (2, 5, BLOCK), (3, 3, NOTICE), (3, 5, BLOCK), (5, 3, NOTICE), (5, 5, BLOCK), (8, 3, NOTICE), (16, 3, NOTICE),
])  # fmt: skip
def test_c3_cycle(period: int, laps: int, least: int) -> None:
    """Cycles of several steps; below the last lap that is asked for, less (C3)."""
    session = Session()
    for step in range(period * laps):
        session.call(f'{{"a": {step % period}}}', new(step % period))
    assert session.levels[-1] >= least
    assert max(session.levels[: period * 2]) == NOTHING
    if least == NOTICE and period <= 5:
        assert session.levels[-1] == NOTICE


def test_c4_broken_cycle() -> None:
    """A B A B C A B A B is no cycle, and notice at most (C4)."""
    session = Session()
    for name in "ABABCABAB":
        session.call(f'{{"a": "{name}"}}', new(ord(name)))
    assert max(session.levels) <= NOTICE
    assert "cycle" not in {one.kind for one in session.seen}


def test_c5_interleaved() -> None:
    """The same call and result with other work between (C5)."""
    session = Session()
    for index in range(3):
        session.call('{"a": 1}')
        session.call(f'{{"x": {index}}}', new(index))
    assert session.call('{"a": 1}').level == NOTICE
    assert session.seen[-1].kind == "interleaved"


@pytest.mark.parametrize(("result", "level"), [("written", NOTHING), (error("permission denied"), NOTICE)])
def test_c6_c7_writes_between(result: str | Result, level: int) -> None:
    """A successful change between voids the count, a failed one does not (C6, C7)."""
    session = Session()
    for index in range(3):
        session.call('{"a": 1}')
        session.call(f'{{"path": "file{index}", "text": "t{index}"}}', result, name="write_file")
    assert session.call('{"a": 1}').level == level


def test_c6_ends_where_the_error_stays() -> None:
    """Changes between excuse the same failing end six times; it is told then, and blocked after eight attempts (C6)."""
    session, found = Session(), []
    for index in range(8):
        session.call(f'{{"path": "app", "text": "t{index}"}}', "written", name="write_file")
        found.append(session.call('{"a": 1}', Result("the total is wrong: expected four", error=True)).level)
    assert found == [NOTHING] * 5 + [NOTICE] * 2 + [BLOCK]


def test_c8_poll_and_sleep() -> None:
    """Polling whose result changes, with a sleep between (C8)."""
    session = Session()
    for index in range(20):
        session.call('{"job": 7}', new(index), name="poll")
        session.call('{"s": 5}', "", name="sleep")
    assert set(session.levels) == {NOTHING}


@pytest.mark.parametrize(("every_s", "least", "most"), [(60.0, NOTHING, NOTHING), (1.0, BLOCK, STOP)])
def test_c9_slow_polling(every_s: float, least: int, most: int) -> None:
    """The same result every minute ten times is nothing, every second it is blocked (C9)."""
    session = Session(every_s)
    for _ in range(10):
        session.call('{"job": 7}', "the job is still running, nothing to see yet", name="poll")
    assert least <= max(session.levels) <= most


def test_c10_batches() -> None:
    """Thirty writes with the same acknowledgement; two passes over fifteen files (C10)."""
    session = Session()
    for index in range(30):
        session.call(f'{{"path": "f{index}", "text": "{index}"}}', "File written successfully.", name="write_file")
    assert set(session.levels) == {NOTHING}
    session = Session()
    for index in range(30):
        session.call(f'{{"path": "f{index % 15}"}}', new(index % 15), name="read_file")
    assert set(session.levels) == {NOTHING}


def test_c11_unknown_tool() -> None:
    """A tool that is not declared, with different arguments (C11)."""
    session = Session()
    for index in range(4):
        session.calls(("serch", f'{{"q": "word{index}"}}', error(f"no tool of that name ({index})")), tools=("search",))
    assert session.levels == [NOTHING, NOTICE, NOTICE, BLOCK]
    assert session.seen[-1].kind == "unknown_tool"


def test_c12_errors_that_differ_in_volatile_parts() -> None:
    """The same failure, whatever its process number and time (C12)."""
    session = Session()
    for index in range(4):
        session.call('{"c": "make"}', error(f"2026-01-01 10:00:{index:02} pid {4000 + index}: no rule to make target"))
    assert session.levels[-1] >= BLOCK


def test_c13_different_errors() -> None:
    """Genuinely different errors are half a sign each (C13)."""
    session = Session()
    for text in ("no such file", "connection refused by peer", "type mismatch in argument", "disk quota exceeded"):
        session.call('{"c": "make"}', error(text))
    assert max(session.levels) <= NOTICE


def test_c14_stagnation() -> None:
    """New patterns, always the same 906 bytes: notice by 5, block by 9 (C14)."""
    session = Session()
    result = ("nothing matched; known places are listed here " * 20)[:906]
    for index in range(38):
        session.call(f'{{"pattern": "p{index}"}}', result, name="search_files")
    assert NOTICE in session.levels[:5]
    assert max(session.levels[:9]) >= BLOCK
    assert "`search_files` returned the same 906 bytes" in session.seen[8].evidence


def test_c15_pages_again() -> None:
    """Five pages once through are news; again, shifted by half a page, they are not (C15)."""
    session = Session()
    for page in range(5):
        session.call(f'{{"offset": {page * 40}}}', "\n".join(PAGES[page * 40 : page * 40 + 40]))
    assert set(session.levels) == {NOTHING}
    for page in range(5):
        session.call(f'{{"offset": {page * 40 - 20}}}', "\n".join(PAGES[max(0, page * 40 - 20) : page * 40 + 20]))
    assert max(session.levels) == NOTICE


def test_c16_parallel_rounds() -> None:
    """A round of three calls again in any order; five parallel reads once (C16)."""
    session = Session()
    calls = [("look", f'{{"a": {index}}}', new(index)) for index in range(3)]
    for index in range(5):
        session.calls(*calls[index % 3 :], *calls[: index % 3])
    assert session.levels[-1] >= BLOCK
    session = Session()
    assert session.calls(*(("read", f'{{"a": {index}}}', new(index)) for index in range(5))).level == NOTHING


def test_c17_one_call_of_each_round() -> None:
    """[a, b] [a, c] [a, d] with the same result for a (C17)."""
    session = Session()
    for index in range(3):
        session.calls(("look", '{"a": 1}', RESULT), ("look", f'{{"b": {index}}}', new(index)))
    assert session.levels == [NOTHING, NOTHING, NOTICE]


@pytest.mark.parametrize("spellings", [
    ['{"a": 1, "b": [1, 2]}', '{"b":[1,2],"a":1}', '{ "a" : 1 ,\n"b": [1, 2] }'],
    ['{"a": "\\u0041"}', '{"a": "A"}', '{"a":"A"}'],
    ['{"a": 1, "request_id": "x"}', '{"a": 1, "request_id": "y"}', '{"a": 1, "nonce": 3}'],
])  # fmt: skip
def test_c18_same_call(spellings: list[str]) -> None:
    """Key order, white space, escapes and ids do not make another call (C18)."""
    session = Session()
    assert [session.call(one).level for one in spellings][-1] == NOTICE


@pytest.mark.parametrize("shape", ['{"path": "dir/%s"}', '{"offset": %s}', '{"page": %s}', '{"record": "R-%s"}'])
def test_c19_different_calls(shape: str) -> None:
    """Path, offset, page and record number make another call (C19)."""
    session = Session()
    for index in range(4):
        session.call(shape % index, "no comment")
    assert max(session.levels) == NOTHING


def test_c20_nested_prompts() -> None:
    """Each prompt holds the one before: notice at three, block at five (C20)."""
    session = Session()
    prompt = "Give me the ten largest cities of Europe as JSON."
    levels = []
    for _ in range(6):
        levels.append(session.judge(Step("", (), (), (), (prompt,), (), 1, len(prompt))).level)
        prompt = f"That was not valid JSON, try again: {prompt}"
    assert levels == [NOTHING, NOTHING, NOTHING, NOTICE, NOTICE, BLOCK]
    assert session.seen[-1].kind == "nested"


def test_c21_continue() -> None:
    """The text "continue" five times and nothing called is blocked; fresh text resets (C21)."""
    session = Session()
    for index in range(5):
        session.text(f"I am thinking about it, part {index}.", "continue")
    assert session.levels[-1] == BLOCK
    assert session.text("I am thinking.", "Please draw up a table of the costs instead.").level == NOTHING
    assert session.text("I am thinking still.", "continue").level == NOTHING


def test_c25_heartbeats_in_runs_of_their_own() -> None:
    """A run ends after ten idle minutes (C25)."""
    session = Session(every_s=1800.0)
    for _ in range(10):
        session.call('{"inbox": 1}', "the inbox holds no new mail at the moment, as before")
    assert set(session.levels) == {NOTHING}


def test_c26_healthy_run() -> None:
    """Fifty different steps with constant tools (C26)."""
    session = Session()
    for index in range(50):
        session.calls(("look", f'{{"a": {index}}}', new(index)), tools=("look",))
    assert set(session.levels) == {NOTHING}


def test_c27_thrash() -> None:
    """The context is cut three times, few steps apart (C27)."""
    session = Session()
    for index, size in enumerate((60_000, 20_000, 58_000, 20_000, 61_000, 20_000)):
        session.messages = 4 if size == 20_000 else 6
        session.calls(("look", f'{{"a": {index}}}', new(index)), size=size)
    assert session.levels == [0, 0, 0, 0, 0, NOTICE]
    assert session.seen[-1].kind == "thrash"


def test_c28_a_second_loop() -> None:
    """Another loop climbs its own ladder and is told by itself (C28)."""
    session = Session()
    told = [session.call(f'{{"a": {index // 3}}}', new(index // 3)) for index in range(6)]
    assert [one.level for one in told] == [0, 0, NOTICE, 0, 0, NOTICE]
    assert told[2].fresh
    assert told[5].fresh
    assert told[2].identity != told[5].identity


def test_c29_one_cycle_one_identity() -> None:
    """A cycle seen from each of its rotations is one loop, told once a level (C29)."""
    session = Session()
    for step in range(12):
        session.call(f'{{"a": {step % 3}}}', new(step % 3))
    found = [one for one in session.seen if one.kind == "cycle"]
    assert len(found) == 4
    assert len({one.identity for one in found}) == 1
    assert [one.fresh for one in found] == [True, False, False, False]


def test_c30_own_note_as_result() -> None:
    """Our own note in a result does not make it another (C30)."""
    session = Session()
    for index in range(3):
        session.call(
            '{"a": 1}', RESULT + (f"\n\n[breakloop] you repeat yourself {index} [/breakloop]" if index else "")
        )
    assert session.levels[-1] == NOTICE


def test_c34_images() -> None:
    """An image with new bytes is a new result, whatever its caption; with the same bytes it is the same (C34)."""
    session = Session()
    for index in range(40):
        session.call("{}", Result("Screenshot taken", media=(f"image:{index}",)))
    assert max(session.levels) == NOTHING
    for _ in range(4):
        session.call("{}", Result("Screenshot taken", media=("image:39",)))
    assert session.levels[-1] == BLOCK


def test_pictures_of_a_screen() -> None:
    """Must not be flagged: other actions, a new picture after each, and the same lines beside it."""
    session = Session()
    for index in range(40):
        caption = "The action was performed.\nThe window is called Editor.\nThe screen after it:"
        session.call(f'{{"x": {index}}}', Result(caption, media=(f"image:{index}",)), name="click")
    assert max(session.levels) == NOTHING


@pytest.mark.parametrize("arguments", ["{}", "{not json", ""])
def test_c35_odd_arguments(arguments: str) -> None:
    """No arguments, and ones that cannot be read, are compared as they are (C35)."""
    session = Session()
    assert [session.call(arguments).level for _ in range(3)] == [NOTHING, NOTHING, NOTICE]


def run(steps: Iterable[tuple[str, str, str | Result]]) -> int:
    session = Session()
    for name, arguments, result in steps:
        session.call(arguments, result, name=name)
    return max(session.levels)


def test_edit_then_the_same_command() -> None:
    """Must not be flagged: the same test command after each edit, even where it fails the same way."""
    steps: list[tuple[str, str, str | Result]] = []
    for index in range(7):
        steps.append(("edit_file", f'{{"path": "a.py", "text": "v{index}"}}', "edited"))
        steps.append(("bash", '{"command": "pytest"}', error("FAILED test_a - assert 1 == 2")))
    assert run(steps) <= NOTICE


def test_rereading_after_a_write() -> None:
    """Must not be flagged: a file read again after each write to it."""
    steps: list[tuple[str, str, str | Result]] = []
    for index in range(10):
        steps.append(("write_file", f'{{"path": "a.py", "text": "v{index}"}}', "written"))
        steps.append(("read_file", '{"path": "a.py"}', new(1)))
    assert run(steps) == NOTHING


def test_paging() -> None:
    """Must not be flagged: page after page."""
    assert run(("list", f'{{"page": {index}}}', new(index)) for index in range(40)) == NOTHING


def test_transport_retries() -> None:
    """Must not be flagged: the same request again, few times, is no step: a tail counts once (LD-4)."""
    session = Session()
    session.call('{"a": 1}')
    step = Step(
        "",
        (ToolCall("look", '{"a": 1}'),),
        ("call_12345678",),
        (Result(RESULT, call_id="call_12345678"),),
        (),
        (),
        5,
        9,
    )
    assert [session.judge(step).level for _ in range(4)] == [NOTHING] * 4


def test_storm() -> None:
    """The same request again and again, in sequence, is a storm: at once it counts once."""
    session = Session()
    step = Step("", (), (), (), ("What is the capital of France?",), (), 1, 9)
    levels = [session.judge(step).level for _ in range(12)]
    assert (levels[4], levels[5], levels[10]) == (NOTHING, NOTICE, BLOCK)
    session = Session(every_s=0.01)
    assert max(session.judge(step).level for _ in range(16)) == NOTHING


def test_a_blocked_tail_stays_blocked_and_another_passes() -> None:
    """A block denies the same tail; a different step, or a person's word, passes at once (LD-4)."""
    session = Session()
    for _ in range(4):
        session.call('{"a": 1}')
    ids = ("call_99999999",)
    step = Step("", (ToolCall("look", '{"a": 1}'),), ids, (Result(RESULT, call_id=ids[0]),), (), (), 50, 9)
    first, second = session.judge(step), session.judge(step)
    assert (first.level, first.fresh) == (BLOCK, True)
    assert (second.level, second.fresh, second.kind) == (BLOCK, False, "repeat")
    assert (second.identity, second.evidence) == (first.identity, first.evidence)
    assert session.judge(step._replace(users=("Stop that and summarise.",))).level == NOTHING
    assert session.call('{"a": 2}', new(5)).level == NOTHING


def test_a_judge_replays_the_transcript() -> None:
    """Must not be flagged: a summary or judge call over the same tail, with an instruction behind it."""
    session = Session()
    step = Step(
        "", (ToolCall("look", "{}"),), ("call_12345678",), (Result(RESULT, call_id="call_12345678"),), (), (), 5, 9
    )
    session.judge(step)
    for index in range(8):
        assert session.judge(step._replace(users=(f"Was this helpful? Judge by rule {index}.",))).level == NOTHING


def test_customer_dialogue() -> None:
    """Must not be flagged: look-ups that differ by a number only, between a person's questions."""
    session = Session()
    for index in range(20):
        session.text(f"Here is what I found on order {index}.", f"And what about order {index + 1}, please?")
        session.call(f'{{"order": {index + 1}}}', f"order {index + 1}: shipped, 3 items, total {index * 17}")
    assert set(session.levels) == {NOTHING}


def test_a_person_asks_again() -> None:
    """Must not be flagged: the same question twice more."""
    session = Session()
    for index in range(3):
        session.text(f"Answer {index}: {new(index)}", "Could you explain that once more?")
    assert max(session.levels) <= NOTICE


def test_a_person_asks_for_the_same_again() -> None:
    """Must not be flagged: the same call each time a person asks for it in words of their own."""
    session = Session()
    wishes = ("Run the report.", "Has anything changed by now?", "Check it a further time.", "And how is it today?",
              "Look again, would you?", "Just to be sure: once more.", "My boss wants another look.", "Last time, promise.")  # fmt: skip
    for wish in wishes:
        session.text("Done, the report is above.", wish)
        session.call('{"report": 1}')
    assert max(session.levels) == NOTHING


def test_rejected_finish() -> None:
    """The same message answers "done" again and again, whatever is done between."""
    session = Session()
    levels = []
    for index in range(5):
        session.call(f'{{"command": "ls {index}"}}', new(index), name="bash")
        session.messages += 3
        ids = (f"finish_{index:08}",)
        step = Step("", (ToolCall("task_done", f'{{"s": "{index}"}}'),), ids, (Result(f"done {new(90 + index)}", call_id=ids[0]),),
                    ("Your patch is empty. Please provide one that works.",), (), session.messages, 0)  # fmt: skip
        levels.append(session.judge(step).level)
    assert levels == [NOTHING, NOTHING, NOTICE, NOTICE, BLOCK]
    assert session.seen[-1].kind == "rejected"


def test_a_reminder_beside_each_result_is_no_rejection() -> None:
    """Must not be flagged: a harness that adds the same words to each result."""
    session = Session()
    for index in range(20):
        ids = (f"call_{index:08}",)
        step = Step("", (ToolCall("read_file", f'{{"n": {index}}}'),), ids, (Result(new(index), call_id=ids[0]),),
                    ("Remember to keep your answers short.",), (), 3 * index, 0)  # fmt: skip
        assert session.judge(step).level == NOTHING
