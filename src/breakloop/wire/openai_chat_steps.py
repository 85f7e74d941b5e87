"""Reads the newest step of an OpenAI Chat Completions request: the last message of the assistant, and behind it the
messages of tools and of the user. There is no error flag here; what a result says of itself is `result_forms`' part.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from breakloop.model.step import Step
from breakloop.wire.content import ITEMS_MAX, arguments, as_list, content, more, text, without_ids
from breakloop.wire.conversation import decoded, undecoded_items
from breakloop.wire.step_parts import Gathered, Parts, is_prefill, read_step, result

_RESULTS: Final = frozenset(("tool", "function"))
_ASSISTANT: Final = "assistant"


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _Tool(msgspec.Struct, gc=False):
    function: _Named | None = None
    custom: _Named | None = None


class _Body(msgspec.Struct, gc=False):
    """What is read of a request; anything of another type sends the whole body to the tolerant step."""

    messages: msgspec.Raw
    tools: list[_Tool] | None = None
    functions: list[_Named] | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


def read(body: bytes) -> Step | None:
    """Read the newest step of a request, or return None where it is none of this dialect."""
    return read_step(body, _typed, _tolerant, _gather)


def _typed(body: bytes) -> Parts:
    fields = _decode_body(body)
    names: list[str] = []
    for tool in (fields.tools or ())[:ITEMS_MAX]:
        named = tool.function or tool.custom
        if named is not None and named.name:
            names.append(named.name)
    if fields.functions:
        names.extend([named.name for named in fields.functions[:ITEMS_MAX] if named.name])
    return Parts(undecoded_items(fields.messages, body), tuple(names))


def _tolerant(fields: dict[str, Any]) -> Parts:
    tools = [tool for tool in as_list(fields.get("tools"))[:ITEMS_MAX] if isinstance(tool, dict)]
    declared = [tool.get("function") or tool.get("custom") for tool in tools]
    declared += as_list(fields.get("functions"))[:ITEMS_MAX]
    names = [text(named.get("name")) for named in declared if isinstance(named, dict)]
    return Parts(as_list(fields.get("messages")), tuple(filter(None, names)))


def _gather(items: list[Any]) -> Gathered:
    found = Gathered()
    for back in range(1, min(len(items), ITEMS_MAX) + 1):
        item = decoded(items[-back])
        if not isinstance(item, dict):
            found.users.append(("", item))
            continue
        role = item.get("role")
        if role == _ASSISTANT:
            if back == 1 and _is_prefill(item, items, found):
                continue
            _answer(found, item)
            break
        if isinstance(role, str) and role in _RESULTS:
            found.results.append(result(item.get("content"), item.get("tool_call_id")))
        else:
            found.users.append((text(role), item.get("content")))
    return found


def _is_prefill(item: dict[str, Any], items: list[Any], found: Gathered) -> bool:
    if item.get("tool_calls") or item.get("function_call"):
        return False

    def answer_before() -> bool:
        before = decoded(items[-2]) if len(items) > 1 else None
        return isinstance(before, dict) and before.get("role") == _ASSISTANT

    return is_prefill(item.get("content"), found, answer_before)


def _answer(found: Gathered, item: dict[str, Any]) -> None:
    get = item.get
    found.answered = True
    found.said = [said for said in (text(get("refusal")), content(get("content"))) if said]
    made = as_list(get("tool_calls"))
    if get("function_call"):
        made = [*made, {"function": get("function_call")}]
    if len(made) > ITEMS_MAX:
        found.call("", more(made), "")
    for call in reversed(made[:ITEMS_MAX]):
        _call(found, call)


def _call(found: Gathered, call: object) -> None:
    if not isinstance(call, dict):
        found.call("", text(call), "")
        return
    function, custom, call_id = call.get("function"), call.get("custom"), call.get("id")
    if isinstance(function, dict):
        found.call(function.get("name"), arguments(function.get("arguments")), call_id)
    elif isinstance(custom, dict):
        found.call(custom.get("name"), text(custom.get("input")), call_id)
    else:
        found.call("", text(without_ids(call)), call_id)
