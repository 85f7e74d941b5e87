"""Sessions without a name: whether they run side by side, and prompts that are wrapped anew each time (LD-4)."""

from __future__ import annotations

import math
import struct
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import Evaluation
from breakloop.detect.steps import PRESETS
from breakloop.detect.unnamed_sessions import SERIES, UnnamedSessionsDetector
from breakloop.model.call import Answer, Result, Step, ToolCall
from tests.builders import call
from tests.unit.detect.reading import CONFIG, Reader, digest

PROMPT = "List the ten largest cities of Europe as JSON."
AGAIN = "That was not valid JSON. Try again: "
NOTHING, NOTICE, BLOCK, STOP = range(4)
SIZE_MAX = 1536
CALL = ToolCall("look", "{}")


DETECTOR = UnnamedSessionsDetector(CONFIG, Reader(), digest, PRESETS["normal"]["nested"])


def asked(text: str, said: str = "") -> Step:
    return Step(said, (), (), (), (text,), (), 1, 100)


def called(number: int = 0) -> Step:
    return Step("", (CALL,), (), (Result(f"result {number}"),), (), (), 3, 100)


class Sender:
    """One caller and agent: its memory, and a clock."""

    def __init__(self) -> None:
        self.window = b""
        self.now = 1_800_000_000.0

    def send(self, session: str, step: Step, system: str = "gpt\0Be brief.", after: float = 2.0) -> Evaluation:
        self.now += after
        judged = DETECTOR.evaluate_step(self.window, session, system, step, self.now)
        self.window = judged.window
        assert len(self.window) <= SIZE_MAX
        return judged

    def work(self, session: str, after: float = 2.0) -> Evaluation:
        return self.send(session, called(), after=after)

    def wrap(self, times: int, after: float = 2.0, system: str = "gpt\0Be brief.") -> list[Evaluation]:
        """A plain client that puts the same words before its prompt again and again."""
        prompts = [AGAIN * at + PROMPT for at in range(times)]
        return [self.send(f"derived:{system}{at}", asked(text), system, after) for at, text in enumerate(prompts)]


def levels(judged: list[Evaluation]) -> list[int]:
    return [one.level for one in judged]


def test_the_same_prompt_again_is_a_sign_of_life() -> None:
    """After half a minute its time is noted, so that the series is known ten minutes later (LD-4)."""
    for pause, level in ((29.9, NOTHING), (30.0, NOTICE)):
        sender = Sender()
        sender.wrap(3)
        sender.send("derived:again", asked(AGAIN * 2 + PROMPT), after=pause)
        pauses = {3: 590.0, 4: 1.0}
        found = [sender.send(f"derived:{at}", asked(AGAIN * at + PROMPT), after=pauses[at]) for at in pauses]
        assert [one.level for one in found] == [NOTHING, level]


def test_a_prompt_wrapped_anew_each_time() -> None:
    """Each has a session of its own; noticed by the fourth, blocked by the sixth, stopped by the ninth (LD-4, C20)."""
    found = Sender().wrap(10)
    assert levels(found) == [NOTHING] * 3 + [NOTICE] * 2 + [BLOCK] * 3 + [STOP] * 2
    assert found[3].kind == "nested"
    assert found[5].evidence == "each prompt contains the previous one, 5 times"
    assert len({one.identity for one in found[3:]}) == 1
    assert len(found[3].identity) == 16
    assert not any(one.ambiguous for one in found)


def test_a_loop_is_told_once_at_a_level_and_again_at_twice_the_count() -> None:
    """At 3 as a notice, at 5 as a block, at 8 as a stop, at 16 again (LD-4)."""
    fresh = [at for at, one in enumerate(Sender().wrap(20)) if one.fresh]
    assert fresh == [3, 5, 8, 16]


def test_a_prompt_that_grows_at_its_end() -> None:
    """The same plea behind it again and again is a loop; a transcript that a client sends whole is none (LD-4)."""
    sender = Sender()
    pleas = levels([sender.send(f"s{at}", asked(PROMPT + " Try again!" * at)) for at in range(8)])
    assert pleas == [NOTHING] * 4 + [NOTICE] * 2 + [BLOCK] * 2
    sender, text = Sender(), PROMPT
    for word in ("cities", "rivers", "lakes", "seas", "hills", "roads", "woods", "towns", "farms", "ports"):
        text += f" And what about the {word}?"
        assert sender.send(word, asked(text)).level == NOTHING


def test_thresholds() -> None:
    """Those of the policy (LD-4)."""
    detector = UnnamedSessionsDetector(CONFIG, Reader(), digest, (1, 2, 3))
    window, found = b"", []
    for at in range(4):
        judged = detector.evaluate_step(window, f"s{at}", "", asked(AGAIN * at + PROMPT), 100.0 + at)
        window = judged.window
        found.append(judged.level)
    assert found == [NOTHING, NOTICE, BLOCK, STOP]


def test_another_prompt_ends_it_and_another_loop_has_another_name() -> None:
    """What does not hold the prompt before it is progress (LD-4)."""
    sender = Sender()
    first = sender.wrap(6)[-1]
    other = sender.send("s", asked("And now the ten longest rivers, please."))
    assert (other.level, other.identity) == (NOTHING, "")
    wrapped = [
        sender.send(f"s{at}", asked(f"{AGAIN * at}And now the ten longest rivers, please.")) for at in range(1, 6)
    ]
    assert levels(wrapped) == [NOTHING] * 2 + [NOTICE] * 2 + [BLOCK]
    assert wrapped[2].fresh
    assert wrapped[-1].identity != first.identity


def test_the_same_prompt_again_stands_as_it_stood() -> None:
    """No step and no progress; what is blocked stays blocked, and nothing is written (LD-4)."""
    sender = Sender()
    for times in (4, 6, 9):  # told, blocked, stopped
        sender = Sender()
        last = sender.wrap(times)[-1]
        for _ in range(5):
            again = sender.send(f"derived:gpt\0Be brief.{times - 1}", asked(AGAIN * (times - 1) + PROMPT))
            assert again == replace(last, fresh=False)
            assert again.window is last.window
        assert sender.send("next", asked(AGAIN * times + PROMPT)).evidence.endswith(f"{times} times")
    sender = Sender()
    assert levels([sender.send("s", asked(PROMPT)) for _ in range(20)]) == [NOTHING] * 20


@pytest.mark.parametrize(("wraps", "level"), [(4, NOTICE), (6, BLOCK), (9, STOP)])
def test_the_same_prompt_again_is_not_told_again(wraps: int, level: int) -> None:
    """It has the same level, however late it comes. After ten minutes it is a new one (LD-4)."""
    sender = Sender()
    sender.wrap(wraps)
    prompt = asked(AGAIN * (wraps - 1) + PROMPT)
    found = [sender.send("again", prompt, after=after) for after in (2.0, 29.5, 30.0, 599.5, 600.0)]
    assert levels(found) == [level] * 4 + [NOTHING]
    assert not any(one.fresh for one in found)


def test_prompts_of_one_session() -> None:
    """A client whose session is known by something else than its prompt (LD-4)."""
    sender = Sender()
    assert levels([sender.send("s", asked(AGAIN * at + PROMPT)) for at in range(6)])[-1] == BLOCK


def test_what_is_sent_again_stays_in_mind() -> None:
    """A blocked prompt that comes every minute is blocked after an hour (LD-4)."""
    sender = Sender()
    sender.wrap(6)
    assert {sender.send("s", asked(AGAIN * 5 + PROMPT), after=60.0).level for _ in range(60)} == {BLOCK}


@pytest.mark.parametrize(("after", "block_at"), [(19.0, 5), (20.0, 10), (60.0, 20), (600.0, None)])
def test_slow_repeats(after: float, block_at: int | None) -> None:
    """From 20 s on they count half, from 60 s on a quarter; after ten minutes it begins anew (LD-4)."""
    found = levels(Sender().wrap(40, after))
    assert (found.index(BLOCK) if BLOCK in found else None) == block_at


def test_series_do_not_mix() -> None:
    """Another program of the same caller, at the same time, changes nothing (LD-4)."""
    sender, found = Sender(), []
    for at in range(6):
        found.append(sender.send(f"a{at}", asked(AGAIN * at + PROMPT), "one"))
        other = sender.send(f"b{at}", asked(f"Question number {at}, another one each time."), "two")
        assert other.level == NOTHING
    assert levels(found)[-1] == BLOCK
    assert Sender().wrap(6, system="one")[-1].identity != Sender().wrap(6, system="two")[-1].identity


def test_the_series_used_longest_ago_is_forgotten() -> None:
    """Memory is bounded (LD-4)."""
    sender = Sender()
    sender.wrap(3, system="kept")
    sender.wrap(3, system="lost")
    sender.send("s", asked(AGAIN * 3 + PROMPT), "kept")
    for at in range(SERIES - 1):
        sender.send(f"t{at}", asked("Something else, and again something else."), f"other {at}")
    assert sender.send("u", asked(AGAIN * 4 + PROMPT), "kept").level == NOTICE
    assert sender.send("v", asked(AGAIN * 3 + PROMPT), "lost").level == NOTHING


def test_steps_with_calls_are_not_looked_at() -> None:
    """An agent at work neither counts nor ends anything, and its system prompt need not be read (LD-4)."""
    sender = Sender()
    sender.wrap(5)
    for at in range(4):
        assert sender.send("worker", called(at), "gpt\0Be brief.").level == NOTHING
    sender.send("worker", called()._replace(users=("And please be quick about it.",)))
    sender.send("worker", called()._replace(calls=(), users=("Said beside a result of old.",)))
    assert sender.send("next", asked(AGAIN * 5 + PROMPT)).level == BLOCK
    assert Sender().send("s", asked("")._replace(users=())).window == Sender().work("s").window  # no prompt either


def test_sessions_side_by_side() -> None:
    """A, B, A, B within ten minutes; ten minutes after the last time it is over (LD-4)."""
    sender = Sender()
    assert [sender.work(one).ambiguous for one in "AABBAB"] == [False] * 5 + [True]
    assert sender.work("B", after=599.0).ambiguous
    assert not sender.work("B", after=1.0).ambiguous


def test_calls_in_between_are_no_second_session() -> None:
    """An agent whose tools ask the model for something of their own, each time something else (LD-4)."""
    sender = Sender()
    assert not any(sender.work("A" if at % 2 else f"summary {at}").ambiguous for at in range(40))


def test_sessions_one_after_the_other() -> None:
    """A client whose every request begins a new one never overlaps (LD-4)."""
    sender = Sender()
    assert not any(sender.work(f"s{at // 3}").ambiguous for at in range(300))


def test_a_session_that_comes_back_late() -> None:
    """After ten minutes it is another run of the same program (LD-4)."""
    sender = Sender()
    sender.work("A")
    sender.work("B", after=300.0)
    assert not sender.work("A", after=300.0).ambiguous
    assert not sender.work("B", after=299.0).ambiguous  # A did not come back in time
    assert sender.work("A", after=299.0).ambiguous


def test_many_sessions_in_turn() -> None:
    """A dozen at once are seen to overlap when the second comes again (LD-4)."""
    sender = Sender()
    assert not any(sender.work(f"s{at}", after=0.1).ambiguous for at in range(13) for at in [at % 12])
    assert all(sender.work(f"s{at}", after=0.1).ambiguous for at in range(1, 12))


def test_nothing_is_written_where_nothing_changed() -> None:
    """The newest session within 30 s; sessions side by side within a minute of when that was noted (Q-1)."""
    sender = Sender()
    before = sender.work("A").window
    assert all(sender.work("A").window is before for _ in range(14))
    assert sender.work("A", after=1.5).window is before
    assert sender.work("A", after=0.5).window is not before
    sender.work("B")
    sender.work("A")
    before = sender.work("B").window
    assert all(sender.work(one).window is before for one in "ABABABABABABA")
    assert [sender.work(one, after=30.0).window is before for one in "AB"] == [True, False]
    assert sender.work("A").ambiguous


def test_an_overlap_is_noted_once_a_minute() -> None:
    """As long as it goes on (Q-1)."""
    sender = Sender()
    before = [sender.work(session).window for session in "ABAB"][-1]
    assert sender.work("A", after=59.5).window is before
    assert sender.work("A", after=0.5).window is not before


def test_memory_is_bounded_and_holds_no_words() -> None:
    """Digests only, which another key makes others (LD-4, Y-1)."""
    sender = Sender()
    for at in range(60):
        sender.send(f"session {at}", asked(f"A prompt about something, number {at}."), f"model {at}\0system")
    assert 800 < len(sender.window) <= SIZE_MAX
    assert not any(word in sender.window for word in (b"session", b"prompt", b"model", b"system"))
    other = UnnamedSessionsDetector(
        CONFIG, Reader(), lambda data: blake2b(data, digest_size=8, key=b"other").digest(), (3, 5, 8)
    )
    step = asked(PROMPT)
    assert (
        other.evaluate_step(b"", "s", "l", step, 1.0).window != DETECTOR.evaluate_step(b"", "s", "l", step, 1.0).window
    )


TEXTS = st.sampled_from(["", "hi", PROMPT, AGAIN + PROMPT, AGAIN * 2 + PROMPT, f"{PROMPT} {PROMPT}", "\ud800" * 30])
STEPS = st.one_of(st.builds(asked, TEXTS), st.just(called()), st.just(Step("", (), (), (), (), (), 0, 0)))
NAMES = st.sampled_from(["", "a", "b", "c", "\udfff"])


@given(st.binary(max_size=300), st.integers(0, 16), st.integers(0, 16), STEPS, st.floats(-1e12, 1e12))
def test_any_window_can_be_read(garbage: bytes, sessions: int, series: int, step: Step, now: float) -> None:
    """What cannot be read counts as new; judging twice gives the same (LD-4)."""
    filled = (garbage * 40 or bytes(1067))[: 8 + sessions * 17 + series * 49]
    for window in (garbage, b"\x02" + filled[:8] + bytes((sessions, series)) + filled[8:]):
        first = DETECTOR.evaluate_step(window, "a", "b", step, now)
        assert first == DETECTOR.evaluate_step(window, "a", "b", step, now)
        again = DETECTOR.evaluate_step(first.window, "a", "b", step, now)
        assert (again.level, again.ambiguous) == (first.level, first.ambiguous)
        assert again.window is first.window


@pytest.mark.parametrize("cut", [1, 49, 60])
def test_memory_that_is_cut_short_is_not_read(cut: int) -> None:
    """It counts as new (S-2)."""
    sender = Sender()
    for session in "ABA":
        sender.send(session, asked(PROMPT))
    assert sender.work("B").ambiguous
    sender.window = sender.window[:-cut]
    assert not sender.work("A").ambiguous


@pytest.mark.parametrize(("sessions", "series", "read"), [(0, 0, True), (16, 16, True), (17, 0, False), (0, 17, False)])
def test_memory_of_more_than_is_kept_is_not_read(sessions: int, series: int, read: bool) -> None:
    """It counts as new (S-2)."""
    sender = Sender()
    head = struct.pack("<BdBB", 2, sender.now, sessions, series)  # the last overlap was now
    sender.window = head + bytes(17 * sessions + 49 * series)
    assert sender.work("A").ambiguous is read


def test_memory_of_another_version_is_not_read() -> None:
    """It counts as new (S-2)."""
    sender = Sender()
    sender.wrap(5)
    sender.window = b"\x01" + sender.window[1:]
    assert sender.send("next", asked(AGAIN * 5 + PROMPT)).level == NOTHING


@pytest.mark.parametrize("place", [36, 38])  # of the count, and of the count that was reported
@pytest.mark.parametrize(
    ("count", "read"),
    [(1000.0, True), (1001.0, False), (math.nan, False), (math.inf, False), (-0.75, False), (60_000.0, False)],
)
def test_counts_that_no_series_has(place: int, count: float, read: bool) -> None:
    """Whatever wrote them, the series begins anew, so that they block nobody (LD-4)."""
    sender = Sender()
    sender.wrap(6)
    start = len(sender.window) - 49 + place
    sender.window = sender.window[:start] + struct.pack("<e", count) + sender.window[start + 2 :]
    pauses = (60.0, 2.0, 2.0, 2.0)
    found = [sender.send(f"next {at}", asked(AGAIN * (6 + at) + PROMPT), after=pauses[at]) for at in range(4)]
    assert (levels(found) == [NOTHING] * 3 + [NOTICE]) is not read


@given(st.binary(min_size=49, max_size=49), STEPS, st.floats(0, 1e10))
def test_any_series_can_be_read(garbage: bytes, step: Step, now: float) -> None:
    """Counts that no series ever has make it a new one (LD-4)."""
    key = DETECTOR.evaluate_step(b"", "a", "b", asked(PROMPT), now).window[28:36]
    window = b"\x02" + bytes(8) + b"\x00\x01" + key + garbage[8:]
    judged = DETECTOR.evaluate_step(window, "a", "b", step, now)
    assert judged == DETECTOR.evaluate_step(window, "a", "b", step, now)


@given(st.lists(st.tuples(NAMES, NAMES, STEPS, st.floats(0, 700)), max_size=30))
def test_any_order_of_steps(sent: list[tuple[str, str, Step, float]]) -> None:
    """Levels are there or not, memory stays bounded, and the same at once changes nothing (LD-4)."""
    window, now = b"", 1e9
    for session, system, step, after in sent:
        now += after
        judged = DETECTOR.evaluate_step(window, session, system, step, now)
        assert (judged.level > 0) == bool(judged.kind) == bool(judged.evidence) == bool(judged.identity)
        window = judged.window
        assert len(window) <= SIZE_MAX
        again = DETECTOR.evaluate_step(window, session, system, step, now)
        assert again == replace(judged, fresh=False)
        assert again.window is window


PLAIN = Step("", (), (), (), ("hello",), (), 1, 10)
ACTS = PLAIN._replace(calls=(ToolCall("look", "{}"),))


class Recording(UnnamedSessionsDetector):
    """Records what it would evaluate, and reports an overlap."""

    def __init__(self, step: Step | None = PLAIN, config: DetectorConfig = CONFIG, *, unnamed: bool = True) -> None:
        super().__init__(config, Reader(step, unnamed=unnamed), digest, (3, 5, 8))
        self.asked: list[tuple[str, str]] = []

    def evaluate_step(self, window: bytes, session: str, system: str, _step: Step, _now: float) -> Evaluation:
        self.asked.append((session, system))
        return Evaluation(window, ambiguous=True)


def test_an_overlap_is_noted_in_the_call() -> None:
    """Two derived sessions overlapped (LD-4)."""
    sent, window, detector = call(), b"memory", Recording()
    found = detector.evaluate(sent, window, 7.0)
    assert found is not None
    assert found.window is window
    assert sent.decision.crowded
    assert detector.asked == [("me", "model and prompt")]
    assert detector.answered(window, Answer(200, "said")) is window


def test_another_session_in_between_is_noted_in_the_call() -> None:
    """Of one caller and agent (LD-6)."""
    window, noted = b"", []
    for session in ("one", "one", "two", "two", "one"):
        sent = call()
        found = UnnamedSessionsDetector(CONFIG, Reader(PLAIN, session_id=session), digest, (3, 5, 8)).evaluate(
            sent, window, 7.0
        )
        assert found is not None
        window = found.window
        noted.append(sent.decision.interrupted)
    assert noted == [False, False, True, False, True]


def test_where_tools_are_called_the_system_prompt_is_not_read() -> None:
    """Reading it takes time, and only prompts are compared."""
    detector = Recording(ACTS)
    detector.evaluate(call(), b"", 7.0)
    assert detector.asked == [("me", "")]


def test_others_are_left_alone() -> None:
    detector = Recording(None)
    assert detector.evaluate(call(), b"", 7.0) is None
    assert detector.asked == []


def test_ids_of_calls_distinguish_conversations() -> None:
    """If there are ids, or the session has a name, nothing is read or written (C-7, Q-1)."""
    assert Recording(PLAIN).owner(call()) == Recording(ACTS).owner(call()) == "a:caller|agent"
    assert Recording(ACTS._replace(call_ids=("call_1",))).owner(call()) == ""
    assert Recording(None).owner(call()) == ""
    assert Recording(unnamed=False).owner(call()) == ""
