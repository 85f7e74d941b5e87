"""Reads the newest step of a Gemini `generateContent` request: the `functionCall` parts of the model's last contents,
and the `functionResponse` parts behind them, where a field named `error` is the flag. Contents of the model that stand
one behind the other are one answer: clients keep a stream as they got it.
"""

from __future__ import annotations

from typing import Any, Final

from breakloop.model.step import Step
from breakloop.wire import gemini
from breakloop.wire.content import ITEMS_MAX, arguments, as_list, more, text, truth
from breakloop.wire.conversation import Taken, item_at
from breakloop.wire.step_parts import Gathered, read_step, result, sized

_MODEL: Final = "model"
_CODE: Final = "code_execution"
_CODE_DONE: Final = ("OUTCOME_OK", "OUTCOME_UNSPECIFIED", "", None)
# A response is an object; where it has one of these alone, that is what was returned.
_OUTPUTS: Final = frozenset(("output", "result", "error", "content", "response"))
_KINDS: Final = frozenset(("image", "audio", "video"))


def of(taken: Taken) -> Step | None:
    """Return the newest step of a request; None where nothing can be read."""
    return read_step(taken, _gather, _tools)


def _tools(fields: gemini.GeminiBody | dict[str, Any]) -> list[str]:
    """Return the names of the tools that are declared."""
    if isinstance(fields, dict):
        return _tolerant(fields)
    names: list[str] = []
    for tool in (fields.tools or ())[:ITEMS_MAX]:
        declared = (tool.functionDeclarations or tool.function_declarations or ())[:ITEMS_MAX]
        names.extend([one.name for one in declared if one.name])
    return names[:ITEMS_MAX]


def _tolerant(fields: dict[str, Any]) -> list[str]:
    names: list[str] = []
    for tool in as_list(fields.get("tools"))[:ITEMS_MAX]:
        declared = _either(tool, "functionDeclarations", "function_declarations") if isinstance(tool, dict) else None
        names.extend([text(one.get("name")) for one in as_list(declared)[:ITEMS_MAX] if isinstance(one, dict)])
    return list(filter(None, names[:ITEMS_MAX]))


def _either(fields: dict[str, Any], name: str, other: str) -> Any:
    value = fields.get(name)
    return fields.get(other) if value is None else value


def _gather(items: list[Any], _lead: int) -> Gathered:
    found = Gathered(joint="")  # a stream's pieces stand as they were cut
    for at in range(len(items) - 1, max(-1, len(items) - ITEMS_MAX - 1), -1):
        item = item_at(items, at)
        if isinstance(item, dict) and item.get("role") == _MODEL:
            _answer(found, as_list(item.get("parts")))
        elif found.answered:
            break
        elif isinstance(item, dict):
            _incoming(found, as_list(item.get("parts")))
        else:
            found.users.append(("user", item))
    return found


def _answer(found: Gathered, parts: list[Any]) -> None:
    found.answered = True
    if len(parts) > ITEMS_MAX:
        found.said.append(more(parts))
    for part in reversed(parts[:ITEMS_MAX]):
        if not isinstance(part, dict):
            found.said.append(text(part))
        elif not ("thought" in part and truth(part["thought"])):
            _answer_part(found, part)


def _answer_part(found: Gathered, part: dict[str, Any]) -> None:
    call = _either(part, "functionCall", "function_call")
    code = _either(part, "executableCode", "executable_code")
    ran = _either(part, "codeExecutionResult", "code_execution_result")
    if isinstance(call, dict):
        found.called(call.get("name"), call.get("args"), call.get("id"))
    elif isinstance(code, dict):
        found.call(_CODE, text(code.get("code")), code.get("id"))
    elif isinstance(ran, dict):
        found.results.append(result(ran.get("output"), ran.get("id"), failed=ran.get("outcome") not in _CODE_DONE))
    elif "text" in part:
        found.said.append(text(part["text"]))


def _incoming(found: Gathered, parts: list[Any]) -> None:
    beside: list[Any] = []
    for part in reversed(parts[:ITEMS_MAX]):
        answered = _either(part, "functionResponse", "function_response") if isinstance(part, dict) else None
        if isinstance(answered, dict):
            _result(found, answered)
        else:
            beside.append(_shown(part))
    if beside:
        found.users.append(("user", beside[::-1]))


def _result(found: Gathered, answered: dict[str, Any]) -> None:
    said, failed = answered.get("response"), False
    if isinstance(said, dict):
        failed = bool(said.get("error"))
        if len(said) == 1 and not _OUTPUTS.isdisjoint(said):
            (said,) = said.values()
    one = result(said if isinstance(said, str) else arguments(said), answered.get("id"), failed=failed)
    parts = answered.get("parts")
    if parts is not None:
        media = [sized(*_kind(part)) for part in as_list(parts)[:ITEMS_MAX]]
        one = one._replace(media=one.media + tuple(media))
    found.results.append(one)


def _shown(part: object) -> object:
    """Return a part of a user's as the other dialects have it: a text, or a medium with its type."""
    if not isinstance(part, dict):
        return part
    if "text" in part:
        return {"type": "text", "text": text(part["text"])}
    kind, value = _kind(part)
    return {"type": kind, "data": value}


def _kind(part: object) -> tuple[str, object]:
    if isinstance(part, dict):
        for value in part.values():
            mime = _either(value, "mimeType", "mime_type") if isinstance(value, dict) else None
            if isinstance(mime, str):
                kind = mime.partition("/")[0]
                return (kind if kind in _KINDS else "file"), value
    return "file", part
