"""How much a request says to the model (`model.prompt`). What it says is found by `prompt_texts`; what a token is, is
`pricing`'s business.

All that a request says to the model, text by text (SPEC L-3): messages, system prompt, calls, results and declared
tools, without the JSON around them. One typed pass over a body that is as expected; any other is gone through value by
value. How long that is, is `prompt`'s question.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from breakloop.dialects import gemini, openai_legacy
from breakloop.dialects.base import ParsedBody, json_text, load
from breakloop.model.call import Call, Prompt, PromptSize, chars_of

Raw = msgspec.Raw
_ABSENT: Final = Raw(b"")
# Where what is said stands at the top of a body, in all dialects; and where tools are declared.
_SAID: Final = ("messages", "contents", "input", "system", "instructions", "systemInstruction", "system_instruction")
_DECLARED: Final = ("tools", "functions")
_MEDIA: Final = frozenset(
    (
        "audio", "computer_screenshot", "container_upload", "document", "file", "image", "image_url", "input_audio",
        "input_file", "input_image", "video", "video_url",
    )
)  # fmt: skip
_GEMINI_MEDIA: Final = ("inlineData", "inline_data", "fileData", "file_data")
# What is no text to the model: names of kinds, ids, and thoughts, which are dropped or not counted by most APIs.
_NOT_SAID: Final = frozenset(
    (
        "cache_control", "call_id", "encrypted_content", "id", "role", "signature", "status", "thinking", "thought",
        "thoughtSignature", "thought_signature", "tool_call_id", "tool_use_id", "type",
    )
)  # fmt: skip


class _Part(msgspec.Struct, gc=False):
    """A part of a content: a text, a call, a result with parts of its own, or media."""

    type: str | None = None
    text: str | None = None
    content: str | list[_Part] | None = None
    name: str | None = None
    input: Raw = _ABSENT
    refusal: str | None = None


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _Call(msgspec.Struct, gc=False):
    function: _Function | None = None
    custom: _Function | None = None


class _Item(msgspec.Struct, gc=False):
    """A message, or another item of Responses."""

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
    """What is read of all dialects but Gemini."""

    messages: list[_Item] | None = None
    input: str | list[_Item] | None = None
    system: str | list[_Part] | None = None
    instructions: str | None = None
    tools: Raw = _ABSENT
    functions: Raw = _ABSENT


class _GeminiPart(msgspec.Struct, gc=False):
    """A part as Gemini has it, in both spellings."""

    text: str | None = None
    thought: bool | None = None
    functionCall: Raw = _ABSENT  # noqa: N815 - as it is sent
    functionResponse: Raw = _ABSENT  # noqa: N815
    inlineData: Raw = _ABSENT  # noqa: N815
    fileData: Raw = _ABSENT  # noqa: N815
    function_call: Raw = _ABSENT
    function_response: Raw = _ABSENT
    inline_data: Raw = _ABSENT
    file_data: Raw = _ABSENT


class _GeminiContent(msgspec.Struct, gc=False):
    parts: list[_GeminiPart] | None = None


class _GeminiBody(msgspec.Struct, gc=False):
    contents: list[_GeminiContent] | None = None
    systemInstruction: _GeminiContent | None = None  # noqa: N815 - as it is sent
    system_instruction: _GeminiContent | None = None
    tools: Raw = _ABSENT


_decode_body: Final = msgspec.json.Decoder(_Body).decode
_decode_gemini: Final = msgspec.json.Decoder(_GeminiBody).decode


class PromptTexts:
    """What was found in one body."""

    __slots__ = ("media", "raws", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.raws: list[Raw | bytes] = []  # arguments that are no text but a value, declarations: as they were sent
        self.media = 0
        self.tokens = 0

    def body(self, body: _Body) -> None:
        """Go through a body that is as expected."""
        if body.messages is not None:
            self.items(body.messages)
        said = body.input
        if said is not None:
            if type(said) is list:
                self.items(said)
            else:
                self.text(said)
        if body.system is not None:
            self.text(body.system)
        if body.instructions is not None:
            self.texts.append(body.instructions)
        if body.tools is not _ABSENT:
            self.raws.append(body.tools)
        if body.functions is not _ABSENT:
            self.raws.append(body.functions)

    def items(self, items: Iterable[_Item]) -> None:
        """Go through messages."""
        add = self.texts.append
        for item in items:
            content = item.content
            if type(content) is str:
                add(content)
            elif type(content) is list:
                self.parts(content)
            if item.tool_calls is not None:
                for call in item.tool_calls:
                    self.function(call.function or call.custom)
            if item.type is not None or item.function_call is not None or item.refusal is not None:
                self.other(item)

    def text(self, said: Any) -> None:
        """Take a text, or the parts of a content."""
        if type(said) is str:
            self.texts.append(said)
        else:
            self.parts(said)

    def function(self, made: _Function | None) -> None:
        """A call with its arguments."""
        if made is not None:
            add = self.texts.append
            if made.name is not None:
                add(made.name)
            if made.arguments is not None:
                add(made.arguments)
            if made.input is not None:
                add(made.input)

    def other(self, item: _Item) -> None:
        """What few messages have: the calls of old, refusals; and calls and results of Responses."""
        add = self.texts.append
        if item.name is not None:
            add(item.name)
        if item.arguments is not None:
            add(item.arguments)
        if item.output is not None:
            self.text(item.output)
        if item.input is not None:
            add(item.input)
        if item.refusal is not None:
            add(item.refusal)
        self.function(item.function_call)

    def parts(self, parts: Iterable[_Part]) -> None:
        """Go through the parts of a content."""
        add = self.texts.append
        for part in parts:
            if part.type in _MEDIA:
                self.media += 1
            elif part.text is not None:
                add(part.text)
            else:
                if part.content is not None:
                    self.text(part.content)
                if part.name is not None:
                    add(part.name)
                if part.input is not _ABSENT:
                    self.raws.append(part.input)
                if part.refusal is not None:
                    add(part.refusal)

    def gemini(self, body: _GeminiBody) -> None:
        """Go through a body of Gemini's that is as expected."""
        for content in body.contents or ():
            self.gemini_parts(content)
        for system in (body.systemInstruction, body.system_instruction):
            if system is not None:
                self.gemini_parts(system)
        if body.tools is not _ABSENT:
            self.raws.append(body.tools)

    def gemini_parts(self, content: _GeminiContent) -> None:
        """Go through the parts of one turn."""
        for part in content.parts or ():
            if part.text is not None:
                if not part.thought:
                    self.texts.append(part.text)
            elif part.functionCall is not _ABSENT:
                self.raws.append(part.functionCall)
            elif part.functionResponse is not _ABSENT:
                self.raws.append(part.functionResponse)
            elif part.function_call is not _ABSENT:
                self.raws.append(part.function_call)
            elif part.function_response is not _ABSENT:
                self.raws.append(part.function_response)
            elif any(raw is not _ABSENT for raw in (part.inlineData, part.fileData, part.inline_data, part.file_data)):
                self.media += 1

    def anything(self, value: object) -> None:
        """Go through a value of which nothing is known."""
        if isinstance(value, str):
            self.texts.append(value)
        elif isinstance(value, list):
            for item in value:
                self.anything(item)
        elif isinstance(value, dict):
            kind = value.get("type")
            if (isinstance(kind, str) and kind in _MEDIA) or any(name in value for name in _GEMINI_MEDIA):
                self.media += 1
            else:
                for name, inner in value.items():
                    if name not in _NOT_SAID:
                        self.anything(inner)

    def plain(self, prompt: object) -> None:
        """Take a prompt of Completions or an input of Embeddings: a text, several, or tokens."""
        if isinstance(prompt, list):
            for item in prompt:
                self.plain(item)
        elif isinstance(prompt, int):
            self.tokens += 1
        elif isinstance(prompt, str):
            self.texts.append(prompt)


_PLAIN: Final = {openai_legacy.COMPLETIONS: ("prompt", "suffix"), openai_legacy.EMBEDDINGS: ("input",)}


def texts_of(taken: ParsedBody | None) -> PromptTexts | None:
    """Find what is said; None where it cannot be read."""
    if taken is None:
        return None
    found = PromptTexts()
    try:
        plain = _PLAIN.get(taken.dialect)
        if plain is not None:
            fields = taken.parts.fields
            for name in plain:
                found.plain(fields.get(name) if isinstance(fields, dict) else getattr(fields, name))
            return found
        try:
            if taken.dialect == gemini.DIALECT:
                found.gemini(_decode_gemini(taken.body))
            else:
                found.body(_decode_body(taken.body))
        except ValueError:
            return _tolerantly(taken.body)
    except RecursionError:
        return None
    return found


def _tolerantly(body: bytes) -> PromptTexts | None:
    fields = load(body)
    if not isinstance(fields, dict):
        return None
    found = PromptTexts()
    for name in _SAID:
        found.anything(fields.get(name))
    found.raws += [json_text(fields[name]) for name in _DECLARED if fields.get(name) is not None]
    return found


class RequestPrompt:
    """What one request says. Measured when asked for the first time."""

    __slots__ = ("_read", "_size", "_taken", "body_bytes")

    def __init__(self, taken: object, body_bytes: int) -> None:
        self._taken = taken if isinstance(taken, ParsedBody) else None
        self.body_bytes = body_bytes
        self._read = False
        self._size: PromptSize | None = None

    @property
    def size(self) -> PromptSize | None:
        """How much it says; None where that cannot be read."""
        if not self._read:
            self._read = True
            said = texts_of(self._taken)
            self._size = None if said is None else _size(said)
        return self._size

    def texts(self) -> list[str]:
        """Return all that is said."""
        said = texts_of(self._taken)
        return [] if said is None else said.texts + [bytes(raw).decode("utf-8", "replace") for raw in said.raws]


def prompt_of(call: Call) -> Prompt:
    """Return what a call says; its chat has been read before. A body that passes in pieces counts by its length."""
    known = call.parsed.prompt
    if known is None:
        size = len(call.body)
        if call.body_unseen:
            length = call.headers.get("content-length", b"")
            size = int(length) if length.isdigit() and len(length) < 16 else size
        known = call.parsed.prompt = RequestPrompt(call.parsed.body, size)
    return known


def _size(said: PromptTexts) -> PromptSize:
    """Add it up."""
    texts = said.texts
    chars = sum(map(len, texts)) if all(map(str.isascii, texts)) else sum(map(chars_of, texts))
    for raw in said.raws:
        sent = bytes(raw)
        chars += len(sent) if sent.isascii() else chars_of(sent.decode("utf-8", "replace"))
    return PromptSize(chars, said.media, said.tokens)
