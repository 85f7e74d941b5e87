"""Identifies the caller and the session of a request.

API keys are never stored; a keyed digest identifies them. The session is the first id that the client sends in
header fields or in the body (`dialects.session_ids`), or else a name derived from the start of the conversation.

Requests that carry no session id are linked by `previous_response_id` chains and by traces that span several
requests. Both are bounded and kept in this process; instances that share a store also share chains there. After a
restart without a shared store, a chain is named after the first id seen of it. Entries are never shared between
callers, whatever ids they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

import xxhash

from breakloop.dialects import registry, session_ids
from breakloop.dialects.base import ParsedBody
from breakloop.dialects.session_ids import trace_of
from breakloop.dialects.steps import bounded
from breakloop.model.call import API_KEY_HEADERS, DERIVED_SESSION, Answer, Call, Chat
from breakloop.policy.cache import MemoDict, TwoGenerationCache

# Each identifies one conversation, and the first one found wins. Where a client sends several, the narrowest comes
# first: Codex gives all its sub-agents one `session-id`, but each its own `thread-id`.
CONVERSATION_HEADERS: Final = (
    "x-agent-session",  # breakloop
    "thread-id",  # Codex; `thread_id` before 0.131
    "x-claude-code-session-id",  # Claude Code; its sub-agents are distinguished by CLAUDE_CODE_AGENT
    "x-amp-thread-id",  # Amp
    "x-opencode-session",  # OpenCode, and clients of its gateway
    "x-opencode-session-id",
    "agent-session-id",  # Goose
    "x-kilocode-taskid",  # Kilo Code
    "x-coder-chat-id",  # Coder
    "x-openwebui-chat-id",  # Open WebUI
    "x-grok-conv-id",  # xAI
    "x-conversation-id",
    "conversation-id",  # old versions of Codex
    "x-litellm-session-id",  # LiteLLM
    "session-id",  # Codex, Pi; formerly `session_id`
    "x-session-id",  # OpenCode, OpenRouter
    "x-session-affinity",  # OpenCode, Pi, Fireworks, Cloudflare
)
# The parent of a conversation, by the same ids. Those of Claude Code are read separately.
PARENT_HEADERS: Final = (
    "x-agent-parent",  # breakloop
    "x-codex-parent-thread-id",  # Codex
    "x-opencode-parent-session-id",  # OpenCode
    "x-parent-session-id",  # OpenCode and others
    "x-kilocode-parent-taskid",  # Kilo Code
    "x-parent-agent-id",  # Copilot CLI
    "x-parent-conversation-id",
)
CLAUDE_CODE: Final = "x-claude-code-session-id"
CLAUDE_CODE_AGENT: Final = "x-claude-code-agent-id"
_CLAUDE_CODE_PARENT: Final = "x-claude-code-parent-agent-id"  # only sent if the parent is a sub-agent, too
# These may span several conversations, so an id in the body takes precedence.
_WIDE_HEADERS: Final = ("mcp-session-id", "helicone-session-id")
_WIDE_ENDING: Final = "-session-id"
_TRACE_HEADER: Final = "x-litellm-trace-id"
_LANGSMITH_TRACE: Final = "langsmith-trace"  # the runs down to the current one, each a time and an id, joined by dots
TRACE_HEADERS: Final = ("traceparent", _TRACE_HEADER, _LANGSMITH_TRACE)
_ANOTHER: Final = "-parent-"  # the id of a session, but not of this one
_BAGGAGE: Final = ("langfuse_session_id", "session.id")
_NAMING: Final = frozenset((*CONVERSATION_HEADERS, *_WIDE_HEADERS, "baggage"))
_NAMING_OR_TRACE: Final = frozenset((*_NAMING, *TRACE_HEADERS))
_NOT_IDS: Final = frozenset(("", "null", "undefined", "none"))
_NAME_MAX: Final = 256
USER: Final = "user:"  # begins the name of an end user


class IdentityHasher:
    """Computes keyed digests of API keys and of long names. The same secret yields the same on every instance."""

    def __init__(self, secret: bytes) -> None:
        # blake2b accepts a key of at most 64 bytes.
        key = secret if len(secret) <= 64 else blake2b(secret).digest()
        self._keyed = blake2b(key=key, digest_size=16).copy
        self.of_key = MemoDict(self.of).__getitem__  # the same for API keys, cached

    def of(self, value: bytes) -> str:
        """Return 32 hex digits that identify a value."""
        state = self._keyed()  # copying a keyed hash takes half the time of creating one
        state.update(value)
        return state.hexdigest()

    def bounded(self, name: str) -> str:
        """Return a name chosen by the client, or its digest if the name is too long."""
        if len(name) <= _NAME_MAX:
            return name
        return "long:" + self.of(name.encode("utf-8", "replace"))


def api_key(call: Call, query_key: Callable[[Call], str | None]) -> bytes:
    """Return the complete API key of a request, or b"". `query_key` reads `?key=`, if no header has a key."""
    headers = call.headers
    value = headers.get("authorization")
    if value:
        if value[:7].lower() == b"bearer ":
            value = value[7:].strip()
        elif value.startswith(b"AWS4-"):  # a signature, which differs in every request
            value = value.partition(b"Credential=")[2].partition(b"/")[0] or value
        if value:
            return value
    for name in API_KEY_HEADERS:
        value = headers.get(name)
        if value:
            return value
    if "key=" not in call.query and "%" not in call.query:
        return b""
    return (query_key(call) or "").encode("utf-8", "replace")


class NamingFields(dict[tuple[str, ...], tuple[bool, bool]]):
    """Whether header fields of these names could contain a session id, and whether a session id or a trace. Clients
    send the same fields with each request, so the result is cached, unless there are very many fields or long names.
    """

    max_entries = 1024
    max_chars = 2048

    def __missing__(self, names: tuple[str, ...]) -> tuple[bool, bool]:
        joined = "\n".join(names)
        wide = _WIDE_ENDING in joined
        found = wide or not _NAMING.isdisjoint(names), wide or not _NAMING_OR_TRACE.isdisjoint(names)
        if len(joined) <= self.max_chars:
            if len(self) >= self.max_entries:
                self.clear()
            self[names] = found
        return found


_naming_fields: Final = NamingFields()


def may_name_session(call: Call) -> bool:
    """Return whether any header field could contain a session id. Most requests have none, and this check is fast."""
    return _naming_fields[tuple(call.headers)][0]


def conversation_header(call: Call) -> str:
    """Return the conversation id from the header fields, or ""."""
    headers = call.headers
    for name in CONVERSATION_HEADERS:
        if name in headers:
            named = header(call, name)
            if named:
                agent = header(call, CLAUDE_CODE_AGENT) if name == CLAUDE_CODE else ""
                return f"{named}/{agent}" if agent else named
    return ""


def session_header(call: Call) -> str:
    """Return the id of a session that may span several conversations, or ""."""
    others = sorted([name for name in call.headers if name.endswith(_WIDE_ENDING) and _ANOTHER not in name])
    named = _first_header(call, (*_WIDE_HEADERS, *others))
    if named:
        return named
    return _in_baggage(call) if "baggage" in call.headers else ""


def parent_header(call: Call) -> str:
    """Return the session or agent that started this conversation, by the id that its own requests carry, or ""."""
    headers = call.headers
    named = _first_header(call, PARENT_HEADERS)
    if named or CLAUDE_CODE_AGENT not in headers:
        return named
    session = header(call, CLAUDE_CODE)
    if not session or not header(call, CLAUDE_CODE_AGENT):
        return ""
    agent = header(call, _CLAUDE_CODE_PARENT)
    return f"{session}/{agent}" if agent else session


def trace_id(call: Call) -> str:
    """Return the id of the request's trace, or ""."""
    headers = call.headers
    sent = headers.get("traceparent")
    named = trace_of(sent.decode("latin-1")) if sent else ""
    if named or (_TRACE_HEADER not in headers and _LANGSMITH_TRACE not in headers):
        return named
    return header(call, _TRACE_HEADER) or header(call, _LANGSMITH_TRACE).partition(".")[0].rpartition("Z")[2]


def header(call: Call, name: str) -> str:
    """Return the id in a header field, or ""."""
    value = call.headers.get(name)
    if not value:
        return ""
    named = value.decode("latin-1").strip()
    return "" if named.lower() in _NOT_IDS else named


def _first_header(call: Call, names: Iterable[str]) -> str:
    return next((named for name in names if name in call.headers and (named := header(call, name))), "")


def _in_baggage(call: Call) -> str:
    found = session_ids.in_baggage(header(call, "baggage"))
    return next((found[name] for name in _BAGGAGE if found.get(name)), "")


# An entry takes about 300 bytes, and up to twice as many are held: 10 MB.
_CHAINS_MAX: Final = 16_384
_TRACES_MAX: Final = 16_384
_OPENINGS_MAX: Final = 4096
_SIZE_MAX: Final = 4 * 1024 * 1024  # total length of keys, in case ids are long


class ResponseChains(TwoGenerationCache[str, str]):
    """Maps responses to sessions, so that a request that continues a response belongs to the same session."""

    def __init__(self, limit: int = _CHAINS_MAX) -> None:
        super().__init__(limit, _SIZE_MAX)
        self.on_remember: Callable[[str, str, str], None] | None = None  # called with caller, response and session

    def learn(self, caller: str, previous_id: str, session: str) -> None:
        """Record an entry that comes from another instance."""
        self.put(f"{caller}\0{previous_id}", session)

    def root(self, caller: str, previous_id: str) -> str:
        """Return the session of the response `previous_id`, or `previous_id` itself if it is not known."""
        return self.get(f"{caller}\0{previous_id}") or previous_id

    def remember(self, caller: str, response_id: str, session: str) -> None:
        """Record that the response `response_id` belongs to `session`."""
        if response_id and session:
            self.put(f"{caller}\0{response_id}", session)
            if self.on_remember is not None:
                self.on_remember(caller, response_id, session)


class SeenNames(TwoGenerationCache[str, bool]):
    """Distinguishes traces and other names that span several requests from those that are created for each request."""

    def __init__(self, limit: int = _TRACES_MAX) -> None:
        super().__init__(limit, _SIZE_MAX)

    def recurs(self, caller: str, name: str) -> bool:
        """Return whether an earlier request of this caller had the same name. Call this only once per request."""
        key = f"{caller}\0{name}"
        if self.get(key):
            return True
        self.put(key, True)
        return False


_TRACE_PREFIX: Final = "trace:"


class SessionNames:
    """Finds the sessions of all callers. Caller, agent and parsed body are read through the given functions."""

    def __init__(
        self,
        digests: IdentityHasher,
        caller: Callable[[Call], str],
        agent: Callable[[Call], str],
        parsed_body: Callable[[Call], ParsedBody | None],
    ) -> None:
        self._digests = digests
        self._caller = caller
        self._agent = agent
        self._parsed_body = parsed_body
        self._traces = SeenNames()
        self._names = SeenNames()
        self._openings: TwoGenerationCache[str, str] = TwoGenerationCache(_OPENINGS_MAX, _SIZE_MAX)
        self.chains = ResponseChains()

    def find(self, call: Call) -> str:
        """Return the session, or "". Ids are tried from the narrowest to the widest; the body is read late."""
        stated = self._stated(call) if call.identity.named is None else ""
        if stated:
            return stated
        body, identity = self._body(call), call.identity
        if body is None:
            return ""
        agent, known = identity.agent or self._agent(call), body.known_opening
        if known is not None and known.agent == agent and known.session and not (body.lenient or body.unread):
            identity.session_derived = True
            return known.session
        opening = body.opening()
        if not opening:
            return ""
        identity.session_derived = True
        caller = identity.caller or self._caller(call)
        named = f"{caller}\0{agent}\0{bounded(opening)}".encode("utf-8", "replace")
        session = self._derived(caller, named)
        if known is not None:
            body.keep_session(agent, session)
        return session

    def _derived(self, caller: str, named: bytes) -> str:
        """Return the session of an opening. Its keyed digest, which takes longer than a decision for a system prompt of
        20 KB, is the same in all requests of a conversation. A caller that makes xxh3 collide only joins its own
        sessions.
        """
        key = f"{caller}\0{xxhash.xxh3_128_hexdigest(named)}"
        known = self._openings.get(key)
        if known is None:
            known = DERIVED_SESSION + self._digests.of(named)
            self._openings.put(key, known)
        return known

    def named(self, call: Call) -> str:
        """Return the session that the client names, or else the end user that it names, or "". A trace is no name, and
        neither is a response: that of one request is not that of the next.
        """
        known = call.identity.named
        if known is None:
            call.identity.session = self._stated(call) or None
            known = call.identity.named or ""
        return known

    def is_new(self, call: Call) -> bool:
        """Return whether the client names the agent, the session or the end user of a call, and no earlier call of the
        same caller had the same names.
        """
        identity = call.identity
        known = identity.is_new_name
        if known is None:  # cached, as for traces
            caller, agent = identity.caller or self._caller(call), identity.agent or self._agent(call)
            named = self.named(call)
            known = bool(named or agent != caller) and not self._names.recurs(caller, f"{agent}\0{named}")
            identity.is_new_name = known
        return known

    def _body(self, call: Call) -> ParsedBody | None:
        return call.parsed.body if call.parsed.chat else self._parsed_body(call)  # type: ignore[return-value]  # the registry made it

    def _stated(self, call: Call) -> str:
        """Return the session that is not derived, or "", and set what the client names."""
        in_headers, in_headers_or_trace = _naming_fields[tuple(call.headers)]
        if not in_headers_or_trace:  # as in most requests
            body = self._body(call)
            if body is None or body.session_ids() is session_ids.NONE:
                call.identity.named = call.identity.trace = ""
                return ""
        named, trace, ids = conversation_header(call) if in_headers else "", "", session_ids.NONE
        if not named:
            body = self._body(call)
            ids = session_ids.NONE if body is None else body.session_ids()
            trace = self.trace(call, ids.trace)
            named = ids.session or (session_header(call) if in_headers else "")
        if named:
            named = call.identity.named = self._digests.bounded(named)
            return named
        call.identity.named = ids.user and f"{USER}{self._digests.bounded(ids.user)}"
        if ids.previous:
            return self._chained(call, self._digests.bounded(ids.previous))
        if ids.cache_key:
            call.identity.named = ids.cache_key
            return ids.cache_key
        return _TRACE_PREFIX + trace if trace else ""

    def _chained(self, call: Call, previous: str) -> str:
        session = self.chains.root(self._caller(call), previous)
        if session != previous and not session.startswith((DERIVED_SESSION, _TRACE_PREFIX)):
            call.identity.named = session
        return session

    def unknown(self, call: Call) -> tuple[str, str] | None:
        """Return caller and id of the response that a call continues, if only another instance can know its session."""
        body = self._parsed_body(call)
        if body is None or not body.dialect.links_responses:
            return None
        if may_name_session(call) and conversation_header(call):
            return None
        previous = body.session_ids().previous
        caller, named = self._caller(call), self._digests.bounded(previous) if previous else ""
        return None if not named or self.chains.get(f"{caller}\0{named}") else (caller, named)

    def trace(self, call: Call, in_body: str = "") -> str:
        """Return the id of the call's trace if an earlier call of the same caller had it, too, or "". A trace that only
        the body names is found if `find` had to read the body.
        """
        known = call.identity.trace
        if known is None:  # cached: on a second lookup, every trace would appear to recur
            known = trace_id(call) or in_body
            if known:
                known = self._digests.bounded(known)
                if not self._traces.recurs(self._caller(call), known):
                    known = ""
            call.identity.trace = known
        return known

    def answered(self, call: Call, answer: Answer) -> None:
        """Record the session of a response: the next request may refer to it by nothing but the response id."""
        chat = call.parsed.chat
        if isinstance(chat, Chat) and answer.response_id and registry.DIALECTS[chat.dialect].links_responses:
            session = call.identity.session
            if session:  # None if nothing depends on sessions
                self.chains.remember(self._caller(call), self._digests.bounded(answer.response_id), session)
