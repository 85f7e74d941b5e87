"""What becomes of a call after its verdict: in flight, answered, failed; and what that does to the next verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from breakloop.engine.decision_state import state_of
from breakloop.engine.engine import Engine
from breakloop.errors import StateError
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, Usage
from breakloop.model.events import LOOP_DETECTED, STORE_DEGRADED
from breakloop.model.verdict import Verdict
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import Settle
from tests.builders import (
    FailingStore,
    Json,
    World,
    bucket,
    bundle,
    call,
    chat,
    exact,
    fresh,
    policy,
    tail,
    user,
    world,
)

FINE = Answer(200, complete=True)
BUSY = Answer(429)
BLOCKS: dict[str, Json] = {
    "tail": tail(),  # 5 pass
    "exact": exact(6),
    "exact, sliding": exact(6) | {"window": "sliding"},
}


class Agent:
    """Sends one request again and again through a door that sees its answers."""

    def __init__(self, here: World, asked: Call | None = None) -> None:
        self.here = here
        self.asked = asked or chat()

    def start(self) -> tuple[Call, Verdict]:
        call = fresh(self.asked)
        call.tracked = True
        return call, self.here.engine.decide(call)

    def send(self, answer: Answer = FINE, seconds: float = 1.0) -> bool:
        """Send it, let the answer come at once, and wait; tell whether it was allowed."""
        call, verdict = self.start()
        if verdict.allowed:
            self.here.engine.settle(call, answer)
        self.here.clock.advance(seconds)
        return verdict.allowed


@pytest.fixture(params=BLOCKS)
def agent(request: pytest.FixtureRequest) -> Agent:
    """An agent under each kind of counting; the 6th is blocked."""
    return Agent(world(bundle(policy("p", loop=BLOCKS[request.param]))))


# -- in flight ---------------------------------------------------------------------------------------------------------


def test_sampling_counts_once_and_again(agent: Agent) -> None:
    """Of 20 at once 16 join the first, the 18th counts, and 2 join that: three more before the 6th count (LD-6)."""
    started = [agent.start() for _ in range(20)]
    assert all(verdict.allowed for _, verdict in started)
    assert agent.here.engine.tally.joined == 18
    for running, _ in started:
        agent.here.engine.settle(running, FINE)
    agent.here.clock.advance(2)
    assert [agent.send() for _ in range(4)] == [True, True, True, False]


def test_the_timeline_of_the_docs(agent: Agent) -> None:
    """20 at once are two, one 1.2 s later is the third though they still run, the sixth is blocked (LD-6)."""
    running = [agent.start()[0] for _ in range(20)]
    agent.here.clock.advance(1.2)
    running.append(agent.start()[0])
    agent.here.clock.advance(1.8)
    for late in running:
        agent.here.engine.settle(late, FINE)
    agent.here.clock.advance(1)
    assert [agent.send(), agent.send()] == [True, True]
    loop = agent.start()[1].loop
    assert loop is not None
    assert loop.hit_count == 6


def test_sampling_has_an_end(agent: Agent) -> None:
    """5 times 17 pass at once, one more is a loop (LD-6)."""
    verdicts = [agent.start()[1].allowed for _ in range(86)]
    assert verdicts == [True] * 85 + [False]


def test_untracked_calls_count_each(agent: Agent) -> None:
    """A door that does not see answers cannot know what runs; such calls have nothing to settle (LD-6, D-6)."""
    calls = [fresh(agent.asked) for _ in range(6)]
    assert [agent.here.engine.decide(call).allowed for call in calls] == [True] * 5 + [False]
    assert {state_of(call).ticket for call in calls} == {None}


def test_an_answer_ends_the_flight(agent: Agent) -> None:
    """The same request after the answer is a repeat, however soon it comes (LD-6)."""
    assert [agent.send(seconds=0.0) for _ in range(6)] == [True] * 5 + [False]


def test_a_second_ends_the_flight(agent: Agent) -> None:
    """The answer may take minutes; who comes a second after the start is a repeat (LD-6)."""
    for _ in range(5):
        assert agent.start()[1].allowed
        agent.here.clock.advance(0.999)
        assert agent.start()[1].allowed
        agent.here.clock.advance(0.001)
    assert not agent.start()[1].allowed


def test_others_do_not_join(agent: Agent) -> None:
    """Another caller, agent or text is another request (LD-6)."""
    here = agent.here
    other = [chat(user("other")), chat(headers={"authorization": "Bearer sk-two"}), chat(path_agent="bot")]
    assert agent.start()[1].allowed
    for asked in other:
        Agent(here, asked).start()
    assert here.engine.tally.joined == 0


@pytest.mark.parametrize("free", [0, 1, 3])
def test_concurrent_free_is_settable(free: int) -> None:
    """0 counts each (LD-6)."""
    agent = Agent(world(bundle(policy("p", loop=tail(max_hits=1, concurrent_free=free)))))
    assert [agent.start()[1].allowed for _ in range(free + 2)] == [True] * (free + 1) + [False]


def test_what_is_denied_is_not_in_flight() -> None:
    """A request that its limit denies counts, has no ticket, and nobody joins it (LD-6, E-4)."""
    agent = Agent(world(bundle(policy("p", bucket(rate=1, burst=1), loop=exact(4)))))
    (first, allowed), (second, denied) = agent.start(), agent.start()
    assert (allowed.allowed, denied.reason) == (True, "token_bucket_exceeded")
    assert state_of(first).ticket is not None
    assert state_of(second).ticket is None
    agent.here.engine.settle(first, FINE)
    assert [agent.start()[1].reason for _ in range(3)] == ["token_bucket_exceeded"] * 2 + ["loop_detected"]


def test_shadow_counts_flights_of_its_own() -> None:
    """Under its own names, with the same rules; the client notices nothing (E-1, LD-6)."""
    here = world(bundle(policy("s", loop=exact(3), mode="shadow"), policy("p", loop=exact(100))))
    agent = Agent(here)
    started = [agent.start() for _ in range(17)]
    assert not any(verdict.shadow for _, verdict in started)
    call, verdict = agent.start()
    assert (verdict.allowed, len(verdict.shadow)) == (True, 0)  # the second count
    keys = sorted(op.key.partition("ld:")[0] for op in state_of(call).ticket or ())
    assert keys == ["", "shadow:"]
    for running, _ in [*started, (call, verdict)]:
        here.engine.settle(running, BUSY)
    assert here.engine.tally.forgiven == 4  # both counts of both
    here.clock.advance(1)
    assert [len(agent.start()[1].shadow) for _ in range(1)] == [0]


def test_what_shadow_would_have_denied_is_not_taken_back() -> None:
    """It would have had no answer that could fail (E-1, LD-6)."""
    agent = Agent(world(bundle(policy("s", loop=exact(3), mode="shadow"))))
    assert [agent.send(answer) for answer in (FINE, FINE, BUSY, BUSY)] == [True] * 4
    assert (agent.here.engine.tally.shadowed, agent.here.engine.tally.forgiven) == (2, 0)
    assert len(agent.here.named(LOOP_DETECTED)) == 1


# -- failed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [BUSY, Answer(500), Answer(503), Answer(529), Answer(NO_ANSWER), Answer(200, error="overloaded_error")]
)
def test_ten_failures_then_five_pass_and_the_next_is_blocked(agent: Agent, answer: Answer) -> None:
    """429, 5xx, no answer, a stream that broke: ten repeats a window are free, then they count again (LD-6)."""
    assert all(agent.send(answer) for _ in range(10))
    assert agent.here.engine.tally.forgiven == 10
    assert [agent.send(answer) for _ in range(6)] == [True] * 5 + [False]
    assert (agent.here.engine.tally.forgiven, agent.here.engine.tally.failed) == (10, 15)


@pytest.mark.parametrize("answer", [FINE, Answer(400), Answer(404), Answer(CLIENT_LEFT)])
def test_other_answers_are_no_excuse(agent: Agent, answer: Answer) -> None:
    """A request that is refused for what it says, or left by its client, is a repeat when it comes again (LD-6)."""
    assert [agent.send(answer) for _ in range(6)] == [True] * 5 + [False]
    assert agent.here.engine.tally.failed == 0


def test_failures_are_forgiven_again_after_a_window(agent: Agent) -> None:
    """Ten in any window: one every 6 s is free for ever, for the first has left when the eleventh comes (LD-6)."""
    assert all(agent.send(BUSY, seconds=6.0) for _ in range(200))
    assert agent.here.engine.tally.forgiven == 200


def test_a_failure_among_answers(agent: Agent) -> None:
    """A try that failed does not count; those that were answered do (LD-6)."""
    answers = [FINE, BUSY, FINE, BUSY, BUSY, FINE, FINE, FINE]
    assert all(agent.send(answer) for answer in answers)
    assert not agent.send()


def test_a_cooldown_is_not_undone() -> None:
    """Failures that come to light after a detection change nothing (LD-2, LD-6)."""
    agent = Agent(world(bundle(policy("p", loop=tail()))))
    running = []
    for _ in range(5):
        running.append(agent.start()[0])
        agent.here.clock.advance(1)
    assert agent.start()[1].retry_after_s == 30
    for late in running:
        agent.here.engine.settle(late, BUSY)
    agent.here.clock.advance(29)
    assert agent.start()[1].retry_after_s == 1
    agent.here.clock.advance(1)
    assert [agent.send() for _ in range(6)] == [True] * 5 + [False]
    assert len(agent.here.named(LOOP_DETECTED)) == 2


@pytest.mark.parametrize("free", [0, 2])
def test_retry_free_is_settable(free: int) -> None:
    """0 counts every failure (LD-6)."""
    agent = Agent(world(bundle(policy("p", loop=exact(3, retry_free=free)))))
    assert [agent.send(BUSY) for _ in range(free + 3)] == [True] * (free + 2) + [False]


def test_a_failure_is_free_even_where_it_is_only_told_of() -> None:
    """A call that is not tracked does not fly, but what its door may be told of can be taken back (LD-6, D-6)."""
    here = world(bundle(policy("p", loop=exact(3))))
    told = [call(), call(), call()]
    for asked in told[:2]:
        asked.reported = True
        assert here.engine.decide(asked).allowed
        assert [op.flight for op in state_of(asked).ticket or ()] == [0]
    here.engine.settle(told[0], BUSY)
    here.engine.settle(told[1], FINE)
    assert here.engine.decide(told[2]).allowed
    assert not here.engine.decide(call()).allowed


def test_each_detector_takes_back_its_own() -> None:
    """One call, two blocks and the policy's own numbers (LD-6)."""
    here = world(bundle(policy("p", loop=[exact(3, retry_free=1), tail(max_hits=2, retry_free=2)])))
    agent = Agent(here)
    assert [agent.send(BUSY) for _ in range(2)] == [True, True]
    assert here.engine.tally.forgiven == 3
    assert [agent.send() for _ in range(2)] == [True, False]  # by `exact`, whose second failure counted


def test_the_built_in_block_forgives_too() -> None:
    """With no policy at all: sampling and retries of LLM calls are no loop (B-6, LD-6)."""
    agent = Agent(world())
    assert all(agent.start()[1].allowed for _ in range(17))
    agent.here.clock.advance(60)
    assert all(agent.send(BUSY) for _ in range(10))
    assert [agent.send() for _ in range(6)] == [True] * 5 + [False]


# -- settling ----------------------------------------------------------------------------------------------------------


def test_a_call_is_settled_once() -> None:
    """Whatever is told of it afterwards, with a ticket or without (D-6)."""
    here = world(bundle(policy("p", loop=exact(3))))
    heard: list[tuple[Call, Answer]] = []
    engine = Engine(here.store, here.clock, here.descriptors, answered=lambda *told: heard.append(told))
    bundle_ = here.engine.bundle
    assert bundle_ is not None
    engine.set_bundle(bundle_)
    counted, plain = call(), call("/plain")
    counted.tracked = True
    engine.decide(counted)
    answer = Answer(503, usage=Usage(10, 2))
    for _ in range(3):
        engine.settle(counted, answer)
        engine.settle(plain, FINE)
    assert heard == [(counted, answer), (plain, FINE)]
    tally = engine.tally
    assert (tally.settled, tally.failed, tally.forgiven) == (2, 1, 1)
    assert (tally.input_tokens, tally.output_tokens) == (10, 2)


class Counting(MemoryStore):
    """Counts how often it is told of ends; fails when it should."""

    __slots__ = ("broken", "told")

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, bool]] = []
        self.broken = False

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        self.told.append((len(ops), failed))
        if self.broken:
            raise StateError("the store is gone")
        return super().settle(ops, now, failed=failed)


def test_the_store_is_told_only_what_changes_something() -> None:
    """An answer that did not fail, to a call that leads nobody, is not its business (Q-1)."""
    store = Counting()
    here = world(bundle(policy("p", loop=[exact(9, concurrent_free=0), exact(9)])), store=store)
    first, joined, untracked = call(), call(), call()
    first.tracked = joined.tracked = untracked.reported = True
    for asked in (first, joined, untracked):
        here.engine.decide(asked)
        here.engine.settle(asked, FINE)
    assert store.told == [(1, False), (1, False)]
    joined = call("/other")
    joined.tracked = True
    here.engine.decide(joined)
    here.engine.settle(joined, BUSY)
    assert store.told[2:] == [(2, True)]


def test_a_store_that_fails_stops_nobody() -> None:
    """Counted and told; the answer is taken note of all the same (LD-7)."""
    store = Counting()
    here = world(bundle(policy("p", loop=exact(3))), store=store)
    asked = call(request_id="r-1")
    asked.tracked = True
    here.engine.decide(asked)
    store.broken = True
    here.engine.settle(asked, BUSY)
    assert (here.engine.tally.store_errors, here.engine.tally.settled, here.engine.tally.forgiven) == (1, 1, 0)
    (event,) = [event for event in here.events if event.name == STORE_DEGRADED]
    assert (event.data, event.request_id) == ({"error": "the store is gone"}, "r-1")


def test_no_ticket_where_there_is_nothing_to_settle() -> None:
    """Nothing was counted, or the store failed, or nothing of what was counted is ever free (LD-7, Q-1)."""
    strict = exact(9, concurrent_free=0, retry_free=0)
    for here in (
        world(bundle(policy("p", bucket()))),
        world(bundle(policy("p", loop=strict))),
        world(bundle(policy("p", loop=exact(9))), store=FailingStore()),
        world(bundle()),
    ):
        asked = call()
        asked.tracked = True
        assert here.engine.decide(asked).allowed
        assert state_of(asked).ticket is None
        here.engine.settle(asked, FINE)
        assert here.engine.tally.settled == 1


def test_the_same_state_gives_the_same_verdict() -> None:
    """The same starts and ends at the same times, and every verdict is the same (E-7)."""

    def run() -> list[tuple[bool, str, int]]:
        agent = Agent(world(bundle(policy("p", bucket(rate=2, burst=6), loop=[tail(max_hits=2), exact(5)]))))
        said, running = [], []
        for number in range(60):
            call, verdict = agent.start()
            said.append((verdict.allowed, verdict.reason, verdict.retry_after_s or 0))
            if verdict.allowed:
                running.append(call)
            if number % 3 == 2 and running:
                agent.here.engine.settle(running.pop(0), BUSY if number % 2 else FINE)
            agent.here.clock.advance(0.3 * (number % 5))
        return said

    assert run() == run()


@pytest.mark.parametrize(("changes", "denied"), [(True, 0), (False, 1)])
def test_an_mcp_call_with_another_result_each_time_is_polling(changes: bool, denied: int) -> None:
    """What it returns is in the answer only; a poll every five seconds that sees something new goes on (LD-6)."""
    here = world(bundle(policy("p", loop=tail())))
    params = {"name": "job_status", "arguments": {"job": 7}}
    outcomes = []
    for number in range(40):
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
        asked = call("/mcp", "POST", {"authorization": "Bearer k"}, body=body)
        asked.tracked = True
        verdict = here.engine.decide(asked)
        outcomes.append(verdict.allowed)
        if verdict.allowed:
            here.engine.settle(asked, Answer(200, f"{number if changes else 0} of 40 parts", complete=True))
        here.clock.advance(5)
    assert (outcomes.count(False) > 0) is bool(denied)
