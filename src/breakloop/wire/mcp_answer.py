"""Reads MCP answers to `tools/call`: one JSON-RPC response, a batch of them, or events with notices in between.

A tool's error is an answer like any other, for the model to read; so is one of the protocol. Only HTTP's are failures.
"""

from __future__ import annotations

from typing import Any

from breakloop.model.answer import Usage
from breakloop.wire.content import arguments, as_list, content, load, truth
from breakloop.wire.gathered import Gathered, word

TOOL_ERROR = "tool_error"


class McpAnswer(Gathered):
    """One answer. Texts are numbered as the responses come."""

    __slots__ = ()

    FAILS = False

    def event(self, payload: bytes) -> None:
        """Read one message."""
        if not self.body(payload):
            self.gave_up += 1

    def body(self, body: bytes) -> bool:
        """Read one message or a batch of them."""
        found = load(body)
        for message in as_list(found):
            if isinstance(message, dict):
                self.whole(message)
        return found is not None

    def whole(self, fields: dict[str, Any]) -> None:
        """Read one message; what the server asks for or tells on the way is passed over."""
        get = fields.get
        result, error = get("result"), get("error")
        if "method" in fields or (result is None and error is None):
            return
        self.ended = True
        if isinstance(error, dict):
            self.fail(error.get("code"))
        elif error is not None:
            self.fail()
        if isinstance(result, dict):
            self._result(result)

    def tokens(self, fields: dict[str, Any]) -> Usage | None:  # noqa: ARG002 - there is nothing to look at
        """Return None: tools count no tokens."""
        return None

    def _result(self, result: dict[str, Any]) -> None:
        get = result.get
        said = content(get("content"))
        if not said:
            said = arguments(get("structuredContent"))
        self.say(len(self._texts), said)
        self.finish = word(get("resultType"))
        if truth(get("isError")):
            self.fail(TOOL_ERROR)
