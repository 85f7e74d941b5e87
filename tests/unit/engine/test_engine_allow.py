"""Allow lists and announced repeats, through the engine: whose repeats are fine, and until when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakloop.model.call import Call
from tests.builders import Json, at, bundle, chat, exact, policy, tail, user, world

CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "nothing found"}
ONE = {"authorization": "Bearer sk-one", "x-agent-id": "batch"}
TOOLS = chat(user("go"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, headers=ONE)


def caller_of(asked: Call) -> str:
    return world().descriptors.caller(asked)


def fingerprint_of(block: Json) -> str:
    loop = world(bundle(policy("p", loop=block))).decide(TOOLS, 3).loop
    assert loop is not None
    return loop.fingerprint


ALLOWED: dict[str, Callable[[Json], str]] = {
    "routes": lambda _: "/v1/chat/*",
    "agents": lambda _: "batch",
    "callers": lambda _: caller_of(TOOLS),
    "tools": lambda _: "search",
    "fingerprints": fingerprint_of,
}


@pytest.mark.parametrize("kind", ALLOWED)
@pytest.mark.parametrize("block", [exact(3), tail(max_hits=2)], ids=["exact", "tail"])
def test_allow_lists_of_each_kind_expire(kind: str, block: Json) -> None:
    """What is listed is not judged, until its entry expires; then it is (LD-6)."""
    value = ALLOWED[kind](block)
    for_ever = world(bundle(policy("p", loop={**block, "allow": {kind: [value]}})))
    assert for_ever.decide(TOOLS, 20).allowed
    snoozed = world(bundle(policy("p", loop={**block, "allow": {kind: [{"value": value, "expires_at": at(100)}]}})))
    assert snoozed.decide(TOOLS, 20).allowed
    snoozed.clock.advance(100)
    assert not snoozed.decide(TOOLS, 3).allowed


@pytest.mark.parametrize(
    ("kind", "value"),
    [("routes", "/v1/chat"), ("agents", "other"), ("callers", "ip:x"), ("tools", "other"), ("fingerprints", "0" * 32)],
)
def test_allow_lists_allow_nobody_else(kind: str, value: str) -> None:
    """An entry is for what it names (LD-6)."""
    here = world(bundle(policy("p", loop={**exact(3), "allow": {kind: [value]}})))
    assert not here.decide(TOOLS, 3).allowed


def test_a_tool_list_needs_every_tool_of_the_tail() -> None:
    """One listed tool does not excuse the others (LD-6)."""
    other = {**CALL, "function": {"name": "delete", "arguments": "{}"}}
    both = chat(user("go"), {"role": "assistant", "content": None, "tool_calls": [CALL, other]}, RESULT)
    here = world(bundle(policy("p", loop={**exact(3), "allow": {"tools": ["search"]}})))
    assert not here.decide(both, 3).allowed


def test_a_tool_list_is_not_changed_by_what_another_policy_reads() -> None:
    """A shadow policy that looks at more messages does not change whose repeats are fine (E-1, LD-6)."""
    other = {**CALL, "function": {"name": "delete", "arguments": "{}"}}
    early = {"role": "assistant", "content": None, "tool_calls": [other]}
    asked = chat(early, user("a"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT)
    listed = policy("p", loop={**exact(3), "allow": {"tools": ["search"]}})
    curious = policy("s", loop=tail(tail_messages=10), mode="shadow")
    for data in (bundle(listed), bundle(listed, curious)):
        assert world(data).decide(asked, 20).allowed


def test_expect_repeats_is_honoured_for_named_callers_only() -> None:
    """`X-Breakloop-Expect-Repeats: N` raises the limit for callers the policy names, and for nobody else (LD-6)."""
    named = chat(headers={"authorization": "Bearer sk-one", "x-breakloop-expect-repeats": "10"})
    block = exact(3, expect_repeats={"callers": [caller_of(named)]})
    here = world(bundle(policy("p", loop=block)))
    assert here.decide(named, 10).allowed
    assert not here.decide(named).allowed
    stranger = chat(headers={"authorization": "Bearer sk-two", "x-breakloop-expect-repeats": "10"})
    assert not here.decide(stranger, 3).allowed


@pytest.mark.parametrize("value", ["1", "0", "-5", "ten", "", "1.5", "9" * 50])
def test_expect_repeats_cannot_lower_or_break_the_limit(value: str) -> None:
    """Nonsense is ignored, a small number does not lower the limit, a huge one is bounded (LD-6)."""
    asked = chat(headers={"authorization": "Bearer sk-one", "x-breakloop-expect-repeats": value})
    here = world(bundle(policy("p", loop=exact(3, expect_repeats={"callers": [caller_of(asked)]}))))
    assert here.decide(asked, 2).allowed
    if not value.startswith("9"):
        assert not here.decide(asked).allowed
