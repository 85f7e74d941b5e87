"""What follows from who sends a request, remembered: an agent sends thousands of requests with the same key, token and
address, and everything worked out from these alone (caller, claims, the buckets of its rules) is the same each time.

One memory per compiled bundle, so a new bundle starts with an empty one. Bounded; forgotten when token keys change or
the token's time is over. What depends on path, query or body is never kept here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from breakloop.model.call import CREDENTIAL_HEADERS, Call
from breakloop.policy.client import HEADERS as GEO_HEADERS
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.rules import CompiledRule
from breakloop.store.ops import Op

# What names the caller, his agent and his address (SPEC C-4, C-7).
_FIELDS: Final = (*CREDENTIAL_HEADERS, "x-agent-id", "x-forwarded-for", "forwarded")
_STEADY: Final = ("jwt:", "header:", "ip:", "ua:", "caller:", "agent:id")
_REMEMBERED: Final = 8192
CHARGES_MAX: Final = 64  # policies whose charges one sender keeps
_KEY_MAX: Final = 4096  # longer ones are worked out each time, so that nobody can fill the memory with them


def steady(name: str) -> bool:
    """Tell whether a descriptor depends on nothing but the sender."""
    return name.startswith(_STEADY)


class CachedCharges(NamedTuple):
    """What the rules of one policy charge one sender: operations where they are the same each time, else the rule with
    its keys. From `begins` to `ends` that is so: the keys of budgets tell their period."""

    fixed: tuple[Op, ...] | None  # all of it, where nothing depends on the call
    parts: tuple[tuple[tuple[Op, ...], CompiledRule | None, Sequence[str]], ...]
    begins: float
    ends: float


class CallerProfile:
    """One sender under one bundle."""

    __slots__ = ("agent", "begins", "caller", "charges", "claims", "ends", "identities", "ip", "keys", "verified")

    def __init__(self, call: Call, descriptors: Descriptors) -> None:
        self.keys, self.begins, self.ends = descriptors.tokens.holds(call.headers.get("authorization"))
        self.claims: Mapping[str, object] = descriptors.claims(call)
        self.verified = call.identity.verified
        self.caller = descriptors.caller(call)
        self.agent = descriptors.agent(call)
        self.ip = descriptors.client_ip(call)
        self.charges: dict[int, CachedCharges] = {}  # by policy and mode: what its rules charge
        self.identities: dict[int, str] = {}  # by detector: the sender's part of its fingerprints


class CallerProfiles:
    """Finds the sender of a call."""

    __slots__ = ("_descriptors", "_known", "_names", "_tokens")

    def __init__(self, descriptors: Descriptors, used: Iterable[str]) -> None:
        self._descriptors = descriptors
        self._tokens = descriptors.tokens
        self._names = _fields_read(used)
        self._known: dict[tuple[object, ...], CallerProfile] = {}

    def find(self, call: Call, now: float) -> CallerProfile | None:
        """Return the sender, or None when this request does not name him by header fields alone."""
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
            # A token without claims is looked at again: its key may be on the way.
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = sender
        call.identity.profile = sender
        return sender


def _by_query(call: Call) -> bool:
    """An API key in the query (`?key=`) counts when no header field has one; an empty field names nobody."""
    return len(call.headers.get("authorization", b"").strip()) <= len(b"bearer")


def _fields_read(used: Iterable[str]) -> tuple[str, ...]:
    """Every header field that steady descriptors in use read."""
    names = set(_FIELDS)
    for name in used:
        if name.startswith("header:"):
            names.add(name.removeprefix("header:"))
        elif name.startswith("ua:"):
            names.add("user-agent")
        elif name.startswith("ip:") and name != "ip:address":
            names.update(GEO_HEADERS.values())
    return tuple(sorted(names))
