"""Reads the newest step of an Anthropic Messages request: the `tool_use` blocks of the last message of the assistant,
the `tool_result` blocks behind it (`is_error` is their flag), and what the user says beside them. Thinking never
enters; tools that run at Anthropic have their results in the same message as the call.
"""

from __future__ import annotations

from typing import Any, Final

from breakloop.model.step import Step
from breakloop.wire import anthropic_messages
from breakloop.wire.anthropic_messages import CALLS
from breakloop.wire.content import ITEMS_MAX, is_silent, more, named_tools, part, text, truth
from breakloop.wire.conversation import Taken, item_at
from breakloop.wire.step_parts import Gathered, is_prefill, read_step, result

_ASSISTANT: Final = "assistant"


def of(taken: Taken) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: anthropic_messages.MessagesBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return named_tools(fields)
    return [tool.name for tool in fields.tools[:ITEMS_MAX] if tool.name] if fields.tools else []


def _gather(items: list[Any], _lead: int) -> Gathered:
    found = Gathered()
    for back in range(1, min(len(items), ITEMS_MAX) + 1):
        item = item_at(items, -back)
        if not isinstance(item, dict):
            found.users.append(("", item))
        elif item.get("role") != _ASSISTANT:
            _incoming(found, item)
        elif back > 1 or not _is_prefill(item, items, found):
            _answer(found, item.get("content"))
            break
    return found


def _is_prefill(item: dict[str, Any], items: list[Any], found: Gathered) -> bool:
    def answer_before() -> bool:
        before = item_at(items, -2) if len(items) > 1 else None
        return isinstance(before, dict) and before.get("role") == _ASSISTANT

    said = item.get("content")
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], dict) and said[0].get("type") == "text":
        said = said[0].get("text")
    return is_prefill(said, found, answer_before)


def _incoming(found: Gathered, item: dict[str, Any]) -> None:
    role, said = text(item.get("role")), item.get("content")
    if not isinstance(said, list):
        found.users.append((role, said))
        return
    beside: list[Any] = []
    for block in reversed(said[:ITEMS_MAX]):
        if _is_result(block):
            _result(found, block)
        else:
            beside.append(block)
    if beside:
        found.users.append((role, beside[::-1]))


def _answer(found: Gathered, said: object) -> None:
    found.answered = True
    if not isinstance(said, list):
        found.said.append(text(said))
        return
    if len(said) > ITEMS_MAX:
        found.said.append(more(said))
    for block in reversed(said[:ITEMS_MAX]):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in CALLS:
            found.called(block.get("name"), block.get("input"), block.get("id"))
        elif _is_result(block):
            _result(found, block)
        elif not is_silent(block):
            found.said.append(part(block))


def _is_result(block: object) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind.endswith("tool_result")


def _result(found: Gathered, block: dict[str, Any]) -> None:
    said, failed = block.get("content"), truth(block.get("is_error"))
    if isinstance(said, dict):  # of a tool that runs at Anthropic: an object of its own kind, and errors are one
        failed = failed or text(said.get("type")).endswith("_error") or said.get("return_code") not in (None, 0)
    found.results.append(result(said, block.get("tool_use_id"), failed=failed))
