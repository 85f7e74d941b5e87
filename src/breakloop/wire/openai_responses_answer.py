"""Reads OpenAI Responses answers, streamed or whole: what messages say, and calls of all kinds; reasoning is passed
over. A stream repeats at its end all that it said; that is believed where it is there, because not every server that
speaks this dialect sends all the pieces, and others leave the output out at the end.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.answer import Usage
from breakloop.wire.content import as_list, content
from breakloop.wire.gathered import Gathered, number, word
from breakloop.wire.openai_chat_answer import failed_of, openai_tokens
from breakloop.wire.openai_responses import ARGUMENTS, first

_PARTS: Final = 1000  # texts are numbered by their item, and within it by their part
# Where the various kinds of calls keep what they say, in the order of looking.
_ARGUMENTS: Final = (*ARGUMENTS, "actions")
_OPENING: Final = b'{"type":"'
_TEXT: Final = b"response.output_text.delta"
_SAID: Final = frozenset((_TEXT, b"response.refusal.delta", b"response.audio.transcript.delta"))
_ARGUED: Final = frozenset(
    (
        b"response.function_call_arguments.delta",
        b"response.mcp_call_arguments.delta",
        b"response.custom_tool_call_input.delta",
    )
)
_ENDS: Final = frozenset((b"response.completed", b"response.incomplete", b"response.failed", b"response.cancelled"))
_OTHERS: Final = frozenset((b"response.created", b"response.output_item.added", b"response.output_item.done", b"error"))
_PIECES: Final = _SAID | _ARGUED
_READ: Final = _PIECES | _ENDS | _OTHERS


class _Piece(msgspec.Struct, gc=False):
    delta: str
    output_index: int = 0
    content_index: int = 0


class _Kind(msgspec.Struct, gc=False):
    type: str


_decode_piece: Final = msgspec.json.Decoder(_Piece).decode
_decode_kind: Final = msgspec.json.Decoder(_Kind).decode


class ResponsesAnswer(Gathered):
    """One answer. Calls are numbered as the items are, and texts by item and part."""

    __slots__ = ()

    def event(self, payload: bytes) -> None:
        """Read one event. Of fifty kinds a dozen say something, and the others need not be decoded."""
        if payload.startswith(_OPENING):
            kind = payload[9 : payload.find(b'"', 9)]
        else:
            try:
                kind = _decode_kind(payload).type.encode("utf-8", "replace")
            except ValueError:
                self.tolerantly(payload)
                return
        if kind not in _READ:
            return
        if kind not in _PIECES:
            self.tolerantly(payload)
            return
        try:
            piece = _decode_piece(payload)
        except ValueError:
            self.tolerantly(payload)
            return
        if kind in _SAID:
            self.say(piece.output_index * _PARTS + piece.content_index, piece.delta)
        else:
            self._argued(piece.output_index, piece.delta)

    def whole(self, fields: dict[str, Any]) -> None:
        """Read a whole answer, or an event that is no ordinary piece."""
        get = fields.get
        kind = get("type")
        name = kind.encode("utf-8", "replace") if isinstance(kind, str) else b""
        if name == b"error":
            failed_of(self, fields if get("error") else {"error": fields})
        elif name in _ENDS or name == b"response.created":
            self._response(get("response"), final=name in _ENDS)
            failed_of(self, fields)
            self._end(name)
        elif name.startswith(b"response.output_item."):
            self._item(number(get("output_index")), get("item"))
        elif name in _PIECES:
            self._odd_piece(name, fields)
        else:
            self._response(fields, final=True)

    def tokens(self, fields: dict[str, Any]) -> Usage | None:
        """Read OpenAI's count."""
        return openai_tokens(fields)

    def _end(self, name: bytes) -> None:
        if name == b"response.failed" and not self.error:
            self.fail()
        self.ended = name != b"response.created"

    def _response(self, response: object, *, final: bool) -> None:
        if not isinstance(response, dict):
            return
        get = response.get
        self.model, self.response_id = word(get("model")) or self.model, word(get("id")) or self.response_id
        if not final:
            return
        failed_of(self, response)
        why, usage, output = get("incomplete_details"), get("usage"), as_list(get("output"))
        self.finish = (word(why.get("reason")) if isinstance(why, dict) else "") or word(get("status"))
        if isinstance(usage, dict):
            self.usage = usage
        if output:
            self.forget()
        for index, item in enumerate(output):
            self._item(index, item)

    def _item(self, index: int, item: object) -> None:
        if not isinstance(item, dict):
            return
        get = item.get
        kind = word(get("type"))
        if kind == "message":
            self._message(index, get("content"))
        elif kind.endswith("_call") or kind == "mcp_approval_request":
            call = self.begin(index, word(get("name")) or kind.removesuffix("_call"), word(get("call_id")))
            self.settle(call, first(item, _ARGUMENTS))

    def _message(self, index: int, parts: object) -> None:
        for place, part in enumerate(as_list(parts)[:_PARTS]):
            if not self.said(index * _PARTS + place):  # by its pieces
                self.say(index * _PARTS + place, content([part]))

    def _odd_piece(self, name: bytes, fields: dict[str, Any]) -> None:
        piece, index = fields.get("delta"), number(fields.get("output_index"))
        if not isinstance(piece, str):
            self.gave_up += 1
        elif name in _SAID:
            self.say(index * _PARTS + number(fields.get("content_index")), piece)
        else:
            self._argued(index, piece)

    def _argued(self, index: int, piece: str) -> None:
        call = self.call(index)
        if call is not None:
            self.argue(call, piece)
