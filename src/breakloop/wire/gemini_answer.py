"""Reads Gemini `generateContent` answers, Vertex AI's too: whole, as events, or as one array that comes in pieces.

Every piece has the same shape. Thoughts are passed over; there is no end mark, so a reason to finish has to do.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from breakloop.model.answer import Answer, Usage
from breakloop.wire.content import as_list, load, text, truth
from breakloop.wire.gathered import ARGUMENTS_MAX_CHARS, Gathered, PartOfCall, number, tokens, word

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


class GeminiAnswer(Gathered):
    """One answer. Texts are numbered as the candidates are, calls as they come."""

    __slots__ = ("_partial", "_values", "_values_room")

    USAGE = "usageMetadata"

    def __init__(self) -> None:
        super().__init__()
        self._partial: PartOfCall | None = None  # a call that goes on in the next piece
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
