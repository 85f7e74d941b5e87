"""Finds the session of a call (SPEC C-7): the first of the ids that a client sends, else a name made from how the
conversation opens. Where ids stand is `identity`'s business for header fields and `wire.session_ids`' for bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.model.answer import Answer
from breakloop.model.call import Call, Chat
from breakloop.policy import identity
from breakloop.policy.chains import Chains, Traces
from breakloop.wire import dialects, openai_responses, session_ids

DERIVED: Final = "derived:"
_TRACE: Final = "trace:"


class Sessions:
    """One for all callers; who calls, for which agent, and what the body says is asked from its owner."""

    __slots__ = ("_agent", "_caller", "_digests", "_taken", "_traces", "chains")

    def __init__(
        self,
        digests: identity.Digests,
        caller: Callable[[Call], str],
        agent: Callable[[Call], str],
        taken: Callable[[Call], dialects.Taken | None],
    ) -> None:
        self._digests = digests
        self._caller = caller
        self._agent = agent
        self._taken = taken
        self._traces = Traces()
        self.chains = Chains()

    def find(self, call: Call) -> str:
        """Return the session, or "". Looks from the narrowest id to the widest, and into the body as late as can be."""
        in_headers = identity.may_name_session(call)
        named = identity.conversation_header(call) if in_headers else ""
        if named:
            return self._digests.bounded(named)
        taken = call.taken_cache if call.chat_cache else self._taken(call)
        ids = session_ids.NONE if taken is None else session_ids.of(taken)
        trace = self.trace(call, ids.trace)
        named = ids.session or (identity.session_header(call) if in_headers else "")
        if named:
            return self._digests.bounded(named)
        if ids.previous:
            return self.chains.root(self._caller(call), self._digests.bounded(ids.previous))
        if ids.cache_key:
            return ids.cache_key
        if trace:
            return _TRACE + trace
        opening = "" if taken is None else taken.opening()
        if not opening:
            return ""
        call.derived = True
        parts = (call.caller_cache or self._caller(call), call.agent_cache or self._agent(call), opening)
        return DERIVED + self._digests.of("\0".join(parts).encode("utf-8", "replace"))

    def unknown(self, call: Call) -> tuple[str, str] | None:
        """Return caller and id of the answer that a call goes on from, where only another instance can know it."""
        taken = self._taken(call)
        if taken is None or taken.dialect != openai_responses.DIALECT:
            return None
        if identity.may_name_session(call) and identity.conversation_header(call):
            return None
        previous = session_ids.of(taken).previous
        caller, named = self._caller(call), self._digests.bounded(previous) if previous else ""
        return None if not named or self.chains.knows(caller, named) else (caller, named)

    def trace(self, call: Call, in_body: str = "") -> str:
        """Return the id of a trace that an earlier call of the same caller had, too; "" for one that is new, or none.

        A trace that only the body names is known where `find` had to look into it.
        """
        known = call.trace_cache
        if known is None:  # kept: asked twice, any trace would seem to have recurred
            known = identity.trace_id(call) or in_body
            if known:
                known = self._digests.bounded(known)
                if not self._traces.recurs(self._caller(call), known):
                    known = ""
            call.trace_cache = known
        return known

    def answered(self, call: Call, answer: Answer) -> None:
        """Remember which session an answer belongs to: the next request may name nothing but this answer."""
        chat = call.chat_cache
        if isinstance(chat, Chat) and chat.dialect == openai_responses.DIALECT and answer.response_id:
            session = call.session_cache
            if session:  # where nothing goes by sessions, nobody has asked for it
                self.chains.remember(self._caller(call), self._digests.bounded(answer.response_id), session)
