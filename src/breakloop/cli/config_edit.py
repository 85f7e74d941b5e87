"""Changes to configuration files of other programs: JSON with comments, TOML and YAML.

A change is made in the text, so that comments, order and layout stay. The result is read again and compared with what
it should be; a file that cannot be changed safely is refused, and the problem names its line.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple, NoReturn

from breakloop.errors import BundleError, Problem
from breakloop.policy.documents import DocumentPath, DocumentPlaces, path_text, read_json, read_yaml

_TOKENS: Final = re.compile(r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*|/\*(?:[^*]|\*(?!/))*+(?:\*/)?|,(?=\s*[}\]])', re.DOTALL)
_YAML_SCALAR: Final = re.compile(r"""\"(?:\\.|[^"\\])*\"|'(?:''|[^'])*'|[^\s#,{}\[\]](?:[ \t]*+[^\s#]|(?<=\S)\#)*+""")
_TOML_POSITION: Final = re.compile(r"(.*) \(at line (\d+), column (\d+)\)")
_INDENT: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)


class Change(NamedTuple):
    """A value for a path of keys; with `append`, an item for the list there, unless it is in it already."""

    path: tuple[str, ...]
    value: Any
    append: bool = False


class _Text(NamedTuple):
    """A configuration file that is being changed."""

    text: str
    file: str

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    @property
    def unit(self) -> str:
        found = _INDENT.search(self.text)
        return found[1] if found else "  "

    def offset(self, places: DocumentPlaces, path: DocumentPath, *, key: bool = False) -> int:
        _, line, column = places.locate(path, key=key)
        return sum(len(one) for one in self.text.split("\n")[: line - 1]) + line - 1 + column - 1

    def indent_at(self, offset: int) -> str:
        line = self.text[self.text.rfind("\n", 0, offset) + 1 : offset]
        return line[: len(line) - len(line.lstrip())]


def read_config(text: str, kind: str, file: str) -> dict[str, Any]:
    """Return the data of a configuration file; {} if it is empty. Raises `BundleError` with located problems."""
    data = _READERS[kind](text, file)
    if not isinstance(data, dict):
        raise BundleError([Problem(file, 1, 1, "", "is not a table of settings")])
    return data


def edit_config(text: str, kind: str, file: str, changes: Sequence[Change]) -> str:
    """Return the text with the changes in it. Raises `BundleError` if it cannot be read, or not be changed safely."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    for change in changes:  # problems are those of the file as it is
        _changed(read_config(text, kind, file), change, _Place(text, kind, file))
    for change in changes:
        data = read_config(text, kind, file)
        expected = _changed(data, change, _Place(text, kind, file))
        if expected != data:
            made = _WRITERS[kind](_Text(text, file), data, change)
            text = made if _reads_as(made, kind, file, expected) else _refuse(file, change)
    return mark + text


def _reads_as(text: str, kind: str, file: str, expected: object) -> bool:
    try:
        return read_config(text, kind, file) == expected
    except BundleError:
        return False


def _refuse(file: str, change: Change) -> NoReturn:
    hint = f"set {path_text(change.path)} to {json.dumps(change.value)} by hand"
    raise BundleError([Problem(file, 0, 0, "", "is written in a way that cannot be changed safely", hint)])


def value_at(data: Any, path: Iterable[str]) -> Any:
    """Return the value at a path; None if there is none."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


class _Place(NamedTuple):
    text: str
    kind: str
    file: str

    def refuse(self, path: tuple[str, ...], what: str) -> NoReturn:
        """Raise the problem that the value at a path is of another kind."""
        line, column = 0, 0
        if self.kind != "toml":
            read = (
                read_yaml(self.text, self.file) if self.kind == "yaml" else read_json(_bare(self.text).text, self.file)
            )
            _, line, column = read[1].locate(path)
        raise BundleError([Problem(self.file, line, column, path_text(path), f"is not {what}", "correct it first")])


def _changed(data: dict[str, Any], change: Change, place: _Place) -> dict[str, Any]:
    """Return a copy of the data with a change in it. Items are added to the end of a list, in YAML to its beginning."""
    made = inner = deepcopy(data)
    for depth, key in enumerate(change.path[:-1], 1):
        below = inner.setdefault(key, {})
        if below is None:
            below = inner[key] = {}
        if not isinstance(below, dict):
            place.refuse(change.path[:depth], "a table")
        inner = below
    last = change.path[-1]
    if not change.append:
        inner[last] = change.value
        return made
    known = [] if inner.get(last) is None else inner[last]
    if not isinstance(known, list):
        place.refuse(change.path, "a list")
    if change.value not in known:
        inner[last] = [change.value, *known] if place.kind == "yaml" else [*known, change.value]
    return made


def _nested(keys: tuple[str, ...], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _known(data: Any, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return as much of a path as is there."""
    for depth in range(len(path), 0, -1):
        if value_at(data, path[:depth]) is not None:
            return path[:depth]
    return ()


# -- JSON with comments and trailing commas


class _Bare(NamedTuple):
    """JSON without its comments and trailing commas: spaces stand for them, so positions are the same."""

    text: str
    comments: list[tuple[int, int]]
    commas: list[int]


def _bare(text: str) -> _Bare:
    comments: list[tuple[int, int]] = []
    commas: list[tuple[int, int]] = []
    made = list(text)
    # A comma in front of a comment is found once the comment is blank.
    for wanted in ("/", ","):
        for found in _TOKENS.finditer("".join(made)):
            if found[0][0] == wanted:
                (comments if wanted == "/" else commas).append(found.span())
                made[found.start() : found.end()] = [one if one in "\r\n" else " " for one in found[0]]
    return _Bare("".join(made), comments, [start for start, _ in commas])


def _read_json(text: str, file: str) -> Any:
    return read_json(_bare(text).text, file)[0] if text.strip() else {}


def _set_json(given: _Text, data: Any, change: Change) -> str:
    if not given.text.strip():
        given = given._replace(text="{}" + given.newline)
    bare = _bare(given.text)
    _, places = read_json(bare.text, given.file)
    known = _known(data, change.path)
    at = given.offset(places, known)
    if known == change.path:
        write = _json_insert if change.append else _json_replace
        return write(given, bare, at, "", change.value)
    value = [change.value] if change.append else change.value
    key, *rest = change.path[len(known) :]
    if value_at(data, (*known, key)) is None and key in (value_at(data, known) or {}):  # null: replaced
        return _json_replace(given, bare, given.offset(places, (*known, key)), "", _nested(tuple(rest), value))
    return _json_insert(given, bare, at, f"{json.dumps(key)}: ", _nested(tuple(rest), value))


def _json_replace(given: _Text, bare: _Bare, at: int, prefix: str, value: Any) -> str:
    end = json.JSONDecoder().raw_decode(bare.text, at)[1]
    return given.text[:at] + prefix + _json_text(given, value, given.indent_at(at)) + given.text[end:]


def _json_text(given: _Text, value: Any, indent: str | None) -> str:
    """Return a value as JSON, in lines below each other unless `indent` is None."""
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, indent=given.unit, ensure_ascii=False).replace("\n", given.newline + indent)


def _json_insert(given: _Text, bare: _Bare, start: int, prefix: str, value: Any) -> str:
    """Add an entry at the end of the object or list that starts at `start`."""
    text, newline = given.text, given.newline
    close = json.JSONDecoder().raw_decode(bare.text, start)[1] - 1
    outer, inner = given.indent_at(start), bare.text[start + 1 : close]
    if not inner.strip():
        at = start + 1 + len(text[start + 1 : close].rstrip())
        indent = outer + given.unit
        rest = text[at:close] if at > start + 1 and "\n" in text[at:close] else newline + outer
        return text[:at] + newline + indent + prefix + _json_text(given, value, indent) + rest + text[close:]
    first, last = close - len(inner.lstrip()), start + 1 + len(inner.rstrip())
    comma = next((one for one in bare.commas if last <= one < close), None)
    after = last if comma is None else comma + 1
    opened = text[:last] + ("," if comma is None else "") + text[last:after]
    if "\n" not in bare.text[start:first]:
        return f"{opened} {prefix}{_json_text(given, value, None)}{text[after:]}"
    indent = given.indent_at(first)
    at = text.find("\n", after, close)
    at = close if at < 0 else at - (text[at - 1] == "\r")
    at = max([at, *(end for begin, end in bare.comments if begin < at < end)])
    entry = prefix + _json_text(given, value, indent) + ("" if comma is None else ",")
    return opened + text[after:at] + newline + indent + entry + text[at:]


# -- TOML


def _read_toml(text: str, file: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _TOML_POSITION.fullmatch(str(error))
        last = text.rstrip("\n").split("\n")  # the parser names no place at the end of a file
        place = (int(found[2]), int(found[3])) if found else (len(last), len(last[-1]) + 1)
        raise BundleError([Problem(file, *place, "", f"is not valid TOML: {found[1] if found else error}")]) from None


def _set_toml(given: _Text, data: Any, change: Change) -> str:
    """Set a text in the first part of the file, or in a table, which is added at the end if it is missing."""
    text, newline = given.text, given.newline
    *table, key = change.path
    line = f"{key} = {json.dumps(change.value)}"
    known_table = rf"^[ \t]*\[[ \t]*{re.escape('.'.join(table))}[ \t]*\][^\n]*\n?"
    header = re.search(known_table, text, re.MULTILINE) if value_at(data, table) is not None else None
    if table and header is None:
        end = newline if text and not text.endswith("\n") else ""
        return f"{text}{end}{newline if text.strip() else ''}[{'.'.join(table)}]{newline}{line}{newline}"
    start = header.end() if table and header else 0
    following = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, start)
    stop = following.start() if following else len(text)
    known = re.compile(rf"^([ \t]*{key}[ \t]*=[ \t]*)(\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*')", re.MULTILINE)
    found = known.search(text, start, stop) if value_at(data, change.path) is not None else None
    if found:
        return text[: found.start(2)] + json.dumps(change.value) + text[found.end(2) :]
    lead = newline if start and not text[:start].endswith("\n") else ""
    gap = newline if not table and text.startswith("[") else ""
    return f"{text[:start]}{lead}{line}{newline}{gap}{text[start:]}"


# -- YAML


def _is_blank(text: str) -> bool:
    return all(not line.strip() or line.lstrip().startswith("#") or line.rstrip() == "---" for line in text.split("\n"))


def _read_yaml(text: str, file: str) -> Any:
    return {} if _is_blank(text) else read_yaml(text, file)[0]


def _yaml_block(value: Any, indent: str, newline: str) -> str:
    """Return a value of a block mapping, with what stands between it and the colon."""
    if isinstance(value, dict):
        lines = [f"{key}:{_yaml_block(one, indent + '  ', newline)}" for key, one in value.items()]
    elif isinstance(value, list):
        lines = [f"- {json.dumps(one)}" for one in value]
    else:
        return f" {json.dumps(value)}"
    return "".join(f"{newline}{indent}  {line}" for line in lines)


def _set_yaml(given: _Text, data: Any, change: Change) -> str:
    """Set a text, add it to a mapping or a list (in front), or add a part at the end of the file."""
    text, newline = given.text, given.newline
    value = [change.value] if change.append else change.value
    known = _known(data, change.path)
    places = None if _is_blank(text) else read_yaml(text, given.file)[1]
    if places is None or (not known and text[given.offset(places, ())] != "{"):
        key, *rest = change.path
        if places is not None and key in data:  # a key without a value
            made = _yaml_block(_nested(tuple(rest), value), "", newline)
            at = text.index(":", given.offset(places, (key,), key=True) + len(key)) + 1
            at = _line_end(text, at) if made.startswith(newline) else at
            return text[:at] + made + text[at:]
        end = newline if text and not text.endswith("\n") else ""
        return f"{text}{end}{key}:{_yaml_block(_nested(tuple(rest), value), '', newline)}{newline}"
    at = given.offset(places, known)
    if known == change.path and not change.append:
        found = _YAML_SCALAR.match(text, at)
        return text if found is None else text[:at] + json.dumps(change.value) + text[found.end() :]
    there = value_at(data, known)
    new = change.path[len(known) :]
    entry = f"{new[0]}: {json.dumps(_nested(new[1:], value))}" if new else json.dumps(change.value)
    if text[at] in "{[":
        return f"{text[: at + 1]}{entry}{', ' if there else ''}{text[at + 1 :]}"
    first = (*known, next(iter(there)) if new else 0)
    begin = given.offset(places, first, key=True)
    if not new:
        begin, entry = text.rindex("-", 0, begin + 1), f"- {entry}"
    column = begin - (text.rfind("\n", 0, begin) + 1)
    return f"{text[:begin]}{entry}{newline}{' ' * column}{text[begin:]}"


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - (text[end - 1] == "\r")


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "json": _read_json,
    "toml": _read_toml,
    "yaml": _read_yaml,
}
_WRITERS: Final[Mapping[str, Callable[[_Text, Any, Change], str]]] = {
    "json": _set_json,
    "toml": _set_toml,
    "yaml": _set_yaml,
}
