"""Reads the newest step of an OpenAI Responses request. What the model says, its reasoning and its calls are items one
behind the other, and together one answer; results are items too. With `previous_response_id` the answer is kept at
OpenAI, and only results and texts are seen: which call a result answers says its id.
"""

from __future__ import annotations

from typing import Any, Final

from breakloop.model.step import Step
from breakloop.wire import openai_responses
from breakloop.wire.content import ITEMS_MAX, content, named_tools, text
from breakloop.wire.conversation import Taken, item_at
from breakloop.wire.openai_responses import ARGUMENTS, OUTPUTS, first
from breakloop.wire.step_parts import Gathered, read_step, result

_FAILED: Final = frozenset(("failed", "incomplete"))
_SILENT_ANSWER: Final = frozenset(("reasoning", "item_reference", "mcp_approval_request"))


def of(taken: Taken) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: openai_responses.ResponsesBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return named_tools(fields)
    return [tool.name for tool in fields.tools[:ITEMS_MAX] if tool.name] if fields.tools else []


def _gather(items: list[Any], lead: int) -> Gathered:
    found = Gathered()
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


def _answer(found: Gathered, item: dict[str, Any]) -> bool:
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


def _incoming(found: Gathered, item: dict[str, Any]) -> None:
    kind = item.get("type")
    if not isinstance(kind, str) or kind == "message":
        found.users.append((text(item.get("role")), item.get("content")))
    elif kind.endswith("_output"):
        _result(found, item, item.get("call_id"))
    # Approvals, lists of tools and compactions are neither results nor anybody's words.


def _result(found: Gathered, item: dict[str, Any], call_id: object) -> None:
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
