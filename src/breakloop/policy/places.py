"""Where things stand in a document: paths into plain data, places in a file, and findings that become located problems.
The readers of JSON and YAML (`json_positions`, `yaml_positions`) know the places; this file knows no syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from breakloop.errors import Problem

Path = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_LONGEST_MESSAGE = 500
_MOST_PROBLEMS = 50


class Place(NamedTuple):
    """A place in a file; line and column begin at 1, columns count characters."""

    file: str
    line: int
    column: int


class Places(Protocol):
    """A document that can tell where its parts stand."""

    def locate(self, path: Path, *, key: bool = False) -> Place:
        """Return where the value (or its key) stands; for what is not there, the key of the nearest part around it."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a part of a document, not yet located."""

    path: Path
    message: str
    hint: str = ""
    at_key: bool = False
    place: Path | None = None  # where to point when that is not `path`

    def located(self, places: Places) -> Problem:
        """Return it with its place in the file."""
        file, line, column = places.locate(self.path if self.place is None else self.place, key=self.at_key)
        return Problem(file, line, column, path_text(self.path), readable(self.message), readable(self.hint))


def path_text(path: Path) -> str:
    """Write a path as people do: `policies[0].spec.rules[2].name`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{readable(part)}"]'
    return text


def readable(text: str) -> str:
    """Make text from a file safe to print: no control characters, no lone surrogates, no novel."""
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sort by place, drop repetitions, and cut off what nobody reads, saying how much that was."""
    ordered = sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.path, p.message))
    if len(ordered) <= _MOST_PROBLEMS:
        return ordered
    first = ordered[_MOST_PROBLEMS]
    rest = Problem(first.file, first.line, first.column, "", f"and {len(ordered) - _MOST_PROBLEMS} more problems")
    return [*ordered[:_MOST_PROBLEMS], rest]
