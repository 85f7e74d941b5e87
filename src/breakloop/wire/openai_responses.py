"""Reads OpenAI Responses requests into a `Chat`. Items are gathered into turns as the other dialects have them: what
the model says and the calls beside it are one message, and so are the results that come back together.

Ids do not enter, with one exception, see `_unseen`. Chains of `previous_response_id` are the session's business.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.call import Message, ToolCall
from breakloop.wire.content import ITEMS_MAX, arguments, as_list, content, count, decode, media, more, part, text, truth
from breakloop.wire.conversation import NULL, Body, Conversation, Named, Parts, item_at

DIALECT: Final = "openai_responses"
_ASSISTANT: Final = "assistant"
_RESULT: Final = "tool"
_GATHERED: Final = frozenset((_ASSISTANT, _RESULT))
_FAILED: Final = frozenset(("failed", "incomplete"))
# Where the various kinds of calls and results keep what they say, in the order of looking.
ARGUMENTS: Final = ("arguments", "input", "action", "operation", "code", "queries")
OUTPUTS: Final = ("output", "result", "results", "outputs", "error")


class ResponsesBody(Body, gc=False, kw_only=True):
    """What is read of a request."""

    input: str | list[msgspec.Raw]
    model: str
    tools: list[Named] | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    instructions: msgspec.Raw = NULL
    prompt: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(ResponsesBody).decode


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body)
    said, template = fields.input, fields.prompt
    lead = _template(decode(template)) if template is not NULL else []
    items = [_user(said)] if isinstance(said, str) else said
    if lead:
        items = lead + items
    limit = fields.max_output_tokens
    return Parts(fields.model, items, fields.stream or False, limit, fields.instructions, fields, len(lead))


def _tolerant(fields: dict[str, Any]) -> Parts | None:
    get = fields.get
    model, said, template = get("model"), get("input"), get("prompt")
    if template is None and (model is None or said is None):  # many an API has a path that ends in /responses
        return None
    lead = _template(template)
    items = lead + ([_user(said)] if isinstance(said, str) else as_list(said))
    stream, limit = truth(get("stream")), count(get("max_output_tokens"))
    # With no other input, a stored prompt is the conversation.
    return Parts(text(model), items, stream, limit, get("instructions"), fields, 0 if said is None else len(lead))


def _user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


def _template(template: object) -> list[Any]:
    # A stored prompt and its variables: with no other input, these are all that tells two requests apart.
    return [] if template is None else [{"role": "prompt", "content": text(template)}]


def _flatten(item: Any) -> Message | None:
    role = _role(item)
    return None if role is None else _message(role, item)


def _role(item: Any) -> str | None:
    """Return who speaks; None for the model's reasoning, which is left out."""
    if not isinstance(item, dict):
        return ""
    kind = item.get("type")
    if kind == "function_call_output":
        return _RESULT
    if kind == "function_call":
        return _ASSISTANT
    if kind == "reasoning":
        return None
    if not isinstance(kind, str) or kind == "message":
        return text(item.get("role"))
    if kind.endswith("_output"):
        return _RESULT
    return _ASSISTANT if kind.endswith("_call") else kind


def _message(role: str, item: Any) -> Message:
    if not isinstance(item, dict):
        return Message(role, text(item))
    get = item.get
    kind = get("type")
    if kind == "function_call":
        return Message(role, "", (ToolCall(text(get("name")), arguments(get("arguments"))),))
    if kind == "function_call_output" and get("status") is None:
        return Message(role, content(get("output")))
    if not isinstance(kind, str) or kind == "message":
        return Message(role, content(get("content")))
    if kind == "item_reference":
        return Message(role, f"<{kind}>")
    if kind.endswith("_output"):
        return Message(role, _said(item))
    if kind.endswith("_call"):
        name = text(get("name")) or kind.removesuffix("_call")
        return Message(role, _said(item), (ToolCall(name, arguments(first(item, ARGUMENTS))),))
    return Message(role, media(kind, item))


def _said(item: dict[str, Any]) -> str:
    value = first(item, OUTPUTS)
    said = part(value) if isinstance(value, dict) and "type" in value else content(value)
    status = item.get("status")
    return f"<{status}> {said}" if isinstance(status, str) and status in _FAILED else said


def first(item: dict[str, Any], names: tuple[str, ...]) -> object:
    """Return what the first of these fields says that says anything."""
    for name in names:
        value = item.get(name)
        if value is not None:
            return value
    return None


def _newest(items: list[Any], tail: int) -> list[Message]:
    """Walk back from the end until `tail` messages are complete; only what is passed on the way is decoded."""
    groups: list[tuple[str, list[Any]]] = []  # newest first, and within a group too
    begins = True
    for at in range(len(items) - 1, -1, -1) if tail > 0 else ():
        item = item_at(items, at)
        role = _role(item)
        if role is None:
            continue
        if groups and groups[-1][0] == role and role in _GATHERED:
            groups[-1][1].append(item)
        elif len(groups) == tail:
            begins = False
            break
        else:
            groups.append((role, [item]))
    groups.reverse()
    calls = {text(item.get("call_id")) for role, group in groups if role == _ASSISTANT for item in group}
    return [
        # The calls that the first group answers may stand just before it, where nobody looked.
        _message(role, group[0])
        if role != _RESULT and len(group) == 1
        else _joined(role, group[::-1], calls if begins or index else None)
        for index, (role, group) in enumerate(groups)
    ]


def _joined(role: str, group: list[Any], calls: set[str] | None) -> Message:
    unseen = _unseen(group, calls) if role == _RESULT and calls is not None else []
    if len(group) == 1 and not unseen:
        return _message(role, group[0])
    found = [_message(role, item) for item in group[:ITEMS_MAX]]
    if len(group) > ITEMS_MAX:
        unseen.append(more(group))
    texts = [message.text for message in found if message.text]
    return Message(role, "\n".join(texts + unseen), tuple([call for message in found for call in message.calls]))


def _unseen(group: list[Any], calls: set[str]) -> list[str]:
    """Name the calls that are kept at OpenAI (`previous_response_id`, references) and only answered here.

    Six results that say "done" may answer six different calls, which is work and no loop. Where the call cannot be
    seen, its id stands for it: a retry of the same request has the same one.
    """
    ids = [text(item.get("call_id")) for item in group[:ITEMS_MAX]]
    return [f"<call {call_id}>" for call_id in ids if call_id and call_id not in calls]


_conversation = Conversation(DIALECT, _typed, _tolerant, _flatten, _newest)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening
