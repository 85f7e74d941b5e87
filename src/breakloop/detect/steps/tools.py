"""What a call does, as far as its name and arguments tell: whether it changes something. A guess that errs towards
"it does": a change that is none spares a loop for a while, an overlooked one stops honest work. And what a policy says
of tools by name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from breakloop.detect.steps.ladder import ToolOptions

OTHER, READS, CHANGES, RUNS = range(4)

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
# What a command line changes: a redirection, a line of code, a command. Each pattern begins with a character, or is
# only tried where one of its words stands, because most commands just look. None may read on past where it could begin
# again, or a line full of beginnings takes the square of its length.
_REDIRECTION: Final = re.compile(rb">(?<![-=<>0-9&|]>)>?\s*(?!/dev/null|&|=)[\w./~$\"']").search
_WRITING: Final = re.compile(rb"\.(?:write|write_text|to_csv|save)\(").search
_OPENING: Final = re.compile(rb"open\([^()\n]*['\"][wax]b?\+?['\"]").search
_COMMAND: Final = re.compile(
    rb"\b(?:sed\s+(?:-\w+\s+){0,4}-\w*i|tee\s|"
    rb"git\s+(?:add|commit|apply|push|checkout|stash|reset|merge|rebase|revert)\b|"
    rb"(?:mv|rm|cp|mkdir|touch|chmod|patch|unzip|tar)\s|(?:pip3?|npm|yarn|apt|apt-get|conda|uv)\s+(?:install|i|add)\b)"
).search
_COMMAND_WORDS: Final = frozenset((
    b"sed", b"tee", b"git", b"mv", b"rm", b"cp", b"mkdir", b"touch", b"chmod", b"patch", b"unzip", b"tar", b"pip",
    b"pip3", b"npm", b"yarn", b"apt", b"conda", b"uv",
))  # fmt: skip
_APART: Final = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))
_LOOKS: Final = re.compile(
    rb"\"(?:command|action|mode|operation)\":\s?\"(?:view|read|list|get|show|open|search)"
).search
_INNER: Final = re.compile(rb"\"(?:tool_name|tool|function|method)\":\s?\"([\w./-]{1,80})\"").search
_READ_MAX: Final = 4000
_NAMES_MAX: Final = 1000
_NAME_MAX: Final = 200


class Tool(NamedTuple):
    """What is known of a tool by its name."""

    name: str
    raw: bytes
    key: bytes  # 4 bytes that stand for it
    manner: int
    options: ToolOptions


class Tools:
    """Tools by name, with what a policy says of them. Names come again in each step, so they are looked at once."""

    __slots__ = ("_exact", "_known", "_prefixes")

    def __init__(self, options: Mapping[str, ToolOptions]) -> None:
        """Take options by name; a name that ends in `*` stands for all that begin so, the longest one first."""
        self._exact = {name: one for name, one in options.items() if not name.endswith("*")}
        patterns = sorted((name for name in options if name.endswith("*")), key=len, reverse=True)
        self._prefixes = [(name[:-1], options[name]) for name in patterns]
        self._known: dict[str, Tool] = {}

    def of(self, name: str) -> Tool:
        """Return what is known of a tool."""
        known = self._known.get(name)
        if known is None:
            raw = name.encode("utf-8", "surrogatepass")
            known = Tool(
                name, raw, zlib.crc32(raw).to_bytes(4, "little"), manner(name[:_NAME_MAX]), self._options(name)
            )
            if len(name) <= _NAME_MAX:
                if len(self._known) >= _NAMES_MAX:
                    self._known.clear()
                self._known[name] = known
        return known

    def _options(self, name: str) -> ToolOptions:
        if name in self._exact:
            return self._exact[name]
        return next((one for prefix, one in self._prefixes if name.startswith(prefix)), NO_OPTIONS)


NO_OPTIONS: Final = ToolOptions()


def manner(name: str) -> int:
    """Return how a tool works by its name: it reads, it changes something, it runs commands or code, or who knows."""
    words = [word.lower() for word in _WORDS(name)]
    if not words:
        return OTHER
    if words[0] in _READING:
        return READS
    if not _SHELLS.isdisjoint(words):
        return RUNS
    return OTHER if _CHANGING.isdisjoint(words) else CHANGES


def changes(how: int, arguments: bytes) -> bool:
    """Tell whether a call of a tool that works so is of the kind that changes something."""
    if how == CHANGES:
        return _LOOKS(arguments, 0, _READ_MAX) is None
    if how != RUNS:
        return False
    inner = _INNER(arguments, 0, _READ_MAX)  # a tool that calls others: what counts is which
    if inner is not None:
        return changes(manner(inner[1].decode()), b"")
    return _commanded(arguments[:_READ_MAX])


def _commanded(line: bytes) -> bool:
    if b"<<" in line or (b">" in line and _REDIRECTION(line)):
        return True
    if b"(" in line and (_WRITING(line) or _OPENING(line)):
        return True
    return not _COMMAND_WORDS.isdisjoint(line.translate(_APART).split()) and _COMMAND(line) is not None
