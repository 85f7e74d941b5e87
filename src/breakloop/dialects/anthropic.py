"""Reads Anthropic Messages requests into a `Chat`: calls are `tool_use` blocks, results are text of the user's turn.

A result that is an error says so in its text. Thinking, ids and cache marks never enter.

Reads the newest step of an Anthropic Messages request: the `tool_use` blocks of the last message of the assistant,
the `tool_result` blocks behind it (`is_error` is their flag), and what the user says beside them. Thinking never
enters; tools that run at Anthropic have their results in the same message as the call.

Reads Anthropic Messages answers, streamed or whole: texts and calls are blocks, thinking is passed over.

Counts come twice in a stream, at its beginning and at its end, and the later ones are totals, not additions.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects.answers import AnswerBuilder, number, tokens, word
from breakloop.dialects.base import (
    ITEMS_MAX,
    NULL,
    BodyFields,
    BodyModel,
    ConversationReader,
    NamedTool,
    ParsedBody,
    arguments,
    as_list,
    content,
    count,
    is_silent,
    item_at,
    more,
    named_tools,
    part,
    text,
    truth,
)
from breakloop.dialects.steps import StepBuilder, is_prefill, read_step, result
from breakloop.model.call import Message, Step, ToolCall, Usage

DIALECT: Final = "anthropic_messages"
ERROR: Final = "<error>"
CALLS: Final = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))


class MessagesBody(BodyModel, gc=False, kw_only=True):
    """What is read of a request."""

    messages: list[msgspec.Raw]
    model: str
    tools: list[NamedTool] | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    system: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(MessagesBody).decode


def _typed(body: bytes) -> BodyFields:
    fields = _decode_body(body)
    return BodyFields(fields.model, fields.messages, fields.stream or False, fields.max_tokens, fields.system, fields)


def _tolerant(fields: dict[str, Any]) -> BodyFields | None:
    get = fields.get
    model, messages = get("model"), get("messages")
    if model is None or messages is None:  # many an API has a path that ends in /messages
        return None
    items, stream, limit = as_list(messages), truth(get("stream")), count(get("max_tokens"))
    return BodyFields(text(model), items, stream, limit, get("system"), fields)


def _flatten(item: Any) -> Message:
    if not isinstance(item, dict):
        return Message("", text(item))
    said = item.get("content")
    role = text(item.get("role"))
    return _blocks(role, said) if isinstance(said, list) else Message(role, text(said))


def _blocks(role: str, blocks: list[Any]) -> Message:
    texts: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks[:ITEMS_MAX]:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            texts.append(part(block))
        elif kind in CALLS:
            calls.append(ToolCall(text(block.get("name")), arguments(block.get("input"))))
        elif kind.endswith("tool_result"):
            texts.append(_result_text(block))
        elif not is_silent(block):
            texts.append(part(block))
    if len(blocks) > ITEMS_MAX:
        texts.append(more(blocks))
    return Message(role, "\n".join(texts), tuple(calls))


def _result_text(block: dict[str, Any]) -> str:
    said = content(block.get("content"))
    if truth(block.get("is_error")):
        return f"{ERROR} {said}"
    return said


_conversation = ConversationReader(DIALECT, _typed, _tolerant, _flatten)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening


_ASSISTANT: Final = "assistant"


def of(taken: ParsedBody) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: MessagesBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return named_tools(fields)
    return [tool.name for tool in fields.tools[:ITEMS_MAX] if tool.name] if fields.tools else []


def _gather(items: list[Any], _lead: int) -> StepBuilder:
    found = StepBuilder()
    for back in range(1, min(len(items), ITEMS_MAX) + 1):
        item = item_at(items, -back)
        if not isinstance(item, dict):
            found.users.append(("", item))
        elif item.get("role") != _ASSISTANT:
            _incoming(found, item)
        elif back > 1 or not _is_prefill(item, items, found):
            _answer(found, item.get("content"))
            break
    return found


def _is_prefill(item: dict[str, Any], items: list[Any], found: StepBuilder) -> bool:
    def answer_before() -> bool:
        before = item_at(items, -2) if len(items) > 1 else None
        return isinstance(before, dict) and before.get("role") == _ASSISTANT

    said = item.get("content")
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], dict) and said[0].get("type") == "text":
        said = said[0].get("text")
    return is_prefill(said, found, answer_before)


def _incoming(found: StepBuilder, item: dict[str, Any]) -> None:
    role, said = text(item.get("role")), item.get("content")
    if not isinstance(said, list):
        found.users.append((role, said))
        return
    beside: list[Any] = []
    for block in reversed(said[:ITEMS_MAX]):
        if _is_result(block):
            _add_result(found, block)
        else:
            beside.append(block)
    if beside:
        found.users.append((role, beside[::-1]))


def _answer(found: StepBuilder, said: object) -> None:
    found.answered = True
    if not isinstance(said, list):
        found.said.append(text(said))
        return
    if len(said) > ITEMS_MAX:
        found.said.append(more(said))
    for block in reversed(said[:ITEMS_MAX]):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in CALLS:
            found.called(block.get("name"), block.get("input"), block.get("id"))
        elif _is_result(block):
            _add_result(found, block)
        elif not is_silent(block):
            found.said.append(part(block))


def _is_result(block: object) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind.endswith("tool_result")


def _add_result(found: StepBuilder, block: dict[str, Any]) -> None:
    said, failed = block.get("content"), truth(block.get("is_error"))
    if isinstance(said, dict):  # of a tool that runs at Anthropic: an object of its own kind, and errors are one
        failed = failed or text(said.get("type")).endswith("_error") or said.get("return_code") not in (None, 0)
    found.results.append(result(said, block.get("tool_use_id"), failed=failed))


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


class AnthropicAnswer(AnswerBuilder):
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
