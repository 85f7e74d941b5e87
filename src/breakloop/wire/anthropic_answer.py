"""Reads Anthropic Messages answers, streamed or whole: texts and calls are blocks, thinking is passed over.

Counts come twice in a stream, at its beginning and at its end, and the later ones are totals, not additions.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.answer import Usage
from breakloop.wire.content import as_list, text
from breakloop.wire.gathered import Gathered, number, tokens, word

_CALLS: Final = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))

_SILENT: Final = frozenset(("ping", "content_block_stop"))


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None


class _Event(msgspec.Struct, gc=False):
    """What is read of a piece of a block; all other events are rare, and read as plain values."""

    type: str
    delta: _Delta | None = None
    index: int = 0


_decode_event: Final = msgspec.json.Decoder(_Event).decode


class AnthropicAnswer(Gathered):
    """One answer. Texts and calls are numbered as their blocks are."""

    __slots__ = ()

    def event(self, payload: bytes) -> None:
        """Read one event."""
        try:
            event = _decode_event(payload)
        except ValueError:
            self.tolerantly(payload)
            return
        delta = event.delta
        if event.type != "content_block_delta" or delta is None:
            if event.type not in _SILENT:
                self.tolerantly(payload)
        elif delta.type == "text_delta":
            if delta.text:
                self.say(event.index, delta.text)
        elif delta.type == "input_json_delta" and delta.partial_json:
            self._argued(event.index, delta.partial_json)

    def whole(self, fields: dict[str, Any]) -> None:
        """Read a whole answer, or an event that is no ordinary piece of a block."""
        get = fields.get
        kind, error = get("type"), get("error")
        if kind == "error" or (isinstance(error, dict) and error):
            self.fail(error.get("type") if isinstance(error, dict) else None)
        elif kind == "message_start":
            message = get("message")
            if isinstance(message, dict):
                self._message(message)
        elif kind == "content_block_start":
            self._block(number(get("index")), get("content_block"))
        elif kind == "content_block_delta":
            self._odd_delta(number(get("index")), get("delta"))
        elif kind == "message_delta":
            delta = get("delta")
            if isinstance(delta, dict):
                self.finish = word(delta.get("stop_reason")) or self.finish
            self._counted(get("usage"))
        elif kind == "message_stop":
            self.ended = True
        elif kind == "message" or "content" in fields:
            self._message(fields)

    def tokens(self, fields: dict[str, Any]) -> Usage | None:
        """Read Anthropic's count, in which the parts of the prompt that were cached are not among the others."""
        if "input_tokens" not in fields and "output_tokens" not in fields:
            return None
        rounds = [fields]
        # A compaction on the way is a request of its own to the model, and in no total.
        rounds += [
            item
            for item in as_list(fields.get("iterations"))
            if isinstance(item, dict) and item.get("type") == "compaction"
        ]
        read = sum([tokens(item, "cache_read_input_tokens") for item in rounds])
        written = sum([tokens(item, "cache_creation_input_tokens") for item in rounds])
        return Usage(
            sum([tokens(item, "input_tokens") for item in rounds]) + read + written,
            sum([tokens(item, "output_tokens") for item in rounds]),
            read,
            written,
            tokens(fields.get("output_tokens_details"), "thinking_tokens"),
        )

    def _message(self, message: dict[str, Any]) -> None:
        get = message.get
        self.response_id, self.model = word(get("id")), word(get("model"))
        self.finish = word(get("stop_reason"))
        self._counted(get("usage"))
        for index, block in enumerate(as_list(get("content"))):
            self._block(index, block)

    def _block(self, index: int, block: object) -> None:
        if not isinstance(block, dict):
            return
        kind = block.get("type")
        if kind == "text":
            self.say(index, text(block.get("text")))
        elif kind == "fallback":  # another model goes on from here
            served = block.get("to")
            self.model = word(served.get("model")) if isinstance(served, dict) else self.model
        elif isinstance(kind, str) and kind in _CALLS:
            call = self.begin(index, word(block.get("name")), word(block.get("id")))
            self.settle(call, block.get("input"))

    def _odd_delta(self, index: int, delta: object) -> None:
        if isinstance(delta, dict):
            if delta.get("type") == "text_delta":
                self.say(index, text(delta.get("text")))
            elif delta.get("type") == "input_json_delta":
                self._argued(index, text(delta.get("partial_json")))

    def _argued(self, index: int, piece: str) -> None:
        call = self.call(index)
        if call is not None:
            self.argue(call, piece)

    def _counted(self, usage: object) -> None:
        if isinstance(usage, dict):
            given = {name: value for name, value in usage.items() if value is not None}
            self.usage = given if self.usage is None else self.usage | given
