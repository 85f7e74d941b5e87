"""Reads OpenAI Responses requests into a `Chat`. Items are gathered into turns as the other dialects have them: what
the model says and the calls beside it are one message, and so are the results that come back together.

Ids do not enter, with one exception, see `_unseen`. Chains of `previous_response_id` are the session's business.

Reads the newest step of an OpenAI Responses request. What the model says, its reasoning and its calls are items one
behind the other, and together one answer; results are items too. With `previous_response_id` the answer is kept at
OpenAI, and only results and texts are seen: which call a result answers says its id.

Reads OpenAI Responses answers, streamed or whole: what messages say, and calls of all kinds; reasoning is passed
over. A stream repeats at its end all that it said; that is believed where it is there, because not every server that
speaks this dialect sends all the pieces, and others leave the output out at the end.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.dialects.answers import AnswerBuilder, number, word
from breakloop.dialects.base import (
    ITEMS_MAX,
    NULL,
    BodyFields,
    BodyModel,
    ConversationReader,
    NamedTool,
    ParsedBody,
    arguments,
    as_list,
    content,
    count,
    decode,
    item_at,
    media,
    more,
    named_tools,
    part,
    text,
    truth,
)
from breakloop.dialects.openai_chat import failed_of, openai_tokens
from breakloop.dialects.steps import StepBuilder, read_step, result
from breakloop.model.call import Message, Step, ToolCall, Usage

DIALECT: Final = "openai_responses"
_ASSISTANT: Final = "assistant"
_RESULT: Final = "tool"
_GATHERED: Final = frozenset((_ASSISTANT, _RESULT))
_FAILED: Final = frozenset(("failed", "incomplete"))
# Where the various kinds of calls and results keep what they say, in the order of looking.
ARGUMENTS: Final = ("arguments", "input", "action", "operation", "code", "queries")
OUTPUTS: Final = ("output", "result", "results", "outputs", "error")


class ResponsesBody(BodyModel, gc=False, kw_only=True):
    """What is read of a request."""

    input: str | list[msgspec.Raw]
    model: str
    tools: list[NamedTool] | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    instructions: msgspec.Raw = NULL
    prompt: msgspec.Raw = NULL


_decode_body = msgspec.json.Decoder(ResponsesBody).decode


def _typed(body: bytes) -> BodyFields:
    fields = _decode_body(body)
    said, template = fields.input, fields.prompt
    lead = _template(decode(template)) if template is not NULL else []
    items = [_user(said)] if isinstance(said, str) else said
    if lead:
        items = lead + items
    limit = fields.max_output_tokens
    return BodyFields(fields.model, items, fields.stream or False, limit, fields.instructions, fields, len(lead))


def _tolerant(fields: dict[str, Any]) -> BodyFields | None:
    get = fields.get
    model, said, template = get("model"), get("input"), get("prompt")
    if template is None and (model is None or said is None):  # many an API has a path that ends in /responses
        return None
    lead = _template(template)
    items = lead + ([_user(said)] if isinstance(said, str) else as_list(said))
    stream, limit = truth(get("stream")), count(get("max_output_tokens"))
    # With no other input, a stored prompt is the conversation.
    return BodyFields(text(model), items, stream, limit, get("instructions"), fields, 0 if said is None else len(lead))


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


_conversation = ConversationReader(DIALECT, _typed, _tolerant, _flatten, _newest)
take: Final = _conversation.take
read: Final = _conversation.read
opening: Final = _conversation.opening


_SILENT_ANSWER: Final = frozenset(("reasoning", "item_reference", "mcp_approval_request"))


def of(taken: ParsedBody) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: ResponsesBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return named_tools(fields)
    return [tool.name for tool in fields.tools[:ITEMS_MAX] if tool.name] if fields.tools else []


def _gather(items: list[Any], lead: int) -> StepBuilder:
    found = StepBuilder()
    for at in range(len(items) - 1, max(lead - 1, len(items) - ITEMS_MAX - 1), -1):
        item = item_at(items, at)
        answers = isinstance(item, dict) and _answer(found, item)
        if answers:
            found.answered = True
        elif found.answered:
            break
        elif not isinstance(item, dict):
            found.users.append(("", item))
        else:
            _incoming(found, item)
    return found


def _answer(found: StepBuilder, item: dict[str, Any]) -> bool:
    """Take an item that belongs to the model's answer, or say that it does not."""
    get = item.get
    kind = get("type")
    if kind == "function_call":
        found.called(get("name"), get("arguments"), get("call_id"))
        return True
    if not isinstance(kind, str) or kind == "message":
        if get("role") != "assistant":
            return False
        found.said.append(content(get("content")))
        return True
    if kind.endswith("_call"):
        call_id = get("call_id") or get("id")
        found.called(get("name") or kind.removesuffix("_call"), first(item, ARGUMENTS), call_id)
        if first(item, OUTPUTS) is not None:  # one that ran at OpenAI
            _result(found, item, call_id)
        return True
    return kind in _SILENT_ANSWER


def _incoming(found: StepBuilder, item: dict[str, Any]) -> None:
    kind = item.get("type")
    if not isinstance(kind, str) or kind == "message":
        found.users.append((text(item.get("role")), item.get("content")))
    elif kind.endswith("_output"):
        _result(found, item, item.get("call_id"))
    # Approvals, lists of tools and compactions are neither results nor anybody's words.


def _result(found: StepBuilder, item: dict[str, Any], call_id: object) -> None:
    status = item.get("status")
    failed = (isinstance(status, str) and status in _FAILED) or item.get("error") is not None
    said = first(item, OUTPUTS)
    if isinstance(said, list) and said and isinstance(said[0], dict) and "outcome" in said[0]:
        failed = failed or any(_is_bad(one) for one in said[:ITEMS_MAX])
        said = "\n".join([_streams(one) for one in said[:ITEMS_MAX]])
    found.results.append(result(said, call_id, failed=failed))


def _is_bad(ran: object) -> bool:
    """Say whether a command of the shell tool ended other than with 0."""
    outcome = ran.get("outcome") if isinstance(ran, dict) else None
    return isinstance(outcome, dict) and outcome.get("exit_code") != 0


def _streams(ran: object) -> str:
    if not isinstance(ran, dict):
        return text(ran)
    return "\n".join(filter(None, (text(ran.get("stdout")), text(ran.get("stderr")))))


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


class ResponsesAnswer(AnswerBuilder):
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
        for place, item in enumerate(as_list(parts)[:_PARTS]):
            if not self.said(index * _PARTS + place):  # by its pieces
                self.say(index * _PARTS + place, content([item]))

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
