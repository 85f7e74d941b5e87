"""Reads Gemini `generateContent` requests, Vertex AI's too, into a `Chat`. Model and streaming stand in the path.

Protobuf's JSON takes both `inlineData` and `inline_data`, and clients send a mixture, so both are read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Chat, Message, ToolCall
from breakloop.wire.content import (
    ITEMS_MAX,
    arguments,
    as_list,
    at_least_one,
    count,
    media,
    more,
    text,
    truth,
    without_ids,
)
from breakloop.wire.conversation import NULL, Body, Conversation, Named, Parts

DIALECT: Final = "gemini"
STREAM: Final = ":streamGenerateContent"
# Beside the content of a part: signatures of thoughts are as good as ids.
_MARKS: Final = frozenset(("thought", "thoughtSignature", "thought_signature", "partMetadata", "part_metadata"))


class _Config(msgspec.Struct, gc=False):
    maxOutputTokens: int | None = None  # noqa: N815 - as it is sent
    max_output_tokens: int | None = None
    candidateCount: int | None = None  # noqa: N815
    candidate_count: int | None = None


class Tool(msgspec.Struct, gc=False):
    """Tools that are declared."""

    functionDeclarations: list[Named] | None = None  # noqa: N815 - as it is sent
    function_declarations: list[Named] | None = None


class GeminiBody(Body, gc=False, kw_only=True):
    """What is read of a request."""

    contents: list[msgspec.Raw]
    tools: list[Tool] | None = None
    generationConfig: _Config | None = None  # noqa: N815 - as it is sent
    generation_config: _Config | None = None
    systemInstruction: msgspec.Raw = NULL  # noqa: N815 - as it is sent
    system_instruction: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(GeminiBody).decode


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body)
    config = fields.generationConfig or fields.generation_config
    limit, answers = None, 1
    if config is not None:
        limit = config.max_output_tokens if config.maxOutputTokens is None else config.maxOutputTokens
        answers = at_least_one(config.candidate_count if config.candidateCount is None else config.candidateCount)
    system = fields.system_instruction if fields.systemInstruction is NULL else fields.systemInstruction
    return Parts("", fields.contents, max_tokens=limit, system=system, fields=fields, answers=answers)


def _tolerant(fields: dict[str, Any]) -> Parts:
    config = _either(fields, "generationConfig", "generation_config")
    asked = config if isinstance(config, dict) else {}
    limit = count(_either(asked, "maxOutputTokens", "max_output_tokens"))
    answers = at_least_one(_either(asked, "candidateCount", "candidate_count"))
    system = _either(fields, "systemInstruction", "system_instruction")
    items = as_list(fields.get("contents"))
    return Parts("", items, max_tokens=limit, system=system, fields=fields, answers=answers)


def _either(fields: dict[str, Any], name: str, other: str) -> Any:
    value = fields.get(name)
    return fields.get(other) if value is None else value


def _flatten(item: Any) -> Message:
    if not isinstance(item, dict):
        return Message("user", text(item))
    parts = as_list(item.get("parts"))
    texts: list[str] = []
    calls: list[ToolCall] = []
    for part in parts[:ITEMS_MAX]:
        call = (part.get("functionCall") or part.get("function_call")) if isinstance(part, dict) else None
        if isinstance(call, dict):
            calls.append(ToolCall(text(call.get("name")), arguments(call.get("args"))))
        else:
            said = _said(part)
            if said is not None:
                texts.append(said)
    if len(parts) > ITEMS_MAX:
        texts.append(more(parts))
    return Message(text(item.get("role")) or "user", "\n".join(texts), tuple(calls))


def _said(part: Any) -> str | None:
    """Return the text of a part; None for a thought."""
    if not isinstance(part, dict):
        return text(part)
    if "thought" in part and truth(part["thought"]):
        return None
    if "text" in part:
        return text(part["text"])
    result = part.get("functionResponse") or part.get("function_response")
    if not isinstance(result, dict):
        return _media(part)
    said, beside = arguments(result.get("response")), result.get("parts")
    return said if beside is None else "\n".join([said, *(_media(item) for item in as_list(beside))])


def _media(part: object) -> str:
    if not isinstance(part, dict):
        return text(part)
    said = {
        key: without_ids(value) if isinstance(value, dict) else value
        for key, value in part.items()
        if key not in _MARKS
    }
    return media(min(said), said) if said else ""


def _in_path(path: str) -> tuple[str, bool]:
    model, _, _ = path.rpartition("/")[2].partition(":")
    return model, path.endswith(STREAM)


def read(body: bytes, tail: int, path: str = "") -> Chat | None:
    """Read a request body with its last `tail` messages, or return None when it is not a JSON object."""
    taken = _conversation.take(body, path)
    return None if taken is None else taken.chat(tail)


_conversation = Conversation(DIALECT, _typed, _tolerant, _flatten, in_path=_in_path)
take: Final = _conversation.take
opening: Final = _conversation.opening
