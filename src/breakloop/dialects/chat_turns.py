"""The last answers and results of a Chat Completions request.

Most requests of agents end with answers that have one call, each with its result. These are read in a shorter way than
other messages; what is read is the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from breakloop.dialects.base import BodyFields, item_at
from breakloop.dialects.content import DECODED_UNCOUNTED_BYTES, KEPT_MAX, respelled_short
from breakloop.model.call import Message, ToolCall

ASSISTANT: Final = "assistant"
# Of results, also those of other frameworks, which their clients should translate and some do not.
RESULTS: Final = frozenset((
    "tool", "function", "tool-response", "tool_response", "tool-result", "tool_result", "function_response",
    "observation", "ipython",
))  # fmt: skip
RARE_FIELDS: Final = frozenset(("refusal", "tool_calls", "function_call"))
Turn = tuple[Message, object, Message, object]
"""An answer, the id of its call, and its result with its id, as in `BodyFields.newest_turn`."""

_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class
Raw = msgspec.Raw


# An answer with one call in a request, and its result. The messages that most often stand in their place are skipped by
# the decoder; raising takes longer than that.
class _MadeFunction(msgspec.Struct, gc=False):
    name: str
    arguments: Annotated[str, msgspec.Meta(max_length=KEPT_MAX)]


class _MadeCall(msgspec.Struct, gc=False):
    function: _MadeFunction
    id: Any = None


class _Answered(msgspec.Struct, gc=False, tag_field="role", tag="assistant"):
    tool_calls: Annotated[list[_MadeCall], msgspec.Meta(min_length=1, max_length=1)]
    content: str | None = None
    refusal: None = None
    function_call: None = None


class _ParallelResult(msgspec.Struct, gc=False, tag_field="role", tag="tool"):
    pass


class _User(msgspec.Struct, gc=False, tag_field="role", tag="user"):
    pass


class _Result(msgspec.Struct, gc=False, tag_field="role", tag="tool"):
    content: str
    tool_call_id: Any = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


_decode_answered: Final = msgspec.json.Decoder(_Answered | _ParallelResult).decode
_decode_result: Final = msgspec.json.Decoder(_Result | _User).decode


def add_turns(found: list[Message], parts: BodyFields, tail: int) -> int:
    """Add the last messages, as far as they are answers with one call, and its result, as most are. They are what
    `OpenAIChat.flatten` returns, in less than half the time. Returns the position before them.
    """
    items = parts.items
    at = len(items)
    while at > 1 and tail > 1:
        item = items[at - 1]
        turn = _undecoded_turn(items[at - 2], item) if type(item) is Raw else None
        if turn is None:
            turn = _decoded_turn(items, at)
            if turn is None:
                break
        if not found:
            parts.newest_turn = turn
        found += (turn[2], turn[0])
        at -= 2
        tail -= 2
    return at


def _undecoded_turn(answer: Any, got: Raw) -> Turn | None:
    """Return an answer with one call, the id of the call, its result and its id; None if they are odd, or if the answer
    is decoded. The decoder checks the types, which takes less time than to check those of values.
    """
    if type(answer) is not Raw or len(answer) + len(got) > DECODED_UNCOUNTED_BYTES:
        return None
    try:
        result = _decode_result(got)
        if type(result) is not _Result:
            return None
        answered = _decode_answered(answer)
    except ValueError:
        return None
    if type(answered) is not _Answered:
        return None
    (call,) = answered.tool_calls
    function = call.function
    calls = (_new(ToolCall, (function.name, respelled_short(function.arguments))),)
    message = _new(Message, (ASSISTANT, answered.content or "", calls))
    return message, call.id, _new(Message, ("tool", result.content, ())), result.tool_call_id


def _decoded_turn(items: list[Any], at: int) -> Turn | None:
    """Return the same for the two messages before a position, which are decoded now if they are not yet."""
    item = items[at - 1]
    if type(item) is not dict:
        item = item_at(items, at - 1)
    try:
        role, got = item["role"], item["content"]
        if role not in RESULTS or type(got) is not str or not RARE_FIELDS.isdisjoint(item):
            return None
    except (KeyError, TypeError):
        return None
    answer = items[at - 2]
    if type(answer) is not dict:
        answer = item_at(items, at - 2)
    try:
        if answer["role"] != ASSISTANT:
            return None
        (call,) = answer["tool_calls"]
        function = call["function"]
        name, given = function["name"], function["arguments"]
    except (KeyError, TypeError, ValueError):
        return None
    said = answer.get("content")
    if said is None:
        said = ""
    if type(said) is not str or answer.get("refusal") is not None or answer.get("function_call"):
        return None
    if type(name) is not str or type(given) is not str or len(given) > KEPT_MAX:
        return None
    message = _new(Message, (ASSISTANT, said, (_new(ToolCall, (name, respelled_short(given))),)))
    return message, call.get("id"), _new(Message, (role, got, ())), item.get("tool_call_id")
