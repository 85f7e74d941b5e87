"""Caches what depends only on the sender of a request. An agent sends thousands of requests with the same key, token
and address; everything derived from these alone (caller, claims, the buckets of its rules) is the same for each of
them.

There is one bounded cache per compiled bundle, so a new bundle starts with an empty one. An entry is dropped when
the token keys change or the token expires. Nothing that depends on the path, the query or the body is cached here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from breakloop.model.call import CREDENTIAL_HEADERS, Call
from breakloop.policy.client import HEADERS as GEO_HEADERS
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.rules import CompiledRule
from breakloop.store.ops import Op

# The fields that identify the caller, its agent and its address.
_FIELDS: Final = (*CREDENTIAL_HEADERS, "x-agent-id", "x-forwarded-for", "forwarded")
_STEADY: Final = ("jwt:", "header:", "ip:", "ua:", "caller:", "agent:id")
_REMEMBERED: Final = 8192
CHARGES_MAX: Final = 64  # number of policies whose charges are cached per sender
_KEY_MAX: Final = 4096  # longer keys are not cached, so that clients cannot fill the cache with them


def steady(name: str) -> bool:
    """Return whether a descriptor depends only on the sender."""
    return name.startswith(_STEADY)


class CachedCharges(NamedTuple):
    """What the rules of one policy charge one sender: operations where they are always the same, or else the rule with
    its keys. Valid from `begins` to `ends`, because the keys of budgets contain their period.
    """

    fixed: tuple[Op, ...] | None  # all operations, if none depends on the call
    parts: tuple[tuple[tuple[Op, ...], CompiledRule | None, Sequence[str]], ...]
    begins: float
    ends: float


class CallerProfile:
    """A sender under one bundle."""

    __slots__ = ("agent", "begins", "caller", "charges", "claims", "ends", "identities", "ip", "keys", "verified")

    def __init__(self, call: Call, descriptors: Descriptors) -> None:
        self.keys, self.begins, self.ends = descriptors.tokens.holds(call.headers.get("authorization"))
        self.claims: Mapping[str, object] = descriptors.claims(call)
        self.verified = call.identity.verified
        self.caller = descriptors.caller(call)
        self.agent = descriptors.agent(call)
        self.ip = descriptors.client_ip(call)
        self.charges: dict[int, CachedCharges] = {}  # charges of its rules, by policy and mode
        self.identities: dict[int, str] = {}  # the sender's part of fingerprints, by detector


class CallerProfiles:
    """Finds the sender of a call."""

    __slots__ = ("_descriptors", "_known", "_names", "_tokens")

    def __init__(self, descriptors: Descriptors, used: Iterable[str]) -> None:
        self._descriptors = descriptors
        self._tokens = descriptors.tokens
        self._names = _fields_read(used)
        self._known: dict[tuple[object, ...], CallerProfile] = {}

    def find(self, call: Call, now: float) -> CallerProfile | None:
        """Return the sender, or None if header fields alone do not identify it."""
        query = call.query
        if call.repeated or (query and ("key=" in query or "%" in query) and _by_query(call)):
            return None
        key = (call.peer, call.path_agent, *map(call.headers.get, self._names))
        sender = self._known.get(key)
        if sender is None or sender.keys is not self._tokens.key_set or not sender.begins <= now < sender.ends:
            return self._meet(call, key)
        identity = call.identity
        identity.profile, identity.caller, identity.agent = sender, sender.caller, sender.agent
        return sender

    def _meet(self, call: Call, key: tuple[object, ...]) -> CallerProfile | None:
        if sum(len(part) for part in key if isinstance(part, str | bytes)) > _KEY_MAX:
            return None
        sender = CallerProfile(call, self._descriptors)
        if sender.claims or not self._tokens.verifies:
            # A token without claims is not cached: its key may not have been fetched yet.
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = sender
        call.identity.profile = sender
        return sender


def _by_query(call: Call) -> bool:
    """Return whether an API key in the query (`?key=`) counts: only if no header field has one. An empty field does not
    identify a caller.
    """
    return len(call.headers.get("authorization", b"").strip()) <= len(b"bearer")


def _fields_read(used: Iterable[str]) -> tuple[str, ...]:
    """Return every header field that is read by the sender-only descriptors in use."""
    names = set(_FIELDS)
    for name in used:
        if name.startswith("header:"):
            names.add(name.removeprefix("header:"))
        elif name.startswith("ua:"):
            names.add("user-agent")
        elif name.startswith("ip:") and name != "ip:address":
            names.update(GEO_HEADERS.values())
    return tuple(sorted(names))
