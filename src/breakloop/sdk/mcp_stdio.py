"""Between an MCP client and a server that speaks over stdin and stdout: every line passes as it is, except where a tool
call is blocked or its result gets a note. Here what is said; carrying it between two programs is `mcp_relay`'s."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeGuard

from breakloop.model.decision import Decision
from breakloop.sdk import mcp_results
from breakloop.sdk.core import BODY_MAX_BYTES
from breakloop.sdk.held import after, before
from breakloop.sdk.run import Run
from breakloop.sdk.transcript import Made

_WAITING_MAX: Final = 1000
_CANCELLED: Final = "notifications/cancelled"

Id = str | int


class Passed(NamedTuple):
    """What becomes of a line of the client's."""

    on: bytes = b""  # goes to the server
    back: bytes = b""  # is answered in its stead


class Conversation:
    """One client and one server. `run` gives the run that its calls are steps of, when the first is made."""

    def __init__(self, run: Callable[[], Run], *, shadow: Callable[[str], None] | None = None) -> None:
        self._run = run
        self._shadow = shadow  # told what would have been said, instead
        self._waiting: OrderedDict[Id, Made] = OrderedDict()  # calls that are not answered yet

    def from_client(self, line: bytes) -> Passed:
        """Take a line of the client's, its end included."""
        # An escaped slash is JSON too, so the two words are looked for one by one.
        calls = b"call" in line and b"tools" in line
        if len(line) > BODY_MAX_BYTES or not (calls or (self._waiting and b"cancelled" in line)):
            return Passed(on=line)
        sent = _object(line)
        if sent is None:
            return Passed(on=line)
        if sent.get("method") == _CANCELLED:
            self._cancelled(sent.get("params"))
        if sent.get("method") != mcp_results.TOOLS_CALL or not _is_id(sent.get("id")):
            return Passed(on=line)
        made = mcp_results.made_of(sent.get("params"))
        if made is None:
            return Passed(on=line)
        decision = self._said(before(self._run(), made))
        if not decision.allowed:
            return Passed(back=_line({"jsonrpc": "2.0", "id": sent["id"], "result": mcp_results.refused(decision)}))
        self._waiting[sent["id"]] = made
        while len(self._waiting) > _WAITING_MAX:
            self._waiting.popitem(last=False)
        return Passed(on=line)

    def from_server(self, line: bytes) -> bytes:
        """Take a line of the server's; returns what goes to the client."""
        if not self._waiting or len(line) > BODY_MAX_BYTES or b'"id"' not in line:
            return line
        sent = _object(line)
        if sent is None or "method" in sent or not _is_id(sent.get("id")) or sent["id"] not in self._waiting:
            return line
        made = self._waiting.pop(sent["id"])
        result, error = sent.get("result"), sent.get("error")
        if isinstance(error, dict):
            self._said(after(self._run(), made, mcp_results.failure(error)))
            return line
        if not mcp_results.is_final(result):
            return line
        decision = self._said(after(self._run(), made, mcp_results.outcome(result)))
        return _noted(line, sent, decision.notice) if decision.notice else line

    def _said(self, decision: Decision) -> Decision:
        if self._shadow is None or not decision.notice:
            return decision
        self._shadow(decision.notice)
        return Decision()

    def _cancelled(self, params: Any) -> None:
        sent = params.get("requestId") if isinstance(params, dict) else None
        if _is_id(sent):
            self._waiting.pop(sent, None)


def _is_id(value: Any) -> TypeGuard[Id]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _object(line: bytes) -> dict[str, Any] | None:
    """One message; None for a batch, which was allowed once, and for what is no JSON."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _noted(line: bytes, sent: dict[str, Any], note: str) -> bytes:
    """The answer with a note; as it came, where it cannot be written again."""
    try:
        return _line({**sent, "result": mcp_results.noted(sent["result"], note)})
    except ValueError:
        return line


def _line(message: dict[str, Any]) -> bytes:
    """A message as a line; ASCII, so that half a character, which JSON can spell, stays valid. ValueError for numbers
    that only Python can spell."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
