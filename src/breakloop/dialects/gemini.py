"""Gemini `generateContent`, also of Vertex AI. Model and streaming are given in the path.

Protobuf's JSON accepts both `inlineData` and `inline_data`, and clients mix them, so both are read. Calls are
`functionCall` parts, results `functionResponse` parts; a field named `error` is their flag. Consecutive contents of the
model are one answer, because clients keep a stream in pieces.

An answer comes as one body, as events, or as one array that arrives in pieces; every piece has the same shape. There is
no end mark: a finish reason ends a stream.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from breakloop.dialects import denial
from breakloop.dialects.answers import (
    ARGUMENTS_MAX_CHARS,
    AnswerBuilder,
    Json,
    PartialCall,
    Rewrite,
    StreamEnd,
    StreamListener,
    event_fields,
    number,
    sse_event,
    tokens,
    word,
)
from breakloop.dialects.base import BodyFields, Dialect, NamedTool, ParsedBody, item_at
from breakloop.dialects.body_changes import JsonBody
from breakloop.dialects.content import (
    ITEMS_MAX,
    arguments,
    arguments_share,
    as_list,
    at_least_one,
    count,
    load,
    media,
    more,
    text,
    truth,
    without_ids,
)
from breakloop.dialects.prompt import ABSENT, PromptTexts
from breakloop.dialects.session_ids import NULL, BodyModel
from breakloop.dialects.steps import StepBuilder, media_key, result
from breakloop.model.call import Answer, Call, Message, ToolCall, Usage
from breakloop.model.verdict import Verdict

_STREAM: Final = ":streamGenerateContent"
_MODEL: Final = "model"
_CODE: Final = "code_execution"
_CODE_DONE: Final = ("OUTCOME_OK", "OUTCOME_UNSPECIFIED", "", None)
# Marks of a part next to its content: signatures of thoughts change like ids.
_MARKS: Final = frozenset(("thought", "thoughtSignature", "thought_signature", "partMetadata", "part_metadata"))
# A response is an object. If it has only one of these fields, that field holds the returned value.
_OUTPUTS: Final = frozenset(("output", "result", "error", "content", "response"))
_MEDIA_TYPES: Final = frozenset(("image", "audio", "video"))
_ENVELOPE: Final = ("usageMetadata", "modelVersion", "responseId")
_FUNCTION_RESPONSE: Final = re.compile(rb'"function(?:R|_r)esponse"[ \t\n\r]*:').search
_FUNCTIONS: Final = re.compile(rb'"function(?:D|_d)eclarations"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*\{').search
_CACHED: Final = frozenset(("cachedContent", "cached_content"))
_TOOL_CONFIGS: Final = (("toolConfig", "functionCallingConfig"), ("tool_config", "function_calling_config"))
_NO_CALLS: Final = {"mode": "NONE"}  # and without the names that other modes allow
_RPC: Final = "type.googleapis.com/google.rpc."
_ERROR_STATUSES: Final = {
    400: "FAILED_PRECONDITION",  # and not INVALID_ARGUMENT: the request itself is valid
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class _Config(msgspec.Struct, gc=False):
    maxOutputTokens: int | None = None  # noqa: N815 - as it is sent
    max_output_tokens: int | None = None
    candidateCount: int | None = None  # noqa: N815
    candidate_count: int | None = None


class GeminiTool(msgspec.Struct, gc=False):
    functionDeclarations: list[NamedTool] | None = None  # noqa: N815 - as it is sent
    function_declarations: list[NamedTool] | None = None


class GeminiBody(BodyModel, gc=False, kw_only=True):
    """The fields of a request that are read."""

    contents: list[msgspec.Raw]
    tools: list[GeminiTool] | None = None
    generationConfig: _Config | None = None  # noqa: N815 - as it is sent
    generation_config: _Config | None = None
    systemInstruction: msgspec.Raw = NULL  # noqa: N815 - as it is sent
    system_instruction: msgspec.Raw = NULL


class _PromptPart(msgspec.Struct, gc=False):
    text: str | None = None
    thought: bool | None = None
    functionCall: msgspec.Raw = ABSENT  # noqa: N815 - as it is sent
    functionResponse: msgspec.Raw = ABSENT  # noqa: N815
    inlineData: msgspec.Raw = ABSENT  # noqa: N815
    fileData: msgspec.Raw = ABSENT  # noqa: N815
    function_call: msgspec.Raw = ABSENT
    function_response: msgspec.Raw = ABSENT
    inline_data: msgspec.Raw = ABSENT
    file_data: msgspec.Raw = ABSENT


class _PromptContent(msgspec.Struct, gc=False):
    parts: list[_PromptPart] | None = None


class _Prompt(msgspec.Struct, gc=False):
    contents: list[_PromptContent] | None = None
    systemInstruction: _PromptContent | None = None  # noqa: N815 - as it is sent
    system_instruction: _PromptContent | None = None
    tools: msgspec.Raw = ABSENT


_decode_body: Final = msgspec.json.Decoder(GeminiBody).decode
_decode_prompt: Final = msgspec.json.Decoder(_Prompt).decode


class Gemini(Dialect):
    name = "gemini"
    provider = "gemini"
    operation = "generate_content"
    path_endings = (":generateContent", _STREAM)
    model_in_path = True
    answer_field = "candidates"
    ends_streams = True

    def read_fields(self, body: bytes) -> BodyFields:
        fields = _decode_body(body)
        config = fields.generationConfig or fields.generation_config
        limit, answers = None, 1
        if config is not None:
            limit = config.max_output_tokens if config.maxOutputTokens is None else config.maxOutputTokens
            answers = at_least_one(config.candidate_count if config.candidateCount is None else config.candidateCount)
        system = fields.system_instruction if fields.systemInstruction is NULL else fields.systemInstruction
        return BodyFields("", fields.contents, max_tokens=limit, system=system, fields=fields, answers=answers)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields:
        config = _either(fields, "generationConfig", "generation_config")
        asked = config if isinstance(config, dict) else {}
        limit = count(_either(asked, "maxOutputTokens", "max_output_tokens"))
        answers = at_least_one(_either(asked, "candidateCount", "candidate_count"))
        system = _either(fields, "systemInstruction", "system_instruction")
        items = as_list(fields.get("contents"))
        return BodyFields("", items, max_tokens=limit, system=system, fields=fields, answers=answers)

    def read_path(self, path: str) -> tuple[str, bool]:
        model, action, _ = path.rpartition("/")[2].partition(":")
        return model if action else "", path.endswith(_STREAM)

    def flatten(self, item: Any) -> Message:
        if not isinstance(item, dict):
            return Message("user", text(item))
        parts = as_list(item.get("parts"))
        texts: list[str] = []
        calls: list[ToolCall] = []
        most = arguments_share(len(parts))
        for part in parts[:ITEMS_MAX]:
            call = (part.get("functionCall") or part.get("function_call")) if isinstance(part, dict) else None
            if isinstance(call, dict):
                calls.append(ToolCall(text(call.get("name")), arguments(call.get("args"), most)))
            else:
                said = _part_text(part)
                if said is not None:
                    texts.append(said)
        if len(parts) > ITEMS_MAX:
            texts.append(more(parts))
        return Message(text(item.get("role")) or "user", "\n".join(texts), tuple(calls))

    def collect_step(self, parts: BodyFields) -> StepBuilder:
        found = StepBuilder(separator="")  # pieces of a stream are joined as they were cut
        items = parts.items
        for at in range(len(items) - 1, max(-1, len(items) - ITEMS_MAX - 1), -1):
            item = item_at(items, at)
            if isinstance(item, dict) and item.get("role") == _MODEL:
                _add_answer(found, as_list(item.get("parts")))
            elif found.answered:
                break
            elif isinstance(item, dict):
                _add_input(found, as_list(item.get("parts")))
            else:
                found.users.append(("user", item))
        return found

    def tool_names(self, fields: GeminiBody | dict[str, Any]) -> list[str]:
        if isinstance(fields, dict):
            return _tool_names_leniently(fields)
        names: list[str] = []
        for tool in (fields.tools or ())[:ITEMS_MAX]:
            declared = (tool.functionDeclarations or tool.function_declarations or ())[:ITEMS_MAX]
            names.extend([one.name for one in declared if one.name])
        return names[:ITEMS_MAX]

    def add_prompt_texts(self, texts: PromptTexts, parsed: ParsedBody) -> None:
        body = _decode_prompt(parsed.body)
        for one in (*(body.contents or ()), body.systemInstruction, body.system_instruction):
            if one is not None:
                _add_prompt_parts(texts, one)
        if body.tools is not ABSENT:
            texts.raws.append(body.tools)

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        contents = json.fields["contents"]
        _, last = json.items_at(contents)
        content = json.fields_at(last)
        if json.value(content, "role") not in (None, "user", "function"):
            return None
        parts, part = content["parts"], {"text": note}
        json.items_at(parts)  # raises ValueError if there are none
        if not _FUNCTION_RESPONSE(json.body, *parts):
            return json.with_item(parts, part)
        # Function responses must not be mixed with other parts.
        return json.with_item(contents, {"role": "user", "parts": [part]})

    def switch_off_tools(self, json: JsonBody) -> bytes:
        # The API refuses the setting without functions, and beside cached content, which has its own.
        tools = json.fields.get("tools")
        if tools is None or not _FUNCTIONS(json.body, *tools) or not _CACHED.isdisjoint(json.fields):
            return json.body
        config, calling = next((names for names in _TOOL_CONFIGS if names[0] in json.fields), _TOOL_CONFIGS[0])
        span = json.fields.get(config)
        if span is None or json.first_char(span) != "{":
            return json.with_field(config, {calling: _NO_CALLS})
        fields = json.fields_at(span)
        known = next((names[1] for names in _TOOL_CONFIGS if names[1] in fields), calling)
        return json.with_field_of(span, fields, known, _NO_CALLS)

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return GeminiAnswer(listener)

    def owns_usage(self, fields: dict[str, Any]) -> bool:
        return any(name.endswith("TokenCount") for name in fields)

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        if not last or not end.choices:
            return b""  # there is no end mark
        content = {"parts": [{"text": ""}], "role": _MODEL}
        ended = [{"content": content, "finishReason": "MAX_TOKENS", "index": index} for index in end.choices]
        return sse_event({"candidates": ended} | {name: last[name] for name in _ENVELOPE if name in last})

    def resume_stream(self, end: StreamEnd) -> tuple[bytes, Rewrite] | None:
        last = event_fields(end.state.last)
        same: Json = {"responseId": last["responseId"]} if "responseId" in last else {}
        return b"", lambda event: {**event, **same}

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:  # noqa: ARG002
        code = denial.error_code(verdict)
        # google.rpc.ErrorInfo requires its reason in capitals; the metadata has ours.
        details: list[dict[str, object]] = [
            {"@type": _RPC + "ErrorInfo", "reason": code.upper(), "domain": "breakloop", "metadata": {"error": code}}
        ]
        if verdict.retry_after_s is not None and not verdict.never:
            details.append({"@type": _RPC + "RetryInfo", "retryDelay": f"{verdict.retry_after_s}s"})
        error: dict[str, object] = {
            "code": verdict.status,
            "message": denial.message(verdict),
            "status": denial.error_type(_ERROR_STATUSES, verdict.status),
            "details": details,
        }
        return {"error": error}


def _either(fields: dict[str, Any], name: str, other: str) -> Any:
    value = fields.get(name)
    return fields.get(other) if value is None else value


def _is_thought(part: dict[str, Any]) -> bool:
    return "thought" in part and truth(part["thought"])


def _part_text(part: Any) -> str | None:
    """Return the text of a part; None for a thought."""
    if not isinstance(part, dict):
        return text(part)
    if _is_thought(part):
        return None
    if "text" in part:
        return text(part["text"])
    returned = part.get("functionResponse") or part.get("function_response")
    if not isinstance(returned, dict):
        return _media_text(part)
    said, parts = arguments(returned.get("response")), returned.get("parts")
    return said if parts is None else "\n".join([said, *(_media_text(item) for item in as_list(parts))])


def _media_text(part: object) -> str:
    if not isinstance(part, dict):
        return text(part)
    fields = {
        key: without_ids(value) if isinstance(value, dict) else value
        for key, value in part.items()
        if key not in _MARKS
    }
    return media(min(fields), fields) if fields else ""


def _tool_names_leniently(fields: dict[str, Any]) -> list[str]:
    names: list[str] = []
    for tool in as_list(fields.get("tools"))[:ITEMS_MAX]:
        declared = _either(tool, "functionDeclarations", "function_declarations") if isinstance(tool, dict) else None
        names.extend([text(one.get("name")) for one in as_list(declared)[:ITEMS_MAX] if isinstance(one, dict)])
    return list(filter(None, names[:ITEMS_MAX]))


def _add_answer(found: StepBuilder, parts: list[Any]) -> None:
    found.answered = True
    if len(parts) > ITEMS_MAX:
        found.texts.append(more(parts))
    for part in reversed(parts[:ITEMS_MAX]):
        if not isinstance(part, dict):
            found.texts.append(text(part))
        elif not _is_thought(part):
            _add_answer_part(found, part)


def _add_answer_part(found: StepBuilder, part: dict[str, Any]) -> None:
    call = _either(part, "functionCall", "function_call")
    code = _either(part, "executableCode", "executable_code")
    ran = _either(part, "codeExecutionResult", "code_execution_result")
    if isinstance(call, dict):
        found.add_call(call.get("name"), call.get("args"), call.get("id"))
    elif isinstance(code, dict):
        found.add_raw_call(_CODE, text(code.get("code")), code.get("id"))
    elif isinstance(ran, dict):
        found.results.append(result(ran.get("output"), ran.get("id"), failed=ran.get("outcome") not in _CODE_DONE))
    elif "text" in part:
        found.texts.append(text(part["text"]))


def _add_input(found: StepBuilder, parts: list[Any]) -> None:
    others: list[Any] = []
    for part in reversed(parts[:ITEMS_MAX]):
        returned = _either(part, "functionResponse", "function_response") if isinstance(part, dict) else None
        if isinstance(returned, dict):
            _add_result(found, returned)
        else:
            others.append(_common_part(part))
    if others:
        found.users.append(("user", others[::-1]))


def _add_result(found: StepBuilder, returned: dict[str, Any]) -> None:
    said, failed = returned.get("response"), False
    if isinstance(said, dict):
        failed = bool(said.get("error"))
        if len(said) == 1 and not _OUTPUTS.isdisjoint(said):
            (said,) = said.values()
    one = result(said if isinstance(said, str) else arguments(said), returned.get("id"), failed=failed)
    parts = returned.get("parts")
    if parts is not None:
        media = [media_key(*_typed_media(part)) for part in as_list(parts)[:ITEMS_MAX]]
        one = one._replace(media=one.media + tuple(media))
    found.results.append(one)


def _common_part(part: object) -> object:
    """Return a part of the user in the shape of the other dialects: a text, or a medium with its type."""
    if not isinstance(part, dict):
        return part
    if "text" in part:
        return {"type": "text", "text": text(part["text"])}
    kind, value = _typed_media(part)
    return {"type": kind, "data": value}


def _typed_media(part: object) -> tuple[str, object]:
    if isinstance(part, dict):
        for value in part.values():
            mime = _either(value, "mimeType", "mime_type") if isinstance(value, dict) else None
            if isinstance(mime, str):
                kind = mime.partition("/")[0]
                return (kind if kind in _MEDIA_TYPES else "file"), value
    return "file", part


def _add_prompt_parts(texts: PromptTexts, content: _PromptContent) -> None:
    for part in content.parts or ():
        if part.text is not None:
            if not part.thought:
                texts.texts.append(part.text)
            continue
        made = (part.functionCall, part.functionResponse, part.function_call, part.function_response)
        raw = next((one for one in made if one is not ABSENT), None)
        if raw is not None:
            texts.raws.append(raw)
        elif any(one is not ABSENT for one in (part.inlineData, part.fileData, part.inline_data, part.file_data)):
            texts.media += 1


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
    """An ordinary piece; any other is read leniently."""

    candidates: list[_Candidate]
    usageMetadata: dict[str, Any] | None = None  # noqa: N815
    modelVersion: str | None = None  # noqa: N815
    responseId: str | None = None  # noqa: N815


_decode_piece: Final = msgspec.json.Decoder(_Piece).decode


class GeminiAnswer(AnswerBuilder):
    """Texts are numbered like the candidates, calls in order. Calls of all candidates count for the first."""

    __slots__ = ("_partial", "_values", "_values_room")

    USAGE = "usageMetadata"
    VALUES_ONCE = True

    def __init__(self, listener: StreamListener | None = None) -> None:
        super().__init__(listener)
        self._partial: PartialCall | None = None  # a call that continues in the next piece
        self._values: dict[str, Any] = {}  # its arguments so far
        self._values_room = ARGUMENTS_MAX_CHARS

    def read_event(self, payload: bytes) -> None:
        try:
            piece = _decode_piece(payload)
        except ValueError:
            self.read_leniently(payload)
            return
        for candidate in piece.candidates:
            content = candidate.content
            if content is not None and content.parts is not None:
                for part in content.parts:
                    if part.text:
                        if part.thought:
                            self.add_reasoning(candidate.index, part.text)
                        else:
                            self.add_text(candidate.index, part.text)
                    if part.functionCall is not None or part.toolCall is not None:
                        self._add_call(part.functionCall, part.toolCall)
            if candidate.finishReason:
                self.finish_choice(candidate.index, candidate.finishReason)
        self._read_metadata(piece.usageMetadata, piece.modelVersion, piece.responseId)

    def read_body(self, body: bytes) -> bool:
        """Read one object, or an array of pieces; of a truncated array, the complete pieces."""
        found = load(body)
        pieces = as_list(found) if found is not None else _complete_pieces(body)
        for piece in pieces:
            if isinstance(piece, dict):
                self.read_fields(piece)
        return found is not None

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        error, feedback = get("error"), get("promptFeedback")
        if isinstance(error, dict) and error:
            self.set_error(error.get("status"), error.get("code"))
        elif error:
            self.set_error()
        if isinstance(feedback, dict):
            self.finish_choice(0, feedback.get("blockReason"))
        for position, candidate in enumerate(as_list(get("candidates"))):
            if isinstance(candidate, dict):
                self._read_candidate(number(candidate.get("index"), position), candidate)
        self._read_metadata(get("usageMetadata"), get("modelVersion"), get("responseId"))

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        """Thoughts are not included in the candidates, tool results not in the prompt; cached tokens are."""
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

    def build(self, status: int, *, complete: bool) -> Answer:
        self._complete_call()  # also one that was cut off
        return super().build(status, complete=complete)

    def _read_candidate(self, index: int, candidate: dict[str, Any]) -> None:
        content = candidate.get("content")
        for part in as_list(content.get("parts")) if isinstance(content, dict) else ():
            if isinstance(part, dict):
                said = text(part.get("text"))
                if not truth(part.get("thought")):
                    self.add_text(index, said)
                elif said:
                    self.add_reasoning(index, said)
                self._add_call(part.get("functionCall"), part.get("toolCall"))
        self.finish_choice(index, candidate.get("finishReason"))

    def _read_metadata(self, usage: object, model: object, response_id: object) -> None:
        if isinstance(usage, dict):
            self.usage = usage
        if not self.model:
            self.model = word(model)
        if not self.response_id:
            self.response_id = word(response_id)

    def _add_call(self, function: object, tool: object) -> None:
        if isinstance(function, dict):
            if self._partial is not None or "partialArgs" in function or truth(function.get("willContinue")):
                self._continue_call(function)
            else:
                self.set_arguments(self.start_call(len(self._calls), word(function.get("name"))), function.get("args"))
        if isinstance(tool, dict):  # one that runs at Google
            self.set_arguments(self.start_call(len(self._calls), word(tool.get("toolType"))), tool.get("args"))

    def _continue_call(self, function: dict[str, Any]) -> None:
        """Vertex AI can send arguments as they are generated: values by path, strings in pieces."""
        if self._partial is None:
            self._partial = self.start_call(len(self._calls), word(function.get("name")))
        for item in as_list(function.get("partialArgs")):
            if isinstance(item, dict):
                self._add_value(item)
        if not truth(function.get("willContinue")):
            self._complete_call()

    def _add_value(self, item: dict[str, Any]) -> None:
        path = word(item.get("jsonPath")).removeprefix(_ROOT)
        value = next((item[name] for name in _VALUES if name in item), None)
        self._values_room -= len(path) + (len(value) if isinstance(value, str) else 1)
        if self._values_room >= 0:
            before = self._values.get(path)
            self._values[path] = before + value if isinstance(before, str) and isinstance(value, str) else value

    def _complete_call(self) -> None:
        if self._partial is not None:
            self.set_arguments(self._partial, self._values)
            self._partial, self._values = None, {}


def _complete_pieces(body: bytes) -> list[Any]:
    """Return the objects of an array up to where it is truncated."""
    rest = body.decode("utf-8", "replace").lstrip("\ufeff \t\r\n[")
    decode = json.JSONDecoder().raw_decode
    found: list[Any] = []
    while rest.startswith("{"):
        try:
            piece, end = decode(rest)
        except (ValueError, RecursionError):
            break
        found.append(piece)
        rest = rest[end:].lstrip(", \t\r\n")
    return found
