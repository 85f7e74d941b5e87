"""JSON text -> plain data, fast; positions only when somebody asks for one. Refuses what the standard parser lets pass
although it hides a mistake: a key that stands twice, NaN and numbers without end."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from typing import Any, NamedTuple, NoReturn

from breakloop.errors import BundleError, Problem
from breakloop.policy.places import Path, Place, readable

MAX_DEPTH = 64

_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|-?[0-9][0-9.eE+-]*|-?[A-Za-z]+')
_LONGEST_NUMBER = 400


class _SuspectError(Exception):
    """The fast parser met something that must be looked for with positions."""


class _Item(NamedTuple):
    key: str | int
    key_at: int
    value_at: int


class JsonPlaces:
    """Finds parts of a valid JSON text; skips over what is not on the way with the fast parser."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._children: dict[int, dict[str | int, _Item]] = {}

    def locate(self, path: Path, *, key: bool = False) -> Place:
        """Return where a part stands; for what is not there, the key of the nearest part around it."""
        at = self._skip(0)
        item = _Item("", at, at)
        for part in path:
            below = self._below(item.value_at).get(part)
            if below is None:
                return self.place(item.key_at)
            item = below
        return self.place(item.key_at if key else item.value_at)

    def place(self, offset: int) -> Place:
        """Turn an offset into line and column."""
        line = bisect_right(self._lines, offset)
        return Place(self._file, line, offset - self._lines[line - 1] + 1)

    def duplicates(self) -> list[Problem]:
        """Return a problem for each key that stands twice in one object."""
        found: list[Problem] = []
        todo: list[tuple[Path, int]] = [((), self._skip(0))]
        while todo:
            path, at = todo.pop()
            seen: dict[str | int, _Item] = {}
            for item in self._items(at):
                first = seen.setdefault(item.key, item)
                if first is not item:
                    found.append(duplicate_key(str(item.key), self.place(item.key_at), self.place(first.key_at).line))
                todo.append(((*path, item.key), item.value_at))
        return found

    def _below(self, at: int) -> dict[str | int, _Item]:
        if at not in self._children:
            self._children[at] = {item.key: item for item in self._items(at)}
        return self._children[at]

    def _items(self, at: int) -> list[_Item]:
        opening = self._text[at]
        if opening not in "{[":
            return []
        items: list[_Item] = []
        at = self._skip(at + 1)
        while self._text[at] not in "}]":
            key: str | int = len(items)
            key_at = at
            if opening == "{":
                key, at = self._decode(self._text, at)
                at = self._skip(self._skip(at) + 1)  # over the colon
            items.append(_Item(key, key_at, at))
            at = self._skip(self._decode(self._text, at)[1])
            if self._text[at] == ",":
                at = self._skip(at + 1)
        return items

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at


def read_json(text: str, file: str) -> tuple[Any, JsonPlaces]:
    """Return the data and its places, or raise `BundleError`."""
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise BundleError([_syntax_problem(error, text, file)]) from None
    except _SuspectError:
        _refuse_syntax(text, file)
        _refuse_suspects(text, file)
    except (ValueError, RecursionError):  # a number of thousands of digits, brackets without end
        _refuse_suspects(text, file)
    if _too_deep(data):
        _refuse_suspects(text, file)
    return data, JsonPlaces(text, file)


def _refuse_syntax(text: str, file: str) -> None:
    """What is suspect came before the end; the text may be broken further on, and that goes first."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise BundleError([_syntax_problem(error, text, file)]) from None
    except (ValueError, RecursionError):
        return


def _too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for part in level
            for item in (part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True


def duplicate_key(key: str, place: Place, first_line: int) -> Problem:
    """Return the problem for a key that already stands in the same map."""
    message = readable(f'key "{key}" stands twice; the first is on line {first_line}')
    return Problem(*place, path="", message=message, hint="keep one of them")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _SuspectError
    return made


def _constant(_: str) -> NoReturn:
    raise _SuspectError


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _SuspectError
    return number


def _refuse_suspects(text: str, file: str) -> NoReturn:
    """Look again, with positions, for what made the fast parser stop."""
    places = JsonPlaces(text, file)
    depth = 0
    problems: list[Problem] = []
    for match in _TOKEN.finditer(text):
        word = match[0]
        depth += (word in "[{") - (word in "]}")
        if depth > MAX_DEPTH:
            message = f"is nested more than {MAX_DEPTH} deep"
            raise BundleError([Problem(*places.place(match.start()), path="", message=message)])
        wrong = _bad_number(word)
        if wrong:
            problems.append(Problem(*places.place(match.start()), path="", message=wrong))
    # Duplicates are looked for by decoding parts of the text, which would stumble over such numbers.
    raise BundleError(problems or places.duplicates())


def _bad_number(word: str) -> str:
    if word in ("NaN", "Infinity", "-Infinity"):
        return f"{word} is not a number that can be used"
    if word[-1] in "0123456789" and (len(word) > _LONGEST_NUMBER or math.isinf(float(word))):
        return "the number is too large"
    return ""


def _syntax_problem(error: json.JSONDecodeError, text: str, file: str) -> Problem:
    at, message, hint = _explain(error, text)
    return Problem(*JsonPlaces(text, file).place(at), path="", message=f"is not valid JSON: {message}", hint=hint)


def _explain(error: json.JSONDecodeError, text: str) -> tuple[int, str, str]:
    """Say it in our words: the parser's differ from one Python to the next."""
    at = error.pos
    if error.msg.startswith("Unterminated string"):
        return at, "a text is not closed", 'add the missing "'
    if error.msg.startswith("Invalid control character"):
        return at, "a text goes over the end of the line or holds a control character", "write \\n or \\t"
    if error.msg.startswith("Invalid \\"):
        return at, "unknown escape in a text", "write \\\\ for a backslash"
    if error.msg.startswith("Extra data"):
        return at, "text after the end of the document", ""
    before = text[:at].rstrip()
    if text[at : at + 1] in ("}", "]") and before.endswith(","):
        at = len(before) - 1  # newer Pythons point at the comma, older ones behind it
    if at >= len(text):
        return at, "the text ends too early", "a bracket or brace is not closed"
    after = text[at + 1 :].lstrip()[:1]
    if text[at] == "," and after in ("}", "]"):
        return at, f'a comma before "{after}"', "nothing follows it, so take it out"
    found = "text" if text[at] == '"' else f'"{readable(text[at])}"'
    return at, f"unexpected {found}", _syntax_hint(text, at, error.msg)


def _syntax_hint(text: str, at: int, message: str) -> str:
    if text.startswith(("//", "/*", "#"), at):
        return "JSON has no comments; YAML has"
    if text[at] == "'":
        return "texts stand in double quotes"
    if "delimiter" in message and "," in message:
        return "a comma is missing before it"
    return "keys stand in double quotes" if "property name" in message else ""
