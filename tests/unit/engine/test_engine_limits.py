"""Budgets, LLM tokens and circuit breakers through the engine: the numbers of the docs, with answers that settle."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, Usage
from breakloop.model.verdict import Verdict
from breakloop.pricing.prices import ListedModel, Price, Prices
from tests.builders import START, Json, World, at, bucket, bundle, call, chat_body, policy, user, world

STAGES = [
    {"threshold_percent": 80, "action": "warn"},
    {"threshold_percent": 95, "action": "throttle", "delay_ms": 500},
    {"threshold_percent": 100, "action": "reject"},
]
DAY_S = 86_400
PRICE = Price(2_000_000, 8_000_000, None, None, None)  # $2 in, $8 out per million tokens


def budget(total: float = 100, cost: float = 10, **more: Any) -> Json:
    """A `cost_based` rule as data."""
    config = {"budget": total, "period": "1d", "fixed_cost": cost, "staged_actions": STAGES, **more}
    return {"name": "b", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": config}


def tokens(per_minute: int = 6000, **more: Any) -> Json:
    """A `token_bucket_llm` rule as data."""
    config = {"tokens_per_minute": per_minute, **more}
    return {"name": "t", "limit_keys": [], "algorithm": "token_bucket_llm", "algorithm_config": config}


def ask(chars: int = 4000, *, model: str = "gpt-x", **more: Any) -> Call:
    """A chat call with a prompt of so many characters."""
    made = call("/v1/chat/completions", "POST", {"authorization": "Bearer k"}, body=b"")
    made.body = chat_body(user("x" * chars), model=model, **more)
    made.tracked = True
    return made


def left(verdict: Verdict) -> int:
    assert verdict.limit is not None
    return verdict.limit.remaining


def test_a_budget_has_stages_and_exactly_all_of_it_passes() -> None:
    """Budget 100, cost 10: ten pass, 80 % warns, 95 % slows, the eleventh waits for the end of the day (L-2)."""
    here = world(bundle(policy("p", budget())))
    verdicts = [here.decide(call()) for _ in range(11)]
    assert [one.allowed for one in verdicts] == [True] * 10 + [False]
    assert [one.warning for one in verdicts[:10]] == [""] * 7 + ["budget_warn"] * 2 + ["budget_throttle"]
    assert [one.delay_ms for one in verdicts[:10]] == [0] * 9 + [500]
    assert [left(one) for one in verdicts[:3]] == [90, 80, 70]
    last = verdicts[-1]
    assert (last.reason, last.status, last.rule) == ("budget_exceeded", 429, "b")
    assert last.retry_after_s == DAY_S - int(START) % DAY_S
    here.clock.advance(last.retry_after_s)
    assert here.decide(call()).allowed
    assert [event["threshold_percent"] for event in here.named("budget.threshold")] == [80, 95]


def test_a_threshold_of_the_smallest_amount_is_told() -> None:
    """A budget of two thousandths has one of them as its half (L-2)."""
    stages = [{"threshold_percent": 50, "action": "warn"}, {"threshold_percent": 100, "action": "reject"}]
    here = world(bundle(policy("p", budget(0.002, 0.001, staged_actions=stages))))
    assert here.decide(call()).warning == "budget_warn"
    assert [event["threshold_percent"] for event in here.named("budget.threshold")] == [50]


LANDING = [
    {"threshold_percent": 80, "action": "steer"},
    {"threshold_percent": 95, "action": "land"},
    {"threshold_percent": 100, "action": "reject"},
]


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_a_budget_tells_then_lands_then_denies(mode: str) -> None:
    """The model is told at 80 %, finishes without tools from 95 % on, and is denied at the end (L-2, LD-10)."""
    here = world(bundle(policy("p", budget(100, 5, staged_actions=LANDING), mode=mode)))
    verdicts = [here.decide(ask(1)) for _ in range(21)]
    if mode == "shadow":
        assert not any(one.note or one.landed or one.warning for one in verdicts)
        return
    assert [one.allowed for one in verdicts] == [True] * 20 + [False]
    assert [one.landed for one in verdicts] == [False] * 18 + [True] * 2 + [False]
    assert [one.warning for one in verdicts[14:20]] == ["", *["budget_steer"] * 3, *["budget_land"] * 2]
    assert verdicts[15].note == "80 % of the budget is used. Take only the steps that you need, and finish soon."
    assert verdicts[18].note.startswith("95 % of the budget is used. For this turn, tools are switched off: give your")
    assert (verdicts[14].note, verdicts[20].note) == ("", "")


def test_a_shadow_policy_that_would_deny_hides_no_warning() -> None:
    """Its own stage is not told, because it has charged nothing; that of the policy after it is (E-1, L-2)."""
    shadow = policy("s", budget(100, 45), bucket("once", rate=0.001, burst=1), mode="shadow")
    here = world(bundle(shadow, policy("p", budget(100, 45))))
    assert [here.decide(call()).warning for _ in range(2)] == ["", "budget_warn"]
    assert [event["policy"] for event in here.named("budget.threshold")] == ["p"]


def thresholds(here: World) -> list[object]:
    return [event["threshold_percent"] for event in here.named("budget.threshold")]


def test_a_threshold_is_told_once_a_period() -> None:
    """Refunds that take the total below it and charges that bring it back change nothing (G-2, L-2)."""
    here = world(bundle(policy("p", budget(10_000, cost_key="usage:tokens"))))
    for _ in range(3):
        asked = ask(0, max_tokens=8500)
        assert here.engine.decide(asked).warning == "budget_warn"
        here.engine.settle(asked, Answer(200, "ok", usage=Usage(0, 1), complete=True))
    assert thresholds(here) == [80]
    here.clock.advance(DAY_S)
    for most in (9800, 8500, 9700):
        asked = ask(0, max_tokens=most)
        here.engine.decide(asked)
        here.engine.settle(asked, Answer(503))
    assert thresholds(here) == [80, 80, 95]  # the next day; and whoever passes two is told of both


@pytest.mark.parametrize(("mode", "shadow"), [("enforce", False), ("shadow", True)])
def test_a_threshold_of_a_shadow_policy_is_told_as_such(mode: str, shadow: bool) -> None:
    """And neither warns nor slows anybody down (G-2, K-1)."""
    here = world(bundle(policy("p", budget(100, 96), mode=mode)))
    verdict = here.decide(call())
    assert [event["shadow"] for event in here.named("budget.threshold")] == [shadow, shadow]
    assert (verdict.warning, verdict.delay_ms) == (("", 0) if shadow else ("budget_throttle", 500))


def test_a_threshold_that_an_answer_passes_is_told_with_the_next_charge() -> None:
    """It used more than was reserved (G-2, L-3)."""
    here = world(bundle(policy("p", budget(10_000, cost_key="usage:tokens"))))
    asked = ask(0, max_tokens=10)
    here.engine.decide(asked)
    here.engine.settle(asked, Answer(200, "ok", usage=Usage(0, 9000), complete=True))
    assert thresholds(here) == []
    here.engine.decide(ask(0, max_tokens=10))
    assert thresholds(here) == [80]


def test_what_is_not_charged_reaches_no_threshold() -> None:
    """A limit behind the budget denies, or the shadow policy's own does (G-2, E-4)."""
    for mode in ("enforce", "shadow"):
        here = world(bundle(policy("p", budget(100, 45), bucket(rate=1, burst=1), mode=mode)))
        here.decide(call(), 2)
        assert thresholds(here) == []


def test_tokens_are_reserved_and_settled() -> None:
    """4,000 characters and max_tokens 4000 reserve 5000 of 6000; the answer used 3000, so 2000 come back (L-3)."""
    here = world(bundle(policy("p", tokens())))
    first = ask(max_tokens=4000)
    verdict = here.engine.decide(first)
    assert (verdict.allowed, left(verdict)) == (True, 1000)
    assert here.engine.decide(ask(max_tokens=4000)).reason == "tpm_exceeded"
    here.engine.settle(first, Answer(200, "short", usage=Usage(1000, 2000), complete=True))
    assert left(here.engine.decide(ask(0, max_tokens=1))) == 2999


def test_what_was_used_beyond_is_charged() -> None:
    """Reserved 5000, used 7000: 2000 more, so that the bucket is 1000 short (L-3)."""
    here = world(bundle(policy("p", tokens())))
    first = ask(max_tokens=4000)
    here.engine.decide(first)
    here.engine.settle(first, Answer(200, "long", usage=Usage(1000, 6000), complete=True))
    denied = here.engine.decide(ask(0, max_tokens=1))
    assert denied.reason == "tpm_exceeded"
    here.clock.advance(11)  # 100 a second flow back: 1000 short and a token
    assert here.engine.decide(ask(0, max_tokens=1)).allowed


def test_a_day_that_is_used_up_charges_no_minute() -> None:
    """A TPD rejection leaves the TPM as it was (L-3, E-4)."""
    here = world(bundle(policy("p", tokens(6000, tokens_per_day=6000))))
    assert here.engine.decide(ask(max_tokens=4000)).allowed
    denied = here.engine.decide(ask(400, max_tokens=1800))
    assert denied.reason == "tpm_exceeded"
    here.clock.advance(30)
    denied = here.engine.decide(ask(400, max_tokens=1800))
    assert (denied.reason, denied.retry_jitter) == ("tpd_exceeded", False)
    assert left(here.engine.decide(ask(0, max_tokens=1000))) == 0  # of the day; of the minute 3000 were left


@pytest.mark.parametrize(
    ("answer", "remaining"),
    [
        (Answer(NO_ANSWER), 1000),  # nobody knows: the estimate stays
        (Answer(503), 6000),  # an error costs nothing
        (Answer(CLIENT_LEFT, "y" * 400), 4900),  # what passed: the prompt, and 100 tokens
        (Answer(200, "y" * 400, complete=True), 4900),  # no count: by what was said
    ],
)
def test_answers_without_a_count(answer: Answer, remaining: int) -> None:
    """A cancelled stream settles by what passed, one that never comes leaves the estimate (L-3)."""
    here = world(bundle(policy("p", tokens())))
    first = ask(max_tokens=4000)
    here.engine.decide(first)
    here.engine.settle(first, answer)
    assert left(here.engine.decide(ask(0, max_tokens=0))) == remaining


def test_requests_that_can_never_pass_say_so() -> None:
    """No Retry-After, and a message that says what to lower (L-4)."""
    here = world(bundle(policy("p", tokens(max_prompt_tokens=500, max_tokens_per_request=3000))))
    for asked, reason in (
        (ask(4000, max_tokens=10), "prompt_tokens_exceeded"),
        (ask(400, max_tokens=4000), "max_tokens_per_request_exceeded"),
    ):
        verdict = here.engine.decide(asked)
        assert (verdict.reason, verdict.retry_after_s, verdict.never) == (reason, None, True)


def breaking(*rules: Json, **more: Any) -> Json:
    breaker = {"enabled": True, "spend_rate_threshold_per_minute": 1000, "auto_reset_after_minutes": 5, **more}
    return bundle(policy("p", *rules, circuit_breaker=breaker))


def test_a_breaker_opens_and_lets_one_probe_through() -> None:
    """900 + 100 opens and denies, other keys stay closed, after 5 minutes one probe is let through (CB-1, CB-2)."""
    rule = bucket(rate=10_000, burst=100_000, keys=["header:x-team"], cost_source="header:x-cost")
    here = world(breaking(rule))

    def spend(cost: int, team: str = "a") -> Verdict:
        return here.decide(call(headers={"x-team": team, "x-cost": str(cost)}))

    assert spend(900).allowed
    opened = spend(100)
    assert (opened.reason, opened.retry_after_s) == ("circuit_breaker_open", 300)
    assert spend(1).reason == "circuit_breaker_open"
    assert spend(900, "b").allowed
    assert len(here.named("breaker.opened")) == 1
    here.clock.advance(300)
    assert spend(1).allowed
    assert len(here.named("breaker.closed")) == 1


def test_shadow_limits_are_only_told() -> None:
    """The client's answer is what it would have been (E-1)."""
    here = world(bundle(policy("p", budget(10, 10), mode="shadow")))
    verdicts = [here.decide(call()) for _ in range(2)]
    assert all(one.allowed and not one.warning and one.limit is None for one in verdicts)
    assert [one.reason for one in verdicts[1].shadow] == ["budget_exceeded"]


def priced(data: Json, unknown: Any = "warn") -> World:
    here = world(data)
    prices = Prices(ListedModel({"gpt-x": PRICE}, "a test"), unknown=unknown)
    here.engine.meter._prices = lambda: prices
    return here


def test_money_is_charged_as_estimated_and_corrected() -> None:
    """1000 tokens in at $2 and 1000 out at $8 a million are $0.01; the answer had only 100 out: $0.0028 (L-2, L-5)."""
    here = priced(bundle(policy("p", budget(0.0128, cost_key="usage:usd"))))
    first = ask(max_tokens=1000)
    assert here.engine.decide(first).allowed
    assert here.engine.decide(ask(max_tokens=1000)).reason == "budget_exceeded"
    here.engine.settle(first, Answer(200, "ok", usage=Usage(1000, 100), complete=True))
    assert here.engine.decide(ask(max_tokens=1000)).allowed


def test_models_without_a_price() -> None:
    """`warn` tells once and charges nothing, `deny` denies (L-5)."""
    here = priced(bundle(policy("p", budget(1, cost_key="usage:usd"))))
    assert all(here.engine.decide(ask(model="mystery")).allowed for _ in range(3))
    assert [event["model"] for event in here.named("model.unknown")] == ["mystery"]
    strict = priced(bundle(policy("p", budget(1, cost_key="usage:usd"))), "deny")
    verdict = strict.engine.decide(ask(model="mystery"))
    assert (verdict.reason, verdict.never) == ("unknown_model", True)
    assert strict.engine.decide(ask()).allowed


def test_streams_are_asked_for_their_usage_where_it_counts() -> None:
    """Only for rules that need it, and only for streams (D-1)."""
    counts, plain = world(bundle(policy("p", tokens()))), world(bundle(policy("p", bucket())))
    for here, stream, wanted in ((counts, True, True), (counts, False, False), (plain, True, False)):
        asked = ask(10, stream=stream)
        here.engine.decide(asked)
        assert asked.decision.wants_usage is wanted


def test_what_holds_for_an_agent_itself() -> None:
    """Switched off, its hours, its rate; each agent of a pattern by itself (B-1, G-1)."""
    agents = {
        "off": {"active": False},
        "night-*": {"allowed_hours": "22:00-06:00"},
        "slow-*": {"rate_limit": {"requests_per_minute": 2}},
    }
    here = world(bundle(agents=agents))

    def reasons(agent: str, times: int = 1) -> list[str]:
        asked = [here.decide(call(headers={"x-agent-id": agent})) for _ in range(times)]
        return ["" if one.allowed else one.reason for one in asked]

    assert reasons("off") == ["agent_inactive"]
    assert reasons("night-1") == ["outside_hours"]  # it is eight in the morning
    assert reasons("slow-1", 3) == ["", "", "token_bucket_exceeded"]
    assert reasons("slow-2") == reasons("anybody") == [""]


def test_nobody_uses_up_the_limits_of_an_agent_with_another_key() -> None:
    """A name is the client's own: limits are those of key and name. Without keys, there is only the name (B-1)."""
    here = world(bundle(agents={"victim": {"rate_limit": {"requests_per_minute": 2}}}))

    def allowed(key: str = "", peer: str = "192.0.2.1") -> bool:
        headers = {"x-agent-id": "victim", **({"x-api-key": key} if key else {})}
        return here.decide(call(headers=headers, peer=peer)).allowed

    assert [allowed("attacker") for _ in range(3)] == [True, True, False]
    assert [allowed("its-own") for _ in range(3)] == [True, True, False]
    assert [allowed(peer=f"192.0.2.{number}") for number in range(3)] == [True, True, False]


def test_an_agents_daily_budget() -> None:
    """Dollars a day, as estimated and then as used (B-1, L-5)."""
    here = priced(bundle(agents={"*": {"budget_usd_per_day": 0.0128}}))
    first = ask(max_tokens=1000)
    assert here.engine.decide(first).allowed
    assert here.engine.decide(ask(max_tokens=1000)).reason == "agent_budget_exceeded"
    here.engine.settle(first, Answer(200, "ok", usage=Usage(1000, 100), complete=True))
    assert here.engine.decide(ask(max_tokens=1000)).allowed


def test_global_shadow_stops_no_agent() -> None:
    """Global shadow stops no agent (K-1)."""
    shadow = {"enabled": True, "reason": "drill", "expires_at": at(600)}
    here = world(bundle(agents={"*": {"active": False}}, global_shadow=shadow))
    assert here.decide(call()).allowed
