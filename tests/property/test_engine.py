"""Whatever the bundle and the traffic: the same verdicts twice, nothing charged for a denial, shadow never seen."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from breakloop.gateway.http_request import Request
from breakloop.policy.descriptors import CallerProfile
from tests.builders import CHAT, Json, World, about, at, bucket, bundle, chat_body, exact, policy, tail, user, world

Asked = tuple[Request, float]  # a question, and how far the clock moves before it
Told = tuple[int, bytes, bytes, float]

USERS = st.sampled_from(["ann", "bob", "a|b", ""])
RULES = st.builds(
    lambda name, numbers, keys, more: bucket(name, numbers[0], numbers[1], keys, **more),
    st.sampled_from(["a", "b"]),
    st.sampled_from([(1, 1), (1, 3), (0.5, 4), (5, 5)]),
    st.lists(st.sampled_from(["header:x-user", "agent:id", "query:q", "llm:model"]), max_size=2, unique=True),
    st.fixed_dictionaries(
        {},
        optional={
            "match": st.just({"header:x-tier": "free"}),
            "on_missing": st.just("reject"),
            "cost_source": st.just("header:x-cost"),
        },
    ),
)
ACTIONS = st.sampled_from(["warn", "steer", "throttle", "reject", "kill"])
EXACT = st.builds(
    lambda threshold, seconds, kind, action: {**exact(threshold, seconds), "window": kind, "action": action},
    st.integers(2, 4),
    st.sampled_from([2, 30]),
    st.sampled_from(["idle", "sliding"]),
    ACTIONS,
)
SHORT = {"window_seconds": 20, "cooldown_seconds": 4, "cooldown_max_seconds": 9}
TAIL = st.builds(
    lambda hits, messages, action: tail(max_hits=hits, tail_messages=messages, action=action, **SHORT),
    st.integers(0, 3),
    st.sampled_from([1, 3, 8]),
    ACTIONS,
)
LOOPS = EXACT | TAIL | st.just({"enabled": False})
SPECS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"prefix": st.sampled_from(["/", "/v1/", "/x"])},
    optional={
        "loop": st.lists(LOOPS, min_size=1, max_size=2),
        "fallback_limit": RULES,
        "deny_status": st.just(403),
        "on_store_error": st.just("deny"),
    },
)


def specs(name: str) -> st.SearchStrategy[Json]:
    rules = st.lists(RULES, max_size=2, unique_by=lambda rule: rule["name"])
    return st.builds(lambda rules, spec: policy(name, *rules, **spec), rules, SPECS)


NAMED = st.sampled_from(["one", "two", "three"]).flatmap(specs)
ENFORCED = st.lists(NAMED, max_size=3, unique_by=lambda made: made["id"])
SHADOWS = st.lists(st.tuples(specs("s"), st.integers(0, 3)), min_size=1, max_size=2)
DEFAULTS = st.sampled_from([{}, {"loop_detection": "off"}, {"loop_detection": exact(3, 10)}])
HEADERS = st.fixed_dictionaries(
    {"x-user": USERS},
    optional={
        "x-tier": st.sampled_from(["free", "paid"]),
        "x-cost": st.sampled_from(["1", "3", "9", "abc"]),
        "x-agent-id": st.just("bot"),
        "accept": st.just("application/problem+json"),
    },
)
PLAIN = st.builds(about, st.sampled_from(["/x", "/v1/y?q=1", "/v1/y"]), st.sampled_from(["GET", "POST"]), HEADERS)
CHATS = st.builds(
    lambda texts, headers: about(CHAT, "POST", headers, body=chat_body(*map(user, texts))),
    st.lists(st.sampled_from(["go", "Go ", "stop"]), min_size=1, max_size=5),
    HEADERS,
)
RESULT_ID = re.compile(rb"X-Breakloop-Result-Id: [^\r]*\r\n")
FORWARD = [0.0, 0.0, 0.0, 0.5, 1.0, 4.0, 10.0]


def traffic_of(steps: list[float]) -> st.SearchStrategy[list[Asked]]:
    """A few different requests, sent again and again."""
    palettes = st.lists(PLAIN | CHATS, min_size=1, max_size=3)
    return palettes.flatmap(
        lambda palette: st.lists(st.tuples(st.sampled_from(palette), st.sampled_from(steps)), min_size=1, max_size=25)
    )


TRAFFIC = traffic_of([*FORWARD, -2.0])
# The system's clock never runs back; with one that does, a store that is asked for a shadow policy only knows it first.
FORWARD_TRAFFIC = traffic_of(FORWARD)


def tell(here: World, traffic: list[Asked]) -> list[Told]:
    """Whole replies, byte for byte, their request ids included; result ids are random."""
    told = []
    for asked, step in traffic:
        here.clock.advance(step)
        reply = here.door(asked)
        told.append((reply.status, RESULT_ID.sub(b"", reply.head), reply.body, reply.delay_s))
    return told


@given(policies=ENFORCED, defaults=DEFAULTS, traffic=TRAFFIC)
def test_the_same_twice(policies: list[Json], defaults: Json, traffic: list[Asked]) -> None:
    """Same requests, same state, same clock: the same answers, byte for byte, of two engines (E-7)."""
    data = bundle(*policies, defaults=defaults)
    assert tell(world(data), traffic) == tell(world(data), traffic)


@given(policies=ENFORCED, defaults=DEFAULTS, shadows=SHADOWS, traffic=FORWARD_TRAFFIC)
def test_a_shadow_policy_changes_no_answer(
    policies: list[Json], defaults: Json, shadows: list[tuple[Json, int]], traffic: list[Asked]
) -> None:
    """Added anywhere in the bundle, whatever it would do, every reply stays the same, byte for byte (E-1, E-2)."""
    mixed = list(policies)
    for number, (shadow, place) in enumerate(shadows):
        spec = {**shadow["spec"], "mode": "shadow"}
        mixed.insert(place, {"id": f"shadow-{number}", "spec": spec})
    alone = tell(world(bundle(*policies, defaults=defaults)), traffic)
    assert tell(world(bundle(*mixed, defaults=defaults)), traffic) == alone


@given(policies=ENFORCED, defaults=DEFAULTS, traffic=TRAFFIC)
def test_under_global_shadow_everything_passes(policies: list[Json], defaults: Json, traffic: list[Asked]) -> None:
    """The answers are those of a bundle without policies (K-1)."""
    override = {"enabled": True, "reason": "drill", "expires_at": at(10**6)}
    shadowed = bundle(*policies, defaults=defaults, global_shadow=override)
    assert tell(world(shadowed), traffic) == tell(world(bundle()), traffic)


def without_loops(made: Json) -> Json:
    return {"id": made["id"], "spec": {name: value for name, value in made["spec"].items() if name != "loop_detection"}}


def bare(reply: Told) -> tuple[int, bytes]:
    """A reply without its request id, which counts requests."""
    return reply[0], reply[1].partition(b"\r\n")[2]


@given(policies=ENFORCED, traffic=FORWARD_TRAFFIC)
def test_a_denied_request_charges_nothing(policies: list[Json], traffic: list[Asked]) -> None:
    """Leave out what was denied, and the others get the same answers: it had cost nobody anything (E-4)."""
    data = bundle(*map(without_loops, policies))
    told = tell(world(data), traffic)
    kept: list[Asked] = []
    waited = 0.0
    for (asked, step), reply in zip(traffic, told, strict=True):
        waited += step
        if reply[0] == 200:
            kept.append((asked, waited))
            waited = 0.0
    assert [bare(reply) for reply in tell(world(data), kept)] == [bare(reply) for reply in told if reply[0] == 200]


class Forgetful(dict[tuple[object, ...], CallerProfile]):
    """A memory that remembers nobody."""

    def __setitem__(self, _key: object, _value: object) -> None:
        return


@given(policies=ENFORCED, defaults=DEFAULTS, traffic=TRAFFIC)
def test_remembering_senders_changes_no_answer(policies: list[Json], defaults: Json, traffic: list[Asked]) -> None:
    """What is remembered about who sends is what would be worked out again (E-7)."""
    data = bundle(*policies, defaults=defaults)
    forgetful = world(data)
    assert forgetful.engine.bundle is not None
    forgetful.engine.bundle.senders._known = Forgetful()
    assert tell(world(data), traffic) == tell(forgetful, traffic)
