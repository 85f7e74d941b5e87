"""`kill`, quarantine and run ceilings through the engine (LD-5, G-1, K-1)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from breakloop.engine.quarantine import AGENT, NAME, Hold
from breakloop.model.call import Answer
from breakloop.model.verdict import Verdict
from tests.builders import Json, World, at, bundle, chat, exact, policy, tail, user, world

SIMHASH: Json = {"similarity": "simhash"}


def asked(text: str = "again", *, key: str = "one", agent: str = "", session: str = "") -> Any:
    headers = {"authorization": f"Bearer {key}"}
    headers |= {"x-agent-id": agent} if agent else {}
    headers |= {"x-agent-session": session} if session else {}
    made = chat(user(text), headers=headers)
    made.tracked = True
    return made


def say(here: World, *words: str, **who: str) -> list[str]:
    """What became of these requests, one a second, each answered the same."""
    found = []
    for text in words:
        call = asked(text, **who)
        verdict = here.engine.decide(call)
        if verdict.allowed:
            here.engine.settle(call, Answer(200, "That did not work, I am afraid.", complete=True))
        found.append("pass" if verdict.allowed else verdict.reason)
        here.clock.advance(1)
    return found


def killing(**more: Any) -> Json:
    return bundle(policy("p", loop=tail(action="kill", max_hits=2, **more)))


@pytest.mark.parametrize(
    "block",
    [
        tail(action="kill", max_hits=2),
        exact(3, action="kill"),
        {"similarity": "steps", "ladder": {"block": "kill"}, "thresholds": {"storm": [1, 2, 9]}},
    ],
    ids=["tail", "exact", "steps"],
)
def test_whoever_is_killed_is_held(block: Json) -> None:
    """429 and quarantine; then everything of that agent is denied, whatever it says (LD-5)."""
    here = world(bundle(policy("p", loop=block)))
    assert say(here, "x", "x", "x", "something else") == ["pass", "pass", "loop_detected", "agent_quarantined"]
    [killed] = here.named("agent.killed")
    assert killed["binds"] == "agent"
    assert killed["expires_at"] is None
    assert str(killed["reason"]).endswith(")")


def test_the_quarantine_has_an_end() -> None:
    """`quarantine_seconds`; the remaining time is in the denial (G-1)."""
    here = world(killing(quarantine_seconds=100))
    say(here, "x", "x", "x")
    verdict = here.engine.decide(asked("y"))
    assert (verdict.reason, verdict.retry_after_s, verdict.never) == ("agent_quarantined", 99, True)
    here.clock.advance(99)
    assert say(here, "y") == ["pass"]
    assert [event["reason"] for event in here.named("agent.released")] == ["its time is over"]


def test_a_release_clears_what_was_remembered() -> None:
    """A person releases it, which also clears its windows: the very same request passes again (G-1)."""
    here = world(killing())
    say(here, "x", "x", "x")
    assert say(here, "x") == ["agent_quarantined"]
    [hold] = here.engine.quarantine.holds(here.clock.now())
    here.engine.quarantine.release("default", agent=hold.agent, now=here.clock.now())
    assert say(here, "x", "x") == ["pass", "pass"]


def test_a_release_clears_what_was_remembered_beyond_the_session() -> None:
    """Of prompts that wrap the one before, each of which begins a session of its own (G-1)."""
    here = world(bundle(policy("p", loop={"similarity": "steps", "ladder": {"block": "kill"}})))
    prompts = ["List the ten largest cities of Europe as JSON."]
    for _ in range(8):
        prompts.append(f"That was not valid JSON. Try again: {prompts[-1]}")
    assert say(here, *prompts[:7])[-2:] == ["loop_detected", "agent_quarantined"]
    here.engine.quarantine.release("default", now=here.clock.now())
    assert say(here, *prompts[7:]) == ["pass", "pass"]


def test_it_binds_caller_and_agent_and_the_third_binds_the_caller() -> None:
    """Other callers and other agents go on; after three agents in ten minutes the caller is stopped (G-1)."""
    here = world(killing())
    for agent in ("a", "b"):
        assert say(here, "x", "x", "x", agent=agent)[-1] == "loop_detected"
        assert say(here, "y", agent=agent) == ["agent_quarantined"]
        assert say(here, "y", agent=agent, key="two") == ["pass"]
        assert say(here, "y", agent="healthy") == ["pass"]
    say(here, "x", "x", "x", agent="c")
    assert say(here, "y", agent="healthy") == ["agent_quarantined"]
    assert say(here, "y", agent="healthy", key="two") == ["pass"]


def test_an_agent_without_a_name_does_not_shed_its_hold_by_a_name() -> None:
    """It is its caller: a hold on it, of a detector or of an operator, is on whatever the key sends (LD-5, K-1)."""
    here = world(killing())
    assert say(here, "x", "x", "x")[-1] == "loop_detected"
    assert say(here, "y", agent="renamed") == ["agent_quarantined"]
    assert say(here, "y", key="two", agent="renamed") == ["pass"]
    caller = here.descriptors.caller(asked(key="two"))
    here.engine.quarantine.hold(Hold(NAME, "default", "", caller, here.clock.now(), math.inf, "INC-1", by="ann"))
    assert say(here, "y", key="two", agent="renamed") == ["agent_quarantined"]
    assert say(here, "y", key="three", agent="renamed") == ["pass"]


def test_an_operators_hold_may_be_on_the_agent_of_one_caller() -> None:
    """Somebody who uses the same name with another key goes on; three such orders hold no caller (K-1)."""
    here = world(bundle())
    caller = here.descriptors.caller(asked(key="one"))
    for name in ("a", "b", "c"):
        here.engine.quarantine.hold(Hold(AGENT, "default", caller, name, here.clock.now(), math.inf, "INC-1", by="ann"))
    assert say(here, "y", key="one", agent="a") == ["agent_quarantined"]
    assert say(here, "y", key="two", agent="a") == say(here, "y", key="one", agent="d") == ["pass"]


def test_shadow_quarantines_nobody() -> None:
    """What a shadow policy would have killed goes on (E-1)."""
    here = world(bundle(policy("p", loop=tail(action="kill", max_hits=2), mode="shadow")))
    assert say(here, *["x"] * 6) == ["pass"] * 6
    assert here.named("agent.killed") == []
    assert not here.engine.quarantine


def test_global_shadow_suspends_automatic_quarantines_and_no_operators() -> None:
    """Global shadow suspends automatic quarantines, and no operator's (K-1)."""
    here = world(killing())
    say(here, "x", "x", "x")
    shadow = {"enabled": True, "reason": "drill", "expires_at": at(600)}
    here.use(killing() | {"global_shadow": shadow})
    assert say(here, "y") == ["pass"]
    here.engine.quarantine.hold(Hold(NAME, "default", "", "rogue", here.clock.now(), math.inf, "by hand", by="ann"))
    assert say(here, "y", agent="rogue", key="two") == ["agent_quarantined"]
    here.use(killing())
    assert say(here, "y") == ["agent_quarantined"]


def test_simhash_kills_as_in_the_seed() -> None:
    """Score over 10 by default, action kill, until released; similar is enough, ids do not count (LD-3)."""
    here = world(bundle(policy("p", loop=SIMHASH)))
    prompts = [f"Order 91{number}: please read the invoice and tell me the total amount due." for number in range(7)]
    assert say(here, *prompts) == [*["pass"] * 5, "loop_detected", "agent_quarantined"]
    [event] = here.named("loop.detected")
    assert (event["kind"], event["action"], event["policy"]) == ("simhash", "kill", "p")


def test_simhash_counts_by_caller_and_agent_whatever_the_session() -> None:
    """The last 20 of (caller, agent) (LD-3)."""
    here = world(bundle(policy("p", loop=SIMHASH)))
    text = "Please read the invoice and tell me the total amount that is due."
    assert say(here, *[text] * 5) == ["pass"] * 5
    assert say(here, text, agent="other") == ["pass"]
    assert say(here, text, session="s-9") == ["loop_detected"]


def test_an_agents_own_kill_switch() -> None:
    """`kill_switch_enabled`, with the window and the threshold of the agent (B-1)."""
    agents = {"loopy-*": {"kill_switch_enabled": True, "kill_switch_threshold": 4.0}}
    here = world(bundle(agents=agents))
    text = "Please read the invoice and tell me the total amount that is due."
    # 1 x 1, then 1 x 2 + 2 x 1 = 4, then 1 x 3 + 2 x 2 = 7 > 4
    assert say(here, *[text] * 5, agent="loopy-7") == ["pass", "pass", "pass", "loop_detected", "agent_quarantined"]
    assert say(here, *[text] * 5, agent="other") == ["pass"] * 5
    [event] = here.named("loop.detected")
    assert event["policy"] == "agents"


def test_a_run_stops_at_its_ceiling() -> None:
    """New words do not help, another session does; only an operator lets it go on (G-1, C33)."""
    here = world(bundle(agents={"worker": {"max_steps_per_run": 3}}))
    words = [f"approved, go on with {number}" for number in range(5)]
    assert say(here, *words, agent="worker", session="s-1") == [*["pass"] * 3, *["run_limit_exceeded"] * 2]
    here.clock.advance(7200)  # the window is forgotten by then, the hold is not
    assert say(here, "fresh text", agent="worker", session="s-1") == ["run_limit_exceeded"]
    assert say(here, "fresh text", agent="worker", session="s-2") == ["pass"]
    assert say(here, "fresh text", agent="other", session="s-3") == ["pass"]
    [hold] = here.engine.quarantine.holds(here.clock.now())
    here.engine.quarantine.release("default", run=hold.run, now=here.clock.now())
    assert say(here, "fresh text", agent="worker", session="s-1") == ["pass"]


def test_a_run_that_is_released_begins_anew() -> None:
    """Ceilings that an operator resets (G-1)."""
    here = world(bundle(agents={"worker": {"max_steps_per_run": 3}}))
    assert say(here, *"abcd", agent="worker", session="s-1")[-1] == "run_limit_exceeded"
    here.engine.quarantine.release("default", agent="worker", now=here.clock.now())
    assert say(here, *"efgh", agent="worker", session="s-1") == [*["pass"] * 3, "run_limit_exceeded"]


def test_a_ceiling_in_global_shadow_is_only_told() -> None:
    """A ceiling in global shadow is only told (E-1, K-1)."""
    shadow = {"enabled": True, "reason": "drill", "expires_at": at(600)}
    here = world(bundle(agents={"*": {"max_steps_per_run": 1}}, global_shadow=shadow))
    assert say(here, "a", "b", session="s") == ["pass", "pass"]
    assert [event["reason"] for event in here.named("shadow.would_reject")] == ["run_limit_exceeded"]
    assert not here.engine.quarantine


def test_a_denial_says_what_to_do() -> None:
    """No Retry-After where waiting does not help, and no retry by an SDK (A-1)."""
    here = world(killing())
    say(here, "x", "x", "x")
    verdict: Verdict = here.engine.decide(asked("x"))
    assert (verdict.status, verdict.retry_after_s, verdict.never) == (429, None, True)
    assert "A person has to release it." in verdict.message
