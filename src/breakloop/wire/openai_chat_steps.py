"""Reads the newest step of an OpenAI Chat Completions request: the last message of the assistant, and behind it the
messages of tools and of the user. There is no error flag here; what a result says of itself is `result_forms`' part.
"""

from __future__ import annotations

from typing import Any, Final

from breakloop.model.step import Step
from breakloop.wire import openai_chat
from breakloop.wire.content import ITEMS_MAX, as_list, content, more, text, without_ids
from breakloop.wire.conversation import Taken, item_at
from breakloop.wire.step_parts import Gathered, is_prefill, read_step, result

_RESULTS: Final = frozenset(("tool", "function"))
_ASSISTANT: Final = "assistant"


def of(taken: Taken) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: openai_chat.ChatBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return _tolerant(fields)
    names: list[str] = []
    for tool in (fields.tools or ())[:ITEMS_MAX]:
        named = tool.function or tool.custom
        if named is not None and named.name:
            names.append(named.name)
    if fields.functions:
        names.extend([named.name for named in fields.functions[:ITEMS_MAX] if named.name])
    return names


def _tolerant(fields: dict[str, Any]) -> list[str]:
    tools = [tool for tool in as_list(fields.get("tools"))[:ITEMS_MAX] if isinstance(tool, dict)]
    declared = [tool.get("function") or tool.get("custom") for tool in tools]
    declared += as_list(fields.get("functions"))[:ITEMS_MAX]
    return [name for named in declared if isinstance(named, dict) and (name := text(named.get("name")))]


def _gather(items: list[Any], _lead: int) -> Gathered:
    found = Gathered()
    for back in range(1, min(len(items), ITEMS_MAX) + 1):
        item = items[-back]
        if type(item) is not dict:
            item = item_at(items, -back)
        if not isinstance(item, dict):
            found.users.append(("", item))
            continue
        role = item.get("role")
        if role == _ASSISTANT:
            if back == 1 and _is_prefill(item, items, found):
                continue
            _answer(found, item)
            break
        if type(role) is str and role in _RESULTS:
            found.results.append(result(item.get("content"), item.get("tool_call_id")))
        else:
            found.users.append((text(role), item.get("content")))
    return found


def _is_prefill(item: dict[str, Any], items: list[Any], found: Gathered) -> bool:
    if item.get("tool_calls") or item.get("function_call"):
        return False

    def answer_before() -> bool:
        before = item_at(items, -2) if len(items) > 1 else None
        return isinstance(before, dict) and before.get("role") == _ASSISTANT

    return is_prefill(item.get("content"), found, answer_before)


def _answer(found: Gathered, item: dict[str, Any]) -> None:
    get = item.get
    found.answered = True
    refusal, said = get("refusal"), get("content")
    if refusal is not None or said is not None:
        found.said = [one for one in (text(refusal), content(said)) if one]
    made = get("tool_calls")
    if type(made) is not list:
        made = as_list(made)
    legacy = get("function_call")
    if legacy:
        made = [*made, {"function": legacy}]
    if len(made) > ITEMS_MAX:
        found.call("", more(made), "")
        made = made[:ITEMS_MAX]
    for call in reversed(made):
        _call(found, call)


def _call(found: Gathered, call: object) -> None:
    if not isinstance(call, dict):
        found.call("", text(call), "")
        return
    function, call_id = call.get("function"), call.get("id")
    if isinstance(function, dict):
        found.called(function.get("name"), function.get("arguments"), call_id)
        return
    custom = call.get("custom")
    if isinstance(custom, dict):
        found.call(custom.get("name"), text(custom.get("input")), call_id)
    else:
        found.call("", text(without_ids(call)), call_id)
