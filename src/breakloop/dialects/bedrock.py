"""Amazon Bedrock. `Converse` has one shape for all models: blocks of a content are objects with one field each, `text`,
`toolUse`, `toolResult` and others. `InvokeModel` takes the shape of the model's own API: that of Anthropic, that of
Converse (Nova), or that of OpenAI Chat Completions (gpt-oss, Mistral and others).

The model is in the path. Streams are AWS event streams: the events of Converse, or chunks that hold those of the model.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from breakloop.dialects import denial
from breakloop.dialects.answers import (
    AnswerBuilder,
    Json,
    StreamEnd,
    StreamListener,
    event_fields,
    number,
    tokens,
    word,
)
from breakloop.dialects.anthropic import ERROR, AnthropicAnswer
from breakloop.dialects.aws_events import aws_event
from breakloop.dialects.base import BodyFields, Dialect, ParsedBody, item_at
from breakloop.dialects.body_changes import JsonBody
from breakloop.dialects.content import (
    ITEMS_MAX,
    arguments,
    arguments_share,
    as_list,
    content,
    count,
    media,
    more,
    text,
)
from breakloop.dialects.framing import EVENT_MAX_BYTES, SseParser
from breakloop.dialects.openai_chat import ChatAnswer, OpenAIChat
from breakloop.dialects.session_ids import NULL, BodyModel
from breakloop.dialects.steps import StepBuilder, result
from breakloop.dialects.vertex import HostedAnthropic
from breakloop.model.call import CHARS_A_TOKEN, Answer, Call, Message, ToolCall, Usage
from breakloop.model.verdict import Verdict

_ASSISTANT: Final = "assistant"
_MODEL: Final = "/model/"
_STREAMS: Final = ("/converse-stream", "/invoke-with-response-stream")
_THROTTLED: Final = "throttlingException"
_METRICS: Final = b"amazon-bedrock-invocationMetrics"
_ERROR_TYPES: Final = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
# Histories with calls need tools, and there is no choice without any: this one takes the place of all others.
NO_TOOL: Final = "no_tool_available"
_NO_TOOLS: Final = {
    "tools": [
        {
            "toolSpec": {
                "name": NO_TOOL,
                "description": "Tools are switched off. Do not call this; answer in text.",
                "inputSchema": {"json": {"type": "object", "properties": {}}},
            }
        }
    ]
}


class Bedrock(Dialect):
    """What all models share: paths, errors, and how a stream is written."""

    provider = "bedrock"
    model_in_path = True
    answer_field = ""

    def parse(self, body: bytes, path: str = "") -> ParsedBody | None:
        return super().parse(body, path) if not path or _MODEL in path else None

    def read_path(self, path: str) -> tuple[str, bool]:
        model = path.rpartition("/")[0].rpartition(_MODEL)[2]
        return unquote(model), path.endswith(_STREAMS)

    def error_event(self, verdict: Verdict, call: Call) -> bytes:  # noqa: ARG002 - as in the base class
        return aws_event(_THROTTLED, _dump({"message": denial.message(verdict)}), exception=True)

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:  # noqa: ARG002 - as in the base class
        return {"__type": denial.error_type(_ERROR_TYPES, verdict.status), "message": denial.message(verdict)}


def _dump(fields: Json) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _in_chunks(events: bytes) -> bytes:
    """Return Server-Sent Events of a model's own API as they are sent at Bedrock, without an end mark."""
    payloads = [payload for payload in SseParser(EVENT_MAX_BYTES).feed(events) if payload.startswith(b"{")]
    return b"".join([aws_event("chunk", _dump({"bytes": b64encode(one).decode()})) for one in payloads])


def _read_exception(builder: AnswerBuilder, fields: Json) -> bool:
    """Note the exception that ends a stream; return whether the event is one."""
    kind = next(iter(fields), "")
    if len(fields) != 1 or not kind.endswith("Exception"):
        return False
    builder.set_error(kind)
    return True


class BedrockAnthropic(Bedrock, HostedAnthropic):
    name = "bedrock_anthropic"
    path_endings = ("/invoke", "/invoke-with-response-stream")

    def parse(self, body: bytes, path: str = "") -> ParsedBody | None:
        """A body of another model is parsed by its dialect."""
        return super().parse(body, path) or _CONVERSE.parse(body, path) or _CHAT.parse(body, path)

    def read_answer(self, body: bytes, status: int, *, complete: bool) -> Answer | None:  # noqa: ARG002
        return None  # it may be an exception of AWS

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return BedrockAnthropicAnswer(listener)

    def end_stream(self, end: StreamEnd) -> bytes:
        return _in_chunks(HostedAnthropic.end_stream(self, end))

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:
        return Bedrock.error_fields(self, verdict, call) | HostedAnthropic.error_fields(self, verdict, call)


class BedrockAnthropicAnswer(AnthropicAnswer):
    __slots__ = ()

    def read_fields(self, fields: dict[str, Any]) -> None:
        if not _read_exception(self, fields):
            super().read_fields(fields)


class BedrockChat(Bedrock, OpenAIChat):
    """Models whose own API is that of OpenAI Chat Completions."""

    name = "bedrock_chat"
    path_endings = ()

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        return None if fields.get("messages") is None else super().read_fields_leniently(fields)

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return BedrockChatAnswer(listener)

    def request_usage(self, body: bytes) -> bytes | None:  # noqa: ARG002 - whether it is allowed depends on the model
        return None

    def end_stream(self, end: StreamEnd) -> bytes:
        return _in_chunks(OpenAIChat.end_stream(self, end))

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:
        return Bedrock.error_fields(self, verdict, call) | OpenAIChat.error_fields(self, verdict, call)


class BedrockChatAnswer(ChatAnswer):
    __slots__ = ()

    def read_event(self, payload: bytes) -> None:
        super().read_event(payload)
        if _METRICS in payload:  # in the last chunk, whatever the model
            counts = event_fields(payload).get(_METRICS.decode())
            if isinstance(counts, dict) and self.usage is None:
                sent, made = tokens(counts, "inputTokenCount"), tokens(counts, "outputTokenCount")
                self.usage = {"prompt_tokens": sent, "completion_tokens": made}

    def read_fields(self, fields: dict[str, Any]) -> None:
        if not _read_exception(self, fields):
            super().read_fields(fields)


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class ConverseTool(msgspec.Struct, gc=False):
    toolSpec: _Named | None = None  # noqa: N815 - as it is sent


class _Tools(msgspec.Struct, gc=False):
    tools: list[ConverseTool] | None = None


class _Inference(msgspec.Struct, gc=False):
    maxTokens: int | None = None  # noqa: N815 - as it is sent


class _Block(msgspec.Struct, gc=False):
    """Every block has one of many fields; a type is what other APIs have."""

    type: None = None


class _Turn(msgspec.Struct, gc=False):
    content: list[_Block]


class ConverseBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request that are read."""

    messages: list[msgspec.Raw]
    system: msgspec.Raw = NULL
    inferenceConfig: _Inference | None = None  # noqa: N815 - as it is sent
    toolConfig: _Tools | None = None  # noqa: N815 - as it is sent


_decode_body: Final = msgspec.json.Decoder(ConverseBody).decode
_decode_turn: Final = msgspec.json.Decoder(_Turn).decode


class BedrockConverse(Bedrock):
    name = "bedrock_converse"
    path_endings = ("/converse", "/converse-stream")
    ends_streams = True

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_body(body)
        if fields.messages:
            _decode_turn(fields.messages[0])  # raises ValueError for the messages of other APIs
        config = fields.inferenceConfig
        limit = None if config is None else config.maxTokens
        return BodyFields("", fields.messages, False, limit, fields.system, fields)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        items, config = as_list(fields.get("messages")), fields.get("inferenceConfig")
        if not items or not all(map(_is_turn, items[:ITEMS_MAX])):
            return None
        limit = count(config.get("maxTokens")) if isinstance(config, dict) else None
        return BodyFields("", items, False, limit, fields.get("system"), fields)

    def flatten(self, item: Any) -> Message:
        if not isinstance(item, dict):
            return Message("", text(item))
        blocks = as_list(item.get("content"))
        texts: list[str] = []
        calls: list[ToolCall] = []
        most = arguments_share(len(blocks))
        for block in blocks[:ITEMS_MAX]:
            used = block.get("toolUse") if isinstance(block, dict) else None
            if isinstance(used, dict):
                calls.append(ToolCall(text(used.get("name")), arguments(used.get("input"), most)))
            elif not _is_silent(block):
                texts.append(_block_text(block))
        if len(blocks) > ITEMS_MAX:
            texts.append(more(blocks))
        return Message(text(item.get("role")), "\n".join(texts), tuple(calls))

    def collect_step(self, parts: BodyFields) -> StepBuilder:
        found = StepBuilder()
        items = parts.items
        for back in range(1, min(len(items), ITEMS_MAX) + 1):
            item = item_at(items, -back)
            if not isinstance(item, dict):
                found.users.append(("", item))
            elif item.get("role") == _ASSISTANT:
                _add_answer(found, as_list(item.get("content")))
                break
            else:
                _add_input(found, text(item.get("role")), as_list(item.get("content")))
        return found

    def tool_names(self, fields: ConverseBody | dict[str, Any]) -> list[str]:
        if isinstance(fields, dict):
            config = fields.get("toolConfig")
            tools = as_list(config.get("tools"))[:ITEMS_MAX] if isinstance(config, dict) else []
            specs = [tool.get("toolSpec") for tool in tools if isinstance(tool, dict)]
            return [name for spec in specs if isinstance(spec, dict) and (name := text(spec.get("name")))]
        declared = None if fields.toolConfig is None else fields.toolConfig.tools
        return [one.toolSpec.name for one in (declared or ())[:ITEMS_MAX] if one.toolSpec is not None]

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        _, last = json.items_at(json.fields["messages"])
        message = json.fields_at(last)
        if json.value(message, "role") != "user":
            return None
        json.items_at(message["content"])  # raises ValueError if there are none
        return json.with_item(message["content"], {"text": note})

    def switch_off_tools(self, json: JsonBody) -> bytes:
        return json.with_field("toolConfig", _NO_TOOLS) if "toolConfig" in json.fields else json.body

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return ConverseAnswer(listener)

    def owns_usage(self, fields: dict[str, Any]) -> bool:
        return "inputTokens" in fields

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        kind, inner = next(iter(last.items()), ("", None))
        if not last or kind in {"metadata", "messageStop"}:
            return b""
        made = end.chars // CHARS_A_TOKEN if end.usage is None else end.usage.output_tokens
        events: list[tuple[str, Json]] = []
        if kind in {"contentBlockStart", "contentBlockDelta"} and isinstance(inner, dict):
            events.append(("contentBlockStop", {"contentBlockIndex": number(inner.get("contentBlockIndex"))}))
        events.append(("messageStop", {"stopReason": "max_tokens"}))
        usage = {"inputTokens": 0, "outputTokens": made, "totalTokens": made}
        events.append(("metadata", {"usage": usage, "metrics": {"latencyMs": 0}}))
        return b"".join([aws_event(name, _dump(fields)) for name, fields in events])


def _is_turn(item: object) -> bool:
    said = item.get("content") if isinstance(item, dict) else None
    return isinstance(said, list) and not any(isinstance(block, dict) and "type" in block for block in said[:ITEMS_MAX])


def _is_silent(block: object) -> bool:
    """Reasoning is worded differently each time, and marks of the cache move along a conversation."""
    return isinstance(block, dict) and ("reasoningContent" in block or "cachePoint" in block)


def _block_text(block: object) -> str:
    if not isinstance(block, dict):
        return text(block)
    if "text" in block:
        return text(block["text"])
    returned = block.get("toolResult")
    if not isinstance(returned, dict):
        return media(min(block, default=""), block)
    said = content([_common_part(part) for part in as_list(returned.get("content"))])
    return f"{ERROR} {said}" if returned.get("status") == "error" else said


def _common_part(part: object) -> object:
    """Return a part in the shape that most dialects have."""
    if not isinstance(part, dict):
        return part
    if "json" in part:
        return {"type": "text", "text": arguments(part["json"])}
    image = part.get("image")
    source = image.get("source") if isinstance(image, dict) else None
    if isinstance(source, dict) and isinstance(source.get("bytes"), str):
        return {"type": "image", "source": {"type": "base64", "data": source["bytes"]}}
    return {"type": "text", **part} if "text" in part else part


def _add_answer(found: StepBuilder, blocks: list[Any]) -> None:
    found.answered = True
    if len(blocks) > ITEMS_MAX:
        found.texts.append(more(blocks))
    for block in reversed(blocks[:ITEMS_MAX]):
        used = block.get("toolUse") if isinstance(block, dict) else None
        if isinstance(used, dict):
            found.add_call(used.get("name"), used.get("input"), used.get("toolUseId"))
        elif not _is_silent(block):
            found.texts.append(_block_text(block))


def _add_input(found: StepBuilder, role: str, blocks: list[Any]) -> None:
    others: list[Any] = []
    for block in reversed(blocks[:ITEMS_MAX]):
        returned = block.get("toolResult") if isinstance(block, dict) else None
        if isinstance(returned, dict):
            parts = [_common_part(part) for part in as_list(returned.get("content"))[:ITEMS_MAX]]
            failed = returned.get("status") == "error"
            found.results.append(result(parts, returned.get("toolUseId"), failed=failed))
        elif not _is_silent(block):
            others.append(_common_part(block))
    if others:
        found.users.append((role, others[::-1]))


class ConverseAnswer(AnswerBuilder):
    """Texts and calls are numbered like their blocks. An event is below its name."""

    __slots__ = ()

    SINGLE = True

    def read_event(self, payload: bytes) -> None:
        self.read_leniently(payload)

    def read_fields(self, fields: dict[str, Any]) -> None:
        if _read_exception(self, fields):
            return
        output = fields.get("output")
        if isinstance(output, dict):
            self._read_end(fields)
            message = output.get("message")
            for index, block in enumerate(as_list(message.get("content"))) if isinstance(message, dict) else ():
                self._read_block(index, block)
            return
        for kind, inner in fields.items():
            if isinstance(inner, dict):
                self._read_inner(kind, number(inner.get("contentBlockIndex")), inner)

    def _read_inner(self, kind: str, index: int, inner: dict[str, Any]) -> None:
        if kind == "contentBlockStart":
            self._read_block(index, inner.get("start"))
        elif kind == "contentBlockDelta":
            self._read_delta(index, inner.get("delta"))
        elif kind in {"messageStop", "metadata"}:
            self._read_end(inner)
            self.ended = self.ended or kind == "messageStop"

    def _read_end(self, fields: dict[str, Any]) -> None:
        self.finish = word(fields.get("stopReason")) or self.finish
        if isinstance(fields.get("usage"), dict):
            self.usage = fields["usage"]

    def _read_block(self, index: int, block: object) -> None:
        if not isinstance(block, dict):
            return
        used = block.get("toolUse")
        if isinstance(used, dict):
            call = self.start_call(index, word(used.get("name")), word(used.get("toolUseId")))
            if "input" in used:
                self.set_arguments(call, used["input"])
        elif "text" in block:
            self.add_text(index, text(block["text"]))

    def _read_delta(self, index: int, delta: object) -> None:
        if not isinstance(delta, dict):
            return
        used, thought = delta.get("toolUse"), delta.get("reasoningContent")
        if isinstance(used, dict):
            self.continue_call(index, text(used.get("input")))
        elif isinstance(thought, dict):
            if thought.get("text"):
                self.add_reasoning(index, text(thought["text"]))
        elif delta.get("text"):
            self.add_text(index, text(delta["text"]))

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        """Cached parts of the prompt are not included in the input."""
        if "inputTokens" not in fields and "outputTokens" not in fields:
            return None
        read, written = tokens(fields, "cacheReadInputTokens"), tokens(fields, "cacheWriteInputTokens")
        sent = tokens(fields, "inputTokens") + read + written
        return Usage(sent, tokens(fields, "outputTokens"), read, written)


_CONVERSE: Final = BedrockConverse()
_CHAT: Final = BedrockChat()
