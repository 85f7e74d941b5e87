"""What is remembered of a sender, and when it must not be."""

from __future__ import annotations

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
    for _ in range(4):
        sender = known.find(sent(**fields), clock.now())
        assert sender is not None
        callers.append(sender.caller.partition(":")[0])
        clock.advance(8)
    assert callers == ["key", "key", "sub", "key"]


def test_new_keys_make_everybody_new(clock: FakeClock, tmp_path: object) -> None:
    """What a withdrawn key signed no longer counts, remembered or not (C-3)."""
    known, descriptors = senders(clock, keys=JwtKeys(secret=SECRET))
    fields = {"authorization": bearer(sub="u")}
    first = known.find(sent(**fields), clock.now())
    assert known.find(sent(**fields), clock.now()) is first
    descriptors.tokens.key_set = type(descriptors.tokens.key_set)((), "other keys")
    second = known.find(sent(**fields), clock.now())
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
