"""Whose memory a detector keeps: a session's, an agent's (of one caller), a caller's. Names as state keys hold them;
reading who sends is `descriptors`' work."""

from __future__ import annotations

from breakloop.detect.watch import SEVERAL
from breakloop.model.call import Call
from breakloop.policy.descriptors import Descriptors
from breakloop.state.keys import joined, part


class Owners:
    """Names owners of windows. They all belong to a caller: a client may have picked somebody else's session id."""

    __slots__ = ("_who",)

    def __init__(self, descriptors: Descriptors) -> None:
        self._who = descriptors

    def session(self, call: Call) -> str:
        """Return the session, or "" for a call that has none."""
        window = self._who.window(call)
        return f"s:{part(window)}" if window else ""

    def unnamed(self, call: Call) -> str:
        """Return caller and agent of a call whose session the client did not name, else ""."""
        return self.agent(call) if self._who.derived(call) else ""

    def agent(self, call: Call) -> str:
        """Return caller and agent."""
        return f"a:{joined([self._who.caller(call), self._who.agent(call)])}"

    def parent(self, call: Call) -> str:
        """Return the caller of a conversation that another one began, else ""."""
        who = self._who
        return f"{SEVERAL}{part(who.caller(call))}" if who.parent(call) or who.trace(call) else ""
