"""Conformance cases (docs/explanation/detection-study.md) that need more than a window (LD-4, LD-6): requests that
failed, that are under way, and whole sessions in a store, through the engine."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from breakloop.model.call import NO_ANSWER, Answer
from breakloop.store.memory import MemoryStore
from tests.builders import CHAT, World, bundle, call, chat_body, policy, user, world
from tests.contract.agents import FINE, STEPS, Agent, guarded

PAGE = "\n".join(f"line {number} says {number * 7919 % 997}" for number in range(20))
KB = 1024


def working(here: World, every_s: float = 1.0) -> Agent:
    """An agent that has taken one step."""
    agent = Agent(here, every_s=every_s)
    agent.call("read_file", '{"path": "a.py"}', PAGE)
    return agent


@pytest.mark.parametrize("status", [429, 500, 503, NO_ANSWER])
def test_c22_requests_that_failed(status: int) -> None:
    """The same body after 429, 500 or a time-out: ten times no step and nothing; thirty times block (C22)."""
    agent = working(guarded())
    agent.outcomes.clear()
    for _ in range(10):
        agent.send(Answer(status))
    assert agent.flagged == []
    for _ in range(20):
        agent.send(Answer(status))
    assert "deny storm" in agent.outcomes
    assert agent.outcomes.index("deny storm") > 10


def test_c22_a_failure_is_no_step() -> None:
    """After ten failures the run goes on as if they had not been: the third repeat is the first notice (C22)."""
    agent = working(guarded())
    for _ in range(10):
        agent.send(Answer(503))
    agent.outcomes.clear()
    for _ in range(3):
        agent.call("read_file", '{"path": "b.py"}', PAGE.upper())
    assert agent.outcomes == ["pass", "pass", "notice repeat"]


def test_c22_answers_that_are_fine_are_not_forgiven() -> None:
    """The same body again after a proper answer is a storm at ten (C22)."""
    agent = working(guarded())
    agent.outcomes.clear()
    for _ in range(10):
        agent.send(FINE)
    assert agent.outcomes[3] == "pass"
    assert agent.outcomes[-1] == "deny storm"


def test_c23_sixteen_at_once() -> None:
    """Sixteen identical requests at once are sampling (C23)."""
    here = guarded()
    agent = Agent(here, every_s=0.0)
    running = [agent.start()[0] for _ in range(15)]
    here.clock.advance(2.0)
    for one in running:
        here.engine.settle(one, FINE)
    assert agent.flagged == []


def test_c23_ten_a_second_for_a_minute() -> None:
    """Ten a second, each answered after two seconds, is a storm long before the minute is over (C23)."""
    here = guarded()
    agent = Agent(here, every_s=0.0)
    running = []
    for tick in range(600):
        asked, verdict = agent.start()
        running.append((tick, asked) if verdict.allowed else None)
        here.clock.advance(0.1)
        due = running[tick - 20] if tick >= 20 else None
        if due is not None:
            here.engine.settle(due[1], FINE)
    assert "deny storm" in agent.outcomes
    assert 50 < agent.outcomes.index("deny storm") < 300
    assert agent.outcomes[-1] == "deny storm"


def test_c24_a_judge_is_no_step() -> None:
    """Questions about a transcript neither count nor clear: the agent's own next repeat stays blocked (C24)."""
    here = guarded()
    agent = working(here)
    for _ in range(5):
        agent.call("find", '{"name": "Mayer"}', "Error: there is no such customer in the table")
    assert agent.outcomes[-1].startswith("deny")
    question = user("Was this helpful? Answer with yes or no.")
    asked = call(CHAT, "POST", agent.headers, body=chat_body(*agent.messages, question))
    asked.tracked = True
    assert here.engine.decide(asked).allowed
    here.engine.settle(asked, Answer(200, text="No.", complete=True))
    assert agent.call("find", '{"name": "Mayer"}', "Error: there is no such customer in the table").startswith("deny")


def handed_on(here: World, depth: int) -> list[str]:
    """What agents get that each start the next one, with the same task."""
    found = []
    for number in range(depth):
        agent = Agent(here, session=f"helper-{number}", parent=f"helper-{number - 1}" if number else "lead")
        found.append(agent.outcomes[0])
    return found


def test_c31_the_same_task_spawned_to_depth_five() -> None:
    """A notice; the block says at which depth (C31)."""
    assert handed_on(guarded(), 5) == ["pass", "pass", "notice tree", "notice spawn", "notice spawn"]
    assert handed_on(guarded(), 8)[-1] == "deny spawn"
    assert handed_on(guarded(thresholds={"spawn": [2, 3, "never"]}), 3) == ["pass", "notice spawn", "deny spawn"]


def test_a_tool_is_known_by_the_arguments_that_matter() -> None:
    """`loop_key`: what a policy says of a tool decides which calls are the same (LD-4)."""

    def outcome(options: dict[str, object]) -> str:
        agent = Agent(guarded(tools=options))
        for number in range(3):
            agent.call("mcp__web__search", f'{{"query": "a", "reasoning": "because of {number}"}}', PAGE)
        return agent.outcomes[-1]

    assert outcome({}) == "pass"
    assert outcome({"mcp__web__*": {"loop_key": {"include": ["query"]}}}) == "notice repeat"
    assert outcome({"*": {"loop_key": {"exclude": ["reasoning"]}}}) == "notice repeat"
    assert outcome({"other": {"loop_key": {"exclude": ["reasoning"]}}}) == "pass"


def test_a_cooldown_of_the_block_itself() -> None:
    """`cooldown_seconds`: so long the same step is denied; then it passes once (LD-4)."""
    agent = Agent(guarded(cooldown_seconds=4, cooldown_growth=1), every_s=2.0)
    for _ in range(5):
        agent.call("read_file", '{"path": "a.py"}', PAGE)
    assert [agent.send() for _ in range(2)] == ["deny repeat", "pass"]


def body(step: int) -> bytes:
    """A request after so many steps; only the newest of them is in it."""
    key = f"call_{step:08}"
    made = {"id": key, "type": "function", "function": {"name": f"tool{step % 9}", "arguments": f'{{"n": {step}}}'}}
    said = {"role": "assistant", "content": f"Step {step}: I look at it.", "tool_calls": [made]}
    text = f"result {step}\n{PAGE[step * 3 :]}"
    return chat_body(user("Go."), said, {"role": "tool", "tool_call_id": key, "content": text})


def fill(sessions: int, steps: int) -> MemoryStore:
    """A store with so many sessions of so many steps."""
    store = MemoryStore(max_entries=20 * sessions)
    here = world(bundle(policy("p", loop=STEPS)), store=store)
    bodies = [body(step) for step in range(steps)]
    for number in range(sessions):
        headers = {"authorization": f"Bearer k{number % 97}", "x-agent-session": f"session-{number}"}
        for one in bodies:
            here.engine.decide(call(CHAT, "POST", headers, body=one))
    return store


def filled(sessions: int, steps: int) -> tuple[MemoryStore, float]:
    """The same, and the bytes that each session takes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        store = fill(sessions, steps)
        gc.collect()  # what the last requests left behind is not of any session
        return store, (tracemalloc.get_traced_memory()[0] - before) / sessions
    finally:
        tracemalloc.stop()


def packed(store: MemoryStore) -> list[int]:
    """The bytes of each window."""
    return [len(data) for _, _, data in store._windows.values()]


@pytest.mark.slow
def test_memory_of_a_session() -> None:
    """At most 10 KB in the memory store and 6 KB packed, after one step as after fifty (Q-3)."""
    for store, taken in (filled(400, 1), filled(100, 50)):  # so many that what the engine itself takes counts little
        assert taken <= 10 * KB
        assert 5 * KB <= max(packed(store)) <= 6 * KB


FILLED = """
import os
from tests.contract.test_steps_engine import fill, packed
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
fill(2000, 1)  # what is made once is there before
before = resident()
store = fill(20_000, 1)
print(resident() - before, len(packed(store)), max(packed(store)), store.evicted)
"""


@pytest.mark.slow
def test_memory_of_many_sessions() -> None:
    """The same with 20,000 of them, by what a process of its own has in memory (Q-3)."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", FILLED], cwd=root, capture_output=True, text=True, check=True)
    resident, sessions, largest, evicted = map(int, done.stdout.split())
    assert (sessions, evicted) == (20_000, 0)
    assert resident / sessions <= 10 * KB
    assert largest <= 6 * KB
