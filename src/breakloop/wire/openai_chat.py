"""Reads OpenAI Chat Completions requests (Azure's and OpenRouter's too) into a `Chat`.

Ids never enter, because a retry carries new ones; neither do cache marks that gateways pass on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Message, ToolCall
from breakloop.wire.content import (
    ITEMS_MAX,
    arguments,
    as_list,
    at_least_one,
    content,
    count,
    more,
    text,
    truth,
    without_ids,
)
from breakloop.wire.conversation import Body, Conversation, Named, Parts, item_at

DIALECT: Final = "openai_chat"
_RESULTS: Final = frozenset(("tool", "function"))
_OBJECTS: Final = frozenset((dict,))
_SMALL: Final = 4096  # bytes
_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes, for the common case
_BESIDE: Final = frozenset(("refusal", "tool_calls", "function_call"))


class Tool(msgspec.Struct, gc=False):
    """A tool that is declared."""

    function: Named | None = None
    custom: Named | None = None


class ChatBody(Body, gc=False, kw_only=True):
    """What is read of a request."""

    messages: list[msgspec.Raw]
    tools: list[Tool] | None = None
    functions: list[Named] | None = None
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None


class _SmallBody(ChatBody, gc=False, kw_only=True):
    messages: list[Any]


_decode_body = msgspec.json.Decoder(ChatBody).decode
_decode_small = msgspec.json.Decoder(_SmallBody).decode


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body) if len(body) > _SMALL else _small(body)
    limit, answers = fields.max_completion_tokens, fields.n
    return Parts(
        fields.model or "",
        fields.messages,
        fields.stream or False,
        fields.max_tokens if limit is None else limit,
        None,
        fields,
        0,
        1 if answers is None else at_least_one(answers),
    )


def _small(body: bytes) -> ChatBody:
    """Decode a small body with all its messages, which takes half the time of one after the other. What is odd in it is
    left undecoded, for those who come across it."""
    try:
        fields = _decode_small(body)
    except (ValueError, RecursionError):
        return _decode_body(body)
    return fields if _OBJECTS.issuperset(map(type, fields.messages)) else _decode_body(body)


def _tolerant(fields: dict[str, Any]) -> Parts:
    get = fields.get
    limit = get("max_completion_tokens")
    return Parts(
        text(get("model")),
        as_list(get("messages")),
        truth(get("stream")),
        count(get("max_tokens") if limit is None else limit),
        fields=fields,
        answers=at_least_one(get("n")),
    )


def _flatten(item: Any) -> Message:
    if not isinstance(item, dict):
        return Message("", text(item))
    get = item.get
    role, said = get("role"), get("content")
    if type(role) is not str:
        role = text(role)
    if type(said) is not str:
        said = "" if said is None else content(said)
    if _BESIDE.isdisjoint(item):  # as most messages
        return _new(Message, (role, said, ()))
    refusal, calls, legacy = get("refusal"), get("tool_calls"), get("function_call")
    if refusal:
        said = f"{said}\n{text(refusal)}" if said else text(refusal)
    return _new(Message, (role, said, _calls(calls, legacy) if calls or legacy else ()))


def _calls(calls: object, legacy: object) -> tuple[ToolCall, ...]:
    made = calls if type(calls) is list else as_list(calls)
    if len(made) == 1 and not legacy:  # as most
        return (_call(made[0]),)
    found = [_call(item) for item in (made if len(made) <= ITEMS_MAX else made[:ITEMS_MAX])]
    if len(made) > ITEMS_MAX:
        found.append(ToolCall("", more(made)))
    if legacy:
        found.append(_call({"function": legacy}))
    return tuple(found)


def _call(item: object) -> ToolCall:
    if not isinstance(item, dict):
        return ToolCall("", text(item))
    function = item.get("function")
    if isinstance(function, dict):
        name, given = function.get("name"), function.get("arguments")
        if type(given) is str:  # spelled once for all who read it: see `step_parts.Gathered.called`
            given = function["arguments"] = (given, arguments(given))
        spelled = given[1] if type(given) is tuple else arguments(given)
        return _new(ToolCall, (name if type(name) is str else text(name), spelled))
    custom = item.get("custom")
    if isinstance(custom, dict):
        return ToolCall(text(custom.get("name")), text(custom.get("input")))
    return ToolCall("", text(without_ids(item)))


def _newest(items: list[Any], tail: int) -> list[Message]:
    """Return the last messages, where the results of parallel calls count as one, as they do in the other dialects.

    Else the last three messages after a round of three calls would be results alone, and rounds of different calls
    that all return "ok" would be taken for a loop.
    """
    found: list[Message] = []
    results: list[Message] = []
    at = len(items)
    while at and len(found) < tail:
        at -= 1
        item = items[at]
        message = _flatten(item if type(item) is dict else item_at(items, at))
        if message[0] in _RESULTS and len(results) < ITEMS_MAX:
            results.append(message)
            continue
        if results:
            found.append(results[0] if len(results) == 1 else _together(results))
            results = []
            if len(found) >= tail:
                break
        found.append(message)
    if results and len(found) < tail:
        found.append(_together(results))
    found.reverse()
    return found


def _together(results: list[Message]) -> Message:
    if len(results) == 1:
        return results[0]
    return Message(results[0].role, "\n<result>\n".join([result.text for result in reversed(results)]))


_conversation = Conversation(DIALECT, _typed, _tolerant, _flatten, _newest)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening
