"""Runs through the engine: where they are judged, and that memory and a shared store find the same (LD-11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakloop.model.call import Answer, Call, ToolCall
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import needs_body
from breakloop.policy.descriptors import ContextSettings
from tests.builders import SECRET, Json, bundle, chat, policy, user, world
from tests.fake_remote import RemoteWorld, run

STEPS: Json = {"similarity": "steps"}
GUARDED: Json = bundle(policy("p", loop=STEPS))
NAMED = {"x-agent-trigger": "webhook", "x-agent-id": "reviewer"}
REVIEW = "Review the last commit, and report what is wrong."
PAGE = "the change of the basket:\n" + "a line of it\n" * 12
MADE: Json = {"id": "call_0000000001", "type": "function", "function": {"name": "read_change", "arguments": "{}"}}
READING = Answer(200, calls=(ToolCall("read_change", "{}"),), complete=True)
FINE = Answer(200, "No remarks.", complete=True)


class Reviewer:
    """An agent that reviews the same commit every five minutes."""

    def __init__(
        self, decide: Callable[[Call], Verdict], settle: Callable[[Call, Answer], None], headers: dict[str, str]
    ) -> None:
        self.decide = decide
        self.settle = settle
        self.headers = headers
        self.tracked = True

    def send(self, number: int, answer: Answer, *messages: Json) -> Verdict:
        headers = {"authorization": "Bearer k", **self.headers, "x-agent-session": f"review {number}"}
        asked = chat(user(REVIEW), *messages, headers=headers)
        asked.tracked = self.tracked
        verdict = self.decide(asked)
        if verdict.allowed and self.tracked:
            self.settle(asked, answer)
        return verdict

    def review(self, number: int) -> str:
        opened = self.send(number, READING)
        if opened.allowed:
            result = {"role": "tool", "tool_call_id": MADE["id"], "content": PAGE}
            self.send(number, FINE, {"role": "assistant", "content": None, "tool_calls": [MADE]}, result)
        loop = opened.loop
        return f"{'pass' if opened.allowed else 'deny'} {loop.kind}" if loop else "pass"


def reviews(made: Json, headers: dict[str, str], *, tracked: bool = True, times: int = 17) -> list[str]:
    here = world(made)
    agent = Reviewer(here.engine.decide, here.engine.settle, headers)
    agent.tracked = tracked
    found = []
    for number in range(times):
        found.append(agent.review(number))
        here.clock.advance(300)
    return found


FOUND = ["pass"] * 7 + ["pass rerun"] * 8 + ["deny rerun"] * 2


def test_told_then_blocked_at_the_opening() -> None:
    """At the eighth and at the sixteenth; another one passes (LD-11)."""
    here = world(GUARDED)
    agent = Reviewer(here.engine.decide, here.engine.settle, NAMED)
    for number in range(15):
        agent.review(number)
        here.clock.advance(300)
    denied = agent.send(15, READING)
    assert denied.status == 429
    assert denied.message.startswith("Blocked: the same run was started 16 times in 75 minutes with the same outcome;")
    assert agent.send(16, READING, user("Review another commit.")).allowed
    assert reviews(GUARDED, NAMED) == FOUND


@pytest.mark.parametrize("by_agent", [False, True])
def test_a_shared_store_finds_the_same(by_agent: bool) -> None:
    """With the state of an agent in one place or in its own (LD-11)."""

    def test() -> None:
        there = RemoteWorld(GUARDED, settings=ContextSettings(secret=SECRET, shard_by_agent=by_agent))
        agent = Reviewer(there.decide, there.settle, NAMED)
        found = []
        for number in range(17):
            found.append(agent.review(number))
            there.here.clock.advance(300)
        assert found == FOUND
        assert there.faults == []

    run(test)


def test_thresholds_of_the_kind() -> None:
    """`thresholds: {rerun: ...}` sets them, and `never` turns it off (LD-11)."""
    block = STEPS | {"thresholds": {"rerun": [2, 3, "never"]}}
    assert reviews(bundle(policy("p", loop=block)), NAMED, times=4) == ["pass", "pass rerun"] + ["deny rerun"] * 2
    block = STEPS | {"thresholds": {"rerun": ["never", "never", "never"]}}
    assert set(reviews(bundle(policy("p", loop=block)), NAMED)) == {"pass"}


def test_who_is_judged() -> None:
    """Agents and triggers with a name, and not what a person starts; only with answers that are known (LD-11)."""
    assert set(reviews(GUARDED, {"x-agent-id": "reviewer"})) == {"pass", "pass rerun", "deny rerun"}
    assert set(reviews(GUARDED, {})) == {"pass"}  # no tools are declared
    assert set(reviews(GUARDED, NAMED | {"x-agent-trigger": "user"})) == {"pass"}
    assert set(reviews(GUARDED, NAMED, tracked=False)) == {"pass"}


def test_allowed_agents_may_repeat_themselves() -> None:
    block = STEPS | {"allow": {"agents": ["reviewer"]}}
    assert set(reviews(bundle(policy("p", loop=block)), NAMED)) == {"pass"}


def test_in_shadow_it_is_only_counted() -> None:
    """A shadow policy has its own counts and denies nothing (LD-11)."""
    made = bundle(policy("p", loop=STEPS, mode="shadow")) | {"defaults": {"loop_detection": "off"}}
    assert set(reviews(made, NAMED)) == {"pass"}


def test_runs_per_hour() -> None:
    """`max_runs_per_hour` counts requests that begin a conversation, by caller and agent; the rest of a run passes, and
    the next hour begins on the hour (LD-11)."""
    here = world(bundle(agents={"review*": {"max_runs_per_hour": 2}}))
    agent = Reviewer(here.engine.decide, here.engine.settle, {"x-agent-id": "reviewer"})
    said: Json = {"role": "assistant", "content": "No remarks."}
    assert [agent.send(number, FINE).allowed for number in range(2)] == [True, True]
    denied = agent.send(2, FINE)
    assert (denied.status, denied.reason) == (429, "run_rate_exceeded")
    assert denied.message.startswith("This agent may open 2 runs an hour, and it has. The next hour begins in ")
    assert denied.retry_after_s is not None
    assert agent.send(1, FINE, said, user("And the tests?")).allowed
    other = Reviewer(here.engine.decide, here.engine.settle, {"x-agent-id": "reviewer 2"})
    assert other.send(3, FINE).allowed
    here.clock.advance(denied.retry_after_s)
    assert agent.send(4, FINE).allowed


def test_runs_per_hour_need_the_body() -> None:
    """Only the body shows whether a request opens a run."""
    made = {"defaults": {"loop_detection": "off"}}
    bare, limited = bundle(**made), bundle(agents={"*": {"max_runs_per_hour": 2}}, **made)
    needed = [needs_body(world().use(one), "", "POST", "/v1/chat/completions", b"") for one in (bare, limited)]
    assert needed == [False, True]
