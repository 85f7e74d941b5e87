"""Requests that differ in one thing only are judged apart, although the engine remembers who sends them."""

from __future__ import annotations

import pytest

from breakloop.engine.plan import Plan
from breakloop.policy.descriptors import ContextSettings
from breakloop.policy.rules import CHARGES_MAX
from tests.builders import SECRET, World, bucket, bundle, call, exact, policy, world


def remaining(here: World, path: str = "/x", **fields: str) -> int:
    """What is left of the limit after a request with these header fields."""
    query = path.partition("?")[2]
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    verdict = here.decide(call(path.partition("?")[0], headers=headers, query=query, peer="192.0.2.1"))
    assert verdict.limit is not None
    return verdict.limit.remaining if verdict.allowed else -1


def test_a_cost_in_a_header_field_is_read_each_time() -> None:
    """The same sender, and each of his requests costs what it says (L-1)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=10, cost_source="header:X_Cost"))))
    assert [remaining(here, x_cost=cost) for cost in ("1", "4", "1", "4", "4")] == [9, 5, 4, 0, -1]


def test_a_cost_in_the_query_is_read_each_time() -> None:
    """What stands in the query is nothing that could be remembered of a sender (L-1)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=10, cost_source="query:c"))))
    assert [remaining(here, f"/x?c={cost}") for cost in (1, 4, 1)] == [9, 5, 4]


def test_a_cost_of_the_fallback_is_read_each_time() -> None:
    """The same for the limit of whoever no rule is for (E-3, L-1)."""
    fallback = bucket("f", rate=1, burst=10, cost_source="header:x-cost")
    rule = bucket("r", match={"header:x-tier": "paid"})
    here = world(bundle(policy("p", rule, fallback_limit=fallback)))
    assert [remaining(here, x_cost=cost) for cost in ("1", "4", "1")] == [9, 5, 4]
    assert remaining(here, x_tier="paid") == 9
    assert remaining(here, x_cost="4") == 0


def test_projects_have_limits_of_their_own() -> None:
    """Where a descriptor names the project, the same sender may speak for several (C-7)."""
    settings = ContextSettings(secret=SECRET, project_descriptor="header:x-project")
    here = world(bundle(policy("p", bucket(rate=1, burst=3))), settings=settings)
    assert [remaining(here, x_project=name) for name in ("a", "a", "b", "a", "b")] == [2, 1, 2, 0, 1]


def test_clients_behind_a_proxy_have_limits_of_their_own() -> None:
    """Told apart by either field, though the peer is always the same (C-4)."""
    settings = ContextSettings(secret=SECRET, trusted_proxies=("192.0.2.1",))
    for field, first, second in (
        ("forwarded", "for=203.0.113.1", "for=203.0.113.2"),
        ("x_forwarded_for", "203.0.113.1", "203.0.113.2"),
    ):
        here = world(bundle(policy("p", bucket(rate=1, burst=3, keys=["ip:address"]))), settings=settings)
        assert [remaining(here, **{field: value}) for value in (first, first, second)] == [2, 1, 2]


@pytest.mark.parametrize("field", ["authorization", "x-api-key", "api-key", "x-goog-api-key", "x-agent-id"])
def test_callers_have_counts_of_their_own(field: str) -> None:
    """The same request with another key, or of another agent, is another one (LD-6, C-7)."""
    here = world(bundle(policy("p", loop=exact(2))))
    told = [here.decide(call(headers={field: who}, peer="192.0.2.1")).allowed for who in ("a", "b", "a", "b", "c")]
    assert told == [True, True, False, False, True]


def test_agents_named_in_the_path_have_counts_of_their_own() -> None:
    """The key is the same, the agent is not (LD-6, C-7)."""
    here = world(bundle(policy("p", loop=exact(2))))
    asked = [call(headers={"authorization": "Bearer k"}, path_agent=name) for name in ("a", "b", "a")]
    assert [here.decide(one).allowed for one in asked] == [True, True, False]


def test_what_is_remembered_of_one_sender_is_bounded() -> None:
    """In a bundle of many policies a sender keeps the charges of some; the others are worked out each time (Y-2)."""
    policies = [policy(f"p{number}", bucket(rate=1, burst=9), prefix=f"/{number}/") for number in range(100)]
    here = world(bundle(*policies))
    for left in (8, 7):
        assert [remaining(here, f"/{number}/x") for number in range(100)] == [left] * 100
    made = here.engine.plan(call("/1/x", peer="192.0.2.1"))
    assert isinstance(made, Plan)
    sender = made.bundle.senders.find(call("/1/x", peer="192.0.2.1"), here.clock.now())
    assert sender is not None
    assert len(sender.charges) == CHARGES_MAX


def test_limits_are_charged_whatever_else_a_bundle_has() -> None:
    """Counts of a later policy, limits of several, and terms of an agent (6)."""
    first, second = (policy(name, bucket("r", rate=1, burst=5), bucket("s", rate=1, burst=4)) for name in "pq")
    agents = {"*": {"rate_limit": {"requests_per_minute": 600}}}
    for data in (
        bundle(first),
        bundle(first, second),
        bundle(first, policy("l", loop=exact(9))),
        bundle(policy("l", loop=exact(9)), first, policy("m", loop=exact(9))),
        bundle(first, agents=agents),
    ):
        here = world(data)
        assert [remaining(here) for _ in range(5)] == [3, 2, 1, 0, -1]


def test_a_loop_is_denied_before_limits_are_charged() -> None:
    """Although the buckets of the sender hold enough (L-1, LD-1)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=9), loop=exact(3))))
    assert [remaining(here, path=path) for path in ("/a", "/a", "/b")] == [8, 7, 6]
    assert here.decide(call("/a", peer="192.0.2.1")).reason == "loop_detected"
    assert remaining(here, path="/b") == 5
