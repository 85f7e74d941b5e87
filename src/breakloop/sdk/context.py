"""What a call inherits from its surroundings: the agent and session of the enclosing `with breakloop.agent(...)` block,
and the `BREAKLOOP_*` variables of the environment.

Light to import: `breakloop.agent`, the drop-in clients and `breakloop hook` need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

AGENT_HEADER: Final = "X-Agent-Id"
SESSION_HEADER: Final = "X-Agent-Session"
PARENT_HEADER: Final = "X-Agent-Parent"
ROOT_HEADER: Final = "X-Agent-Root"
DEPTH_HEADER: Final = "X-Agent-Depth"
_HOP: Final = "x-breakloop-hop"  # a gateway was here, and has named the place of the receiver
_DEPTH_MAX: Final = 255
DEFAULT_URL: Final = "http://127.0.0.1:8787"


class AgentContext(NamedTuple):
    """The names of an agent and its session, and the place of the session in a tree of agents: the session that started
    it, the root, and the depth. "" and 0 mean not named."""

    agent: str = ""
    session: str = ""
    parent: str = ""
    root: str = ""
    depth: int = 0  # 1 for the root

    def with_defaults(self, defaults: AgentContext) -> AgentContext:
        # The place belongs to the session: another session was not started by the same one.
        same = not defaults.session or self.session in {"", defaults.session}
        if self.root or self.depth:
            place = self[2:]
        elif same and self.parent in {"", defaults.parent}:
            place = defaults[2:]
        elif self.parent and self.parent == defaults.session:
            place = _below(defaults)
        else:
            place = self.parent, "", 0
        return AgentContext(self.agent or defaults.agent, self.session or defaults.session, *place)

    def headers(self) -> dict[str, str]:
        """Return the names as header fields. Header values have to be ASCII, so other characters are escaped."""
        if self == UNNAMED:  # most calls
            return {}
        named = (
            (AGENT_HEADER, self.agent),
            (SESSION_HEADER, self.session),
            (PARENT_HEADER, self.parent),
            (ROOT_HEADER, self.root),
            (DEPTH_HEADER, str(self.depth) if self.depth else ""),
        )
        return {header: value for header, name in named if name and (value := _ascii(name))}


UNNAMED: Final = AgentContext()
NO_PLACE: Final = ("", "", 0)
_CURRENT: Final[ContextVar[AgentContext]] = ContextVar("breakloop_agent", default=UNNAMED)


def current_agent() -> AgentContext:
    """Return the names of the enclosing `with agent(...)` block."""
    return _CURRENT.get()


@contextmanager
def agent(
    name: str = "", *, session: str = "", parent: str = "", received: Mapping[str, str] | None = None
) -> Iterator[AgentContext]:
    """Name the agent, the session, or both for every request and step inside a `with` block. `parent` is the session
    that started this one: agents that start each other are a tree, and may have a common budget.

        with breakloop.agent("support-bot", session=ticket_id):
            client.chat.completions.create(...)

    An agent that other agents call over A2A, MCP or HTTP passes the header fields of the request that it answers as
    `received`: it is then one below the agent that sent the request, in the same tree.

    The names hold in this thread or task and in the tasks that it starts. Names passed to a call take precedence.
    """
    around = _CURRENT.get()
    place = received_place(received) if received is not None and not parent else NO_PLACE
    if place != NO_PLACE:  # another conversation than the one around it
        named = AgentContext(name or around.agent, session, *place)
    else:
        named = AgentContext(name, session, parent).with_defaults(around)
    token = _CURRENT.set(named)
    try:
        yield named
    finally:
        _CURRENT.reset(token)


def received_place(headers: Mapping[str, str]) -> tuple[str, str, int]:
    """Return parent, root and depth of the agent that answers a request with these header fields; "" and 0 if they name
    no session and no tree. They name the place of the agent that sent the request, except where a gateway has written
    the place of the receiver."""
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    carried = fields.get("baggage", "")
    if "breakloop." in carried:
        fields = {**_in_baggage(carried), **fields}
    session, parent, root, depth = [
        fields.get(name.lower(), "") for name in (SESSION_HEADER, PARENT_HEADER, ROOT_HEADER, DEPTH_HEADER)
    ]
    known = min(int(depth[:9]), _DEPTH_MAX) if depth.isascii() and depth.isdecimal() else 0
    if not (session or parent or root or known):
        return NO_PLACE
    if _HOP in fields or (session and parent == session):
        return parent, root, known
    return _below(AgentContext("", session, parent, root, known))


def _below(sender: AgentContext) -> tuple[str, str, int]:
    """Return parent, root and depth of an agent that another one starts. Without its root, that of its parent is known
    to those that have seen the parent."""
    if sender.parent and not (sender.root or sender.depth):
        return sender.session, "", 0
    return sender.session, sender.root or sender.session, min((sender.depth or 1) + 1, _DEPTH_MAX)


def _in_baggage(sent: str) -> dict[str, str]:
    pairs = [entry.partition(";")[0].partition("=") for entry in sent.split(",")]
    names = {f"breakloop.{name}": f"x-agent-{name}" for name in ("parent", "root", "depth")}
    return {names[name.strip()]: unquote(value.strip()) for name, _, value in pairs if name.strip() in names}


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
