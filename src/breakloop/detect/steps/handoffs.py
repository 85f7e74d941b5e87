"""What an agent hands to another: a field of its JSON answer, or an argument of its call. It is not new when it comes
back as somebody's message, as copies of whole answers are not (`novelty.marks`).

Orchestrators answer with an object that names the next agent and what to tell it, or call a tool that stands for that
agent; a program sends the text on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from breakloop.model.call import ToolCall

TEXT_MIN: Final = 20  # characters; shorter ones are names and settings
TEXT_MAX: Final = 4000  # longer ones are documents
HANDED_MAX: Final = 12  # texts of one answer; more would push everything else out of the filter
_READ_MAX: Final = 16_384  # characters of an answer, or of arguments
_DEPTH_MAX: Final = 3


def handed_on(text: str, calls: Sequence[ToolCall]) -> list[str]:
    """Return the texts of an answer that may be handed to another agent. `calls` are those that may hand on a text."""
    found: list[str] = []
    end = text.rfind("}", -_READ_MAX)
    if end >= 0:
        start = text.find("{", 0, _READ_MAX)
        if 0 <= start < end:
            _collect(text[start : end + 1], found)
    for call in calls:
        _collect(call.arguments, found)
    return found


def _collect(given: str, found: list[str]) -> None:
    if not TEXT_MIN <= len(given) <= _READ_MAX:
        return
    try:
        value = orjson.loads(given)
    except ValueError:  # braces of code, arguments that are no JSON
        return
    for one in _strings(value, 0):
        if len(found) >= HANDED_MAX:
            return
        if TEXT_MIN <= len(one) <= TEXT_MAX:
            found.append(one)


def _strings(value: Any, depth: int) -> Iterator[str]:
    if type(value) is str:
        yield value
    elif depth < _DEPTH_MAX:
        for one in value.values() if type(value) is dict else value if type(value) is list else ():
            yield from _strings(one, depth + 1)
