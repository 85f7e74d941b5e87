"""The SimHash score: what it counts, when it trips, what it spares, and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect import simhash
from breakloop.detect.counting import DetectorConfig
from breakloop.detect.simhash import TEXT_MAX_CHARS, SimhashDetector, SimhashScore, _bounded, new_prompt
from breakloop.detect.stateful import Detection
from breakloop.model.call import Answer, Result, Step, ToolCall
from breakloop.store.ops import CountFingerprint
from tests.builders import call
from tests.unit.detect.reading import CONFIG, Reader

PROMPT = "Please fix the failing test in the parser, and tell me when all of it passes."
SEARCH = ToolCall("search", '{"q":"x"}')
RESULT = "sorry, no file in the whole project matches this pattern: check the spelling, or search in another folder of it instead"


def other(number: int) -> str:
    """A text that is like no other."""
    letters = "abcdefghij"
    return " ".join(letters[number % 10] * (2 + at) + letters[number // 10 % 10] for at in range(12))


class Agent:
    """Sends requests one after the other."""

    def __init__(self, detector: SimhashDetector | None = None) -> None:
        self.detector = detector or SimhashDetector(CONFIG, Reader())
        self.window = b""

    def ask(self, prompt: str, calls: Sequence[ToolCall] = (), *, tracked: bool = False) -> SimhashScore:
        found = self.detector.score(self.window, prompt, calls, tracked=tracked)
        self.window = found.window
        return found

    def hear(self, text: str, *calls: ToolCall, status: int = 200) -> None:
        self.window = self.detector.answered(self.window, Answer(status, text, calls, complete=True))


def first_trip(agent: Agent, answers: bool, calls: bool) -> int:
    """The number of the first request that trips, when every one is the same."""
    for number in range(1, 50):
        if agent.ask(PROMPT, [SEARCH] if calls else []).tripped:
            return number
        if answers:
            agent.hear("I will look at the parser.", *([SEARCH] if calls else []))
    return 0


@pytest.mark.parametrize(
    ("answers", "calls", "request_number"),
    [(False, False, 12), (True, False, 6), (False, True, 6), (True, True, 4)],
)
def test_when_it_trips(answers: bool, calls: bool, request_number: int) -> None:
    """1.0 a prompt, 2.0 an answer, 1.5 a call, over the earlier requests, and more than 10 of that (LD-3).

    S3's code trips at 10, and so one request earlier in two of these.
    """
    assert first_trip(Agent(), answers, calls) == request_number


def test_the_sum() -> None:
    """What is counted, and the score made of it (LD-3)."""
    agent = Agent()
    for _ in range(4):
        agent.ask(PROMPT, [SEARCH])
        agent.hear("The same.")
    found = agent.ask(PROMPT, [SEARCH])
    assert (found.prompts, found.responses, found.tools) == (4, 3, 4)
    assert found.score == 4 * 1.0 + 3 * 2.0 + 4 * 1.5
    assert found.tripped
    assert found.evidence == (
        "score 16 is over 10: of the last 4 requests 4 had a similar prompt, 3 a similar answer, 4 the same tool calls"
    )


def test_similar_is_less_than_three_bits_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """For prompts and for answers (LD-3)."""
    monkeypatch.setattr(simhash, "simhash", lambda text, _seed: int(text, 2))
    monkeypatch.setattr(simhash, "normalised", str)
    agent = Agent()
    for bits in ("0000", "0001", "0011", "0111", "0000"):
        agent.ask(bits)
        agent.hear(bits)
    found = agent.ask("0000")
    assert (found.prompts, found.responses) == (4, 3)  # all but 0111; and of these, all answers but the last
    agent = Agent()
    for bits in ("0111", "0011", "0001", "0000"):
        agent.ask("1111")
        agent.hear(bits)
    assert agent.ask("1111").responses == 2


@pytest.mark.parametrize(("words", "prompts"), [(19, 0), (20, 1)])
def test_short_results_of_other_calls_are_acknowledgements(words: int, prompts: int) -> None:
    """Fewer than twenty words are the same for many different calls (LD-3)."""
    agent, text = Agent(), " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrst"[:words])
    agent.ask(text, [SEARCH])
    assert agent.ask(text, [ToolCall("search", '{"q":"y"}')]).prompts == prompts


def test_weights_and_threshold_can_be_set() -> None:
    """Weights settable; a score that equals the threshold does not trip (LD-3)."""
    agent = Agent(SimhashDetector(CONFIG, Reader(), threshold=3, weights=(0.5, 1, 0.25)))
    scores = []
    for _ in range(4):
        scores.append(agent.ask(PROMPT, [SEARCH]).score)
        agent.hear("Well.")
    assert scores == [0, 0.75, 2.5, 4.25]
    assert not Agent(SimhashDetector(CONFIG, Reader(), threshold=1)).ask(PROMPT).tripped
    agent = Agent(SimhashDetector(CONFIG, Reader(), threshold=1))
    assert [agent.ask(PROMPT).tripped for _ in range(3)] == [False, False, True]


def test_the_window_counts_requests() -> None:
    """The last 20 requests, the newest among them; older ones are forgotten (LD-3)."""
    agent = Agent()
    assert [agent.ask(PROMPT) for _ in range(30)][-1].prompts == 19
    assert len(agent.window) == 1 + 20 * 25
    agent = Agent(SimhashDetector(CONFIG, Reader(), window_requests=5, threshold=3))
    assert [agent.ask(PROMPT).prompts for _ in range(7)] == [0, 1, 2, 3, 4, 4, 4]
    for number in range(4):
        assert agent.ask(other(number)).prompts == 0
    assert agent.ask(PROMPT).prompts == 0


def test_volatile_parts_do_not_hide_a_loop() -> None:
    """Ids, times and numbers are new in every request (LD-3)."""
    agent = Agent()
    for number in range(12):
        prompt = f"Order {number}: retry {number:032x} at 2024-01-15T10:30:{number:02}Z, PLEASE" + " " * number
        assert agent.ask(prompt).prompts == number


def test_a_request_like_no_other_is_free_whatever_was_before() -> None:
    """Against the current request: somebody who changes course passes at once (LD-3)."""
    agent = Agent()
    for _ in range(15):
        agent.ask(PROMPT)
        agent.hear("The same long answer about the parser and its failing test, again and again.")
    found = agent.ask("Write a poem about the sea instead, in four lines that rhyme.")
    assert (found.score, found.tripped, found.evidence) == (0, False, "")
    assert agent.ask(PROMPT).tripped


def test_the_same_answer_to_different_questions_is_no_loop() -> None:
    """A batch being classified (LD-3)."""
    agent = Agent()
    for number in range(40):
        assert agent.ask(other(number)).score == 0
        agent.hear("spam")


def test_turns_of_a_cycle_are_compared_with_their_like() -> None:
    """Two prompts in turn, each with its own answer (LD-3)."""
    agent = Agent()
    trips = []
    for number in range(16):
        trips.append(agent.ask(other(number % 2)).tripped)
        agent.hear(other(70 + number % 2))
    assert trips.index(True) == 10  # the sixth of its kind


def test_a_healthy_run_with_tools() -> None:
    """The last user message and the declared tools are the same all the time, and count for nothing (LD-3)."""
    agent = Agent()
    for number in range(50):
        calls = [ToolCall("read", f'{{"path":"{other(number)}"}}')]
        assert agent.ask(other(99 - number), calls).score == 0
        agent.hear("", *calls)


def test_acknowledgements_are_no_prompts() -> None:
    """Many distinct writes, each answered `ok`; but the same write again and again is a loop (LD-3)."""
    agent = Agent()
    for number in range(40):
        assert agent.ask("ok", [ToolCall("write", f'{{"path":"{other(number)}"}}')]).score == 0
    assert [agent.ask("ok", [SEARCH]).tools for _ in range(3)] == [0, 1, 2]
    assert agent.ask("ok", [SEARCH]).prompts == 3
    agent = Agent()
    for number in range(12):
        found = agent.ask(RESULT, [ToolCall("search", other(number))])
        assert (found.prompts, found.tools) == (number, 0)  # a result that says something, whatever is searched for


def test_no_prompt_is_like_no_prompt() -> None:
    """What has no text must not look like everything else that has none, as it does in S3's code (LD-3)."""
    agent = Agent()
    for _ in range(30):
        assert agent.ask("").score == 0
        agent.hear("")


def test_calls_are_compared_as_rounds() -> None:
    """Name and arguments; the order of calls made together says nothing, one more makes another round (LD-3)."""
    one, two = ToolCall("read", "a"), ToolCall("read", "b")
    agent = Agent()
    agent.ask(other(1), [one, two])
    assert agent.ask(other(2), [two, one, one]).tools == 1
    assert agent.ask(other(3), [one]).tools == 0
    assert agent.ask(other(4), [ToolCall("rea", "da")]).tools == 0
    assert agent.ask(other(5), [one]).tools == 1


def test_answers_are_text_and_calls() -> None:
    """Never their envelope or ids (LD-3)."""
    detector = SimhashDetector(CONFIG, Reader())
    window = detector.score(b"", PROMPT, ()).window
    one = detector.answered(window, Answer(200, "Well.", (SEARCH,), model="a", response_id="x", complete=True))
    same = detector.answered(window, Answer(201, "well. ", (SEARCH,), model="b", response_id="y"))
    assert one == same != window
    assert one != detector.answered(window, Answer(200, "Well.", ()))
    assert one != detector.answered(window, Answer(200, "Well.", (ToolCall("search", "other"),)))


def test_an_answer_belongs_to_the_newest_request_without_one() -> None:
    """As in S3; one that nobody waits for changes nothing (LD-3)."""
    agent = Agent()
    agent.ask(PROMPT)
    agent.ask(PROMPT)
    agent.hear("Same.")
    agent.hear("Same.")
    full = agent.window
    agent.hear("Same.")
    assert agent.window == full
    assert agent.ask(PROMPT).responses == 1
    assert SimhashDetector(CONFIG, Reader()).answered(b"", Answer(200, "x")) == b""
    agent = Agent()
    agent.ask(PROMPT)  # was cancelled
    for _ in range(2):
        agent.ask(other(1))
        agent.hear("The same.")
    assert agent.ask(other(1)).responses == 1


@pytest.mark.parametrize("status", [429, 500, 503, 0])
def test_trying_again_after_a_failure_is_no_loop(status: int) -> None:
    """A request that failed upstream leaves the window (LD-6)."""
    agent = Agent()
    for _ in range(30):
        assert agent.ask(PROMPT, tracked=True).score == 0
        agent.hear("", status=status)
    assert agent.window == b"\xa1"


def test_asking_many_times_at_once_is_no_loop() -> None:
    """What is not answered yet does not count, where the answer is going to be seen (LD-6)."""
    agent = Agent()
    assert [agent.ask(PROMPT, tracked=True).score for _ in range(16)] == [0] * 16
    agent.hear("One.")
    agent.hear("")
    assert agent.ask(PROMPT, tracked=True).prompts == 2


def test_what_is_denied_goes_on_being_denied() -> None:
    """Requests that trip are never answered, and must not push the loop out of the window (LD-3)."""
    agent = Agent()
    for number in range(1, 60):
        found = agent.ask(PROMPT, tracked=True)
        assert found.tripped == (number >= 6)
        if not found.tripped:
            agent.hear("The same.")


def test_an_answer_that_is_awaited_comes_first() -> None:
    """And not to a later request that was denied (LD-3)."""
    detector = SimhashDetector(CONFIG, Reader(), threshold=0)
    first = detector.score(b"", PROMPT, ()).window
    second = detector.score(first, other(1), (), tracked=True).window
    third = detector.score(second, PROMPT, (), tracked=True)
    assert third.tripped
    assert detector.answered(third.window, Answer(500)) == first + third.window[-25:]


def test_what_cannot_be_read_is_new() -> None:
    """A window of another kind, of another version or cut short (LD-3)."""
    detector = SimhashDetector(CONFIG, Reader())
    window = detector.score(b"", PROMPT, ()).window
    for broken in (b"", window[:-1], b"\x01" + window[1:], b"{}", b"\xa1x"):
        assert detector.score(broken, PROMPT, ()) == SimhashScore(window, 0, False, 0, 0, 0)
        assert len(detector.answered(broken, Answer(200, "x"))) <= len(window)
    assert detector.score(window, PROMPT, ()).prompts == 1


@given(st.binary(max_size=200), st.text(), st.text())
def test_whatever_comes(window: bytes, prompt: str, text: str) -> None:
    """No window, prompt or answer makes it fail or grow (Y-2)."""
    detector = SimhashDetector(CONFIG, Reader())
    for start in (window, b"\xa1" + window[: len(window) // 25 * 25]):
        kept = detector.score(start, prompt, [ToolCall(text, prompt)]).window
        assert len(detector.answered(kept, Answer(200, text))) <= 1 + 20 * 25


def test_the_identity_of_a_loop() -> None:
    """One loop has one name while it goes on; nothing that was said can be read in it, or in the evidence (LD-3)."""
    agent = Agent()
    names = [agent.ask(PROMPT).identity for _ in range(20)]
    assert names[:11] == [""] * 11
    assert len(set(names[11:])) == 1
    assert len(names[11]) == 16
    assert int(names[11], 16)
    keyed = Agent(SimhashDetector(CONFIG, Reader(), seed=7))
    assert [keyed.ask(PROMPT).identity for _ in range(12)][-1] != names[11]
    assert not set(PROMPT.split()) & set(agent.ask(PROMPT).evidence.split()) - {"the", "of"}


def test_the_identity_is_that_of_the_oldest_request() -> None:
    """The calls of the later ones differ (LD-3)."""
    agent = Agent(SimhashDetector(CONFIG, Reader(), threshold=3))
    names = [agent.ask(RESULT, [ToolCall("search", other(number))]).identity for number in range(12)]
    assert names[:4] == [""] * 4
    assert len(set(names[4:])) == 1


def test_the_identity_is_the_same_everywhere() -> None:
    """Cooldowns are shared by a fleet, and by the versions before and after an upgrade (E-7)."""
    names = []
    for prompt, calls in ((PROMPT, ()), ("", (SEARCH,))):
        agent = Agent()
        names.append([agent.ask(prompt, calls).identity for _ in range(12)][-1])
    assert names == ["f2d4ab3a477e77fa", "22366e36e7b6d5a8"]


def test_other_loops_have_other_identities() -> None:
    """By their prompts, or by their calls (LD-3)."""
    names = set()
    for prompt, calls in ((PROMPT, ()), (other(1), ()), (PROMPT, (SEARCH,)), (PROMPT, (ToolCall("list", "{}"),))):
        agent = Agent()
        names.add([agent.ask(prompt, calls).identity for _ in range(12)][-1])
    assert len(names) == 4


@pytest.mark.parametrize(("size", "alike"), [(16 * 1024, 0), (16 * 1024 + 1, 1)])
def test_texts_of_16_kib_are_read_as_they_are(size: int, alike: int) -> None:
    """One long word with another last letter is another word; cut into pieces, most of it is the same (Y-2)."""
    agent = Agent()
    agent.ask("x" * size)
    assert agent.ask("x" * (size - 1) + "y").prompts == alike


def test_long_texts_are_judged_by_pieces_of_all_of_them() -> None:
    """Bounded work; a change of the whole middle is still seen (Y-2)."""
    long = "".join(f"{other(number)}\n" for number in range(100)) * 6
    assert len(long) > 3 * TEXT_MAX_CHARS
    agent = Agent()
    agent.ask(long)
    assert agent.ask(long).prompts == 1
    assert (
        agent.ask(long[:TEXT_MAX_CHARS] + long[TEXT_MAX_CHARS:-TEXT_MAX_CHARS].upper() + long[-TEXT_MAX_CHARS:]).prompts
        == 2
    )
    changed = long[:TEXT_MAX_CHARS] + long[TEXT_MAX_CHARS:-TEXT_MAX_CHARS][::-1] + long[-TEXT_MAX_CHARS:]
    assert agent.ask(changed).prompts == 0


def test_at_most_16_kib_of_a_text_are_read() -> None:
    """Eight pieces from the beginning to the end, at equal distances (Y-2)."""
    text = "".join(chr(0x4E00 + number) for number in range(20_000))
    assert _bounded(text[: 16 * 1024]) == text[: 16 * 1024]
    pieces = _bounded(text).split(" ")
    assert [len(piece) for piece in pieces] == [2048] * 8
    starts = [text.index(piece) for piece in pieces]
    assert (starts[0], starts[-1]) == (0, 20_000 - 2048)
    assert {after - before for before, after in pairwise(starts)} <= {2564, 2565}


def step(*, results: tuple[Result, ...] = (), users: tuple[str, ...] = ()) -> Step:
    return Step("said", (), (), results, users, (), 3, 100)


def test_what_is_new_in_a_request() -> None:
    """The last user message, or the results after the last answer; of what was said before, nothing (LD-3)."""
    assert new_prompt(step(users=("Hello.",))) == "Hello."
    assert new_prompt(step(users=("A document.", "Sum it up."))) == "A document.\nSum it up."
    results = (Result("one", call_id="a"), Result("", media=("image/png:4",)), Result("two", error=True))
    assert new_prompt(step(results=results)) == "one\nimage/png:4\ntwo"
    assert new_prompt(step(results=results, users=("Go on.",))) == "one\nimage/png:4\ntwo\nGo on."
    assert new_prompt(step()) == ""


STEP = Step("", (), (), (), ("Convert this page to JSON, please, and nothing else at all.",), (), 1, 10)
KILLS = DetectorConfig("simhash", "p", 0, ("warn", "kill", "kill"), 429)


def block(step: Step | None = STEP, config: DetectorConfig = KILLS) -> SimhashDetector:
    return SimhashDetector(config, Reader(step))


def test_similar_prompts_and_answers_add_up() -> None:
    """Five earlier prompts alike and four answers alike: 1 x 5 + 2 x 4 = 13 > 10 (LD-3)."""
    made, window, found = block(), b"", []
    for _ in range(6):
        scored = made.evaluate(call(), window, 7.0)
        assert scored is not None
        found.append(scored)
        window = made.answered(scored.window, Answer(200, "I am sorry, I cannot do that for you.", complete=True))
    assert [one.level for one in found] == [0, 0, 0, 0, 0, 2]
    scored = found[-1]
    assert made.owner(call()) == "a:caller|agent"
    assert (scored.kind, len(scored.identity)) == ("simhash", 16)
    assert scored.evidence.startswith("score 13 is over 10: of the last 5 requests 5 had a similar prompt")
    op = made.operation(call(), scored, "project", 0)
    assert isinstance(op, CountFingerprint)
    assert isinstance(op.owner, Detection)
    assert op.owner.action == "kill"


def test_calls_without_a_step_are_left_alone() -> None:
    assert block(None).evaluate(call(), b"", 7.0) is None
