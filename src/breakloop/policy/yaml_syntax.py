"""What is wrong with a text that is not YAML, in plain words: the parser's own are for people who write parsers."""

from __future__ import annotations

import re
from typing import Any

from breakloop.errors import Problem
from breakloop.policy.places import readable

_BEYOND_UNICODE = re.compile(r"\\U(?!000|0010)[0-9a-fA-F]{8}")
_OPENED = {"flow sequence": ("list", "]"), "flow mapping": ("map", "}")}


def explain(error: Exception, text: str, file: str) -> Problem:
    """Return the located problem for an error of the YAML parser."""
    marked: Any = error
    mark = getattr(marked, "problem_mark", None) or getattr(marked, "context_mark", None)
    if mark is None:
        return _unmarked(error, text, file)
    said, context = str(getattr(marked, "problem", "") or ""), str(getattr(marked, "context", "") or "")
    start = getattr(marked, "context_mark", None) or mark
    if "could not find expected" in said or ("quoted scalar" in context and "end of stream" in said):
        mark = start
    message, hint = _words(said, context, start.line + 1)
    return Problem(file, mark.line + 1, mark.column + 1, "", f"is not valid YAML: {readable(message)}", hint)


def _words(said: str, context: str, opened_on: int) -> tuple[str, str]:
    for what, (name, close) in _OPENED.items():
        if what in context:
            return f'the {name} opened on line {opened_on} lacks a comma or its "{close}"', ""
    if "mapping values are not allowed" in said:
        return 'unexpected ":"', 'check the indentation, and put text that holds ": " in quotes'
    found = re.search(r"found character '(.+)' that cannot start", said)
    if found:
        return _bad_start(found[1])
    if "quoted scalar" in context and "end of stream" in said:
        return "a quoted text is not closed", ""
    if "could not find expected ':'" in said:
        return 'a key without ":"', "write key: value"
    if "expected <block end>" in said:
        return "this does not belong to what stands above it", "check the indentation and the dashes"
    return said or context or "it cannot be read", ""


def _bad_start(character: str) -> tuple[str, str]:
    if character in ("\t", "\\t"):
        return "a tab", "indent with spaces"
    return f'a value cannot begin with "{character}"', "put it in quotes"


def _unmarked(error: Exception, text: str, file: str) -> Problem:
    """Characters that YAML forbids come with an offset; escapes beyond Unicode with nothing at all."""
    offset = getattr(error, "position", None)
    if isinstance(offset, int):
        return _at(offset, text, file, "a control character", "take it out")
    escape = _BEYOND_UNICODE.search(text)
    return _at(escape.start() if escape else 0, text, file, "an escape that stands for no character", "")


def _at(offset: int, text: str, file: str, message: str, hint: str) -> Problem:
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return Problem(file, line, column, "", f"is not valid YAML: {message}", hint)
