"""Reads Gemini `generateContent` requests, Vertex AI's too, into a `Chat`. Model and streaming stand in the path.

Protobuf's JSON takes both `inlineData` and `inline_data`, and clients send a mixture, so both are read.

Reads the newest step of a Gemini `generateContent` request: the `functionCall` parts of the model's last contents,
and the `functionResponse` parts behind them, where a field named `error` is the flag. Contents of the model that stand
one behind the other are one answer: clients keep a stream as they got it.

Reads Gemini `generateContent` answers, Vertex AI's too: whole, as events, or as one array that comes in pieces.

Every piece has the same shape. Thoughts are passed over; there is no end mark, so a reason to finish has to do.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from breakloop.dialects.answers import ARGUMENTS_MAX_CHARS, AnswerBuilder, PartialCall, number, tokens, word
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
    at_least_one,
    count,
    item_at,
    load,
    media,
    more,
    text,
    truth,
    without_ids,
)
from breakloop.dialects.steps import StepBuilder, read_step, result, sized
from breakloop.model.call import Answer, Chat, Message, Step, ToolCall, Usage

DIALECT: Final = "gemini"
STREAM: Final = ":streamGenerateContent"
# Beside the content of a part: signatures of thoughts are as good as ids.
_MARKS: Final = frozenset(("thought", "thoughtSignature", "thought_signature", "partMetadata", "part_metadata"))


class _Config(msgspec.Struct, gc=False):
    maxOutputTokens: int | None = None  # noqa: N815 - as it is sent
    max_output_tokens: int | None = None
    candidateCount: int | None = None  # noqa: N815
    candidate_count: int | None = None


class GeminiTool(msgspec.Struct, gc=False):
    """Tools that are declared."""

    functionDeclarations: list[NamedTool] | None = None  # noqa: N815 - as it is sent
    function_declarations: list[NamedTool] | None = None


class GeminiBody(BodyModel, gc=False, kw_only=True):
    """What is read of a request."""

    contents: list[msgspec.Raw]
    tools: list[GeminiTool] | None = None
    generationConfig: _Config | None = None  # noqa: N815 - as it is sent
    generation_config: _Config | None = None
    systemInstruction: msgspec.Raw = NULL  # noqa: N815 - as it is sent
    system_instruction: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(GeminiBody).decode


def _typed(body: bytes) -> BodyFields:
    fields = _decode_body(body)
    config = fields.generationConfig or fields.generation_config
    limit, answers = None, 1
    if config is not None:
        limit = config.max_output_tokens if config.maxOutputTokens is None else config.maxOutputTokens
        answers = at_least_one(config.candidate_count if config.candidateCount is None else config.candidateCount)
    system = fields.system_instruction if fields.systemInstruction is NULL else fields.systemInstruction
    return BodyFields("", fields.contents, max_tokens=limit, system=system, fields=fields, answers=answers)


def _read_leniently(fields: dict[str, Any]) -> BodyFields:
    config = _either(fields, "generationConfig", "generation_config")
    asked = config if isinstance(config, dict) else {}
    limit = count(_either(asked, "maxOutputTokens", "max_output_tokens"))
    answers = at_least_one(_either(asked, "candidateCount", "candidate_count"))
    system = _either(fields, "systemInstruction", "system_instruction")
    items = as_list(fields.get("contents"))
    return BodyFields("", items, max_tokens=limit, system=system, fields=fields, answers=answers)


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


_conversation = ConversationReader(DIALECT, _typed, _read_leniently, _flatten, in_path=_in_path)
take: Final = _conversation.take
opening: Final = _conversation.opening


_MODEL: Final = "model"
_CODE: Final = "code_execution"
_CODE_DONE: Final = ("OUTCOME_OK", "OUTCOME_UNSPECIFIED", "", None)
# A response is an object; where it has one of these alone, that is what was returned.
_OUTPUTS: Final = frozenset(("output", "result", "error", "content", "response"))
_KINDS: Final = frozenset(("image", "audio", "video"))


def of(taken: ParsedBody) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: GeminiBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return _tools_leniently(fields)
    names: list[str] = []
    for tool in (fields.tools or ())[:ITEMS_MAX]:
        declared = (tool.functionDeclarations or tool.function_declarations or ())[:ITEMS_MAX]
        names.extend([one.name for one in declared if one.name])
    return names[:ITEMS_MAX]


def _tools_leniently(fields: dict[str, Any]) -> list[str]:
    names: list[str] = []
    for tool in as_list(fields.get("tools"))[:ITEMS_MAX]:
        declared = _either(tool, "functionDeclarations", "function_declarations") if isinstance(tool, dict) else None
        names.extend([text(one.get("name")) for one in as_list(declared)[:ITEMS_MAX] if isinstance(one, dict)])
    return list(filter(None, names[:ITEMS_MAX]))


def _gather(items: list[Any], _lead: int) -> StepBuilder:
    found = StepBuilder(joint="")  # a stream's pieces stand as they were cut
    for at in range(len(items) - 1, max(-1, len(items) - ITEMS_MAX - 1), -1):
        item = item_at(items, at)
        if isinstance(item, dict) and item.get("role") == _MODEL:
            _answer(found, as_list(item.get("parts")))
        elif found.answered:
            break
        elif isinstance(item, dict):
            _incoming(found, as_list(item.get("parts")))
        else:
            found.users.append(("user", item))
    return found


def _answer(found: StepBuilder, parts: list[Any]) -> None:
    found.answered = True
    if len(parts) > ITEMS_MAX:
        found.said.append(more(parts))
    for part in reversed(parts[:ITEMS_MAX]):
        if not isinstance(part, dict):
            found.said.append(text(part))
        elif not ("thought" in part and truth(part["thought"])):
            _answer_part(found, part)


def _answer_part(found: StepBuilder, part: dict[str, Any]) -> None:
    call = _either(part, "functionCall", "function_call")
    code = _either(part, "executableCode", "executable_code")
    ran = _either(part, "codeExecutionResult", "code_execution_result")
    if isinstance(call, dict):
        found.called(call.get("name"), call.get("args"), call.get("id"))
    elif isinstance(code, dict):
        found.call(_CODE, text(code.get("code")), code.get("id"))
    elif isinstance(ran, dict):
        found.results.append(result(ran.get("output"), ran.get("id"), failed=ran.get("outcome") not in _CODE_DONE))
    elif "text" in part:
        found.said.append(text(part["text"]))


def _incoming(found: StepBuilder, parts: list[Any]) -> None:
    beside: list[Any] = []
    for part in reversed(parts[:ITEMS_MAX]):
        answered = _either(part, "functionResponse", "function_response") if isinstance(part, dict) else None
        if isinstance(answered, dict):
            _result(found, answered)
        else:
            beside.append(_shown(part))
    if beside:
        found.users.append(("user", beside[::-1]))


def _result(found: StepBuilder, answered: dict[str, Any]) -> None:
    said, failed = answered.get("response"), False
    if isinstance(said, dict):
        failed = bool(said.get("error"))
        if len(said) == 1 and not _OUTPUTS.isdisjoint(said):
            (said,) = said.values()
    one = result(said if isinstance(said, str) else arguments(said), answered.get("id"), failed=failed)
    parts = answered.get("parts")
    if parts is not None:
        media = [sized(*_kind(part)) for part in as_list(parts)[:ITEMS_MAX]]
        one = one._replace(media=one.media + tuple(media))
    found.results.append(one)


def _shown(part: object) -> object:
    """Return a part of a user's as the other dialects have it: a text, or a medium with its type."""
    if not isinstance(part, dict):
        return part
    if "text" in part:
        return {"type": "text", "text": text(part["text"])}
    kind, value = _kind(part)
    return {"type": kind, "data": value}


def _kind(part: object) -> tuple[str, object]:
    if isinstance(part, dict):
        for value in part.values():
            mime = _either(value, "mimeType", "mime_type") if isinstance(value, dict) else None
            if isinstance(mime, str):
                kind = mime.partition("/")[0]
                return (kind if kind in _KINDS else "file"), value
    return "file", part


_ROOT: Final = "$."
_VALUES: Final = ("stringValue", "numberValue", "boolValue")


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    thought: bool | None = None
    functionCall: Any = None  # noqa: N815 - as it is sent
    toolCall: Any = None  # noqa: N815


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, gc=False):
    content: _Content | None = None
    finishReason: str | None = None  # noqa: N815
    index: int = 0


class _Piece(msgspec.Struct, gc=False):
    """What is read of an ordinary piece; any other is read tolerantly."""

    candidates: list[_Candidate]
    usageMetadata: dict[str, Any] | None = None  # noqa: N815
    modelVersion: str | None = None  # noqa: N815
    responseId: str | None = None  # noqa: N815


_decode_piece: Final = msgspec.json.Decoder(_Piece).decode


class GeminiAnswer(AnswerBuilder):
    """One answer. Texts are numbered as the candidates are, calls as they come."""

    __slots__ = ("_partial", "_values", "_values_room")

    USAGE = "usageMetadata"

    def __init__(self) -> None:
        super().__init__()
        self._partial: PartialCall | None = None  # a call that goes on in the next piece
        self._values: dict[str, Any] = {}  # its arguments so far
        self._values_room = ARGUMENTS_MAX_CHARS

    def event(self, payload: bytes) -> None:
        """Read one piece."""
        try:
            piece = _decode_piece(payload)
        except ValueError:
            self.tolerantly(payload)
            return
        for candidate in piece.candidates:
            said = candidate.content
            if said is not None and said.parts is not None:
                for part in said.parts:
                    if part.text and not part.thought:
                        self.say(candidate.index, part.text)
                    if part.functionCall is not None or part.toolCall is not None:
                        self._called(part.functionCall, part.toolCall)
            if candidate.finishReason:
                self._finished(candidate.index, candidate.finishReason)
        self._noted(piece.usageMetadata, piece.modelVersion, piece.responseId)

    def body(self, body: bytes) -> bool:
        """Read one object, or an array of pieces; of an array that breaks off, the pieces that are whole."""
        found = load(body)
        pieces = as_list(found) if found is not None else _whole_pieces(body)
        for piece in pieces:
            if isinstance(piece, dict):
                self.whole(piece)
        return found is not None

    def whole(self, fields: dict[str, Any]) -> None:
        """Read a piece as plain values."""
        get = fields.get
        error, feedback = get("error"), get("promptFeedback")
        if isinstance(error, dict) and error:
            self.fail(error.get("status"), error.get("code"))
        elif error:
            self.fail()
        if isinstance(feedback, dict):
            self._finished(0, feedback.get("blockReason"))
        for place, candidate in enumerate(as_list(get("candidates"))):
            if isinstance(candidate, dict):
                self._candidate(number(candidate.get("index"), place), candidate)
        self._noted(get("usageMetadata"), get("modelVersion"), get("responseId"))

    def tokens(self, fields: dict[str, Any]) -> Usage | None:
        """Read Gemini's count: thoughts stand beside the candidates, tools' results beside the prompt, caches in it."""
        if not any(name.endswith("TokenCount") for name in fields):
            return None
        thoughts = tokens(fields, "thoughtsTokenCount")
        return Usage(
            tokens(fields, "promptTokenCount") + tokens(fields, "toolUsePromptTokenCount"),
            tokens(fields, "candidatesTokenCount", "responseTokenCount") + thoughts,
            tokens(fields, "cachedContentTokenCount"),
            0,
            thoughts,
        )

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read, a call that broke off too."""
        self._settled()
        return super().answer(status, complete=complete)

    def _candidate(self, index: int, candidate: dict[str, Any]) -> None:
        said = candidate.get("content")
        for part in as_list(said.get("parts")) if isinstance(said, dict) else ():
            if isinstance(part, dict):
                if not truth(part.get("thought")):
                    self.say(index, text(part.get("text")))
                self._called(part.get("functionCall"), part.get("toolCall"))
        self._finished(index, candidate.get("finishReason"))

    def _noted(self, usage: object, model: object, response_id: object) -> None:
        if isinstance(usage, dict):
            self.usage = usage
        if not self.model:
            self.model = word(model)
        if not self.response_id:
            self.response_id = word(response_id)

    def _finished(self, index: int, reason: object) -> None:
        if reason and (index == 0 or not self.finish):
            self.finish = word(reason)

    def _called(self, function: object, tool: object) -> None:
        if isinstance(function, dict):
            if self._partial is not None or "partialArgs" in function or truth(function.get("willContinue")):
                self._continued(function)
            else:
                self.settle(self.begin(len(self._calls), word(function.get("name"))), function.get("args"))
        if isinstance(tool, dict):  # one that runs at Google's
            self.settle(self.begin(len(self._calls), word(tool.get("toolType"))), tool.get("args"))

    def _continued(self, function: dict[str, Any]) -> None:
        """Vertex AI can send arguments as they are written: values by their paths, texts in pieces."""
        if self._partial is None:
            self._partial = self.begin(len(self._calls), word(function.get("name")))
        for item in as_list(function.get("partialArgs")):
            if isinstance(item, dict):
                self._value(item)
        if not truth(function.get("willContinue")):
            self._settled()

    def _value(self, item: dict[str, Any]) -> None:
        path = word(item.get("jsonPath")).removeprefix(_ROOT)
        value = next((item[name] for name in _VALUES if name in item), None)
        self._values_room -= len(path) + (len(value) if isinstance(value, str) else 1)
        if self._values_room >= 0:
            before = self._values.get(path)
            self._values[path] = before + value if isinstance(before, str) and isinstance(value, str) else value

    def _settled(self) -> None:
        if self._partial is not None:
            self.settle(self._partial, self._values)
            self._partial, self._values = None, {}


def _whole_pieces(body: bytes) -> list[Any]:
    """Return the objects of an array up to where it breaks off."""
    said = body.decode("utf-8", "replace").lstrip("\ufeff \t\r\n[")
    decode = json.JSONDecoder().raw_decode
    found: list[Any] = []
    while said.startswith("{"):
        try:
            piece, end = decode(said)
        except (ValueError, RecursionError):
            break
        found.append(piece)
        said = said[end:].lstrip(", \t\r\n")
    return found
