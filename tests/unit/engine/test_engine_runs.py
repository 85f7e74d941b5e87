"""`max_usd_per_run` through the engine: a run is charged by estimate, corrected by its answers, and held at its ceiling."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.model.call import NO_ANSWER, Answer, Call, Usage
from breakloop.pricing.prices import ListedModel, Price, Prices
from tests.builders import Json, SpyStore, World, at, bucket, bundle, call, chat_body, policy, user, world

PRICE = Price(2_000_000, 8_000_000, None, None, None)  # $2 in, $8 out per million tokens
REASON = "run_limit_exceeded"


def priced(data: Json, unknown: Any = "warn") -> World:
    here = world(data, store=SpyStore())
    prices = Prices(ListedModel({"gpt-x": PRICE}, "a test"), unknown=unknown)
    here.engine.meter._prices = lambda: prices
    return here


def capped(usd: float, **more: Any) -> World:
    return priced(bundle(agents={"worker": {"max_usd_per_run": usd}, "free": {}}), **more)


def ask(session: str = "s-1", *, agent: str = "worker", model: str = "gpt-x", max_tokens: int = 1000) -> Call:
    """A call that may cost $0.002 for its prompt of 1,000 tokens, and $0.000008 for each token of its answer."""
    headers = {"authorization": "Bearer k", "x-agent-id": agent, "x-agent-session": session}
    body = chat_body(user("x" * 4000), model=model, max_tokens=max_tokens)
    made = call("/v1/chat/completions", "POST", headers, body=body)
    made.tracked = True
    return made


def said(here: World, *asked: Call) -> list[str]:
    verdicts = [here.engine.decide(one) for one in asked]
    return ["" if one.allowed else one.reason for one in verdicts]


def answered(here: World, asked: Call, output: int) -> None:
    here.engine.settle(asked, Answer(200, "ok", usage=Usage(1000, output), complete=True))


def spend(here: World, output: int, session: str = "s-1") -> str:
    """Ask for exactly as much as is used then."""
    asked = ask(session, max_tokens=output)
    [outcome] = said(here, asked)
    if not outcome:
        answered(here, asked, output)
    return outcome


def test_a_run_is_held_when_its_money_is_spent() -> None:
    """Three answers of a cent are all of 3 cents, to the micro-dollar; then a person decides (G-1, L-5)."""
    here = capped(0.03)
    assert [spend(here, 1000) for _ in range(4)] == ["", "", "", REASON]
    verdict = here.engine.decide(ask())
    assert (verdict.reason, verdict.retry_after_s, verdict.never, verdict.status) == (REASON, None, True, 429)
    assert verdict.message == (
        "This run has reached its ceiling: $0.03 (max_usd_per_run), of which $0.03 were spent. "
        "A person has to release it."
    )
    here.clock.advance(7200)
    assert said(here, ask()) == [REASON]
    assert said(here, ask("s-2"), ask("s-3", agent="free")) == ["", ""]
    assert [event["binds"] for event in here.named("agent.killed")] == ["run"]


def test_the_first_denial_says_what_it_lacks() -> None:
    here = capped(0.015)
    spend(here, 1000)
    verdict = here.engine.decide(ask())
    assert (verdict.reason, verdict.retry_after_s, verdict.never, verdict.limit) == (REASON, None, True, None)
    assert (verdict.policy, verdict.rule) == ("agents", "worker/max_usd_per_run")
    assert verdict.message == (
        "This run has reached its ceiling: $0.015 (max_usd_per_run). $0.01 are spent or reserved, "
        "and this request may cost $0.01 more. A person has to release it."
    )


def test_a_released_run_begins_anew() -> None:
    """Only an operator resets it, as with `max_steps_per_run`; even at the same time of the clock (G-1)."""
    here = capped(0.01)
    assert [spend(here, 1000) for _ in range(2)] == ["", REASON]
    here.engine.quarantine.release("default", agent="worker", now=here.clock.now())
    assert [spend(here, 1000) for _ in range(2)] == ["", REASON]


def test_what_is_in_flight_denies_but_holds_nobody() -> None:
    """Estimates that may come back are no reason to call a person (G-1)."""
    here = capped(0.03)
    first, second, third = ask(), ask(), ask(max_tokens=2000)
    assert said(here, first, second, third) == ["", "", REASON]
    assert not here.engine.quarantine
    answered(here, first, 10)
    assert said(here, ask(max_tokens=1000)) == [""]


def test_the_timeline_of_the_docs() -> None:
    """Docs/explanation/limits.md, with cents for tenths of a dollar: $0.04 reserved, $0.03 and $0.035 used, of $0.10
    (G-1)."""
    here = capped(0.1)
    first, second = ask(max_tokens=4750), ask(max_tokens=4750)
    assert said(here, first, second, ask(max_tokens=4750)) == ["", "", REASON]
    answered(here, first, 3500)
    assert said(here, ask(max_tokens=4750)) == [REASON]
    assert not here.engine.quarantine
    answered(here, second, 4125)
    assert said(here, ask(max_tokens=4750), ask(max_tokens=1)) == [REASON] * 2
    [hold] = here.engine.quarantine.holds(here.clock.now())
    assert hold.why == "$0.10 (max_usd_per_run), of which $0.065 were spent"
    here.engine.quarantine.release("default", run=hold.run, now=here.clock.now())
    assert said(here, ask(max_tokens=4750), ask(max_tokens=4750)) == ["", ""]


def test_a_request_that_no_run_may_pay_holds_nobody() -> None:
    """It can never pass; a smaller one does (L-4)."""
    here = capped(0.01)
    verdict = here.engine.decide(ask(max_tokens=5000))
    assert (verdict.reason, verdict.never) == (REASON, True)
    assert "more than its whole run may" in verdict.message
    assert said(here, ask()) == [""]


def test_what_was_used_beyond_is_charged_to_the_run() -> None:
    """The answer cost 3 cents instead of one, of 2 (L-3)."""
    here = capped(0.02)
    asked = ask()
    assert said(here, asked) == [""]
    answered(here, asked, 3500)
    assert said(here, ask(max_tokens=1)) == [REASON]
    [hold] = here.engine.quarantine.holds(here.clock.now())
    assert hold.why == "$0.02 (max_usd_per_run), of which $0.03 were spent"


@pytest.mark.parametrize(("status", "left"), [(NO_ANSWER, REASON), (503, "")])
def test_answers_that_fail(status: int, left: str) -> None:
    """An error costs nothing; an answer that never comes leaves the estimate (L-3)."""
    here = capped(0.015)
    asked = ask()
    said(here, asked)
    here.engine.settle(asked, Answer(status))
    assert said(here, ask()) == [left]


def test_idle_minutes_begin_a_run_and_late_answers_belong_to_the_last() -> None:
    """As with `max_steps_per_run`; the refund of the old run is none of the new one's (G-1, L-3)."""
    here = capped(0.02)
    late = ask()
    assert said(here, late, ask()) == ["", ""]
    here.clock.advance(599)
    assert said(here, ask()) == [REASON]  # what was denied is a sign of life, too
    here.clock.advance(599)
    assert said(here, ask()) == [REASON]
    here.clock.advance(600)
    assert said(here, ask(), ask()) == ["", ""]
    answered(here, late, 0)
    assert said(here, ask()) == [REASON]


def test_models_without_a_price() -> None:
    """`warn` charges nothing, `deny` denies and holds nobody (L-5)."""
    here = capped(0.001)
    assert said(here, *[ask(model="mystery") for _ in range(3)]) == [""] * 3
    strict = capped(1, unknown="deny")
    assert said(strict, ask(model="mystery"), ask()) == ["unknown_model", ""]


def test_other_requests_and_those_without_a_session_are_not_charged() -> None:
    here = capped(0.001)
    plain = call("/x", headers={"x-agent-id": "worker", "x-agent-session": "s-1"})
    assert here.engine.decide(plain).allowed
    assert not [key for key in here.store.keys() if key.startswith("run:")]  # type: ignore[attr-defined]  # noqa: SIM118


def test_a_ceiling_in_global_shadow_is_only_told() -> None:
    """A ceiling in global shadow is only told (E-1, K-1)."""
    shadow = {"enabled": True, "reason": "drill", "expires_at": at(600)}
    here = priced(bundle(agents={"*": {"max_usd_per_run": 0.015}}, global_shadow=shadow))
    assert [spend(here, 1000) for _ in range(3)] == [""] * 3
    assert [event["reason"] for event in here.named("shadow.would_reject")] == [REASON] * 2
    assert not here.engine.quarantine


def test_a_ceiling_stands_in_no_field_of_the_answer() -> None:
    """What no time renews is no rate limit; the bucket beside it is told (A-1)."""
    here = priced(bundle(policy("p", bucket(burst=10)), agents={"*": {"max_usd_per_run": 0.0101}}))
    verdict = here.engine.decide(ask())
    assert verdict.limit is not None
    assert (verdict.limit.name, verdict.limit.remaining) == ("p", 9)


def test_a_run_is_landed_before_its_ceiling_of_steps() -> None:
    """The last step of ten at 95 %, as the answer that the run ends with; then it is held (G-1, LD-10)."""
    here = priced(bundle(agents={"worker": {"max_steps_per_run": 10, "land_at_percent": 95}}))
    verdicts = [here.engine.decide(ask()) for _ in range(11)]
    assert [one.landed for one in verdicts] == [False] * 9 + [True, False]
    assert verdicts[9].note.startswith("95 % of the steps of this run are used. For this turn, tools are switched off")
    assert (verdicts[9].warning, verdicts[9].loop, here.named("loop.detected")) == ("run_land", None, [])
    assert verdicts[10].reason == REASON


def test_a_run_is_landed_before_its_ceiling_of_money() -> None:
    """From the share on that is set, and as often as there is money (G-1, LD-10)."""
    here = priced(bundle(agents={"worker": {"max_usd_per_run": 0.1, "land_at_percent": 50, "budget_usd_per_day": 1}}))
    verdicts = []
    for _ in range(10):
        asked = ask(max_tokens=1000)
        verdicts.append(here.engine.decide(asked))
        answered(here, asked, 1000)
    landed = [one.landed for one in verdicts]
    assert landed == sorted(landed)
    assert 0 < sum(landed) < 10
    assert verdicts[-1].note.startswith("50 % of the budget is used.")
    assert verdicts[-1].warning == "budget_land"


def test_both_ceilings_are_reset_together() -> None:
    """Whoever is released begins a run, in steps and in money (G-1)."""
    here = priced(bundle(agents={"worker": {"max_usd_per_run": 0.02, "max_steps_per_run": 2}}))
    assert [spend(here, 1000) for _ in range(3)] == ["", "", REASON]
    here.engine.quarantine.release("default", agent="worker", now=here.clock.now())
    here.clock.advance(1)
    assert [spend(here, 1000) for _ in range(3)] == ["", "", REASON]


def test_nothing_of_a_session_is_in_the_clear_that_was_not_before() -> None:
    """Keys hold the session as windows do, and no key of a caller (Y-1)."""
    here = capped(1)
    spend(here, 10)
    keys = [key for key in here.store.keys() if key.startswith("run:")]  # type: ignore[attr-defined]  # noqa: SIM118
    assert len(keys) == 2
    assert not any("Bearer" in key for key in keys)
