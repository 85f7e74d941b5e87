"""How much a request says to the model (`model.prompt`): messages, system prompt, calls, results and declared tools,
without the JSON around them. One typed pass over the body, for all dialects; what is not as expected is gone through
value by value. What a token is, is `pricing`'s business."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from breakloop.model.call import Call
from breakloop.model.prompt import PromptSize, chars_of
from breakloop.wire import dialects, openai_completions, openai_embeddings
from breakloop.wire.content import json_text, load
from breakloop.wire.conversation import Taken

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
    refusal: str | None = None
    name: str | None = None
    input: Raw = _ABSENT
    thought: bool | None = None
    functionCall: Raw = _ABSENT  # noqa: N815 - as it is sent
    function_call: Raw = _ABSENT
    functionResponse: Raw = _ABSENT  # noqa: N815
    function_response: Raw = _ABSENT
    inlineData: Raw = _ABSENT  # noqa: N815
    inline_data: Raw = _ABSENT
    fileData: Raw = _ABSENT  # noqa: N815
    file_data: Raw = _ABSENT


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class _Call(msgspec.Struct, gc=False):
    function: _Function | None = None
    custom: _Function | None = None


class _Item(msgspec.Struct, gc=False):
    """A message of any dialect, or another item of Responses."""

    content: str | list[_Part] | None = None
    parts: list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None
    refusal: str | None = None
    type: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[_Part] | None = None


class _Body(msgspec.Struct, gc=False):
    messages: list[_Item] | None = None
    contents: list[_Item] | None = None
    input: str | list[_Item] | None = None
    system: str | list[_Part] | None = None
    instructions: str | None = None
    systemInstruction: _Item | None = None  # noqa: N815
    system_instruction: _Item | None = None
    tools: Raw = _ABSENT
    functions: Raw = _ABSENT


_decode_body: Final = msgspec.json.Decoder(_Body).decode


class Prompt:
    """What one request says. Measured when asked for the first time."""

    __slots__ = ("_read", "_size", "_taken", "body_bytes")

    def __init__(self, taken: dialects.Taken | None, body_bytes: int) -> None:
        self._taken = taken if isinstance(taken, Taken) else None
        self.body_bytes = body_bytes
        self._read = False
        self._size: PromptSize | None = None

    @property
    def size(self) -> PromptSize | None:
        """How much it says; None where that cannot be read."""
        if not self._read:
            self._read = True
            said = _said(self._taken)
            self._size = None if said is None else said.size()
        return self._size

    def texts(self) -> list[str]:
        """Return all that is said."""
        said = _said(self._taken)
        return [] if said is None else said.texts + [bytes(raw).decode("utf-8", "replace") for raw in said.raws]


def prompt_of(call: Call) -> Prompt:
    """Return what a call says; its chat has been read before. A body that passes in pieces counts by its length."""
    known: Prompt | None = call.prompt_cache
    if known is None:
        size = len(call.body)
        if call.body_unseen:
            length = call.headers.get("content-length", b"")
            size = int(length) if length.isdigit() and len(length) < 16 else size
        known = call.prompt_cache = Prompt(call.taken_cache, size)
    return known


class _Found:
    """What was found in one body."""

    __slots__ = ("media", "raws", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.raws: list[Raw | bytes] = []  # arguments that are no text but a value, declarations: as they were sent
        self.media = 0
        self.tokens = 0

    def size(self) -> PromptSize:
        """Add it up."""
        chars = 0
        for text in self.texts:
            chars += len(text) if text.isascii() else chars_of(text)
        for raw in self.raws:
            sent = bytes(raw)
            chars += len(sent) if sent.isascii() else chars_of(sent.decode("utf-8", "replace"))
        return PromptSize(chars, self.media, self.tokens)

    def items(self, items: Iterable[_Item]) -> None:
        """Go through messages."""
        add = self.texts.append
        for item in items:
            content = item.content
            if type(content) is str:
                add(content)
            elif type(content) is list:
                self.parts(content)
            calls = item.tool_calls
            if calls is not None:
                for call in calls:
                    self.function(call.function or call.custom)
            if item.type is not None or item.parts is not None or item.function_call is not None or item.refusal:
                self.other(item)

    def function(self, made: _Function | None) -> None:
        """A call with its arguments."""
        if made is not None:
            self.texts += [text for text in (made.name, made.arguments, made.input) if text]

    def other(self, item: _Item) -> None:
        """What few messages have: Gemini's parts, the calls of old, refusals, calls and results of Responses."""
        self.function(item.function_call)
        self.texts += [text for text in (item.refusal, item.name, item.arguments, item.input) if text]
        if type(item.output) is str:
            self.texts.append(item.output)
        for parts in (item.parts, item.output):
            if type(parts) is list:
                self.parts(parts)

    def parts(self, parts: Iterable[_Part]) -> None:
        """Go through the parts of a content."""
        for part in parts:
            if part.type in _MEDIA:
                self.media += 1
            elif part.text is not None:
                if not part.thought:
                    self.texts.append(part.text)
            else:
                self.rare(part)

    def rare(self, part: _Part) -> None:
        """A part that is no text."""
        self.texts += [text for text in (part.name, part.refusal) if text is not None]
        if type(part.content) is str:
            self.texts.append(part.content)
        elif type(part.content) is list:
            self.parts(part.content)
        made = (part.input, part.functionCall, part.function_call, part.functionResponse, part.function_response)
        self.raws += [raw for raw in made if raw is not _ABSENT]
        media = (part.inlineData, part.inline_data, part.fileData, part.file_data)
        self.media += sum([raw is not _ABSENT for raw in media])

    def body(self, body: _Body) -> None:
        """Go through a body that is as expected."""
        for items in (body.messages, body.contents, body.input):
            if type(items) is list:
                self.items(items)
        for said in (body.system, body.instructions, body.input):
            if type(said) is str:
                self.texts.append(said)
        if type(body.system) is list:
            self.parts(body.system)
        self.items([item for item in (body.systemInstruction, body.system_instruction) if item is not None])
        self.raws += [raw for raw in (body.tools, body.functions) if raw is not _ABSENT]

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


_PLAIN: Final = {openai_completions.DIALECT: ("prompt", "suffix"), openai_embeddings.DIALECT: ("input",)}


def _said(taken: Taken | None) -> _Found | None:
    """Find what is said; None where it cannot be read."""
    if taken is None:
        return None
    found = _Found()
    try:
        plain = _PLAIN.get(taken.dialect)
        if plain is not None:
            _plainly(found, taken.parts.fields, plain)
            return found
        try:
            found.body(_decode_body(taken.body))
        except ValueError:
            return _tolerantly(taken.body)
    except RecursionError:
        return None
    return found


def _plainly(found: _Found, fields: Any, names: tuple[str, ...]) -> None:
    for name in names:
        found.plain(fields.get(name) if isinstance(fields, dict) else getattr(fields, name))


def _tolerantly(body: bytes) -> _Found | None:
    fields = load(body)
    if not isinstance(fields, dict):
        return None
    found = _Found()
    for name in _SAID:
        found.anything(fields.get(name))
    found.raws += [json_text(fields[name]) for name in _DECLARED if fields.get(name) is not None]
    return found
