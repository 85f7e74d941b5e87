"""What a call may use, and what it has used. How limits take it is in the engine's tests."""

from __future__ import annotations

from breakloop.engine.metering import Meter
from breakloop.limits.base import NOTHING
from breakloop.model.call import Answer, Usage
from breakloop.model.events import Event
from breakloop.pricing.prices import ListedModel, Price, Prices
from breakloop.pricing.tokens import estimator
from tests.builders import START, bundle, call, chat, user, world

PRICE = Price(2_000_000, 8_000_000, None, None, None)
WORDS = estimator("simple_word")


def meter(*, priced: bool = True) -> tuple[Meter, list[Event]]:
    told: list[Event] = []
    prices = Prices(ListedModel({"gpt-x": PRICE}, "a test"))
    here = world(bundle())
    return Meter(here.descriptors, here.clock, told.append, (lambda: prices) if priced else None), told


def test_an_estimate_of_tokens_and_money() -> None:
    """1,000 tokens at $2 a million and the default of 1,000 at $8 are a cent (L-3, L-5)."""
    made, _ = meter()
    found = made.estimate(chat(user("x" * 4000)), WORDS, money=True)
    assert (found.prompt_tokens, found.max_completion, found.microusd) == (1000, None, 10_000)
    assert made.estimate(chat(user("x" * 4000)), WORDS, money=False).microusd == 0
    assert made.estimate(call("/x"), WORDS, money=True) is NOTHING


def test_what_was_used() -> None:
    """As the provider counts; the error of the estimate is noted (L-3)."""
    made, _ = meter()
    asked = chat(user("x" * 4000))
    made.estimate(asked, WORDS, money=True)
    used = made.used(asked, Answer(200, usage=Usage(900, 100)), 1000)
    assert used is not None
    assert (used.tokens, used.microusd) == (1000, 900 * 2 + 100 * 8)
    assert [error.count for error in made.errors.values()] == [1]


def test_a_stated_cost_counts_before_a_price() -> None:
    """What the provider says that it charges, also for a model without a price (L-5)."""
    made, _ = meter()
    for asked in (chat(user("hi")), chat(user("hi"), model="mystery")):
        made.estimate(asked, WORDS, money=True)
        used = made.used(asked, Answer(200, usage=Usage(900, 100, cost_microusd=77)), 1000)
        assert used is not None
        assert (used.tokens, used.microusd) == (1000, 77)
        assert made.cost_microusd(asked, Usage(1, 1, cost_microusd=78)) == 78


def test_unknown_models_are_told_once() -> None:
    """Unknown models are told once (L-5, Y-2)."""
    made, told = meter()
    for _ in range(3):
        assert made.estimate(chat(user("hi"), model="mystery"), WORDS, money=True).microusd == 0
    assert [(event.name, event.at) for event in told] == [("model.unknown", START)]
    assert not made.denies(chat(user("hi"), model="mystery"))


def test_without_prices_nothing_costs_anything() -> None:
    made, told = meter(priced=False)
    assert made.estimate(chat(user("hi")), WORDS, money=True).microusd == 0
    assert not made.denies(chat(user("hi")))
    assert told == []


def test_a_tool_call_costs_no_tokens() -> None:
    """MCP is no LLM: nothing is estimated, nothing is used, and no model is missing a price (C-8, L-5)."""
    made, told = meter()
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{}}}'
    asked = call("/mcp", "POST", body=body)
    assert made.estimate(asked, WORDS, money=True) is NOTHING
    assert made.used(asked, Answer(200, "the whole file"), 0) is None
    assert (made.denies(asked), told) == (False, [])


def test_the_same_question_is_answered_from_memory() -> None:
    """Several rules ask about one call; with money is another question than without."""
    made, _ = meter()
    asked = chat(user("x" * 4000))
    plain = made.estimate(asked, WORDS, money=False)
    assert made.estimate(asked, WORDS, money=False) is plain
    priced = made.estimate(asked, WORDS, money=True)
    assert (plain.microusd, priced.microusd) == (0, 10_000)
    assert made.estimate(asked, WORDS, money=False) is priced
    assert made.estimate(asked, estimator("header_hint"), money=False) is not priced
