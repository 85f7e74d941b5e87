"""What a call does, as far as its name and arguments tell: whether it changes something. A guess that errs towards
"it does": a change that is none spares a loop for a while, an overlooked one stops honest work."""

from __future__ import annotations

import re
from typing import Final

_READING: Final = frozenset((
    "get", "list", "read", "search", "find", "view", "show", "fetch", "query", "check", "look", "describe", "inspect",
))  # fmt: skip
_CHANGING: Final = frozenset((
    "write", "edit", "create", "insert", "replace", "save", "delete", "remove", "update", "apply", "patch", "submit",
    "send", "post", "book", "cancel", "modify", "move", "put", "add", "set", "append", "upload", "commit", "push",
    "rename", "exchange", "return", "transfer", "todo", "generate",
))  # fmt: skip
_SHELLS: Final = frozenset((
    "bash", "sh", "shell", "zsh", "terminal", "exec", "execute", "run", "command", "commands", "cmd", "powershell",
    "python", "code", "ipython", "repl", "interpreter", "console", "script",
))  # fmt: skip
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+").findall
_COMMANDS: Final = re.compile(
    r"(?<![-=<>0-9&|])>>?\s*(?!/dev/null|&|=)[\w./~$\"']|\bsed\s+(?:-\w+\s+)*-\w*i|<<|\btee\s|"
    r"\bgit\s+(?:add|commit|apply|push|checkout|stash|reset|merge|rebase|revert)\b|"
    r"\b(?:mv|rm|cp|mkdir|touch|chmod|patch|unzip|tar)\s|\b(?:pip3?|npm|yarn|apt|apt-get|conda|uv)\s+(?:install|i|add)\b|"
    r"\.write\(|\.write_text\(|\.to_csv\(|\.save\(|open\([^)\n]*['\"][wax]b?\+?['\"]"
).search
_LOOKS: Final = re.compile(r"\"(?:command|action|mode|operation)\":\s?\"(?:view|read|list|get|show|open|search)").search
_INNER: Final = re.compile(r"\"(?:tool_name|tool|function|method)\":\s?\"([\w./-]{1,80})\"").search
_READ_MAX: Final = 4000


def is_shell(name: str) -> bool:
    """Tell whether a tool runs commands or code."""
    words = [word.lower() for word in _WORDS(name)]
    return bool(words) and words[0] not in _READING and not _SHELLS.isdisjoint(words)


def changes(name: str, arguments: str) -> bool:
    """Tell whether a call is of the kind that changes something."""
    words = [word.lower() for word in _WORDS(name)]
    if not words or words[0] in _READING:
        return False
    if _SHELLS.isdisjoint(words):
        return not _CHANGING.isdisjoint(words) and _LOOKS(arguments, 0, _READ_MAX) is None
    inner = _INNER(arguments, 0, _READ_MAX)  # a tool that calls others: what counts is which
    if inner is not None:
        return changes(inner[1], "")
    return _COMMANDS(arguments, 0, _READ_MAX) is not None
