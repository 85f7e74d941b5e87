"""Parses JSON and YAML into plain data with the location of every part, for bundles and settings.

The format is chosen by the file name or by the first character. The YAML reader builds its data from the parser's
events and is the only user of ruamel. It follows YAML 1.2 (`no` and `off` are strings), rejects duplicate keys,
unusual keys, tags and documents that expand excessively, and reports syntax errors in plain words. The JSON reader
is fast and computes locations only on demand. It rejects duplicate keys, NaN and infinite numbers, which the
standard parser accepts although they usually are mistakes.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from breakloop.errors import BundleError, Problem

if TYPE_CHECKING:
    from ruamel.yaml.events import AliasEvent, NodeEvent, ScalarEvent

DocumentPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_LONGEST_MESSAGE = 500
_MOST_PROBLEMS = 50


class DocumentPlace(NamedTuple):
    """A location in a file. Line and column start at 1; columns count characters."""

    file: str
    line: int
    column: int

    def problem(self, message: str, hint: str = "") -> Problem:
        return Problem(*self, path="", message=readable(message), hint=readable(hint))


class DocumentPlaces(Protocol):
    """The locations of the parts of a document."""

    def locate(self, path: DocumentPath, *, key: bool = False) -> DocumentPlace:
        """Return the location of a value or of its key; for a missing part, the key of the nearest enclosing part."""
        ...


@dataclass(frozen=True, slots=True)
class DocumentFinding:
    """A message about a part of a document, without its location in the file."""

    path: DocumentPath
    message: str
    hint: str = ""
    at_key: bool = False
    place: DocumentPath | None = None  # the location to report if it is not that of `path`

    def located(self, places: DocumentPlaces) -> Problem:
        file, line, column = places.locate(self.path if self.place is None else self.place, key=self.at_key)
        return Problem(file, line, column, path_text(self.path), readable(self.message), readable(self.hint))


def path_text(path: DocumentPath) -> str:
    """Format a path as in `policies[0].spec.rules[2].name`."""
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
    """Make text from a file safe to print: escape control characters and lone surrogates, and limit its length."""
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def in_order(problems: Iterable[Problem], more: int = 0) -> list[Problem]:
    """Sort by location, drop duplicates and limit the number. The last entry then counts those left out, and `more`
    that were not even located.
    """
    ordered = sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.path, p.message))
    if len(ordered) <= _MOST_PROBLEMS:
        return ordered
    first = ordered[_MOST_PROBLEMS]
    count = len(ordered) - _MOST_PROBLEMS + more
    rest = Problem(first.file, first.line, first.column, "", f"and {count} more problems")
    return [*ordered[:_MOST_PROBLEMS], rest]


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
        return 'unexpected ":"', 'check the indentation, and put text that contains ": " in quotes'
    found = re.search(r"found character '(.+)' that cannot start", said)
    if found:
        return _bad_start(found[1])
    if "quoted scalar" in context and "end of stream" in said:
        return "a quoted text is not closed", ""
    if "could not find expected ':'" in said:
        return 'a key without ":"', "write key: value"
    if "expected <block end>" in said:
        return "unexpected item at this indentation", "check the indentation and the dashes"
    return said or context or "unknown error", ""


def _bad_start(character: str) -> tuple[str, str]:
    if character in ("\t", "\\t"):
        return "a tab", "indent with spaces"
    return f'a value cannot begin with "{character}"', "put it in quotes"


def _unmarked(error: Exception, text: str, file: str) -> Problem:
    """Return the problem for an error without a position. Only forbidden characters come with an offset."""
    offset, message, hint = getattr(error, "position", None), "a control character", "remove it"
    if not isinstance(offset, int):
        escape = _BEYOND_UNICODE.search(text)
        offset, message, hint = escape.start() if escape else 0, "an invalid escape", ""
    return _Lines(text, file).place(offset).problem(f"is not valid YAML: {message}", hint)


class _Lines:
    """Converts offsets in a text to locations."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, offset: int) -> DocumentPlace:
        line = bisect_right(self._starts, offset)
        return DocumentPlace(self._file, line, offset - self._starts[line - 1] + 1)


MAX_DEPTH = 64

_SPACE = re.compile(r"[ \t\r\n]*")
# A string that is not closed is a token as well; otherwise each of its escaped quotes is tried as an opening quote.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]|-?[0-9]++(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|-?[A-Za-z]+')


class _SuspectError(Exception):
    """The fast parser found something that must be located by a second pass."""


class _Item(NamedTuple):
    key: str | int
    key_at: int
    value_at: int


class JsonPlaces:
    """Locates parts of a valid JSON text. Parts that are not on the path are skipped with the fast parser."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._decode = json.JSONDecoder().raw_decode
        self.place = _Lines(text, file).place
        self._children: dict[int, dict[str | int, _Item]] = {}

    def locate(self, path: DocumentPath, *, key: bool = False) -> DocumentPlace:
        at = self._skip(0)
        item = _Item("", at, at)
        for part in path:
            below = self._below(item.value_at).get(part)
            if below is None:
                return self.place(item.key_at)
            item = below
        return self.place(item.key_at if key else item.value_at)

    def duplicates(self) -> list[Problem]:
        found: list[Problem] = []
        todo = [self._skip(0)]
        while todo:
            seen: dict[str | int, _Item] = {}
            for item in self._items(todo.pop()):
                first = seen.setdefault(item.key, item)
                if first is not item:
                    found.append(duplicate_key(str(item.key), self.place(item.key_at), self.place(first.key_at).line))
                todo.append(item.value_at)
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
                at = self._skip(self._skip(at) + 1)  # skip the colon
            items.append(_Item(key, key_at, at))
            at = self._skip(self._decode(self._text, at)[1])
            if self._text[at] == ",":
                at = self._skip(at + 1)
        return items

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at


def read_json(text: str, file: str) -> tuple[Any, JsonPlaces]:
    """Return the data and its locations. Raises `BundleError`."""
    try:
        try:
            data = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite)
        except _SuspectError:
            json.loads(text)  # a syntax error further on in the text is reported before other problems
            _refuse_suspects(text, file)
    except json.JSONDecodeError as error:
        at, message, hint = _explain(error, text)
        raise BundleError([_Lines(text, file).place(at).problem(f"is not valid JSON: {message}", hint)]) from None
    except (ValueError, RecursionError):  # a number with thousands of digits, or very deep nesting
        _refuse_suspects(text, file)
    if _too_deep(data):
        _refuse_suspects(text, file)
    return data, JsonPlaces(text, file)


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


def duplicate_key(key: str, place: DocumentPlace, first_line: int) -> Problem:
    return place.problem(f'key "{key}" is used twice; the first is on line {first_line}', "keep one of them")


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
    """Search again, with positions, for what stopped the fast parser."""
    places = JsonPlaces(text, file)
    depth = 0
    problems: list[Problem] = []
    for match in _TOKEN.finditer(text):
        word = match[0]
        depth += (word in "[{") - (word in "]}")
        if depth > MAX_DEPTH:
            raise BundleError([places.place(match.start()).problem(f"is nested more than {MAX_DEPTH} deep")])
        wrong = _bad_number(word)
        if wrong:
            problems.append(places.place(match.start()).problem(wrong))
    # The search for duplicates decodes parts of the text, which would fail on such numbers.
    raise BundleError(problems or places.duplicates())


def _bad_number(word: str) -> str:
    if word in ("NaN", "Infinity", "-Infinity"):
        return f"{word} is not a supported number"
    if word[0] != '"' and word[-1] in "0123456789" and (len(word) > _LONGEST_NUMBER or math.isinf(float(word))):
        return "the number is too large"
    return ""


def _explain(error: json.JSONDecodeError, text: str) -> tuple[int, str, str]:
    """Return the message in our own words, because the parser's messages differ between Python versions."""
    at = error.pos
    if error.msg.startswith("Unterminated string"):
        return at, "a text is not closed", 'add the missing "'
    if error.msg.startswith("Invalid control character"):
        return at, "a text spans several lines or contains a control character", "write \\n or \\t"
    if error.msg.startswith("Invalid \\"):
        return at, "unknown escape in a text", "write \\\\ for a backslash"
    if error.msg.startswith("Extra data"):
        return at, "text after the end of the document", ""
    before = text[:at].rstrip()
    if text[at : at + 1] in ("}", "]") and before.endswith(","):
        at = len(before) - 1  # newer Python versions point at the comma, older ones behind it
    if at >= len(text):
        return at, "the text ends too early", "a bracket or brace is not closed"
    after = text[at + 1 :].lstrip()[:1]
    if text[at] == "," and after in ("}", "]"):
        return at, f'a comma before "{after}"', "nothing follows it, so remove it"
    found = "text" if text[at] == '"' else f'"{readable(text[at])}"'
    return at, f"unexpected {found}", _syntax_hint(text, at, error.msg)


def _syntax_hint(text: str, at: int, message: str) -> str:
    if text.startswith(("//", "/*", "#"), at):
        return "JSON has no comments; YAML has"
    if text[at] == "'":
        return "write texts in double quotes"
    if "delimiter" in message and "," in message:
        return "a comma is missing before it"
    return "write keys in double quotes" if "property name" in message else ""


MAX_NODES = 2_000_000  # aliases count once per use
_LONGEST_NUMBER = 400
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_ENDLESS = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS = {_CORE + name for name in ("int", "float", "bool", "null")}


class YamlNode:
    """A value and its location; of a map or list also its parts. The root locates every part of a document."""

    __slots__ = ("items", "keys", "place", "value", "weight")

    def __init__(self, value: Any, place: DocumentPlace) -> None:
        self.value = value
        self.place = place
        self.keys: dict[str | int, DocumentPlace] = {}  # of a map
        self.items: dict[str | int, YamlNode] = {}
        self.weight = 1  # the number of nodes in it; 0 until it is complete

    def locate(self, path: DocumentPath, *, key: bool = False) -> DocumentPlace:
        node, key_place = self, self.place
        for part in path:
            below = node.items.get(part)
            if below is None:
                return key_place
            key_place = node.keys.get(part, below.place)
            node = below
        return key_place if key else node.place

    def add(self, key: str | int, node: YamlNode, key_place: DocumentPlace) -> None:
        """Add an entry to a map, unless it has this key."""
        if key not in self.items:
            self.keys[key] = key_place
            self.items[key] = node
            self.value[key] = node.value


def read_yaml(text: str, file: str) -> tuple[Any, YamlNode]:
    """Return the data and its locations. Raises `BundleError` with all problems."""
    from ruamel.yaml import YAML, events  # noqa: PLC0415 - a Guard without a policy reads no YAML
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    builder = _Builder(YAML(typ="safe", pure=True).parse(text), events, file)
    try:
        root = builder.root()
    except (YAMLError, ValueError, IndexError, OverflowError) as error:
        # Also characters that YAML forbids, and escapes like \UFFFFFFFF that the scanner fails on.
        raise BundleError([*builder.problems, explain(error, text, file)]) from None
    if root is None:
        raise BundleError([Problem(file, 1, 1, "", "is empty")])
    if builder.problems:
        raise BundleError(builder.problems)
    return root.value, root


class _Builder:
    """Builds data and locations from the events of the parser. `kinds` has the classes of events."""

    def __init__(self, events: Iterator[Any], kinds: ModuleType, file: str) -> None:
        self.problems: list[Problem] = []
        self._events = events
        self._kinds = kinds
        self._file = file
        self._anchors: dict[str, YamlNode] = {}
        self._count = 0

    def root(self) -> YamlNode | None:
        """Return the only document, or None if there is none."""
        root, documents = None, 0
        for event in self._events:
            if isinstance(event, self._kinds.NodeEvent):
                root = self._node(event, 1)
            elif isinstance(event, self._kinds.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(self._place(event), "a second document begins here", 'remove the "---"')
        return root

    def _node(self, event: NodeEvent, depth: int, *, is_key: bool = False) -> YamlNode:
        place = self._place(event)
        self._count += 1
        if isinstance(event, self._kinds.AliasEvent):
            node = self._alias(event, place)
        elif isinstance(event, self._kinds.ScalarEvent):
            node = YamlNode(self._scalar(event, place), place)
        else:
            node = self._collection(event, place)
        if self._count > MAX_NODES:
            self._refuse(place, f"has more than {MAX_NODES} nodes, counting each use of an alias")
        if event.anchor and not isinstance(event, self._kinds.AliasEvent):
            self._anchors[event.anchor] = node
        if is_key and (not node.weight or node.items):
            self._refuse(place, "a map or list cannot be a key", "put a text with braces or brackets in quotes")
        if not node.weight:
            if depth > MAX_DEPTH:
                self._refuse(place, f"is nested more than {MAX_DEPTH} deep")
            before = self._count
            (self._fill_map if isinstance(node.value, dict) else self._fill_list)(node, depth + 1)
            node.weight = self._count - before + 1
        return node

    def _alias(self, event: AliasEvent, place: DocumentPlace) -> YamlNode:
        node = self._anchors.get(event.anchor)
        if node is None:
            self._refuse(place, f'"*{event.anchor}" has no anchor before it', "put a text in quotes")
        if not node.weight:
            self._refuse(place, f'"*{event.anchor}" is inside its own anchor')
        self._count += node.weight
        return node

    def _collection(self, event: Any, place: DocumentPlace) -> YamlNode:
        kind = "map" if isinstance(event, self._kinds.MappingStartEvent) else "seq"
        if event.tag not in (None, "!", _CORE + kind):
            self._problem(place, f'tag "{_short(event.tag)}" is not supported', "remove it")
        node = YamlNode({} if kind == "map" else [], place)
        node.weight = 0
        return node

    def _fill_list(self, node: YamlNode, depth: int) -> None:
        while not isinstance(event := next(self._events), self._kinds.CollectionEndEvent):
            item = self._node(event, depth)
            node.items[len(node.value)] = item
            node.value.append(item.value)

    def _fill_map(self, node: YamlNode, depth: int) -> None:
        merges: list[YamlNode] = []
        while not isinstance(event := next(self._events), self._kinds.CollectionEndEvent):
            plain = isinstance(event, self._kinds.ScalarEvent) and event.style is None
            key, place = self._node(event, depth, is_key=True), self._place(event)
            is_merge = plain and key.value == "<<"
            name = "<<" if is_merge else self._name(node, key.value, event, place)
            value = self._node(next(self._events), depth)
            if is_merge:
                merges.append(value)
            else:
                node.add(name, value, place)
        # The values of `<<` keys are only complete now. The map's own keys take precedence, wherever they are.
        for merged in merges:
            for source in merged.items.values() if isinstance(merged.value, list) else [merged]:
                self._merge(node, source)

    def _merge(self, node: YamlNode, source: YamlNode) -> None:
        if not isinstance(source.value, dict):
            self._refuse(source.place, '"<<" takes an alias of a map, or a list of such aliases', "write <<: *name")
        for name, item in source.items.items():
            node.add(name, item, source.keys[name])

    def _name(self, node: YamlNode, key: Any, event: NodeEvent, place: DocumentPlace) -> str:
        if isinstance(key, str):
            name = key
        else:
            name = str(event.value if isinstance(event, self._kinds.ScalarEvent) else key)
            self._problem(place, f"the key {name or 'null'} is not text", f'put it in quotes: "{name}"')
        if name in node.keys:
            self.problems.append(duplicate_key(name, place, node.keys[name].line))
        return name

    def _scalar(self, event: ScalarEvent, place: DocumentPlace) -> Any:
        text: str = event.value
        tag = event.tag
        if tag is not None and tag not in ("!", _CORE + "str") and tag not in _SCALAR_TAGS:
            self._problem(place, f'tag "{_short(tag)}" is not supported', "remove it, or put the text in quotes")
        if tag not in _SCALAR_TAGS and (tag is not None or event.style is not None):
            return text
        value = plain_value(text)
        if isinstance(value, float) and not math.isfinite(value):
            self._problem(place, f"{text} is not a supported number")
        return value

    def _place(self, event: Any) -> DocumentPlace:
        mark = event.start_mark
        return DocumentPlace(self._file, mark.line + 1, mark.column + 1)

    def _problem(self, place: DocumentPlace, message: str, hint: str = "") -> None:
        self.problems.append(place.problem(message, hint))

    def _refuse(self, place: DocumentPlace, message: str, hint: str = "") -> NoReturn:
        """Raise a problem after which reading on is pointless."""
        self._problem(place, message, hint)
        raise BundleError(self.problems)


def _short(tag: str) -> str:
    return tag.replace(_CORE, "!!", 1)


def plain_value(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar (YAML 1.2 core schema).

    Digits with leading zeros stay a string: `007` may be a number or a name.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > _LONGEST_NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return math.nan if _ENDLESS.fullmatch(text) else text


MAX_BYTES = 64 * 1024 * 1024
MAX_YAML_LENGTH = 8 * 1024 * 1024  # parsed at about 0.4 MB per second; JSON is a hundred times faster
_SURROGATE_ESCAPE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_document(text: bytes, name: str, kind: str = "") -> tuple[Any, DocumentPlaces]:
    """Return the data of a JSON or YAML text and its locations. Raises `BundleError` with located problems. `kind` is
    "json" or "yaml" if known, and takes precedence over the name.
    """
    if len(text) > MAX_BYTES:
        _refuse(name, f"has {len(text)} bytes, more than the {MAX_BYTES} allowed")
    decoded = _decode(text, name)
    if not decoded.strip():
        _refuse(name, "is empty")
    data, places = _read(decoded, name, kind)
    if _SURROGATE_ESCAPE.search(decoded):
        halves = [finding.located(places) for finding in _half_characters(data)]
        if halves:
            raise BundleError(halves)
    return data, places


def _read(text: str, name: str, kind: str) -> tuple[Any, DocumentPlaces]:
    if kind == "json" or (not kind and name.endswith(".json")) or _is_json(text):
        return read_json(text, name)
    if len(text) > MAX_YAML_LENGTH:
        _refuse(name, f"has more than the {MAX_YAML_LENGTH} characters allowed for YAML", "write it as JSON")
    return read_yaml(text, name)


def _half_characters(data: Any) -> Iterator[DocumentFinding]:
    """Find strings with a lone surrogate, which cannot be stored, sent or printed."""
    todo: list[tuple[DocumentPath, Any]] = [((), data)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, str) and _SURROGATE.search(value):
            yield DocumentFinding(path, "contains an unpaired surrogate", "\\ud800 to \\udfff must come in pairs")
        elif isinstance(value, dict):
            for key, item in value.items():
                if _SURROGATE.search(key):
                    yield DocumentFinding(path, "has a key with an unpaired surrogate", at_key=True, place=(*path, key))
                todo.append(((*path, key), item))
        elif isinstance(value, list):
            todo += [((*path, index), item) for index, item in enumerate(value)]


def _is_json(text: str) -> bool:
    """Return whether a text whose name does not reveal its format is JSON. Braces alone may also be YAML."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):
        return True  # JSON with a part that the reader rejects with its location
    return True


def _decode(text: bytes, name: str) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = text[: error.start].decode("utf-8-sig", "replace")
        place = _Lines(before, name).place(len(before))
        raise BundleError([place.problem("is not UTF-8 text", "save it as UTF-8")]) from None


def _refuse(name: str, message: str, hint: str = "") -> NoReturn:
    raise BundleError([Problem(name, 1, 1, "", message, hint)])
