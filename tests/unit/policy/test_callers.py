"""Who may use the traffic port: known keys in every place a client may send one, and nobody else."""

from __future__ import annotations

from hashlib import sha256

import jwt
import pytest

from breakloop.clock import FakeClock
from breakloop.model.call import Call
from breakloop.policy.client import CallerKeys
from breakloop.policy.descriptors import CallerProfiles, ContextSettings, Descriptors
from breakloop.policy.jwt import JwtKeys

KEY = b"bl-alice-0123456789"


def entry(name: str, key: bytes) -> str:
    return f"{name}={sha256(key).hexdigest()}"


def sent(headers: dict[str, bytes], query: bytes = b"") -> Call:
    return Call("POST", "/", headers=headers, query=query.decode("latin-1"), peer="192.0.2.1")


@pytest.fixture
def callers() -> CallerKeys:
    return CallerKeys([entry("bob", b"bl-bob"), entry("alice", KEY), entry("alice", b"bl-alice-new")])


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"authorization": b"Bearer " + KEY}, b""),
        ({"authorization": b"bearer  " + KEY}, b""),
        ({"authorization": KEY}, b""),
        ({"x-api-key": KEY}, b""),
        ({"api-key": KEY}, b""),
        ({"x-goog-api-key": KEY}, b""),
        ({"x-breakloop-key": KEY}, b""),
        ({"x-breakloop-key": KEY, "authorization": b"Bearer sk-of-a-provider"}, b""),
        ({"authorization": b"Bearer sk-of-a-provider", "x-api-key": KEY}, b""),
        ({}, b"key=" + KEY),
        ({}, b"alt=sse&key=" + KEY + b"&x=y"),
        ({}, b"%6bey=bl%2Dalice%2d0123456789"),
        ({}, b"key=wrong&key=" + KEY),
        ({"authorization": b"Bearer wrong"}, b"key=" + KEY),
    ],
)
def test_known_keys(callers: CallerKeys, headers: dict[str, bytes], query: bytes) -> None:
    """Wherever the client's SDK puts a key; a field of our own beside the provider's (Y-6)."""
    assert [*callers.find(sent(headers, query))] == ["alice"]


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, b""),
        ({"authorization": b""}, b""),
        ({"authorization": b"Bearer"}, b""),
        ({"authorization": b"Bearer "}, b""),
        ({"authorization": b"Basic " + KEY}, b""),
        ({"authorization": b"Bearer " + KEY[:-1]}, b""),
        ({"authorization": b"Bearer " + KEY + b"x"}, b""),
        ({"authorization": b"Bearer " + KEY.upper()}, b""),
        ({"authorization": b"Bearer " + sha256(KEY).hexdigest().encode()}, b""),
        ({"x-api-key": sha256(KEY).digest()}, b""),
        ({"cookie": KEY, "x-key": KEY}, b""),
        ({}, b"monkey=" + KEY),
        ({}, b"key=&Key=" + KEY),
        ({}, KEY),
        ({"x-api-key": b"alice"}, b"%"),
    ],
)
def test_unknown_keys(callers: CallerKeys, headers: dict[str, bytes], query: bytes) -> None:
    """Nothing, half a key, a digest, or a key in another place opens nothing (Y-6)."""
    assert callers.find(sent(headers, query)) == {}


def test_a_key_is_changed_without_a_gap(callers: CallerKeys) -> None:
    """Two keys of one name are both good (Y-6)."""
    found = [callers.find(sent({"x-api-key": key})) for key in (b"bl-alice-new", KEY, b"bl-bob")]
    assert found == [{"alice": b"bl-alice-new"}, {"alice": KEY}, {"bob": b"bl-bob"}]


def test_the_own_field_follows_the_prefix() -> None:
    """`header_prefix` is a setting (A-1)."""
    callers = CallerKeys([entry("alice", KEY).upper().replace("ALICE", "alice")], prefix="X-Own-")
    assert callers.find(sent({"x-own-key": KEY})) == {"alice": KEY}
    assert callers.find(sent({"x-other-key": KEY})) == {}


def test_the_library_is_known_whatever_the_prefix_is() -> None:
    """It sends `X-Breakloop-Key`, beside the provider's key of the request that it asks about (A-1, Y-6)."""
    callers = CallerKeys([entry("alice", KEY)], prefix="X-Own-")
    assert [*callers.find(sent({"x-breakloop-key": KEY, "authorization": b"Bearer sk-provider"}))] == ["alice"]


def test_stored_digests_are_not_what_is_compared(callers: CallerKeys) -> None:
    """A look-up takes no longer the more of a stored digest is guessed, because that is not what it looks for (Y-5)."""
    digests = {sha256(key).digest() for key in (KEY, b"bl-bob", b"bl-alice-new")}
    assert not digests & callers._names.keys()
    assert callers._names.keys() != CallerKeys([entry("alice", KEY)])._names.keys()


# -- the caller of a request ------------------------------------------------------------------------------------------

JWT_SECRET = "a secret of thirty-two bytes, or more"


@pytest.fixture
def read(callers: CallerKeys) -> Descriptors:
    return Descriptors(ContextSettings(secret=b"k", callers=callers, jwt=JwtKeys(secret=JWT_SECRET)), FakeClock())


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"authorization": b"Bearer " + KEY}, b""),
        ({"authorization": b"Bearer " + KEY, "x-api-key": KEY}, b""),
        ({"authorization": b"Bearer " + KEY, "x-api-key": b"sk-of-a-provider"}, b""),
        ({"authorization": b"Bearer anything", "x-api-key": KEY}, b""),
        ({"authorization": b"Bearer anything", "x-breakloop-key": KEY}, b""),
        ({"x-breakloop-key": KEY}, b""),
        ({"authorization": b"Bearer anything"}, b"key=" + KEY),
        ({"authorization": b"Bearer " + jwt.encode({"sub": "somebody"}, JWT_SECRET).encode(), "api-key": KEY}, b""),
    ],
)
def test_a_known_key_names_the_caller(read: Descriptors, headers: dict[str, bytes], query: bytes) -> None:
    """Whatever other credentials the request carries, so that nobody sheds a limit by adding one (C-7, Y-6)."""
    call = sent(headers, query)
    assert (read.caller(call), read.agent(call)) == ("caller:alice", "caller:alice")
    assert read.getter("caller:name")(call) == "alice"
    assert read.getter("caller:key")(call) == read.getter("caller:key")(sent({"x-api-key": KEY}))


def test_a_caller_keeps_its_name_when_its_key_changes(read: Descriptors) -> None:
    """Loops and holds go on with the name; `caller:key` is another one (Y-6)."""
    old, new = sent({"x-api-key": KEY}), sent({"x-api-key": b"bl-alice-new"})
    assert read.caller(old) == read.caller(new)
    assert read.getter("caller:key")(old) != read.getter("caller:key")(new)


def test_the_own_field_decides_alone(read: Descriptors) -> None:
    """The other fields hold the key of a provider then, which may be listed too (Y-6)."""
    call = sent({"x-breakloop-key": KEY, "authorization": b"Bearer bl-bob"})
    assert (read.name_caller(call), read.caller(call)) == (1, "caller:alice")


def test_keys_of_two_callers_name_nobody(read: Descriptors) -> None:
    """The request is refused where keys are required; elsewhere its first key identifies it (Y-6)."""
    call = sent({"authorization": b"Bearer bl-bob", "x-api-key": KEY})
    assert read.name_caller(call) == 2
    assert read.caller(call).startswith("key:")
    assert read.getter("caller:name")(call) is None


def test_what_is_remembered_of_a_sender_is_remembered_of_its_caller(callers: CallerKeys) -> None:
    """Requests that differ in nothing but the key of their caller have different senders (C-6)."""
    read = Descriptors(ContextSettings(secret=b"k", callers=callers), FakeClock())
    known = CallerProfiles(read, ())
    calls = [sent({"x-breakloop-key": key, "authorization": b"Bearer sk"}) for key in (KEY, b"bl-bob", KEY)]
    calls += [sent({"authorization": b"Bearer sk"}, b"key=" + key) for key in (KEY, b"bl-bob")]
    found = [known.find(call, 0.0) for call in calls]
    assert [read.caller(call) for call in calls] == [f"caller:{name}" for name in ("alice", "bob", "alice") * 2][:5]
    assert found[0] is found[2] is not found[1]
