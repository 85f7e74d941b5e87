"""The texts of a request that the model reads: messages, system prompt, calls, results and declared tools, without the
JSON around them. Token estimates are made from them (`pricing`).

A body of the expected shape is read in one typed pass. Any other is searched value by value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from breakloop.dialects.content import json_text, load
from breakloop.model.call import Call, Prompt, PromptSize, chars_of

if TYPE_CHECKING:
    from breakloop.dialects.base import ParsedBody

Raw = msgspec.Raw
ABSENT: Final = Raw(b"")
# The top-level fields that hold texts, in all dialects, and those that declare tools.
_TEXT_FIELDS: Final = (
    "messages", "contents", "input", "system", "instructions", "systemInstruction", "system_instruction",
)  # fmt: skip
_TOOL_FIELDS: Final = ("tools", "functions")
_MEDIA: Final = frozenset((
    "audio", "computer_screenshot", "container_upload", "document", "file", "image", "image_url", "input_audio",
    "input_file", "input_image", "video", "video_url",
))  # fmt: skip
_GEMINI_MEDIA: Final = ("inlineData", "inline_data", "fileData", "file_data")
# Not text for the model: type names, ids, and reasoning, which most APIs drop or do not count.
_NOT_TEXT: Final = frozenset((
    "cache_control", "call_id", "encrypted_content", "id", "role", "signature", "status", "thinking", "thought",
    "thoughtSignature", "thought_signature", "tool_call_id", "tool_use_id", "type",
))  # fmt: skip


class _Part(msgspec.Struct, gc=False):
    """A part of a content: a text, a call, a result with parts of its own, or media."""

    type: str | None = None
    text: str | None = None
    content: str | list[_Part] | None = None
    name: str | None = None
    input: Raw = ABSENT
    refusal: str | None = None


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _Call(msgspec.Struct, gc=False):
    function: _Function | None = None
    custom: _Function | None = None


class _Item(msgspec.Struct, gc=False):
    """A message, or another item of OpenAI Responses."""

    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    type: str | None = None
    function_call: _Function | None = None
    refusal: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[_Part] | None = None


class _Body(msgspec.Struct, gc=False):
    """The text fields of OpenAI and Anthropic, which most other APIs imitate."""

    messages: list[_Item] | None = None
    input: str | list[_Item] | None = None
    system: str | list[_Part] | None = None
    instructions: str | None = None
    tools: Raw = ABSENT
    functions: Raw = ABSENT


_decode_body: Final = msgspec.json.Decoder(_Body).decode


class PromptTexts:
    """The texts found in one body."""

    __slots__ = ("media", "raws", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.raws: list[Raw | bytes] = []  # arguments that are JSON values, and declarations: as they were sent
        self.media = 0
        self.tokens = 0  # prompts sent as token ids

    def add_body(self, body: bytes) -> None:
        """Add the texts of a body in the shape of OpenAI or Anthropic. Raises ValueError for any other shape."""
        fields = _decode_body(body)
        if fields.messages is not None:
            self._add_items(fields.messages)
        given = fields.input
        if given is not None:
            if type(given) is list:
                self._add_items(given)
            else:
                self._add_content(given)
        if fields.system is not None:
            self._add_content(fields.system)
        if fields.instructions is not None:
            self.texts.append(fields.instructions)
        if fields.tools is not ABSENT:
            self.raws.append(fields.tools)
        if fields.functions is not ABSENT:
            self.raws.append(fields.functions)

    def add_plain(self, prompt: object) -> None:
        """Add the prompt of a completion or the input of an embedding: one text, several, or token ids."""
        if isinstance(prompt, list):
            for item in prompt:
                self.add_plain(item)
        elif isinstance(prompt, int):
            self.tokens += 1
        elif isinstance(prompt, str):
            self.texts.append(prompt)

    def _add_items(self, items: Iterable[_Item]) -> None:
        add = self.texts.append
        for item in items:
            content = item.content
            if type(content) is str:
                add(content)
            elif type(content) is list:
                self._add_parts(content)
            if item.tool_calls is not None:
                for call in item.tool_calls:
                    self._add_function(call.function or call.custom)
            if item.type is not None or item.function_call is not None or item.refusal is not None:
                self._add_rare_fields(item)

    def _add_content(self, content: Any) -> None:
        if type(content) is str:
            self.texts.append(content)
        else:
            self._add_parts(content)

    def _add_function(self, function: _Function | None) -> None:
        if function is not None:
            add = self.texts.append
            if function.name is not None:
                add(function.name)
            if function.arguments is not None:
                add(function.arguments)
            if function.input is not None:
                add(function.input)

    def _add_rare_fields(self, item: _Item) -> None:
        """Legacy function calls and refusals; calls and results of OpenAI Responses."""
        add = self.texts.append
        if item.name is not None:
            add(item.name)
        if item.arguments is not None:
            add(item.arguments)
        if item.output is not None:
            self._add_content(item.output)
        if item.input is not None:
            add(item.input)
        if item.refusal is not None:
            add(item.refusal)
        self._add_function(item.function_call)

    def _add_parts(self, parts: Iterable[_Part]) -> None:
        add = self.texts.append
        for part in parts:
            if part.type in _MEDIA:
                self.media += 1
            elif part.text is not None:
                add(part.text)
            else:
                if part.content is not None:
                    self._add_content(part.content)
                if part.name is not None:
                    add(part.name)
                if part.input is not ABSENT:
                    self.raws.append(part.input)
                if part.refusal is not None:
                    add(part.refusal)

    def _add_value(self, value: object) -> None:
        """Add the texts in a value of unknown shape."""
        if isinstance(value, str):
            self.texts.append(value)
        elif isinstance(value, list):
            for item in value:
                self._add_value(item)
        elif isinstance(value, dict):
            kind = value.get("type")
            if (isinstance(kind, str) and kind in _MEDIA) or any(name in value for name in _GEMINI_MEDIA):
                self.media += 1
            else:
                for name, inner in value.items():
                    if name not in _NOT_TEXT:
                        self._add_value(inner)

    def add_fields(self, fields: dict[str, Any]) -> None:
        """Add the texts of a body that had to be decoded leniently."""
        for name in _TEXT_FIELDS:
            self._add_value(fields.get(name))
        self.raws += [json_text(fields[name]) for name in _TOOL_FIELDS if fields.get(name) is not None]


def texts_of(parsed: ParsedBody) -> PromptTexts | None:
    """Return the texts of a request; None if it cannot be read."""
    try:
        try:
            found = PromptTexts()
            parsed.dialect.add_prompt_texts(found, parsed)
        except ValueError:
            fields = load(parsed.body)
            if not isinstance(fields, dict):
                return None
            found = PromptTexts()
            found.add_fields(fields)
    except RecursionError:
        return None
    return found


class RequestPrompt:
    """The prompt of one request. Its size is computed once, on first use."""

    __slots__ = ("_measured", "_parsed", "_size", "body_bytes")

    def __init__(self, parsed: ParsedBody | None, body_bytes: int) -> None:
        self._parsed = parsed if parsed is not None and parsed.dialect.is_llm else None
        self.body_bytes = body_bytes
        self._measured = False
        self._size: PromptSize | None = None

    @property
    def size(self) -> PromptSize | None:
        if not self._measured:
            self._measured = True
            found = None if self._parsed is None else texts_of(self._parsed)
            self._size = None if found is None else _size(found)
        return self._size

    def texts(self) -> list[str]:
        found = None if self._parsed is None else texts_of(self._parsed)
        return [] if found is None else found.texts + [bytes(raw).decode("utf-8", "replace") for raw in found.raws]


def prompt_of(call: Call) -> Prompt:
    """Return the prompt of a call whose chat has been read. A body that is streamed through counts by its length."""
    known = call.parsed.prompt
    if known is None:
        size = len(call.body)
        if call.body_unseen:
            length = call.headers.get("content-length", b"")
            size = int(length) if length.isdigit() and len(length) < 16 else size
        parsed = cast("ParsedBody | None", call.parsed.body)  # the registry made it
        known = call.parsed.prompt = RequestPrompt(parsed, size)
    return known


def _size(found: PromptTexts) -> PromptSize:
    texts = found.texts
    chars = sum(map(len, texts)) if all(map(str.isascii, texts)) else sum(map(chars_of, texts))
    for raw in found.raws:
        sent = bytes(raw)
        chars += len(sent) if sent.isascii() else chars_of(sent.decode("utf-8", "replace"))
    return PromptSize(chars, found.media, found.tokens)
