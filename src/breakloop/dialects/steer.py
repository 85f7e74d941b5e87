"""Appends a steer note to the tail of a request (SPEC LD-5): dialect-correct, everything before it byte for byte as it
came, so that prompt caches still hit. When to steer, and what the note says, is decided elsewhere.

A note goes into the last message where that is the user's, and else behind it as a message of the user's: several
servers insist that roles alternate. Where neither is possible the body stays as it is, and None says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from breakloop.dialects import anthropic, gemini, openai_chat, openai_legacy, openai_responses
from breakloop.dialects.base import clean, decode
from breakloop.model.call import END, MARK

__all__ = ["END", "MARK", "append", "strip"]

_NOTE_MAX: Final = 1000
_BLANK_LINE: Final = "\n\n"
_WHITE: Final = b" \t\n\r"
_KEY: Final = re.compile(rb'[ \t\n\r]*"[^"\\]*(?:\\.[^"\\]*)*"[ \t\n\r]*:[ \t\n\r]*', re.DOTALL).match
_COMMA: Final = re.compile(rb"[ \t\n\r]*,").match
_FUNCTION_RESPONSE: Final = re.compile(rb'"function(?:R|_r)esponse"[ \t\n\r]*:').search
_TOOL_ROLES: Final = frozenset(("tool", "function"))
_SERVER_CALLS: Final = frozenset(("server_tool_use", "mcp_tool_use"))
# Mistral, Codestral, Devstral, Mixtral and the rest of them: their API refuses a user's message after a tool's.
_NO_USER_AFTER_TOOL: Final = "tral"

Raw = msgspec.Raw
Span = tuple[int, int]

_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_split_list = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.encode


def append(dialect: str, body: bytes, note: str) -> bytes | None:
    """Return the body with the note at the tail of its conversation; None where it cannot be changed."""
    change = _CHANGES.get(dialect)
    if change is None:
        return None
    try:
        return change(_Json(body), _marked(note))
    except (ValueError, KeyError, RecursionError):  # no JSON, other than expected, or nested too deep
        return None


def strip(text: str) -> str:
    """Return a message's text without the note at its end; a text that does not end in one is returned as it is."""
    if not text.endswith(END):
        return text
    at = text.rfind(MARK)
    if at < 0 or len(text) - at > len(_marked("")) + _NOTE_MAX:
        return text
    return text[:at].rstrip("\n")


def _marked(note: str) -> str:
    said = clean(note)[:_NOTE_MAX].replace(MARK, "").replace(END, "")
    return f"{MARK} {said} {END}"


class _Json:
    """A body and where its values stand in it. Nothing is ever written anew: changes are insertions."""

    __slots__ = ("body", "fields")

    def __init__(self, body: bytes) -> None:
        self.body = body
        end = len(body.rstrip(_WHITE))
        self.fields = self.values((end - len(body.strip(_WHITE)), end))

    def values(self, span: Span) -> dict[str, Span]:
        """Return where the value of each field of an object stands; ValueError for anything else."""
        body, at = self.body, span[0] + 1
        found: dict[str, Span] = {}
        for name, raw in _split_object(memoryview(body)[slice(*span)]).items():
            if found:
                at = _past(_COMMA, body, at)
            at = _past(_KEY, body, at)
            found[name] = at, self._stands(raw, at)
            at = found[name][1]
        if body[at : span[1]].strip(_WHITE) != b"}":
            raise ValueError("a field stands in it twice")
        return found

    def items(self, span: Span) -> tuple[list[Raw], Span]:
        """Return the items of a list, and where the last one stands; ValueError for anything else, and an empty one."""
        items = _split_list(memoryview(self.body)[slice(*span)])
        if not items:
            raise ValueError("nothing to append to")
        end = span[0] + len(self.body[span[0] : span[1] - 1].rstrip(_WHITE))
        start = end - memoryview(items[-1]).nbytes
        return items, (start, self._stands(items[-1], start))

    def value(self, fields: dict[str, Span], name: str) -> Any:
        """Return the value of a field, decoded; None where it is missing."""
        span = fields.get(name)
        return None if span is None else decode(memoryview(self.body)[slice(*span)])

    def kind(self, span: Span) -> str:
        """Return the first character of a value, which says what it is."""
        return chr(self.body[span[0]])

    def with_item(self, span: Span, item: object) -> bytes:
        """Return the body with one more item at the end of a list."""
        empty = not self.body[span[0] + 1 : span[1] - 1].strip(_WHITE)
        return self._with(span[1] - 1, _encode(item) if empty else b"," + _encode(item))

    def with_text(self, span: Span, text: str) -> bytes:
        """Return the body with more text at the end of a string, after a blank line."""
        return self._with(span[1] - 1, _encode(_BLANK_LINE + text)[1:-1])

    def with_content(self, span: Span, part: dict[str, str], text: str) -> bytes:
        """Return the body with more text in a content: a string, or a list of parts."""
        kind = self.kind(span)
        if kind == '"':
            return self.with_text(span, text)
        if kind != "[":
            raise ValueError("no content to append to")
        return self.with_item(span, part)

    def _with(self, at: int, piece: bytes) -> bytes:
        return b"".join((memoryview(self.body)[:at], piece, memoryview(self.body)[at:]))

    def _stands(self, raw: Raw, at: int) -> int:
        """Return where a value that stands at `at` ends; ValueError if it does not stand there."""
        if not self.body.startswith(bytes(raw), at):
            raise ValueError("not where it was expected")
        return at + memoryview(raw).nbytes


def _past(pattern: Callable[[bytes, int], re.Match[bytes] | None], body: bytes, at: int) -> int:
    found = pattern(body, at)
    if found is None:
        raise ValueError("not what was expected")
    return found.end()


def _chat(json: _Json, text: str) -> bytes | None:
    messages = json.fields["messages"]
    _, last = json.items(messages)
    message = json.values(last)
    role = json.value(message, "role")
    if role == "assistant" or not isinstance(role, str):  # calls that wait for results, or words to be continued
        return None
    strict = role in _TOOL_ROLES and _NO_USER_AFTER_TOOL in str(json.value(json.fields, "model")).lower()
    if role == "user" or strict:
        return json.with_content(message["content"], {"type": "text", "text": text}, text)
    return json.with_item(messages, {"role": "user", "content": text})


def _responses(json: _Json, text: str) -> bytes | None:
    said = json.fields["input"]
    if json.kind(said) == '"':
        return json.with_text(said, text)
    _, last = json.items(said)
    item = json.values(last)
    kind, role = json.value(item, "type"), json.value(item, "role")
    part = {"type": "input_text", "text": text}
    if kind in (None, "message"):
        if role == "user":
            return json.with_content(item["content"], part, text)
        follows = isinstance(role, str) and role != "assistant"
    else:  # after results; a call waits for its result, and what else there may be is not ours to judge
        ends = isinstance(kind, str) and (kind.endswith("_output") or kind == "mcp_approval_response")
        caller = json.value(item, "caller")  # a program that is still running at OpenAI may be
        follows = ends and (not isinstance(caller, dict) or caller.get("type") == "direct")
    return json.with_item(said, {"type": "message", "role": "user", "content": [part]}) if follows else None


def _messages(json: _Json, text: str) -> bytes | None:
    items, last = json.items(json.fields["messages"])
    message = json.values(last)
    # A system message may end the conversation too; one of the model's is a beginning that it shall go on with.
    if json.value(message, "role") not in ("user", "system") or _server_works(items):
        return None
    # Behind tool results, where text has to stand; in a message of its own it would be a second one of the user's.
    return json.with_content(message["content"], {"type": "text", "text": text}, text)


def _server_works(items: list[Raw]) -> bool:
    """Say whether a tool of Anthropic's own has no result yet: the client's results must come alone then, or 400."""
    for item in reversed(items[-4:-1]):
        message = decode(item)
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
            done = [block.get("tool_use_id") for block in blocks if str(block.get("type")).endswith("tool_result")]
            return any(block.get("id") not in done for block in blocks if str(block.get("type")) in _SERVER_CALLS)
    return False


def _contents(json: _Json, text: str) -> bytes | None:
    contents = json.fields["contents"]
    _, last = json.items(contents)
    content = json.values(last)
    if json.value(content, "role") not in (None, "user", "function"):
        return None
    parts, part = content["parts"], {"text": text}
    json.items(parts)  # there are some
    if not _FUNCTION_RESPONSE(json.body, *parts):
        return json.with_item(parts, part)
    # Function responses have to be among themselves; what follows is a content of its own.
    return json.with_item(contents, {"role": "user", "parts": [part]})


def _completions(json: _Json, text: str) -> bytes | None:
    prompt = json.fields["prompt"]
    if json.kind(prompt) != '"' or json.value(json.fields, "suffix"):  # a batch, or tokens; or a gap to be filled
        return None
    return json.with_text(prompt, text)


_CHANGES: Final[dict[str, Callable[[_Json, str], bytes | None]]] = {
    openai_chat.DIALECT: _chat,
    openai_responses.DIALECT: _responses,
    openai_legacy.COMPLETIONS: _completions,
    anthropic.DIALECT: _messages,
    gemini.DIALECT: _contents,
}
