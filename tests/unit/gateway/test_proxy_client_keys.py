"""Who may use the traffic port: known keys in every place a client may send one, and nobody else."""

from __future__ import annotations

from hashlib import sha256

import pytest

from breakloop.gateway.proxy import ClientKeys

KEY = b"bl-alice-0123456789"


def entry(name: str, key: bytes) -> str:
    return f"{name}={sha256(key).hexdigest()}"


@pytest.fixture
def callers() -> ClientKeys:
    return ClientKeys([entry("bob", b"bl-bob"), entry("alice", KEY), entry("alice", b"bl-alice-new")])


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
def test_known_keys(callers: ClientKeys, headers: dict[str, bytes], query: bytes) -> None:
    """Wherever the client's SDK puts a key; a field of our own beside the provider's (Y-6)."""
    assert callers.check(headers, query) == "alice"


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
def test_unknown_keys(callers: ClientKeys, headers: dict[str, bytes], query: bytes) -> None:
    """Nothing, half a key, a digest, or a key in another place opens nothing (Y-6)."""
    assert callers.check(headers, query) is None


def test_a_key_is_changed_without_a_gap(callers: ClientKeys) -> None:
    """Two keys of one name are both good (Y-6)."""
    assert callers.check({"x-api-key": b"bl-alice-new"}) == callers.check({"x-api-key": KEY}) == "alice"
    assert callers.check({"x-api-key": b"bl-bob"}) == "bob"


def test_the_own_field_follows_the_prefix() -> None:
    """`header_prefix` is a setting (A-1)."""
    callers = ClientKeys([entry("alice", KEY).upper().replace("ALICE", "alice")], prefix="X-Own-")
    assert callers.check({"x-own-key": KEY}) == "alice"
    assert callers.check({"x-other-key": KEY}) is None


def test_the_library_is_known_whatever_the_prefix_is() -> None:
    """It sends `X-Breakloop-Key`, beside the provider's key of the request that it asks about (A-1, Y-6)."""
    callers = ClientKeys([entry("alice", KEY)], prefix="X-Own-")
    assert callers.check({"x-breakloop-key": KEY, "authorization": b"Bearer sk-provider"}) == "alice"


def test_stored_digests_are_not_what_is_compared(callers: ClientKeys) -> None:
    """A look-up takes no longer the more of a stored digest is guessed, because that is not what it looks for (Y-5)."""
    digests = {sha256(key).digest() for key in (KEY, b"bl-bob", b"bl-alice-new")}
    assert not digests & callers._names.keys()
    assert callers._names.keys() != ClientKeys([entry("alice", KEY)])._names.keys()
