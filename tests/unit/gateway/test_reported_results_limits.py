"""Results that settle limits: what a gateway tells of an answer corrects what was reserved for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.gateway.http_request import Reply
from breakloop.pricing.prices import ListedModel, Price, Prices
from tests.builders import CHAT, Json, World, about, bundle, chat_body, exact, header, policy, request, user, world
from tests.each import each

USED = {"input_tokens": 1000, "output_tokens": 2000}


def tokens(**more: Any) -> Json:
    """A rule: 6,000 tokens a minute."""
    config = {"tokens_per_minute": 6000, **more}
    return {"name": "t", "limit_keys": [], "algorithm": "token_bucket_llm", "algorithm_config": config}


def ask(here: World, chars: int = 4000, max_tokens: int = 4000, **more: Any) -> Reply:
    """Ask about a chat with a prompt of so many characters."""
    body = chat_body(user("x" * chars), max_tokens=max_tokens, **more)
    return here.ask(about(CHAT, "POST", {"authorization": "Bearer k"}, body=body))


def left(here: World) -> int:
    """What the next decision says, for a call that takes nothing."""
    reply = ask(here, 0, 0)
    assert reply.status == 200
    return int(header(reply, "RateLimit-Remaining") or "")


def result_id(reply: Reply) -> str:
    return header(reply, "X-Breakloop-Result-Id") or ""


def tell(here: World, told: str, status: int = 200, **more: Any) -> int:
    body = json.dumps({"status": status, **more}).encode()
    reply: Reply = here.door(request(f"/v1/decision/{told}/result", body=body))
    return reply.status


@pytest.mark.parametrize("loop", [None, exact(9)])
def test_a_result_gives_back_what_was_not_used(loop: Json | None) -> None:
    """Reserved 5000, used 3000: 2000 come back, with loop detection and without; once (D-6, L-3)."""
    here = world(bundle(policy("p", tokens(), loop=loop)))
    first = ask(here)
    assert header(first, "RateLimit-Remaining") == "1000"
    assert tell(here, result_id(first), usage=USED) == 204
    assert left(here) == 3000
    assert tell(here, result_id(first), usage=USED) == 404
    assert left(here) == 3000
    assert [error.count for error in here.engine.meter.errors.values()] == [1]


def test_what_was_used_beyond_is_charged() -> None:
    """Reserved 5000, used 5900 (D-6, L-3)."""
    here = world(bundle(policy("p", tokens())))
    tell(here, result_id(ask(here)), usage={"prompt_tokens": 1900, "completion_tokens": 4000})
    assert left(here) == 100


def test_a_request_id_is_not_enough_to_report() -> None:
    """Clients see it, and it can be guessed: whoever reports with it takes nothing from anybody (D-6, Y-1)."""
    here = world(bundle(policy("p", tokens())))
    first = header(ask(here), "X-Breakloop-Request-Id") or ""
    assert tell(here, first, usage={"input_tokens": 18_000_000, "output_tokens": 0}) == 404
    assert left(here) == 1000


@pytest.mark.parametrize("grpc", [False, True])
def test_envoy_gets_no_result_id(grpc: bool) -> None:
    """It passes all our header fields to the client (D-6, Y-1)."""
    here = world(bundle(policy("p", tokens(), loop=exact(9))))
    asked = request(f"/v1/decision/envoy{CHAT}", body=chat_body(user("x")))
    reply = here.door.envoy(asked) if grpc else here.door(asked)
    assert isinstance(reply, Reply)
    assert (reply.status, header(reply, "X-Breakloop-Result-Id")) == (200, None)
    results = here.door._results
    assert results is not None
    assert len(results) == 0


@each(
    "reported, wait_s",
    [
        ((300_000,), 2940),  # an answer whose maximum was not known: charged in full, at 100 a second
        ((18_000_000,), 3600),
        ((18_000_000, 18_000_000, 10**9), 3600),
    ],
)
def test_no_report_denies_for_longer_than_an_hour(reported: tuple[int, ...], wait_s: int) -> None:
    """However much it says, and however many there are: a minute's limit is an hour in debt at most (L-3, Y-2)."""
    here = world(bundle(policy("p", tokens())))
    for told, count in zip([ask(here, 0, 1000) for _ in reported], reported, strict=True):
        tell(here, result_id(told), usage={"input_tokens": count, "output_tokens": 0})
    here.clock.advance(wait_s - 60.0)
    assert ask(here, 0, 1).status == 429
    here.clock.advance(60.0)
    assert left(here) == 0


@each(
    "told, remaining",
    [
        ({"status": 200}, 1000),  # nothing told: the estimate stays
        ({"status": 200, "digest": "abc"}, 1000),
        ({"status": 0}, 1000),
        ({"status": 499}, 1000),
        ({"status": 499, "text": "y" * 400}, 4900),  # what passed
        ({"status": 200, "text": "y" * 400}, 4900),
        ({"status": 200, "text": "y" * 80_000}, None),  # all of it: more than was reserved
        ({"status": 200, "tool_calls": [{"name": "abcd", "arguments": "y" * 396}]}, 4900),
        ({"status": 503}, 6000),  # an error costs nothing
        ({"status": 429, "text": "no"}, 6000),
    ],
)
def test_results_without_a_count(told: Json, remaining: int | None) -> None:
    """By what is told; what is not told stays as it was estimated (D-6, L-3)."""
    here = world(bundle(policy("p", tokens())))
    assert tell(here, result_id(ask(here)), **told) == 204
    if remaining is None:
        assert ask(here, 0, 1).status == 429
        here.clock.advance(150)  # 100 a second: 15,000 short
        assert left(here) == 0
    else:
        assert left(here) == remaining


def test_money() -> None:
    """What the answer cost, by the model of the request (D-6, L-5)."""
    price = Price(2_000_000, 8_000_000, None, None, None)
    stages = [{"threshold_percent": 100, "action": "reject"}]
    config = {"budget": 1, "period": "1d", "cost_key": "usage:usd", "staged_actions": stages}
    rule = {"name": "b", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": config}
    here = world(bundle(policy("p", rule)))
    here.engine.meter._prices = lambda: Prices(ListedModel({"gpt-x": price}, "a test"))
    first = ask(here)
    assert header(first, "RateLimit-Remaining") == str(1_000_000 - 1000 * 2 - 4000 * 8)
    tell(here, result_id(first), usage=USED)
    assert left(here) == 1_000_000 - 1000 * 2 - 2000 * 8


def test_denials_and_unknown_requests() -> None:
    """404, and nothing is given back (D-6)."""
    here = world(bundle(policy("p", tokens())))
    ask(here)
    denied = ask(here)
    assert (denied.status, result_id(denied)) == (429, "")
    assert tell(here, header(denied, "X-Breakloop-Request-Id") or "", usage=USED) == 404
    assert tell(here, "nobody", usage=USED) == 404
    assert left(here) == 1000


def test_it_keeps_no_request() -> None:
    """Neither the messages nor the key (Y-1, Y-2)."""
    here = world(bundle(policy("p", tokens())))
    ask(here, model="m-1", user="canary")
    results = here.door._results
    assert results is not None
    (awaited,) = filter(None, results._ring)
    assert "m-1" in repr(awaited)
    assert "canary" not in repr(awaited)
    assert "xxxx" not in repr(awaited)
