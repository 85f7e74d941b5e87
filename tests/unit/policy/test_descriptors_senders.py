"""What is remembered of a sender, and when it must not be."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import jwt
import pytest

from breakloop.clock import FakeClock
from breakloop.model.call import Call
from breakloop.policy.descriptors import CallerProfiles, ContextSettings, Descriptors, steady
from breakloop.policy.jwt import JwtKeys

SECRET = "a secret of thirty-two bytes, or more"


def senders(clock: FakeClock, *used: str, keys: JwtKeys | None = None) -> tuple[CallerProfiles, Descriptors]:
    descriptors = Descriptors(ContextSettings(secret=b"s", jwt=keys), clock)
    return CallerProfiles(descriptors, used), descriptors


def sent(peer: str = "192.0.2.1", query: str = "", **fields: str) -> Call:
    headers = {name.replace("_", "-"): value.encode() for name, value in fields.items()}
    return Call("GET", "/", headers=headers, peer=peer, query=query)


@dataclass
class Head:
    """What the gateway found that requests have in common."""

    varying: tuple[str, ...] = ()
    sender: Any = None


def with_head(head: Head, peer: str = "192.0.2.1", path_agent: str = "", upstream: str = "", **fields: str) -> Call:
    headers = {name.replace("_", "-"): value.encode() for name, value in fields.items()}
    return Call("GET", "/", headers=headers, peer=peer, path_agent=path_agent, upstream=upstream, shared_head=head)


def bearer(**claims: object) -> str:
    return "Bearer " + jwt.encode(dict(claims), SECRET)


def test_the_same_fields_are_the_same_sender(clock: FakeClock) -> None:
    """And the call knows him without working it out again (C-7)."""
    known, descriptors = senders(clock)
    first = known.find(sent(authorization="Bearer k", x_agent_id="a"), clock.now())
    again = sent(authorization="Bearer k", x_agent_id="a")
    assert first is not None
    first.caller, first.ip, first.claims = "key:remembered", "192.0.2.99", {"org": "remembered"}
    known.find(again, clock.now())
    assert again.identity.profile is first
    assert (descriptors.caller(again), descriptors.agent(again)) == ("key:remembered", "a")
    assert (descriptors.client_ip(again), descriptors.claims(again)) == ("192.0.2.99", {"org": "remembered"})


@pytest.mark.parametrize(
    "other",
    [
        {"authorization": "Bearer other"},
        {"authorization": "Bearer k", "x_agent_id": "b"},
        {"authorization": "Bearer k", "peer": "192.0.2.2"},
        {"authorization": "Bearer k", "x_forwarded_for": "203.0.113.1"},
        {"authorization": "Bearer k", "x_tool": "t"},
        {"authorization": "Bearer k", "user_agent": "GPTBot"},
        {"authorization": "Bearer k", "x_country_code": "NO"},
    ],
)
def test_whatever_a_descriptor_in_use_reads_makes_another_sender(clock: FakeClock, other: dict[str, str]) -> None:
    """Nobody gets what was worked out for somebody else (C-6)."""
    known, _ = senders(clock, "header:x-tool", "ua:bot", "ip:country")
    first = known.find(sent(authorization="Bearer k"), clock.now())
    assert known.find(sent(**other), clock.now()) is not first


def test_fields_that_nobody_reads_make_no_difference(clock: FakeClock) -> None:
    """A request id that changes each time must not fill the memory."""
    known, _ = senders(clock, "jwt:org")
    first = known.find(sent(authorization="Bearer k", x_request_id="1"), clock.now())
    assert known.find(sent(authorization="Bearer k", x_request_id="2"), clock.now()) is first


def test_a_shared_head_refers_to_its_sender(clock: FakeClock) -> None:
    """Its fields are not read again: those of the last call are others, which no real one with this head has."""
    known, _ = senders(clock)
    head = Head(varying=("x-request-id",))
    first, second, third = (known.find(with_head(head, authorization=key), clock.now()) for key in ("a", "a", "b"))
    assert first is second is third is not None
    assert known.find(sent(authorization="b"), clock.now()) is not first


@pytest.mark.parametrize(
    "other", [{"peer": "192.0.2.2"}, {"path_agent": "b"}, {"upstream": "openai"}], ids=["peer", "path", "proxied"]
)
def test_a_shared_head_in_another_place_is_another_sender(clock: FakeClock, other: dict[str, str]) -> None:
    """Two clients may send the same head (C-6)."""
    known, _ = senders(clock)
    head = Head()
    for _ in range(3):
        own = known.find(with_head(head, authorization="a"), clock.now())
        assert own is known.find(sent(authorization="a"), clock.now())
        assert known.find(with_head(head, authorization="a", **other), clock.now()) is not own


@pytest.mark.parametrize("varying", [("authorization",), ("x-forwarded-for",), ("x-trace", "x-tool")])
def test_a_head_whose_senders_may_differ_refers_to_none(clock: FakeClock, varying: tuple[str, ...]) -> None:
    """A field that tells who sends is read each time (C-6)."""
    known, _ = senders(clock, "header:x-tool")
    head = Head(varying)
    for _ in range(3):
        assert known.find(with_head(head, authorization="a"), clock.now()) is not None
    assert head.sender is None


def test_a_length_that_is_a_descriptor_is_read_each_time(clock: FakeClock) -> None:
    """It differs in all heads, so it is not listed with what varies (C-6)."""
    known, _ = senders(clock, "header:content-length")
    head = Head()
    found = [known.find(with_head(head, content_length=size), clock.now()) for size in ("1", "1", "2")]
    assert found[0] is found[1] is not found[2]


def test_a_shared_head_knows_no_sender_of_another_bundle(clock: FakeClock) -> None:
    """Nor does it keep one in memory."""
    head = Head()
    known, _ = senders(clock)
    known.find(with_head(head, authorization="a"), clock.now())
    before = known.find(with_head(head, authorization="a"), clock.now())
    following, _ = senders(clock, "header:x-tool")
    assert following.find(with_head(head, authorization="a"), clock.now()) is not before
    for _ in range(2):
        known.find(with_head(head, authorization="a"), clock.now())
    del known, before
    gc.collect()
    assert head.sender[0]() is None
    assert following.find(with_head(head, authorization="a"), clock.now()) is not None


def test_other_header_fields_are_not_those_of_the_shared_head(clock: FakeClock) -> None:
    """A body that is decompressed changes them."""
    known, _ = senders(clock, "header:x-tool")
    head = Head()
    known.find(with_head(head, x_tool="a"), clock.now())
    before = known.find(with_head(head, x_tool="a"), clock.now())
    changed = with_head(head, x_tool="a")
    changed.replace_body(b"", {"x-tool": b"b"})
    assert known.find(changed, clock.now()) is not before


@pytest.mark.parametrize("query", ["key=abc", "a=1&key=abc", "%6bey=abc"])
def test_a_key_in_the_query_is_read_each_time(clock: FakeClock, query: str) -> None:
    """`?key=` names the caller when no field does, an empty one neither (C-7)."""
    known, _ = senders(clock)
    assert known.find(sent(query=query), clock.now()) is None
    assert known.find(sent(query=query, authorization="Bearer "), clock.now()) is None
    assert known.find(sent(query=query, authorization="Bearer real"), clock.now()) is not None


def test_repeated_fields_are_read_each_time(clock: FakeClock) -> None:
    """A second X-Forwarded-For is not in `headers` (C-4)."""
    known, _ = senders(clock)
    call = Call("GET", "/", peer="192.0.2.1", repeated=(("x-forwarded-for", b"203.0.113.9"),))
    assert known.find(call, clock.now()) is None


def test_claims_are_forgotten_when_the_token_expires(clock: FakeClock) -> None:
    """A remembered sender is no longer who he was once his token's time is over, or before it begins (C-3)."""
    known, _ = senders(clock, keys=JwtKeys(secret=SECRET))
    start = int(clock.now())
    fields = {"authorization": bearer(sub="u", nbf=start + 10, exp=start + 20)}
    callers = []
    head = Head()
    for _ in range(4):
        known.find(with_head(head, **fields), clock.now())
        sender = known.find(with_head(head, **fields), clock.now())
        assert sender is not None
        callers.append(sender.caller.partition(":")[0])
        clock.advance(8)
    assert callers == ["key", "key", "sub", "key"]


def test_new_keys_make_everybody_new(clock: FakeClock, tmp_path: object) -> None:
    """What a withdrawn key signed no longer counts, remembered or not (C-3)."""
    known, descriptors = senders(clock, keys=JwtKeys(secret=SECRET))
    fields = {"authorization": bearer(sub="u")}
    head = Head()
    first = known.find(with_head(head, **fields), clock.now())
    assert known.find(with_head(head, **fields), clock.now()) is first
    descriptors.tokens.key_set = type(descriptors.tokens.key_set)((), "other keys")
    second = known.find(with_head(head, **fields), clock.now())
    assert second is not None
    assert (second.caller.partition(":")[0], second.claims) == ("key", {})


def test_unknown_tokens_are_looked_at_again(clock: FakeClock) -> None:
    """The key of a token that cannot be verified yet may be on its way (C-3)."""
    known, _ = senders(clock, keys=JwtKeys(secret=SECRET))
    call = sent(authorization="Bearer " + jwt.encode({"sub": "u"}, "another secret of thirty-two bytes or so"))
    assert known.find(call, clock.now()) is not known.find(call, clock.now())


def test_long_fields_are_not_remembered(clock: FakeClock) -> None:
    """Nobody chooses how much memory a sender takes (Y-2)."""
    known, _ = senders(clock)
    assert known.find(sent(authorization="Bearer " + "x" * 5000), clock.now()) is None


def test_only_so_many_are_remembered(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of new senders does not grow the memory (Y-2)."""
    monkeypatch.setattr("breakloop.policy.descriptors._PROFILES_MAX", 10)
    known, _ = senders(clock)
    for number in range(100):
        known.find(sent(authorization=f"Bearer {number}"), clock.now())
        assert len(known._known) <= 10
    last = known.find(sent(authorization="Bearer 99"), clock.now())
    assert known.find(sent(authorization="Bearer 99"), clock.now()) is last


def test_what_is_steady() -> None:
    """Only what header fields and the peer say can be remembered of a sender."""
    assert all(map(steady, ["jwt:a.b", "header:x", "ip:address", "ua:bot", "caller:key", "agent:id"]))
    assert not any(map(steady, ["query:a", "llm:model", "tool:name", "agent:session", "project:id", "upstream:name"]))
