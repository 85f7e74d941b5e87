"""The system clock is set back or ahead: what lasts goes on lasting, and only the calendar follows (S-2)."""

from __future__ import annotations

import pytest

from breakloop.engine.quarantine import NAME, Hold
from breakloop.model.call import Answer, Usage
from breakloop.pricing.prices import ListedModel, Price, Prices
from breakloop.store.memory import MemoryStore
from tests.builders import START, Json, World, bucket, bundle, call, chat, exact, policy, tail, user, world

HOUR, DAY = 3600.0, 86_400.0
STEPS: dict[str, dict[int, float]] = {  # when, in seconds, and how far
    "an hour back": {5: -HOUR},
    "a day ahead for two seconds": {5: DAY, 7: -DAY},
    "ahead for good": {5: DAY},
    "back and forth": {3: -HOUR, 5: 2 * HOUR, 30: -HOUR},
}


def tokens(per_minute: int) -> Json:
    config = {"tokens_per_minute": per_minute, "max_completion_tokens": 100}
    return {"name": "t", "limit_keys": [], "algorithm": "token_bucket_llm", "algorithm_config": config}


def budget(amount: int) -> Json:
    config = {"budget": amount, "period": "1d", "staged_actions": [{"threshold_percent": 100, "action": "reject"}]}
    return {"name": "b", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": config}


BREAKER = {"enabled": True, "spend_rate_threshold_per_minute": 20, "auto_reset_after_minutes": 1}
POLICIES: dict[str, Json] = {
    "token bucket": policy("p", bucket(rate=1, burst=5)),
    "tokens a minute": policy("p", tokens(1200)),
    "idle count": policy("p", loop=exact(4, window=10)),
    "sliding window": policy("p", loop=exact(4, window=10) | {"window": "sliding"}),
    "cooldown": policy("p", loop=tail(max_hits=2, cooldown_seconds=10)),
    "hold": policy("p", loop=tail(action="kill", max_hits=2, quarantine_seconds=20)),
    "pause": policy("p", loop=tail(action="pause", max_hits=2)),
    "steps": policy("p", loop={"similarity": "steps"}),
    "circuit breaker": policy("p", bucket(rate=100, burst=1000), circuit_breaker=BREAKER),
    "in flight": policy("p", loop=exact(3, window=10, concurrent_free=2)),
}


def verdicts(here: World, steps: dict[int, float], seconds: int = 90, every_s: float = 0.5) -> list[str]:
    """What becomes of the same request twice a second; an answer takes a quarter of that."""
    found: list[str] = []
    for turn in range(int(seconds / every_s)):
        moment = turn * every_s
        if moment in steps:
            here.clock.step(steps[int(moment)])
        call = chat(user("again"))
        call.tracked = True
        verdict = here.engine.decide(call)
        found.append("pass" if verdict.allowed else f"{verdict.reason} {verdict.retry_after_s}")
        here.clock.advance(every_s / 4)
        if verdict.allowed:
            usage = Usage(10, 90)
            here.engine.settle(call, Answer(429) if turn % 7 == 6 else Answer(200, "No.", usage=usage, complete=True))
        here.clock.advance(every_s - every_s / 4)
    return found


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("limited", POLICIES.values(), ids=POLICIES)
def test_a_step_changes_no_verdict(limited: Json, steps: dict[int, float]) -> None:
    """Rates, windows, cooldowns, holds and requests in flight are measured by a clock that is never set (S-2)."""
    data = bundle(limited, pause={"answer_within_minutes": 0.5, "then": "continue"})
    expected = verdicts(world(data), {})
    assert 0 < expected.count("pass") < len(expected)
    assert verdicts(world(data), steps) == expected


def test_a_budget_follows_the_calendar() -> None:
    """A day ahead is another period, and back again the old one, with what was used of it (L-2)."""
    here = world(bundle(policy("p", budget(2))))
    assert [here.decide(call()).allowed for _ in range(3)] == [True, True, False]
    here.clock.step(DAY)
    assert [here.decide(call()).allowed for _ in range(3)] == [True, True, False]
    here.clock.step(-DAY)
    denied = here.decide(call())
    left_s = DAY - here.clock.now() % DAY
    assert (denied.allowed, denied.retry_after_s) == (False, left_s)
    here.clock.advance(left_s)
    assert here.decide(call()).allowed


@pytest.mark.parametrize("step_s", [-30 * DAY, 30 * DAY])
def test_an_account_is_kept_until_its_period_ends(step_s: float) -> None:
    """By the calendar, however far it is from the time that entries expire by: used up stays used up (L-2)."""
    store = MemoryStore(1)
    here = world(bundle(policy("p", budget(1))), store=store)
    here.clock.step(step_s)
    assert here.decide(call()).allowed
    (entry,) = store.kept()["spent"].values()
    assert entry[0] - here.clock.steady() == DAY - here.clock.now() % DAY + HOUR


@pytest.mark.parametrize("step_s", [-HOUR, DAY])
def test_a_run_keeps_its_account(step_s: float) -> None:
    """It has no period of the calendar (L-2)."""
    store = MemoryStore()
    here = world(bundle(agents={"bot": {"max_usd_per_run": 1}}), store=store)
    price = Price(2_000_000, 8_000_000, None, None, None)
    here.engine.meter._prices = lambda: Prices(ListedModel({"gpt-x": price}, "a test"))
    here.clock.step(step_s)
    here.engine.decide(chat(path_agent="bot"))
    assert {entry[0] - here.clock.steady() for entry in store.kept()["accounts"].values()} == {DAY + HOUR}


def test_a_person_sees_the_time_of_day() -> None:
    """When a hold and a breaker end, and when an agent was stopped (G-1)."""
    here = world(bundle(POLICIES["hold"]))
    here.clock.step(-HOUR)
    verdicts(here, {}, seconds=2)
    (hold,) = here.engine.quarantine.holds(here.clock.now())
    assert (hold.since - START + HOUR, hold.until - hold.since) == (1.0, 20.0)
    assert [event.at - START + HOUR for event in here.events if event.name == "agent.killed"] == [1.0]


def test_a_hold_of_a_person_survives_one_bad_sample() -> None:
    """A minute ordered is a minute, also if the clock was a day ahead for a moment (G-1)."""
    here = world(bundle())
    now = here.clock.now()
    here.engine.quarantine.hold(Hold(NAME, "default", "", "bot", now, now + 60.0, "enough", by="ann"))
    here.clock.step(DAY)
    assert here.engine.decide(chat(path_agent="bot")).reason == "agent_quarantined"
    here.clock.step(-DAY)
    assert here.engine.decide(chat(path_agent="bot")).retry_after_s == 60
    here.clock.advance(60.0)
    assert here.engine.decide(chat(path_agent="bot")).allowed
