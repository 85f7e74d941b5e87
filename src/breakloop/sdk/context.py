"""What a call inherits from its surroundings: the agent and session of the enclosing `with breakloop.agent(...)` block,
and the `BREAKLOOP_*` variables of the environment.

Light to import: `breakloop.agent`, the drop-in clients and `breakloop hook` need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple

AGENT_HEADER: Final = "X-Agent-Id"
SESSION_HEADER: Final = "X-Agent-Session"
PARENT_HEADER: Final = "X-Agent-Parent"
DEFAULT_URL: Final = "http://127.0.0.1:8787"


class AgentContext(NamedTuple):
    """The names of an agent, its session, and the session that started it; "" means not named."""

    agent: str = ""
    session: str = ""
    parent: str = ""

    def with_defaults(self, defaults: AgentContext) -> AgentContext:
        # The parent belongs to the session: another session was not started by the same one.
        parent = self.parent or (defaults.parent if self.session in {"", defaults.session} else "")
        return AgentContext(self.agent or defaults.agent, self.session or defaults.session, parent)

    def headers(self) -> dict[str, str]:
        """Return the names as header fields. Header values have to be ASCII, so other characters are escaped."""
        if self == UNNAMED:  # most calls
            return {}
        named = ((AGENT_HEADER, self.agent), (SESSION_HEADER, self.session), (PARENT_HEADER, self.parent))
        return {header: value for header, name in named if name and (value := _ascii(name))}


UNNAMED: Final = AgentContext()
_CURRENT: Final[ContextVar[AgentContext]] = ContextVar("breakloop_agent", default=UNNAMED)


def current_agent() -> AgentContext:
    """Return the names of the enclosing `with agent(...)` block."""
    return _CURRENT.get()


@contextmanager
def agent(name: str = "", *, session: str = "", parent: str = "") -> Iterator[AgentContext]:
    """Name the agent, the session, or both for every request and step inside a `with` block. `parent` is the session
    that started this one: agents that start each other are a tree, and may have a common budget.

        with breakloop.agent("support-bot", session=ticket_id):
            client.chat.completions.create(...)

    The names hold in this thread or task and in the tasks that it starts. Names passed to a call take precedence.
    """
    token = _CURRENT.set(named := AgentContext(name, session, parent).with_defaults(_CURRENT.get()))
    try:
        yield named
    finally:
        _CURRENT.reset(token)


def _ascii(name: str) -> str:
    if name.isascii() and name.isprintable():
        return name.strip()
    kept = name.encode("ascii", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in kept).strip()


def configured_url() -> str:
    """Return `BREAKLOOP_URL` without a trailing slash; "" if it is not set."""
    return os.environ.get("BREAKLOOP_URL", "").strip().rstrip("/")


def gateway_url() -> str:
    """Return the URL of the gateway: `BREAKLOOP_URL`, or the port that `breakloop serve` listens on by default."""
    return configured_url() or DEFAULT_URL


def gateway_token() -> str:
    """Return `BREAKLOOP_TOKEN`, the key that identifies this program to the gateway; "" if it is not set."""
    return os.environ.get("BREAKLOOP_TOKEN", "").strip()


def shared_secret() -> bytes:
    """Return `BREAKLOOP_SECRET`, the key of fingerprints; b"" if it is not set."""
    return os.environ.get("BREAKLOOP_SECRET", "").encode()


def data_dir() -> Path:
    """Return the data directory: the one that `breakloop serve` uses in the same environment."""
    named = os.environ.get("BREAKLOOP_DATA_DIR") or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if named:
        return Path(named)
    shared = os.environ.get("XDG_DATA_HOME")
    if shared:
        return Path(shared, "breakloop")
    home = os.environ.get("HOME")
    return Path(home, ".local", "share", "breakloop") if home else Path(".breakloop")
