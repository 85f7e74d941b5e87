"""Who is speaking: agent and session for everything that happens inside a `with` block, in this thread or task and
those it starts. What is passed by name to a call goes before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

AGENT_HEADER: Final = "X-Agent-Id"
SESSION_HEADER: Final = "X-Agent-Session"


class Names(NamedTuple):
    """An agent and a session; "" is: not named."""

    agent: str = ""
    session: str = ""

    def over(self, below: Names) -> Names:
        """Return these, and where they name nothing, those below."""
        return Names(self.agent or below.agent, self.session or below.session)

    def headers(self) -> dict[str, str]:
        """Return them as header fields. They have to be ASCII to travel, so other characters are written as escapes."""
        named = {AGENT_HEADER: _ascii(self.agent), SESSION_HEADER: _ascii(self.session)}
        return {name: value for name, value in named.items() if value}


_NOBODY: Final = Names()
_CURRENT: Final[ContextVar[Names]] = ContextVar("breakloop_names", default=_NOBODY)


def current() -> Names:
    """Return who is speaking here and now."""
    return _CURRENT.get()


@contextmanager
def agent(name: str = "", *, session: str = "") -> Iterator[Names]:
    """Name the agent, the session, or both for all requests and steps inside of a `with` block."""
    named = Names(name, session).over(current())
    token = _CURRENT.set(named)
    try:
        yield named
    finally:
        _CURRENT.reset(token)


def _ascii(name: str) -> str:
    if name.isascii() and name.isprintable():
        return name.strip()
    kept = name.encode("ascii", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in kept).strip()
