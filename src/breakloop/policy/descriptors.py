"""Request descriptors: names such as `header:x-team` or `agent:id`, and how their values are read from a request.

Names are validated here and resolved once per bundle to getter functions, so that reading a descriptor costs one
lookup per request. The values come from `policy.jwt`, `policy.client`, `policy.identity` and the parsed body. An
empty value counts as missing. The module also parses the query string; `?key=` holds an API key and is therefore
left out of fingerprints and logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes
from weakref import ref

import xxhash

from breakloop.clock import Clock
from breakloop.dialects import registry
from breakloop.dialects.base import KNOWN_FROM_BYTES, ParsedBody
from breakloop.dialects.content import COUNTED_FROM_BYTES, has_too_many_values
from breakloop.model.call import CREDENTIAL_HEADERS, TAIL_MESSAGES, UNREAD, Call, Chat, Profile, SharedHead, Step, Tree
from breakloop.policy import identity
from breakloop.policy.cache import MemoDict
from breakloop.policy.client import HEADERS, CallerKeys, ClientIp, Geo, bot_category
from breakloop.policy.diagnostics import did_you_mean
from breakloop.policy.identity import USER, SessionNames
from breakloop.policy.jwt import NO_CLAIMS, JwtKeys, JwtReader, claim_text
from breakloop.policy.rules import CachedCharges, Getter
from breakloop.policy.trees import TREE_HEADERS, Trees
from breakloop.store.keys import escape

if TYPE_CHECKING:
    from breakloop.dialects.known_history import KnownHistories, KnownHistory

FIXED: dict[str, tuple[str, ...]] = {
    "ip": ("address", "country", "asn", "type", "tor"),
    "ua": ("bot", "bot_category"),
    "agent": ("id", "session"),
    "caller": ("key", "name"),
    "project": ("id",),
    "llm": ("model", "provider"),
    "tool": ("name",),
    "upstream": ("name",),
}
OPEN: dict[str, str] = {"jwt": "a claim", "header": "a header name", "query": "a query parameter"}

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Identity providers may namespace claims by URL; dots separate nested claims.
_CLAIM = re.compile(r"[A-Za-z0-9_@:/-]+(?:\.[A-Za-z0-9_@:/-]+)*")
_QUERY = re.compile(r"[^\s&=#]+")
_NAME_PATTERNS = {"jwt": _CLAIM, "header": _TOKEN, "query": _QUERY}


def canonical(text: str) -> str:
    """Return the canonical spelling of a valid descriptor: header names in lower case with `-`."""
    return canonical_header(text) if text.startswith("header:") else text


def canonical_header(name: str) -> str:
    """Return the canonical spelling of a header name: lower case, with hyphens."""
    return name.strip().lower().replace("_", "-")


def fault(text: str) -> tuple[str, str] | None:
    """Return (message, hint) for an invalid descriptor, or None if it is valid."""
    kind, colon, name = text.partition(":")
    if not colon:
        return _without_kind(text)
    if kind in FIXED:
        return None if name in FIXED[kind] else _bad_name(kind, name)
    if kind in OPEN:
        if _NAME_PATTERNS[kind].fullmatch(name):
            return None
        if not name:
            return f'descriptor "{text}" has no name', f'write {OPEN[kind]} after "{kind}:"'
        return f'descriptor "{text}" contains a character that is not allowed in {OPEN[kind]}', ""
    guess = did_you_mean(kind.lower(), [*OPEN, *FIXED])
    return f'unknown descriptor kind "{kind}" in "{text}"{guess}', "kinds: " + ", ".join([*OPEN, *FIXED])


def _bad_name(kind: str, name: str) -> tuple[str, str]:
    guess = did_you_mean(name.lower(), FIXED[kind], prefix=f"{kind}:")
    return f'unknown descriptor "{kind}:{name}"{guess}', f"known: {', '.join(f'{kind}:{n}' for n in FIXED[kind])}"


def _without_kind(text: str) -> tuple[str, str]:
    every = [f"{kind}:{name}" for kind, names in FIXED.items() for name in names]
    near = [known for known in every if text in (known.replace(":", "_"), known.split(":")[0], known.replace(":", "."))]
    guess = f'; did you mean "{near[0]}"?' if near else ""
    return f'descriptor "{text}" has no kind{guess}', "write kind:name, for example header:x-tool-name or jwt:org_id"


_FIELDS_MAX: Final = 1000
_API_KEY: Final = "key"
_UNRESERVED: Final = f"{ascii_letters}{digits}_.~-".encode()
# What is left of a query of so many fields without these, if each has a name and a value. It is in canonical form then.
_PLAIN: Final = {b"=" + b"&=" * more: more + 1 for more in range(16)}
_LAST_VALUE: Final = "0breakloop0"  # stands for a value of letters and digits
_SPELLED_ONE_WAY: Final = re.compile(r"[A-Za-z0-9_.~-]*+=?[A-Za-z0-9_.~-]*+").fullmatch


def fields(call: Call) -> dict[str, list[str]]:
    """Return the decoded query: each key with its values in order. The result is cached on the call."""
    known = call.parsed.query
    if known is not None:
        return known
    found: dict[str, list[str]] = {}
    for field in call.query.split("&", _FIELDS_MAX)[:_FIELDS_MAX] if call.query else ():
        name, _, value = field.partition("=")
        if field:
            found.setdefault(_text(name), []).append(_text(value))
    call.parsed.query = found
    return found


def query_for_fingerprint(call: Call) -> str:
    """Return the query for fingerprints: sorted by key, the values of one key in order, without the API key.

    Most clients repeat a query but for its last value, such as a page. What stands around that value is cached.
    """
    query = call.query
    before, _, value = query.rpartition("=")
    if before and value.isalnum() and value.isascii():
        around = _around_last_value(before)
        if around is not None:
            return f"{around[0]}{value}{around[1]}"
    return _sorted_query(query)


def _around(before: str) -> tuple[str, str] | None:
    """Return what stands before and after the last value in the sorted query, for a query that begins like this; None
    if the value does not appear there as it is.
    """
    head, found, tail = _sorted_query(f"{before}={_LAST_VALUE}").partition(_LAST_VALUE)
    without = _sorted_query(f"{before}=")  # differs if the text that was found stands in another field, too
    return (head, tail) if found and head + tail == without else None


_around_last_value: Final = MemoDict(_around).__getitem__


def _sorted_query(query: str) -> str:
    if not query:
        return ""
    count = _PLAIN.get(query.encode("utf-8", "replace").translate(None, _UNRESERVED))
    if count is not None and "key=" not in query and query[0] != "=" and "&=" not in query:
        if count == 1:
            return query
        if count > 2:
            return "&".join(sorted(query.split("&"), key=_name))
        first, _, second = query.partition("&")
        ordered = first.partition("=")[0] <= second.partition("=")[0]
        return query if ordered else f"{second}&{first}"
    pieces = query.split("&", _FIELDS_MAX)
    # Fields beyond the limit still distinguish requests, but only by digest: they may contain a secret.
    rest = "&~" + _digest(pieces.pop()) if len(pieces) > _FIELDS_MAX else ""
    pairs = [_spelled(piece) for piece in pieces if piece]
    pairs.sort(key=_key)
    return "&".join([f"{name}={value}" for name, value in pairs if name != _API_KEY]) + rest


def _digest(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "replace"))


def _name(field: str) -> str:
    return field.partition("=")[0]


def _key(pair: tuple[str, str]) -> str:
    return pair[0]


def _spelled(piece: str) -> tuple[str, str]:
    name, _, value = piece.partition("=")
    return (name, value) if _SPELLED_ONE_WAY(piece) else (_respelled(name), _respelled(value))


def _respelled(text: str) -> str:
    raw = text.replace("+", " ").encode("utf-8", "replace")
    return quote_from_bytes(unquote_to_bytes(raw), safe="")


def _text(text: str) -> str:
    return unquote(text.replace("+", " ")) if "%" in text or "+" in text else text


_IDENTITY_ENCODING: Final = b"identity"
_NAMED: Final = "caller:"
_ADDRESS: Final = "ip:"


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """The settings that descriptors depend on."""

    secret: bytes = b""
    callers: CallerKeys | None = None
    trusted_proxies: tuple[str, ...] = ()
    proxy_trusts: bool = True  # False: only the decision service trusts them
    project: str = "default"
    project_descriptor: str = ""
    shard_by_agent: bool = False  # store the state of each agent in its own shard of the project
    jwt: JwtKeys | None = None
    geo_file: str = ""


class Descriptors:
    """Reads the descriptors of a call. Values that are expensive to compute are cached on the call."""

    def __init__(self, settings: ContextSettings, clock: Clock) -> None:
        self.tokens = JwtReader(settings.jwt, clock)
        self.callers = settings.callers
        self._of_gateways = ClientIp(settings.trusted_proxies)
        self._of_clients = self._of_gateways if settings.proxy_trusts else ClientIp(())
        self._digests = identity.IdentityHasher(settings.secret)
        self._geo = Geo(lambda call: self._addresses(call).trusted(call.peer), settings.geo_file)
        self.sessions = SessionNames(self._digests, self.caller, self.agent, self.parsed_body)
        self.trees = Trees(self._digests, self.caller, self.session, self.parsed_body)
        self.answered = self.sessions.answered
        self._histories: KnownHistories | None = None  # made for the first large body
        self.counted: tuple[bytes, bool] | None = None  # the next body, and whether it has too many values
        self._fixed = self._fixed_getters()
        self._project = settings.project
        if settings.project_descriptor == "project:id":
            raise ValueError("the project cannot be read from 'project:id', which is the project itself")
        self._project_getter = self.getter(settings.project_descriptor) if settings.project_descriptor else None
        self.project_is_steady = not settings.project_descriptor  # the same for all callers
        self.shard_by_agent = settings.shard_by_agent
        self._key_parts = MemoDict(escape)
        fixed = self.project_is_steady and not settings.shard_by_agent
        self._fixed_project = (settings.project, escape(settings.project)) if fixed else None  # the same for all calls

    def getter(self, name: str) -> Getter:
        """Return the function that reads descriptor `name` from a call. Raises `ValueError` for an invalid name."""
        if (wrong := fault(name)) is not None:
            raise ValueError(wrong[0])
        kind, _, rest = name.partition(":")
        if name in self._fixed:
            return self._fixed[name]
        if kind == "header":
            return _header_getter(canonical_header(rest))
        if kind == "query":
            return _query_getter(rest)
        return lambda call: claim_text(self.claims(call), rest)

    def caller(self, call: Call) -> str:
        """Return the caller: `caller:` with its name in the settings, `sub:` with a verified subject, `key:` with a
        digest, or `ip:` with an address.
        """
        known = call.identity.caller
        if known is None:
            sender = call.identity.profile
            known = call.identity.caller = self._find_caller(call) if sender is None else sender.caller
        return known

    def name_caller(self, call: Call) -> int:
        """Return the number of callers in the settings whose keys a call carries. If it is one, that is the caller,
        whatever other credentials the call carries.
        """
        found = self.callers.find(call) if self.callers is not None else {}
        if len(found) == 1:
            call.identity.caller = _NAMED + next(iter(found))
        return len(found)

    def name_asked(self, call: Call) -> int:
        """Do the same for a call that a gateway asks about: `X-Breakloop-Key` is the key of the gateway then. It admits
        the call, and does not name the caller.
        """
        callers, headers = self.callers, call.headers
        if callers is None or not any(name in headers for name in callers.own_headers):
            return self.name_caller(call)
        found = len(callers.find(call))
        call.replace_body(call.body, {name: headers[name] for name in headers if name not in callers.own_headers})
        self.name_caller(call)
        return found

    def credential(self, call: Call) -> str:
        """Return the caller if a credential identifies it, or ""."""
        caller = self.caller(call)
        return "" if caller.startswith(_ADDRESS) else caller

    def agent(self, call: Call) -> str:
        """Return the agent from the path or from X-Agent-Id, or else the caller."""
        known = call.identity.agent
        if known is None:
            sender = call.identity.profile
            known = call.identity.agent = self._find_agent(call) if sender is None else sender.agent
        return known

    def project(self, call: Call) -> str:
        """Return the project: the value of the descriptor named in the settings, or else the configured project."""
        if self._project_getter is None:
            return self._project
        named = self._project_getter(call)
        return self._digests.bounded(named) if named else self._project

    def assign_project(self, call: Call) -> tuple[str, str]:
        """Set the project and the shard of a call. Returns the name of the project and its escaped form for keys."""
        identity = call.identity
        fixed = self._fixed_project
        if fixed is not None:
            identity.project, identity.shard = fixed
            return fixed
        name = identity.project = self.project(call)
        in_keys = self._key_parts[name]
        identity.shard = f"{in_keys}|{self._key_parts[self.agent(call)]}" if self.shard_by_agent else in_keys
        return name, in_keys

    def session(self, call: Call) -> str:
        """Return the session id sent by the client, or one derived from the start of the conversation, or "". A caller
        may send the id of another caller: always combine it with the caller.
        """
        known = call.identity.session
        if known is None:  # cached, so that it stays the same until the response is recorded
            known = call.identity.session = self.sessions.find(call)
        return known

    def derived(self, call: Call) -> bool:
        """Return whether the session id was derived from the start of the conversation because the client sent none."""
        identity = call.identity
        if identity.session is None:  # as in `session`
            identity.session = self.sessions.find(call)
        return identity.session_derived

    def model_and_system(self, call: Call) -> str:
        """Return what the requests of one program have in common regardless of their topic: model and system prompt."""
        body, chat = self.parsed_body(call), self.chat(call)
        return f"{chat.model}\0{body.system()}" if body and chat else ""

    def task(self, call: Call) -> str:
        """Return a digest of the user's first message without times and ids, or ""."""
        from breakloop.detect.steps.fingerprints import steady  # noqa: PLC0415 - only for requests that come again

        body = self.parsed_body(call)
        text = body.task() if body else ""
        return xxhash.xxh3_128_hexdigest(steady(text.encode("utf-8", "replace"))) if text else ""

    def parent(self, call: Call) -> str:
        """Return the id of the parent session or agent, as sent by the client; "" if it sent none."""
        return self._digests.bounded(identity.parent_header(call))

    def tree(self, call: Call) -> Tree:
        """Return the place of the session in a tree of agents; `NO_TREE` if the call names neither root, parent, depth
        nor a trace. As with sessions, a caller may send any id: always combine the root with the caller.
        """
        known = call.identity.tree
        if known is None:
            known = call.identity.tree = self.trees.find(call)
        return known

    def states_tree(self, call: Call) -> bool:
        """Tell whether a header field of a call names its tree. Traces do not count."""
        return not TREE_HEADERS.isdisjoint(call.headers)

    def tree_root(self, call: Call) -> str:
        """Return the session at the top of the call's tree, which is its own session if nothing started it; or ""."""
        return self.tree(call).root or self.session(call)

    def user(self, call: Call) -> str:
        named = self.sessions.named(call)
        return named if named.startswith(USER) else ""

    def trace(self, call: Call) -> str:
        """Return the id of the call's trace if an earlier call of the same caller had the same one, or else ""."""
        self.session(call)  # reads the body if necessary
        return self.sessions.trace(call)

    def client_ip(self, call: Call) -> str:
        known = call.identity.ip
        if known is None:
            sender = call.identity.profile
            known = call.identity.ip = self._addresses(call).find(call) if sender is None else sender.ip
        return known

    def _addresses(self, call: Call) -> ClientIp:
        return self._of_clients if call.upstream else self._of_gateways  # only the proxy has upstreams

    def claims(self, call: Call) -> Mapping[str, object]:
        """Return the claims of the token. Afterwards, `call.identity.verified` is whether the token was verified."""
        known = call.identity.claims
        if known is not None:
            return known
        sender = call.identity.profile
        if sender is not None:
            known, call.identity.verified = sender.claims, sender.verified
        else:
            authorization = call.headers.get("authorization")
            known = self.tokens.claims(authorization) if authorization else NO_CLAIMS
            call.identity.verified = self.tokens.verifies and known is not NO_CLAIMS
        call.identity.claims = known
        return known

    def is_inspectable(self, call: Call) -> bool:
        """Return whether a body can be decoded at a bounded cost. One that cannot is compared byte for byte, and is no
        LLM request.
        """
        body, counted = call.body, self.counted
        if len(body) <= COUNTED_FROM_BYTES:
            return True
        if not (counted[1] if counted is not None and counted[0] is body else has_too_many_values(body)):
            return True
        call.parsed.chat = False
        return False

    def chat(self, call: Call) -> Chat | None:
        """Return the parsed LLM request, or None for any other request."""
        parsed = call.parsed
        known = parsed.chat
        if known is None:
            if "content-encoding" in call.headers:
                body = self._parse_body(call)
            elif len(call.body) < KNOWN_FROM_BYTES:
                body = registry.parse(call.method, call.path, call.body)
            else:
                body = registry.parse(call.method, call.path, call.body, self._history(call))
            parsed.body = body
            known = parsed.chat = (None if body is None else body.chat(call.decision.tail_messages)) or False
        elif known and known.tail is UNREAD and parsed.body:
            known = parsed.chat = parsed.body.chat(call.decision.tail_messages) or False
        return known or None

    def head(self, call: Call) -> Chat | None:
        """Return the same as `chat` for readers that do not need the messages, which may be left unparsed."""
        parsed = call.parsed
        known = parsed.chat
        if known is None:
            body = parsed.body = self._parse_body(call)
            known = parsed.chat = body.head() if body else False
        return known or None

    def parsed_body(self, call: Call) -> ParsedBody | None:
        """Return the parsed body of an LLM request, or None for any other request."""
        return call.parsed.body if self.chat(call) else None  # type: ignore[return-value]  # the registry made it

    def step(self, call: Call) -> Step | None:
        parsed = call.parsed
        known = parsed.step
        if known is None:
            body = parsed.body if parsed.chat or self.head(call) else None
            known = parsed.step = (None if body is None else body.newest_step()) or False
        return known or None

    def window(self, call: Call) -> str:
        session = call.identity.session or self.session(call)
        return f"{call.identity.caller or self.caller(call)}|{session}" if session else ""

    def windows_above(self, call: Call) -> list[str]:
        """Return the owners of the windows of the session that started the call's, and of the root of its tree."""
        tree = self.tree(call)
        return [f"{self.caller(call)}|{one}" for one in (tree.parent, tree.root) if one]

    def tools(self, call: Call, messages: int = TAIL_MESSAGES) -> tuple[str, ...]:
        chat = self.chat(call)
        return tuple([made.name for message in chat.tail[-messages:] for made in message.calls]) if chat else ()

    def key_digest(self, call: Call) -> str | None:
        """Return the digest of the API key that identifies the caller, or None if the request has no key."""
        found = self.callers.find(call) if self.callers is not None else {}
        key = next(iter(found.values())) if len(found) == 1 else identity.api_key(call, _QUERY_KEY)
        return self._digests.of_key(key) if key else None

    def _find_agent(self, call: Call) -> str:
        named = call.path_agent or (call.header("x-agent-id") or "").strip()
        return self._digests.bounded(named) if named else self.caller(call)

    def _find_caller(self, call: Call) -> str:
        if self.callers is not None and self.name_caller(call) == 1:
            return call.identity.caller or ""
        if self.tokens.verifies:
            subject = self.claims(call).get("sub")
            if isinstance(subject, str) and subject:
                return "sub:" + self._digests.bounded(subject)
        digest = self.key_digest(call)
        return "key:" + digest if digest else _ADDRESS + self.client_ip(call)

    def _parse_body(self, call: Call) -> ParsedBody | None:
        encoding = call.headers.get("content-encoding")
        if encoding and encoding.strip().lower() != _IDENTITY_ENCODING:
            return None
        return registry.parse(call.method, call.path, call.body, self._history(call))

    def _history(self, call: Call) -> KnownHistory | None:
        if len(call.body) < KNOWN_FROM_BYTES:
            return None
        if self._histories is None:
            from breakloop.dialects.known_history import KnownHistories  # noqa: PLC0415 - short programs need it rarely

            self._histories = KnownHistories()
        return self._histories.of(self.caller(call))

    def _fixed_getters(self) -> dict[str, Getter]:
        getters: dict[str, Getter] = {
            "ip:address": lambda call: self.client_ip(call) or None,
            "ua:bot": self._bot,
            "ua:bot_category": lambda call: self._category(call) or None,
            "agent:id": self.agent,
            "agent:session": lambda call: self.session(call) or None,
            "caller:key": self.key_digest,
            "caller:name": self._caller_name,
            "project:id": self.project,
            "llm:model": lambda call: chat.model or None if (chat := self.chat(call)) else None,
            "llm:provider": lambda call: (
                registry.DIALECTS[chat.dialect].provider if (chat := self.chat(call)) else None
            ),
            "tool:name": self._last_tool,
            "upstream:name": lambda call: call.upstream or None,
        }
        return getters | {f"ip:{what}": partial(self._location, what) for what in HEADERS}

    def _caller_name(self, call: Call) -> str | None:
        caller = self.caller(call)
        return caller.removeprefix(_NAMED) if caller.startswith(_NAMED) else None

    def _location(self, what: str, call: Call) -> str | None:
        return self._geo.value(what, call, self.client_ip(call))

    def _category(self, call: Call) -> str | None:
        raw = call.headers.get("user-agent")
        return bot_category(raw) if raw else None

    def _bot(self, call: Call) -> str | None:
        category = self._category(call)
        return None if category is None else "true" if category else "false"

    def _last_tool(self, call: Call) -> str | None:
        names = self.tools(call)
        return (names[-1] or None) if names else None


def _header_getter(name: str) -> Getter:
    def read(call: Call) -> str | None:
        value = call.headers.get(name)
        return value.decode("latin-1") if value else None

    return read


def _query_getter(name: str) -> Getter:
    def read(call: Call) -> str | None:
        if not call.query:
            return None
        values = fields(call).get(name)
        return (values[0] or None) if values else None

    return read


_QUERY_KEY: Final = _query_getter("key")


# The fields that identify the caller, its agent and its address.
_SENDER_FIELDS: Final = (*CREDENTIAL_HEADERS, "x-agent-id", "x-forwarded-for", "forwarded")
_STEADY: Final = ("jwt:", "header:", "ip:", "ua:", "caller:", "agent:id")
_PROFILES_MAX: Final = 8192
_SENDER_KEY_MAX: Final = 4096  # longer keys are not cached, so that clients cannot fill the cache with them


def steady(name: str) -> bool:
    """Return whether a descriptor depends only on the sender."""
    return name.startswith(_STEADY)


class CallerProfile:
    """What is cached of one sender under one bundle."""

    __slots__ = (
        "__weakref__", "agent", "begins", "caller", "charges", "claims", "ends", "identities", "ip", "keys", "known_to",
        "verified",
    )  # fmt: skip

    def __init__(self, call: Call, descriptors: Descriptors, known_to: object) -> None:
        self.known_to = known_to  # stands for the `CallerProfiles` that has it
        self.keys, self.begins, self.ends = descriptors.tokens.holds(call.headers.get("authorization"))
        self.claims: Mapping[str, object] = descriptors.claims(call)
        self.verified = call.identity.verified
        self.caller = descriptors.caller(call)
        self.agent = descriptors.agent(call)
        if self.agent != self.caller:
            descriptors.trees.add_agent_name(self.caller, self.agent)
        self.ip = descriptors.client_ip(call)
        self.charges: dict[int, CachedCharges] = {}  # charges of its rules, by policy and mode
        self.identities: dict[int, str] = {}  # the sender's part of fingerprints, by detector


class CallerProfiles:
    """Caches what depends only on the sender, because an agent sends thousands of requests with the same key, token and
    address. Every compiled bundle has its own bounded cache. An entry is dropped when the token keys change or the
    token expires. Nothing that depends on the path, the query or the body is cached here.

    A head that is shared by many requests refers to its sender, so that the fields need not be compared.
    """

    __slots__ = ("_descriptors", "_fields", "_known", "_names", "_self", "_tokens")

    def __init__(self, descriptors: Descriptors, used: Iterable[str]) -> None:
        self._descriptors = descriptors
        self._tokens = descriptors.tokens
        self._names = _fields_read(used, () if descriptors.callers is None else descriptors.callers.own_headers)
        self._fields = frozenset(self._names)
        self._known: dict[tuple[object, ...], CallerProfile] = {}
        self._self = object()  # a reference to itself would keep all of this until the next garbage collection

    def find(self, call: Call, now: float) -> CallerProfile | None:
        """Return the sender, or None if header fields alone do not identify it."""
        query = call.query
        if call.repeated or (query and ("key=" in query or "%" in query) and self._is_query_key_used(call)):
            return None
        place = (call.peer, call.path_agent, not call.upstream)
        head = call.shared_head
        sender: Profile | None = None
        if head is not None and head.sender is not None and head.sender[1] == place:
            sender = head.sender[0]()
        if type(sender) is not CallerProfile or sender.known_to is not self._self:
            key = (*place, *map(call.headers.get, self._names))
            sender = self._known.get(key)
            if sender is None or not self._is_current(sender, now):
                return self._add(call, key)
            if head is not None and not self._varies(head):
                head.sender = (ref(sender), place)
        elif sender.keys is not self._tokens.key_set or not sender.begins <= now < sender.ends:  # as `_is_current`
            return self._add(call, (*place, *map(call.headers.get, self._names)))
        identity = call.identity
        identity.profile, identity.caller, identity.agent = sender, sender.caller, sender.agent
        return sender

    def _is_current(self, sender: CallerProfile, now: float) -> bool:
        return sender.keys is self._tokens.key_set and sender.begins <= now < sender.ends

    def _varies(self, head: SharedHead) -> bool:
        """Return whether requests with this head may have different senders."""
        return "content-length" in self._fields or not self._fields.isdisjoint(head.varying)

    def _is_query_key_used(self, call: Call) -> bool:
        """Return whether an API key in the query (`?key=`) counts: if it may name a caller, or if no header field has
        one that is not empty.
        """
        if self._descriptors.callers is not None:
            return True
        return len(call.headers.get("authorization", b"").strip()) <= len(b"bearer")

    def _add(self, call: Call, key: tuple[object, ...]) -> CallerProfile | None:
        if sum(len(part) for part in key if isinstance(part, str | bytes)) > _SENDER_KEY_MAX:
            return None
        sender = CallerProfile(call, self._descriptors, self._self)
        if sender.claims or not self._tokens.verifies:
            # A token without claims is not cached: its key may not have been fetched yet.
            if len(self._known) >= _PROFILES_MAX:
                self._known.clear()
            self._known[key] = sender
        call.identity.profile = sender
        return sender


def _fields_read(used: Iterable[str], own_headers: Iterable[str]) -> tuple[str, ...]:
    """Return every header field that is read by the sender-only descriptors in use."""
    names = {*_SENDER_FIELDS, *own_headers}
    for name in used:
        if name.startswith("header:"):
            names.add(name.removeprefix("header:"))
        elif name.startswith("ua:"):
            names.add("user-agent")
        elif name.startswith("ip:") and name != "ip:address":
            names.update(HEADERS.values())
    return tuple(sorted(names))
